"""A pool of experts, one a domain: routing, fusion, forgetting, merging."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.data.domain import Domain
from bpg.engine import run_experts
from bpg.errors import PluginError, unknown_name
from bpg.methods.base import Learner
from bpg.methods.parts.identity import check_classes
from bpg.methods.parts.states import joined
from bpg.mixture import Fusion, check_fusion, mix, mixture_weights
from bpg.registry import ROUTERS
from bpg.routing import distances, oracle
from bpg.store import Learned, State
from bpg.types import Prediction

ORACLE = "oracle"


@dataclass(frozen=True, slots=True)
class Way:
    """Who speaks at test time, and how they are fused. The oracle is no registered router: it is told the domain."""

    router: str = "soft"
    fusion: Fusion = "threshold+l1"


@dataclass(frozen=True, slots=True)
class Member:
    """One domain's expert and what is known of the domain. Nothing in it changes once it is in a pool."""

    expert: Any  # an nn.Module that is a Specialist; (images, backbone) -> logits (B, C_t)
    prototypes: Tensor  # (k, d) float64
    facts: Mapping[str, Any]  # JSON; `classes` among them

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.facts["classes"])

    def learned(self) -> Learned:
        """As the store keeps it."""
        tensors = {f"expert/{name}": tensor for name, tensor in self.expert.state_dict().items()}
        return Learned(self.facts, tensors | {"prototypes": self.prototypes})

    @classmethod
    def restored(cls, expert: nn.Module, learned: Learned, width: int) -> Member:
        """The member that the store kept, with `expert` made for it; features are `width` wide."""
        tensors = {key[len("expert/") :]: t for key, t in learned.tensors.items() if key.startswith("expert/")}
        centres, classes = learned.tensors["prototypes"], learned.facts["classes"]
        sound = centres.ndim == 2 and len(centres) and centres.shape[1] == width and bool(centres.isfinite().all())
        named = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
        if not sound or not named or sorted(set(classes)) != classes or len(tensors) + 1 != len(learned.tensors):
            raise ValueError("prototypes, classes or tensors that no learner writes")
        expert.load_state_dict(tensors)
        return cls(expert, centres, learned.facts)


class ExpertPool:
    """Experts in the order of their domains' names, whatever the order of learning."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self._members: dict[str, Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> Member:
        if name not in self._members:
            raise unknown_name("domain", name, self._members)
        return self._members[name]

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(sorted(self._members))

    @property
    def classes(self) -> tuple[str, ...]:
        """The union of the members' classes, sorted."""
        return tuple(sorted({name for member in self._members.values() for name in member.classes}))

    @property
    def members(self) -> list[Member]:
        return [self._members[name] for name in self.domains]

    @property
    def prototypes(self) -> list[Tensor]:
        return [member.prototypes for member in self.members]

    def add(self, name: str, member: Member) -> None:
        """Take a domain in, or put it in the place of the one of that name."""
        member.expert.requires_grad_(False).eval()
        self._members[name] = member

    def forget(self, name: str) -> None:
        self[name]  # a name that is not there gets the nearest one told
        del self._members[name]

    def take_over(self, other: ExpertPool) -> None:
        """Add the members of `other`."""
        self._members |= other._members

    @torch.no_grad()
    def predict(self, images: Tensor, ways: Sequence[Way], *, true: str | None = None) -> list[Prediction]:
        """Route `images`, run who is let through, fuse: once for each of `ways`. No expert runs twice.

        `true` is the images' domain, which the oracle alone is told.
        """
        tokens = self.backbone.start(images)
        plain = distance = None
        if any(way.router != ORACLE for way in ways):
            plain = self.backbone.finish(tokens)
            distance = distances(F.normalize(plain, dim=-1), self.prototypes)
        confidence = [self._confidence(way, images, distance, true) for way in ways]
        weights = [mixture_weights(each, way.fusion) for each, way in zip(confidence, ways, strict=True)]
        classes = {name: place for place, name in enumerate(self.classes)}
        members = self.members
        columns = [torch.tensor([classes[name] for name in member.classes]) for member in members]
        known = torch.zeros(len(members), len(classes), dtype=torch.bool)
        for expert, places in enumerate(columns):
            known[expert, places] = True
        wanted = torch.stack(weights).sum(dim=0)
        experts = [member.expert for member in members]
        logits = run_experts(self.backbone, tokens, wanted, experts, columns=columns, classes=len(classes), query=plain)
        answers = []
        for way, trust, weight in zip(ways, confidence, weights, strict=True):
            mixed = mix(logits, weight, known.to(images.device), way.fusion)
            answers.append(Prediction(torch.log_softmax(mixed, dim=1), weight, (weight > 0).sum(dim=1), trust))
        return answers

    def _confidence(self, way: Way, images: Tensor, distance: Tensor | None, true: str | None) -> Tensor:
        if way.router == ORACLE:
            self[str(true)]  # the oracle must be told a domain that is known
            place = torch.full((len(images),), self.domains.index(str(true)), device=images.device)
            return oracle(place, len(self))
        assert distance is not None
        confidence: Tensor = ROUTERS[way.router](distance)
        _check_confidence(confidence, distance)
        return confidence

    def expert_logits(self, images: Tensor, expert: int) -> Tensor:
        logits: Tensor = self.members[expert].expert(images, self.backbone)
        return logits


