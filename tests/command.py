"""The command as a user runs it: a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Done = subprocess.CompletedProcess[str]
AT_IMPORT = ("OMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH_", "CUDA_", "PYTHON", "LD_")  # read when torch is imported
BORN = dict(os.environ)  # what was set when this process began, and the starter with it


@cache
def _starter() -> subprocess.Popen[str]:
    """A process that forks for each command; it ends with this one, when nobody writes to it any more."""
    script = [sys.executable, str(Path(__file__).with_name("starter.py"))]
    return subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=BORN)


def bpg(*arguments: object, cwd: Path | None = None, **environment: str) -> Done:
    """`bpg ARGUMENTS`, whatever it returns."""
    command, wanted = list(map(str, arguments)), os.environ | environment
    changed = {key for key in {*BORN, *wanted} if BORN.get(key) != wanted.get(key)}
    if any(key.startswith(AT_IMPORT) for key in changed):
        own = [sys.executable, "-m", "bpg", *command]
        return subprocess.run(own, capture_output=True, text=True, check=False, cwd=cwd, env=wanted)
    starter = _starter()
    assert starter.stdin is not None
    assert starter.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        where = {"cwd": str(cwd or Path.cwd()), "out": str(out), "err": str(err)}
        print(json.dumps({"arguments": command, "environment": wanted, **where}), file=starter.stdin, flush=True)
        code = int(starter.stdout.readline())
        return Done(command, code, out.read_text(errors="replace"), err.read_text(errors="replace"))


def done(*arguments: object, **more: Any) -> str:
    """What `bpg ARGUMENTS` prints, which must end well."""
    found = bpg(*arguments, **more)
    assert found.returncode == 0, found.stderr
    return found.stdout


def document(*arguments: object, **more: Any) -> Any:
    """What `bpg ARGUMENTS --json` prints."""
    return json.loads(done(*arguments, "--json", **more))


def refused(*arguments: object, code: int = 2, **more: Any) -> str:
    """What `bpg ARGUMENTS` complains about: a sentence, no traceback, nothing on stdout."""
    found = bpg(*arguments, **more)
    assert found.returncode == code, (found.returncode, found.stdout, found.stderr)
    assert "Traceback" not in found.stderr
    assert "try:" in found.stderr or '"remedy"' in found.stderr
    assert found.stdout == ""
    return found.stderr


def torchrun(*arguments: object, **more: Any) -> Done:
    """`torchrun ARGUMENTS` with two ranks, a thread each, that find bpg and the tests."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    places = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False, env=os.environ | places,
        timeout=300, **more,
    )  # fmt: skip


def model_files(folder: Path) -> dict[str, str]:
    """Every byte that makes a model, without its history."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in ("history.jsonl", ".lock")
    }
