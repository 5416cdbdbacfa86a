"""Ranks deal work out and put it together again: each does its share, and all find what one alone finds."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import bpg.ranks
from bpg import survey
from bpg.backbones.backbone import FINISHED
from bpg.backbones.tuning import Tuning
from bpg.data.domain import DomainStream, TestSet
from bpg.experiments.runner import _test
from bpg.methods.base import passed
from bpg.methods.ncm import NCM
from bpg.ranks import agree, in_order, share
from tests.conftest import ROOT
from tests.toy import toy_backbone, toy_images, toy_stream
from tests.unit.test_survey import count_forwards

COUNT = 40  # images: six batches of 7, the last smaller; two of 32

RANKS = """
import os, pickle, sys
from pathlib import Path
from bpg import Backbone, survey
from bpg.errors import RanksError
from bpg.ranks import agree, rank_and_ranks
from tests.toy import toy_backbone
from tests.unit.test_ranks import work

other = os.fork()  # to import torch once more would take longer than all the rest
os.environ["RANK"] = "0" if other else "1"
folder, rank = Path(sys.argv[1]), rank_and_ranks()[0]
stream, damaged = pickle.loads((folder / "data.pickle").read_bytes())
prepare, images, found, counts = Backbone.prepare, [], {}, {}
Backbone.prepare = lambda self, image: images.append(image) or prepare(self, image)
for what, value in work(stream, folder):
    found[what], counts[what] = value, len(images)
    images.clear()
try:
    agree("the weather", f"rain {rank}")
except RanksError as error:
    found["refused"] = str(error)
(folder / f"rank{rank}.pickle").write_bytes(pickle.dumps((found, counts)))
try:
    survey(toy_backbone(), damaged, batch_size=7, cache=None, shared=True)
finally:
    if other:
        os.waitpid(other, 0)
"""


def work(stream: DomainStream, folder: Path) -> Iterator[tuple[str, Any]]:
    """All that is dealt out besides training, one after the other; times are left in `folder`."""
    backbone = toy_backbone()
    model, domain = NCM(backbone), stream.domains[0]
    told: list[tuple[int, int]] = []
    found = survey(
        backbone, domain.train, batch_size=7, cache=None, shared=True, progress=lambda *now: told.append(now)
    )
    scatter = found.scatter
    yield "survey", [found.features[FINISHED], scatter.means, scatter.spreads, found.sha256, told]

    def first_patch(images: Tensor) -> Tensor:
        return backbone(images, Tuning(readout="all"))[:, 1]  # a view

    yield "passed", [passed(model, domain.train, first_patch)]
    model.learn(domain)
    yield "learn", [model.state().shared["sums"]]
    spec: Any = SimpleNamespace(unseen=False)
    cell: Any = SimpleNamespace(ways=())
    yield "test", [_test(spec, cell, model, stream, 1, folder, lambda _: None)]


def test_each_rank_does_its_share_and_all_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = toy_stream(tmp_path, ("red", "blue"), COUNT)
    train = stream.domains[0].train
    stream = replace(stream, tests=(TestSet(toy_images(tmp_path, "red", COUNT, part="test"), "red"),))
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    damaged = replace(train, paths=(*train.paths[:8], broken, *train.paths[9:]))  # in the second rank's first batch
    (tmp_path / "data.pickle").write_bytes(pickle.dumps((stream, damaged)))
    (tmp_path / "ranks.py").write_text(RANKS)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    where |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, str(tmp_path / "ranks.py"), str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | where, timeout=300)
    files = [tmp_path / "rank0.pickle", tmp_path / "rank1.pickle"]
    assert all(file.exists() for file in files), ran.stderr

    # The end, at which one rank alone met a fault: it is told, and the other is not left waiting.
    assert ran.returncode != 0
    assert "broken.png" in ran.stderr

    shares = []
    (tmp_path / "one").mkdir()
    with monkeypatch.context() as patch:
        patch.setenv("BPG_CACHE", str(tmp_path / "cache of one"))
        alone = dict(work(stream, tmp_path / "one"))
    for file in files:
        found, counts = pickle.loads(file.read_bytes())  # noqa: S301  (our own)
        wanted = "the ranks do not see the same: the weather: wanted rain 0, as the first has it, came rain 1 on rank 1"
        assert found.pop("refused").startswith(wanted)
        assert found.keys() == alone.keys()
        for what, values in alone.items():
            for ours, theirs in zip(values, found[what], strict=True):
                assert torch.equal(ours, theirs) if isinstance(ours, Tensor) else ours == theirs, what
        shares.append(counts)
    assert shares == [
        {"survey": 21, "passed": 32, "learn": 32, "test": 32},
        {"survey": 19, "passed": 8, "learn": 8, "test": 8},
    ]
    times = [json.loads(line)["what"] for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert times == ["test", "pass"]  # of the first rank alone
    sizes = count_forwards(monkeypatch)
    survey(toy_backbone(), train)
    assert sizes == []  # the cache that two ranks wrote is whole


@pytest.mark.parametrize(("count", "size", "ranks"), [(0, 4, 3), (3, 4, 3), (40, 7, 2), (41, 5, 4), (24, 4, 3)])
def test_shares_are_whole_batches_that_come_back_in_order(
    count: int, size: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dealt = []
    for rank in range(ranks):
        monkeypatch.setattr(bpg.ranks, "rank_and_ranks", lambda rank=rank: (rank, ranks))
        mine = share(count, size)
        dealt.append([mine[start : start + size] for start in range(0, len(mine), size)])
    whole = [list(range(start, min(start + size, count))) for start in range(0, count, size)]
    assert sorted(batch for own in dealt for batch in own) == whole
    rounds = (-(-len(whole) // ranks)) + 1
    said = iter([[own[turn] if turn < len(own) else None for own in dealt] for turn in range(rounds)])
    monkeypatch.setattr(bpg.ranks, "gathered", lambda _: next(said))
    assert list(in_order(dealt[0])) == whole


def test_one_process_has_all_of_it_and_waits_for_nobody() -> None:
    assert share(5, 2) == [0, 1, 2, 3, 4]
    own = iter([1, None, 2])
    assert list(in_order(own)) == [1, None, 2]
    agree("anything", object())
