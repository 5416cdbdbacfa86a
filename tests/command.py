"""The command as a user runs it: a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def bpg(*arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """`bpg ARGUMENTS`, whatever it returns."""
    return subprocess.run(
        [sys.executable, "-m", "bpg", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | environment,
    )


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


def model_files(folder: Path) -> dict[str, str]:
    """Every byte that makes a model, without its history."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in ("history.jsonl", ".lock")
    }