class Pooled(Learner, Protocol):
    """A learner whose experts live in a pool: routable and isolated. `router` and `fusion` may change at any time."""

    router: str
    fusion: Fusion
    pool: ExpertPool

    def __init__(
        self, backbone: Backbone | str, *, router: str = "soft", fusion: Fusion = "threshold+l1", **options: Any
    ) -> None:
        ROUTERS[router]  # a typo is told before anything is learned
        check_fusion(fusion)
        self.router, self.fusion = router, fusion
        super().__init__(backbone, **options)

    def begin(self) -> None:
        self.pool = ExpertPool(self.backbone)

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the learned domains, sorted."""
        return self.pool.domains

    @property
    def classes(self) -> tuple[str, ...]:
        return self.pool.classes

    @property
    def prototypes(self) -> list[Tensor]:
        return self.pool.prototypes

    def facts(self, domain: str) -> dict[str, Any]:
        """What is known of a learned domain."""
        return dict(self.pool[domain].facts)

    def forward(self, images: Tensor) -> Prediction:
        return self.compare(images, [Way(self.router, self.fusion)])[0]

    def compare(self, images: Tensor, ways: Sequence[Way], *, true: str | None = None) -> list[Prediction]:
        """The answers of several routers and fusions to the same images, at the cost of the experts they let through.

        `true` is the images' domain, which the oracle alone is told. For measurements.
        """
        return self.pool.predict(images, ways, true=true)

    def oracle(self, images: Tensor, domain: str) -> Prediction:
        """What the expert of the true domain says: the bound that no router passes. For measurements."""
        return self.compare(images, [Way(ORACLE)], true=domain)[0]

    def embed(self, images: Tensor) -> Tensor:
        return self.backbone.embed(images)

    def expert_logits(self, images: Tensor, expert: int) -> Tensor:
        return self.pool.expert_logits(images, expert)

    def forget(self, name: str) -> None:
        """Become the model that never learned the domain `name`, bit for bit."""
        self.pool.forget(name)

    def merge(self, other: Self) -> None:
        """Take over the domains of a model learned apart: the result is the model that learned them all."""
        joined(self.state(), other.state(), allow_new_classes=self.allow_new_classes)  # refuses what does not fit
        self.pool.take_over(other.pool)

    def admit(self, domain: Domain) -> None:
        """Check that `domain` may be learned, and say so if it takes the place of one."""
        others = {name for known in self.domains if known != domain.name for name in self.pool[known].classes}
        check_classes(sorted(others), domain.classes, allowed=self.allow_new_classes)
        if domain.name in self.pool:
            warnings.warn(f"{domain.name} is known already: it is learned anew from these images alone", stacklevel=3)

    def state(self) -> State:
        return self.make_state({name: self.pool[name].learned() for name in self.domains})


def _check_confidence(confidence: Tensor, distance: Tensor) -> None:
    shaped = confidence.shape == distance.shape
    if not shaped or not bool(confidence.isfinite().all()) or not bool((confidence.sum(dim=1) > 0).all()):
        raise PluginError(
            "the router gave no confidences",
            wanted=f"finite numbers of shape {tuple(distance.shape)}, some of each row above 0",
            came=f"shape {tuple(confidence.shape)}" if not shaped else "zeros or undefined numbers",
            remedy="Check the images for undefined pixels, and the router if it is a plug-in.",
        )
