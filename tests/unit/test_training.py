"""The one loop: a step is the same however its batch is split, and a run goes on to the same bytes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from pretrain.muon import Muon, orthogonal
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close

from bpg.backbones.tuning import Tuning
from bpg.data.batches import Batches
from bpg.data.transforms import Augmentation
from bpg.progress import Progress, progress_bar
from bpg.training import Optimisation, Resume, cross_entropy, fit, schedule
from tests.command import Done, torchrun
from tests.toy import toy_backbone, toy_domain

CPU = torch.device("cpu")


@dataclass
class Numbers:
    """Batches of random numbers, 20 steps of 10, the last of each epoch smaller."""

    steps: int = 20
    reached: int = 0
    stop_at: int | None = None

    def stream(self, first: int, *, rank: int = 0, ranks: int = 1) -> Generator[tuple[Tensor, Tensor, int], None, None]:
        for step in range(first, self.steps):
            if step == self.stop_at:
                raise KeyboardInterrupt
            generator = torch.Generator().manual_seed(step)
            size = 10 if step % 5 else 7
            x, y = torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)
            self.reached = step
            yield x[rank::ranks], y[rank::ranks], size


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def trained(batches: Numbers | None = None, *, resume: Resume | None = None, **values: object) -> dict[str, Tensor]:
    net = network()
    own = None
    if values.get("optimizer") == "muon":
        values = {name: value for name, value in values.items() if name != "optimizer"}
        parameters = list(net.parameters())
        own = Muon(parameters[::2], parameters[1::2], times=2, weight_decay=0.05)  # weights and biases
    settings = Optimisation(**({"epochs": 1, "lr": 0.1} | values))
    loss = lambda x, y: cross_entropy(net(x), y)  # noqa: E731
    fit(net, loss, batches or Numbers(), settings, device=CPU, resume=resume, optimizer=own)
    return {name: parameter.detach().clone() for name, parameter in net.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor], *, exactly: bool = False) -> None:
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]) if exactly else True
        assert_close(tensor, other[name], rtol=0, atol=1e-6)


def test_sgd_is_the_plain_loop() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    for step, (x, y, _) in enumerate(Numbers().stream(0)):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * step / 20)).item())
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    same(trained(), dict(net.named_parameters()))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("micro", [1, 3, 10, 64])
def test_micro_batches_do_not_change_a_step(optimizer: str, micro: int) -> None:
    same(trained(optimizer=optimizer, lr=0.02), trained(optimizer=optimizer, lr=0.02, micro_batch=micro))


def test_out_of_memory_is_answered_by_a_smaller_micro_batch() -> None:
    net, sizes = network(), []

    def loss(x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(x))
        if len(x) > 3:
            raise torch.OutOfMemoryError("as a GPU would say it")
        return cross_entropy(net(x), y)

    with pytest.warns(UserWarning, match="out of memory: going on with"):
        fit(net, loss, Numbers(), Optimisation(epochs=1, lr=0.1, batch_size=10), device=CPU)
    same(trained(), dict(net.named_parameters()))
    assert max(sizes[5:]) <= 3  # what fitted is remembered


def test_one_image_that_does_not_fit_is_out_of_memory() -> None:
    def loss(*_: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    with pytest.warns(UserWarning, match="out of memory"), pytest.raises(torch.OutOfMemoryError):
        fit(network(), loss, Numbers(), Optimisation(epochs=1, batch_size=10), device=CPU)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
@pytest.mark.parametrize("stop", [1, 7, 19])
def test_an_interrupted_run_goes_on_to_the_same_bytes(optimizer: str, stop: int, tmp_path: Path) -> None:
    values = {"optimizer": optimizer, "lr": 0.05, "warmup": 4, "clip_norm": 1.0}
    undisturbed = trained(**values)
    resume = Resume(tmp_path / "state.safetensors", "me", seconds=0)
    with pytest.raises(KeyboardInterrupt):
        trained(Numbers(stop_at=stop), resume=resume, **values)
    batches = Numbers()
    same(trained(batches, resume=resume, **values), undisturbed, exactly=True)
    finished = Numbers()
    same(trained(finished, resume=resume, **values), undisturbed, exactly=True)
    assert finished.reached == 0  # nothing was left to do


def test_a_state_of_somebody_else_or_a_broken_one_is_not_taken_up(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        trained(Numbers(stop_at=9), resume=Resume(file, "me", seconds=0))
    same(trained(resume=Resume(file, "you", seconds=0)), trained(), exactly=True)
    file.write_bytes(b"broken")
    same(trained(resume=Resume(file, "me", seconds=0)), trained(), exactly=True)


def test_a_state_is_written_every_few_seconds_of_work(tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        trained(Numbers(stop_at=9), resume=Resume(file, "me", seconds=1000))
    assert not file.exists()
    trained(resume=Resume(file, "me", seconds=1000))
    assert "parameter/0.weight" in load_file(file)


@pytest.mark.parametrize("shape", [(2, 8, 24), (3, 24, 8), (1, 16, 16)])
def test_muon_moves_in_every_direction_alike(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found, plain = (torch.linalg.svd(some) for some in (orthogonal(matrices), matrices))
    assert found.S.min() > 0.5
    assert found.S.max() < 1.3
    assert plain.S.max() > 2 * found.S.max()
    rank = min(shape[1:])
    exact = plain.U[..., :rank] @ plain.Vh[:, :rank]
    assert ((orthogonal(matrices) * exact).sum(dim=(1, 2)) / rank).min() > 0.7, "the nearest orthogonal one, about"


def test_the_schedule_rises_and_falls() -> None:
    settings = Optimisation(warmup=3)
    shares = [schedule(step, 13, settings) for step in range(13)]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[8] == pytest.approx(0.5)
    assert shares == sorted(shares[:4]) + sorted(shares[4:], reverse=True)
    assert schedule(12, 13, Optimisation(schedule="constant")) == 1


def test_recomputed_activations_give_the_same_gradients() -> None:
    backbone, images = toy_backbone(), torch.randn(3, 3, 32, 32)
    grads = []
    for recompute in (False, True):
        prompt = nn.Parameter(torch.ones(4, 64))
        backbone.vit.recompute = recompute
        backbone(images, Tuning(tokens=prompt)).square().sum().backward()
        assert prompt.grad is not None
        grads.append(prompt.grad)
    assert_close(*grads)


def test_progress_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Progress] = []
    net = network()
    fit(net, lambda x, y: cross_entropy(net(x), y), Numbers(), Optimisation(epochs=1), device=CPU, progress=told.append)
    assert [now.step for now in told] == list(range(1, 21))
    assert {now.steps for now in told} == {20}
    assert [now.images for now in told[:2]] == [7, 17]
    assert all(now.loss > 0 and now.seconds >= 0 for now in told)
    with progress_bar("title") as show:
        for now in told:
            show(now)
    assert capsys.readouterr().out == ""


def test_batches_depend_on_seed_domain_epoch_and_image_alone(tmp_path: Path) -> None:
    domain = toy_domain(tmp_path, "red", 10)
    backbone = toy_backbone()

    def batches(seed: int = 0) -> Batches:
        return Batches(domain, backbone.preprocessing, Augmentation(), seed, batch_size=4, epochs=2)

    one = batches()
    assert (one.steps_an_epoch, one.steps) == (3, 6)
    assert [len(one.indices(step)) for step in range(6)] == [4, 4, 2, 4, 4, 2]
    assert sorted(index for step in range(3) for index in one.indices(step)) == list(range(10))
    assert [one.indices(step) for step in range(3)] != [one.indices(step) for step in range(3, 6)]
    assert one.indices(0) != batches(seed=1).indices(0)
    assert torch.equal(one.image(3, 0), batches().image(3, 0))
    assert not torch.equal(one.image(3, 0), one.image(3, 1))
    whole = list(one.stream(0))
    later = list(one.stream(4))
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(whole[4:], later, strict=True))
    for step, (images, labels, size) in enumerate(whole):
        shares = [next(one.stream(step, rank=rank, ranks=3)) for rank in range(3)]
        assert sum(len(share[0]) for share in shares) == size == len(images)  # no padding, no duplicates
        assert sorted(label for share in shares for label in share[1].tolist()) == sorted(labels.tolist())


RANKS = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from bpg.training import Optimisation, Resume, cross_entropy, fit
from tests.unit.test_training import CPU, Numbers, network
net = network()
stop = int(sys.argv[2]) if len(sys.argv) > 2 else None
class Killed(Numbers):
    def stream(self, first, *, rank=0, ranks=1):
        for step, batch in enumerate(super().stream(first, rank=rank, ranks=ranks), start=first):
            if step == stop and rank == int(sys.argv[3]):
                import os, signal
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch
resume = Resume(Path(sys.argv[1]) / "state.safetensors", "me", seconds=0)
fit(net, lambda x, y: cross_entropy(net(x), y), Killed(), Optimisation(epochs=1, lr=0.1), device=CPU, resume=resume)
file = Path(sys.argv[1]) / f"rank{dist.get_rank()}.safetensors"
save_file({name: p.detach() for name, p in net.named_parameters()}, file)
"""


def two_ranks(folder: Path, *arguments: str) -> Done:
    (folder / "ranks.py").write_text(RANKS)
    return torchrun(folder / "ranks.py", folder, *arguments)


def test_two_ranks_compute_what_one_does(tmp_path: Path) -> None:
    found = two_ranks(tmp_path)
    assert found.returncode == 0, found.stderr
    one, other = load_file(tmp_path / "rank0.safetensors"), load_file(tmp_path / "rank1.safetensors")
    alone = trained()
    for name, tensor in alone.items():
        assert torch.equal(one[name], other[name])
        assert (one[name] - tensor).abs().max() < 1e-5


@pytest.mark.parametrize("killed", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_two_ranks_go_on_after_either_is_killed(killed: str, tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "one", tmp_path / "two"
    undisturbed.mkdir()
    disturbed.mkdir()
    assert two_ranks(undisturbed).returncode == 0
    assert two_ranks(disturbed, "11", killed).returncode != 0
    assert (disturbed / "state.safetensors").exists()
    assert two_ranks(disturbed).returncode == 0
    assert (undisturbed / "rank0.safetensors").read_bytes() == (disturbed / "rank0.safetensors").read_bytes()
