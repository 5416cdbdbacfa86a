"""Starts commands: a process that has imported bpg, and forks for each line it reads. To import takes four seconds.

Nothing is computed before a fork, so that a command finds what a fresh interpreter finds.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module

COMMANDS = (
    "answering",
    "backbones",
    "bench",
    "data",
    "demo",
    "doctor",
    "experiments",
    "learning",
    "models",
    "planning",
    "reproduction",
    "verbs",
)
LATE = ("torch._dynamo", "rich.progress")  # what the first optimizer and the first progress bar import


def start(request: dict[str, object]) -> int:
    """Become the command; what it exits with."""
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[arg-type]
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(str(request[name]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv = ["bpg/__main__.py", *request["arguments"]]  # type: ignore[misc]
    try:
        return int(import_module("bpg.cli").main())
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    for module in (*(f"bpg.cli.{name}" for name in COMMANDS), *LATE):
        import_module(module)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            code = start(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # to take torch apart would take a second
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
