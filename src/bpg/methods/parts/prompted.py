"""Prompts on a frozen backbone under one shared head: a pool for all domains, or a slot for each.

A slot is a module of its own, so that what a domain has learned is out of every optimizer's reach afterwards. Prompts
are found by comparing keys with a query, the frozen feature of the image; only slots that were learned take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import Prefix
from bpg.backbones.vit import ViT
from bpg.data.domain import Domain
from bpg.errors import WrongUse
from bpg.methods.parts.heads import GrowingHead
from bpg.methods.parts.pool import Member, Pooled
from bpg.methods.parts.single import Single
from bpg.methods.parts.ways import OWN, Way
from bpg.store import Learned, State
from bpg.types import Prediction


class Prompts(nn.Module):
    """A shared head, what else all domains share, and a slot for each domain, in the order of learning."""

    def __init__(self, backbone: Backbone, *, zero: bool = False) -> None:
        super().__init__()
        self.head = GrowingHead(backbone.feature_width, zero=zero)
        self.names: list[str] = []
        self.known: list[tuple[str, ...]] = []  # the classes of each domain
        self.slots = nn.ModuleList()

    def slot(self, name: str) -> Any:
        return self.slots[self.names.index(name)]

    def add(self, name: str, classes: Sequence[str], slot: nn.Module) -> None:
        """A slot for a new domain."""
        self.names.append(name)
        self.known.append(tuple(classes))
        self.slots.append(slot)


class Prompted(Single):
    """Prompts that are trained on each domain, on a frozen backbone. With slots, `empty` makes one."""

    network: Any  # Prompts

    def vit(self, network: Any) -> ViT:
        del network
        return self.backbone.vit

    def empty(self, network: Any, name: str) -> nn.Module | None:
        """The slot of a domain that has learned nothing yet; None where domains have no slots."""
        del network, name
        return None

    def logits(self, network: Any, images: Tensor) -> Tensor:
        found: Tensor = network(images, self.backbone)
        return found

    def open(self, network: Any, domain: Domain) -> None:
        if domain.name not in network.names:
            slot = self.empty(network, domain.name)
            if slot is not None:
                network.add(domain.name, domain.classes, slot.to(self.backbone.device))
        network.requires_grad_(True)
        for name, slot in zip(network.names, network.slots, strict=True):
            slot.requires_grad_(name == domain.name)

    def state(self) -> State:
        """What all share, and under each domain's name its slot."""
        whole = super().state()
        prefix = "network/slots."
        shared = {name: tensor for name, tensor in whole.shared.items() if not name.startswith(prefix)}
        net, slots = self.network, {}
        for place, (name, known, slot) in enumerate(zip(net.names, net.known, net.slots, strict=True)):
            tensors = {f"slot/{key}": own for key, own in slot.state_dict().items()}
            slots[name] = Learned({"place": place, "classes": list(known)}, tensors)
        return self.make_state(slots, shared=shared, facts=whole.facts)

    def restore(self, state: State) -> None:
        order = sorted(state.domains, key=lambda name: state.domains[name].facts["place"])
        tensors = dict(state.shared)
        for place, name in enumerate(order):
            learned, slot = state.domains[name], self.empty(self.network, name)
            classes = learned.facts["classes"]
            sound = slot is not None and learned.facts["place"] == place and sorted(set(classes)) == classes
            if not sound or not set(classes) <= set(state.facts["classes"]):
                raise ValueError(f"no slot for {name}")
            self.network.add(name, classes, slot)
            for key, own in learned.tensors.items():
                tensors[f"network/slots.{place}.{key.removeprefix('slot/')}"] = own
        super().restore(replace(state, shared=tensors))


