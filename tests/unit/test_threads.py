"""Who asks for one thread gets one: what clusters and draws uses torch's, not every core by way of numpy."""

from __future__ import annotations

import subprocess
import sys
from os import environ
from pathlib import Path

import pytest

TASKS = Path("/proc/self/task")
# What all threads but the first have of the processor, in ticks, while `what` is done; numpy's own are among them.
OTHERS = f"""
import os, torch
from pathlib import Path
from bpg.experiments.tsne import tsne
from bpg.prototypes import located

def others():
    tasks = [task for task in Path("{TASKS}").iterdir() if task.name != str(os.getpid())]
    times = [(task / "stat").read_text().rpartition(")")[2].split() for task in tasks]
    return sum(int(words[11]) + int(words[12]) for words in times)

torch.set_num_threads(1)
points = torch.randn(3000, 192, generator=torch.Generator().manual_seed(0))
before = others()
WHAT
print(others() - before)
"""


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are told by Linux's /proc")
@pytest.mark.parametrize("what", ["located(points)", "tsne(points[:800], steps=60)"])
def test_one_thread_is_one_thread(what: str) -> None:
    free = {name: value for name, value in environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", OTHERS.replace("WHAT", what)], env=free, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == 0
