"""LwF and EWC: what is added to fine-tuning, and that nothing else is."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from bpg.data.decode import decode
from bpg.data.domain import DomainStream
from bpg.data.transforms import Preprocessing, evaluation
from bpg.methods.base import Learner
from bpg.methods.ewc import EWC
from bpg.methods.finetune import FineTune
from bpg.methods.lwf import LwF
from bpg.methods.parts.fisher import fisher_information, with_rows
from bpg.methods.parts.teacher import distillation
from bpg.methods.parts.whole import Network
from bpg.training import cross_entropy
from tests.toy import FAST, GENTLE, toy_backbone, toy_domain, toy_stream
from tests.unit.test_rehearsal import Caught, caught, seen

COMMON: dict[str, Any] = {"optimisation": FAST | {"lr": 0.005, "epochs": 2}, "augmentation": GENTLE}


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> DomainStream:
    return toy_stream(tmp_path_factory.mktemp("toy"), count=12)


def learned(learner: Learner, stream: DomainStream, count: int = 2) -> dict[str, Tensor]:
    for domain in stream.domains[:count]:
        learner.learn(domain)
    return {name: tensor for name, tensor in learner.state().shared.items() if not name.startswith("fisher/")}


@pytest.mark.parametrize("method", [LwF, EWC])
def test_without_strength_it_is_fine_tuning(method: type[LwF | EWC], stream: DomainStream) -> None:
    plain = learned(FineTune(toy_backbone(), **COMMON), stream)
    same = learned(method(toy_backbone(), strength=0.0, **COMMON), stream)
    assert plain.keys() == same.keys()
    assert all(torch.equal(plain[name], same[name]) for name in plain)


@pytest.mark.parametrize(("method", "strength"), [(LwF, 20.0), (EWC, 1e5)])
def test_strength_keeps_old_answers(method: type[LwF | EWC], strength: float, stream: DomainStream) -> None:
    images = stream.tests[1].images  # of the new domain: LwF knows no others

    def change(learner: Learner) -> float:
        learner.learn(stream.domains[0])
        before = learner.predict_proba(images)
        learner.learn(stream.domains[1])
        return float((learner.predict_proba(images) - before).abs().mean())

    longer = COMMON | {"optimisation": COMMON["optimisation"] | {"epochs": 8, "weight_decay": 0.0}}
    free, held = FineTune(toy_backbone(), **longer), method(toy_backbone(), strength=strength, **longer)
    assert change(held) < 0.9 * change(free)


def test_a_student_that_is_the_teacher_feels_no_pull() -> None:
    wanted = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    same, other = wanted.clone().requires_grad_(), (wanted + torch.arange(3)).requires_grad_()
    for logits in (same, other):
        distillation(logits, wanted, temperature=2.0).sum().backward()
    assert same.grad is not None
    assert other.grad is not None
    assert_close(same.grad, torch.zeros(4, 3), atol=1e-6, rtol=0)
    assert (other.grad[:, 2] > 0.01).all()  # it is to say less of what the teacher does not say


class Mean(nn.Module):
    """A linear map of an image's mean colour."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(images.mean(dim=(2, 3)))
        return logits


def test_the_information_is_the_mean_of_squared_gradients_of_single_images(tmp_path: Path) -> None:
    domain, pixels = toy_domain(tmp_path, "red", 9), Preprocessing(size=32)
    torch.manual_seed(0)
    module, places = Mean(), torch.arange(3)
    found = fisher_information(module, domain, pixels, places, images=100, seed=0, device=torch.device("cpu"))
    colours = torch.stack(
        [
            evaluation(decode(domain.train.encoded(i), where=""), pixels).mean(dim=(1, 2))
            for i in range(len(domain.train))
        ]
    )
    errors = torch.softmax(module.head(colours), dim=1) - torch.eye(3)[torch.tensor(domain.train.labels)]
    assert_close(found["head.bias"], errors.square().mean(dim=0))
    assert_close(found["head.weight"], (errors[:, :, None] * colours[:, None]).square().mean(dim=0))
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_of_new_classes_nothing_is_known() -> None:
    before = {"head.weight": torch.ones(2, 4), "head.bias": torch.ones(2), "net.x": torch.ones(3)}
    after = with_rows(before, ("bar", "cross"), ("bar", "box", "cross"))
    assert after["head.bias"].tolist() == [1, 0, 1]
    assert after["head.weight"].sum(dim=1).tolist() == [4, 0, 4]
    assert after["net.x"] is before["net.x"]