class Slotted(Prompted, Pooled):
    """Prompts of which each domain has some of its own: any router can force them, and they have a way of their own.

    A method says how it answers by itself, `answer`, and by one domain's slot, `forced`.
    """

    has_own = True

    def begin(self) -> None:
        Prompted.begin(self)
        Pooled.begin(self)

    def answer(self, network: Any, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, C), and what share each slot has in them, (B, slots)."""
        raise NotImplementedError

    def forced(self, network: Any, images: Tensor, name: str, backbone: Backbone) -> Tensor:
        """Logits (B, C) by the slot of a domain."""
        raise NotImplementedError

    def settle(self, network: Any, domain: Domain) -> None:
        """Take up a network that has learned `domain`, and remember where the domain lies."""
        found = self.survey(domain)
        facts = {
            "classes": list(domain.classes),
            "images": len(domain.train),
            "images_sha256": found.sha256,
            "parameters": sum(own.numel() for own in network.slot(domain.name).parameters()),
        }
        member = Member(Forced(self, domain.name, domain.classes), self.locate(domain, found), facts)
        self.network = network
        self.pool.add(domain.name, member)

    def forward(self, images: Tensor) -> Prediction:
        return self.compare(images, [self.way])[0]

    @torch.no_grad()
    def compare(self, images: Tensor, ways: Sequence[Way], *, true: str | None = None) -> list[Prediction]:
        routed = [way for way in ways if way.router != OWN]
        found = dict(zip(routed, self.pool.predict(images, routed, true=true), strict=True)) if routed else {}
        return [self._own(images) if way.router == OWN else found[way] for way in ways]

    def _own(self, images: Tensor) -> Prediction:
        logits, shares = self.answer(self.network, images)
        places = [self.network.names.index(name) for name in self.domains]
        weights = shares[:, places].double()
        log_probs = torch.log_softmax(logits.double(), dim=1)
        return Prediction(log_probs, weights, (weights > 0).sum(dim=1), weights)

    def state(self) -> State:
        kept = Prompted.state(self)
        domains = {}
        for name, learned in kept.domains.items():
            place = self.pool[name].learned()  # it has no tensors of its own but those of its place
            domains[name] = Learned({**place.facts, **learned.facts}, {**learned.tensors, **place.tensors})
        return self.make_state(domains, shared=kept.shared, facts=kept.facts)

    def restore(self, state: State) -> None:
        slots, rest = {}, {}
        for name, learned in state.domains.items():
            own = {key: tensor for key, tensor in learned.tensors.items() if key.startswith("slot/")}
            slots[name] = Learned(learned.facts, own)
            facts = {key: value for key, value in learned.facts.items() if key != "place"}
            rest[name] = Learned(facts, {key: t for key, t in learned.tensors.items() if key not in own})
        Prompted.restore(self, replace(state, domains=slots))
        for name, learned in rest.items():
            forced = Forced(self, name, learned.facts["classes"])
            self.pool.add(name, Member.restored(forced, learned, self.backbone))


class Forced(nn.Module):
    """One domain's slot as an expert of a pool, under what all domains share at the time."""

    def __init__(self, learner: Slotted, name: str, classes: Sequence[str]) -> None:
        super().__init__()
        self._of = (learner, name, tuple(classes))

    def forward(self, images: Tensor, backbone: Backbone) -> Tensor:
        learner, name, classes = self._of
        logits = learner.forced(learner.network, images, name, backbone)
        return logits[:, learner.network.head.places(classes).to(logits.device)]


def halves(prompt: Tensor, *, projected: bool) -> Prefix:
    """The first half of a prompt (..., P, d) as keys, the second as values."""
    keys, values = prompt.chunk(2, dim=-2)
    return Prefix(keys, values, projected=projected)


def nearest_keys(query: Tensor, keys: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of queries (B, d), the `count` keys (n, d) of greatest cosine: which (B, count), and the cosines (B, count)."""
    cosines = F.normalize(query, dim=-1) @ F.normalize(keys, dim=-1).T
    found = cosines.topk(min(count, len(keys)), dim=1)
    return found.indices, found.values


def check_blocks(blocks: Sequence[int], depth: int) -> None:
    """Raise WrongUse for blocks that a ViT of `depth` blocks does not have."""
    beyond = [block for block in blocks if not 0 <= block < depth]
    if beyond:
        raise WrongUse(
            "prompts for blocks that the backbone does not have",
            wanted=f"blocks from 0 to {depth - 1}",
            came=", ".join(map(str, beyond)),
            remedy="Name blocks that it has.",
        )
