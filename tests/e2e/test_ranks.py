"""One cell on two ranks: `bpg run` under torchrun, as the script for SLURM starts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import done, model_files, torchrun
from tests.conftest import ROOT
from tests.toy import toy_checkpoint, toy_folder

SCRIPT = ROOT / "tools" / "slurm.sh"
CONFIG = """
name = "toy"
seeds = [0]
[data]
root = "data"
order = ["red", "blue"]
[backbone]
source = "vit"
[methods.ncm]
[methods.bpg]
rank = 4
optimisation = { epochs = 4, batch_size = 8, lr = 0.02 }
augmentation = { area = [0.9, 1.0], flip = false }
"""
# What a cluster has and we do not: srun runs what follows its options, scontrol knows the nodes and the queue.
SRUN = '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexec "$@"\n'
SCONTROL = '#!/bin/bash\n[[ $1 == show ]] && echo localhost || echo "$@" >> asked\n'


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with a config, its data and its weights, and two test sets of more than a batch."""
    toy_folder(tmp_path / "data", count=50)
    toy_checkpoint(tmp_path / "vit")
    (tmp_path / "grid.toml").write_text(CONFIG)
    return tmp_path


def sbatch(here: Path, *arguments: str) -> subprocess.Popen[str]:
    """The script as a job of one node with two ranks."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (here / "bin").mkdir(exist_ok=True)
        (here / "bin" / name).write_text(text)
        (here / "bin" / name).chmod(0o755)
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "localhost"}
    job |= {"SLURM_GPUS_ON_NODE": "2", "SLURM_CPUS_PER_TASK": "2", "PYTHON": sys.executable}
    places = {"PATH": f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        ["bash", str(SCRIPT), *arguments], cwd=here, env=os.environ | job | places, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def run_in(here: Path, out: str, label: str) -> Path:
    (folder,) = (here / out / "toy").glob(f"{label}-*")
    return folder


def test_two_ranks_leave_the_records_of_one(here: Path) -> None:
    done("run", "grid.toml", "--out", "one", "--threads", 1, cwd=here, BPG_CACHE=str(here / "cache of one"))
    (here / "two").mkdir()
    # A model that one process learned, and whose last test two ranks do over.
    tested = here / "two" / "toy" / run_in(here, "one", "bpg").name
    shutil.copytree(run_in(here, "one", "bpg"), tested)
    records = (tested / "records.jsonl").read_bytes().splitlines(keepends=True)
    (tested / "records.jsonl").write_bytes(records[0])
    (tested / "times.jsonl").unlink()

    job = sbatch(here, "grid.toml", "--out", "two", "--json")
    told, said = job.communicate(timeout=300)
    assert job.returncode == 0, said
    assert {row["label"] for row in json.loads(told)} == {"ncm", "bpg"}  # one document: the first rank alone tells
    for label in ("ncm", "bpg"):
        one, two = run_in(here, "one", label), run_in(here, "two", label)
        assert (two / "records.jsonl").read_bytes() == (one / "records.jsonl").read_bytes()
        assert model_files(two / "model") == model_files(one / "model")
        assert not (two / "scratch").exists()
    assert json.loads((run_in(here, "two", "ncm") / "run.json").read_text())["machine"]["ranks"] == 2
    times = [json.loads(line)["what"] for line in (run_in(here, "two", "ncm") / "times.jsonl").open()]
    assert times == ["learn", "test", "pass", "learn", "test", "pass", "answer"]
    assert [json.loads(line)["what"] for line in (tested / "times.jsonl").open()] == ["test", "pass", "answer"]


@pytest.mark.slow
def test_a_run_that_is_out_of_time_goes_back_into_the_queue_and_on_to_the_same_bytes(here: Path) -> None:
    long = (here / "grid.toml").read_text().replace("epochs = 4", "epochs = 40")
    (here / "grid.toml").write_text(long)
    whole = torchrun("-m", "bpg", "run", "grid.toml", "--out", "whole", cwd=here)
    assert whole.returncode == 0, whole.stderr
    job = sbatch(here, "grid.toml", "--out", "two")
    while not list((here / "two").rglob("learn-*.safetensors")) and job.poll() is None:
        time.sleep(0.05)
    job.send_signal(signal.SIGUSR1)
    job.wait(timeout=60)
    assert (here / "asked").read_text().split() == ["requeue", str(os.getpid())]
    os.killpg(job.pid, signal.SIGTERM)  # as SLURM does with what a job leaves behind
    job.communicate(timeout=60)
    assert not list((here / "two").rglob("portrait.json"))
    again = sbatch(here, "grid.toml", "--out", "two")
    _, said = again.communicate(timeout=300)
    assert again.returncode == 0, said
    assert model_files(run_in(here, "two", "bpg") / "model") == model_files(run_in(here, "whole", "bpg") / "model")


def test_the_script_for_slurm_is_whole() -> None:
    assert subprocess.run(["bash", "-n", str(SCRIPT)], check=False).returncode == 0