def test_information_adds_up_over_domains(stream: DomainStream) -> None:
    model = EWC(toy_backbone(), **COMMON)
    model.learn(stream.domains[0])
    first = {n: t.clone() for n, t in model.state().shared.items() if n.startswith("fisher/")}
    assert all((tensor >= 0).all() for tensor in first.values())
    model.learn(stream.domains[1])
    second = model.state().shared
    assert all((second[name] >= tensor).all() for name, tensor in first.items())


def moved(network: Network) -> None:
    """As if it had been trained for a while."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))


def loss_and_task(learner: LwF | EWC, now: Caught) -> tuple[Tensor, Tensor]:
    """What each image of the domain costs, and the part of it that is for its name."""
    images, rows = seen(learner, now.domain.train), torch.tensor(now.domain.train.labels)
    with torch.no_grad():
        return now.loss(now.network, images, rows), cross_entropy(now.network(images), rows)


def test_ewc_adds_half_its_strength_times_the_weighted_squares_of_what_has_moved(stream: DomainStream) -> None:
    model = EWC(toy_backbone(), strength=3.0, decay=0.5, **COMMON)
    first, second, third = stream.domains
    pixels, cpu = model.backbone.preprocessing, torch.device("cpu")
    weights: dict[str, Tensor] = {}
    for domain in (first, second):
        model.learn(domain)
        found = fisher_information(
            deepcopy(model.network), domain, pixels, torch.arange(3), images=100, seed=0, device=cpu
        )
        weights = {name: 0.5 * weights.get(name, torch.zeros(())) + own for name, own in found.items()}
    assert max(float(own.max()) for own in weights.values()) < 1 / (0.005 * 3)  # none is cut
    now, before = caught(model, third), dict(model.network.named_parameters())
    loss, task = loss_and_task(model, now)
    assert_close(loss, task)  # nothing has moved yet
    moved(now.network)
    loss, task = loss_and_task(model, now)
    with torch.no_grad():
        each = [(weights[name] * (p - before[name]).square()).sum() for name, p in now.network.named_parameters()]
    apart = torch.stack(each).sum()
    assert apart > 0.01
    assert_close(loss - task, (1.5 * apart).expand(12), rtol=1e-3, atol=1e-5)


def test_ewc_cuts_an_entry_at_which_a_step_would_overshoot(stream: DomainStream) -> None:
    model = EWC(toy_backbone(), strength=1e9, **COMMON)
    model.learn(stream.domains[0])
    now, before = caught(model, stream.domains[1]), dict(model.network.named_parameters())
    moved(now.network)
    loss, task = loss_and_task(model, now)
    with torch.no_grad():
        squares = torch.stack([(p - before[name]).square().sum() for name, p in now.network.named_parameters()]).sum()
    assert ((loss - task > 0) & (loss - task <= squares / (2 * 0.005))).all()


def test_lwf_compares_answers_at_its_temperature(stream: DomainStream) -> None:
    model = LwF(toy_backbone(), strength=0.7, temperature=2.0, **COMMON)
    model.learn(stream.domains[0])
    now = caught(model, stream.domains[1])
    moved(now.network)
    loss, task = loss_and_task(model, now)
    images = seen(model, now.domain.train)
    with torch.no_grad():
        wanted, found = (torch.softmax(network(images) / 2.0, dim=1) for network in (model.network, now.network))
    kept = -(wanted * found.log()).sum(dim=1)
    assert_close(loss, task + 0.7 * kept)
