"""Prompts on a frozen backbone under one shared head: a pool for all domains, or a slot for each.

A slot is a module of its own, so that what a domain has learned is out of every optimizer's reach afterwards. Prompts
are found by comparing keys with a query, the frozen feature of the image; only slots that were learned take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.tuning import Prefix, Tuning
from bpg.backbones.vit import ViT
from bpg.compute import as_float64
from bpg.data.domain import Domain
from bpg.errors import WrongUse
from bpg.methods.parts.heads import GrowingHead
from bpg.methods.parts.pool import Member, Pooled, check_learned, check_pixels
from bpg.methods.parts.single import Single
from bpg.methods.parts.ways import OWN, Way
from bpg.store import Learned, State
from bpg.types import Prediction


class Slot(nn.Module):
    """What one domain has for itself: parameters by name."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, own in tensors.items():
            self.register_parameter(name, nn.Parameter(own))


class Prompts(nn.Module):
    """A shared head, what else all domains share, and a slot for each domain, in the order of learning."""

    def __init__(self, head: GrowingHead) -> None:
        super().__init__()
        self.head = head
        self.names: list[str] = []
        self.known: list[tuple[str, ...]] = []  # the classes of each domain
        self.slots = nn.ModuleList()

    def slot(self, name: str) -> Any:
        return self.slots[self.names.index(name)]

    def put(self, name: str, classes: Sequence[str], slot: nn.Module) -> None:
        """A slot for a domain, in the place of the one it has if it is learned anew."""
        if name in self.names:
            place = self.names.index(name)
            self.known[place], self.slots[place] = tuple(classes), slot
            return
        self.names.append(name)
        self.known.append(tuple(classes))
        self.slots.append(slot)

    def others(self, name: str) -> list[Any]:
        """The slots of the other domains, the newest last."""
        return [slot for known, slot in zip(self.names, self.slots, strict=True) if known != name]


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
        slot = self.empty(network, domain.name)
        if slot is not None:
            network.put(domain.name, domain.classes, slot.to(self.backbone.device))
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
            self.network.put(name, classes, slot)
            for key, own in learned.tensors.items():
                tensors[f"network/slots.{place}.{key.removeprefix('slot/')}"] = own
        super().restore(replace(state, shared=tensors))


class Slotted(Prompted, Pooled):
    """Prompts of which each domain has some of its own: any router can force them, and they have a way of their own.

    A method says how it answers by itself, `answer`, and by one domain's slot, `forced`.
    """

    usual = OWN

    def begin(self) -> None:
        Prompted.begin(self)
        Pooled.begin(self)

    def answer(self, network: Any, images: Tensor, backbone: Backbone) -> tuple[Tensor, Tensor]:
        """Logits (B, C), and what share each slot has in them, (B, slots)."""
        raise NotImplementedError

    def forced(self, network: Any, images: Tensor, name: str, backbone: Backbone) -> Tensor:
        """Logits (B, C) by the slot of a domain."""
        raise NotImplementedError

    @property
    def classes(self) -> tuple[str, ...]:
        return self.pool.classes

    def settle(self, network: Any, domain: Domain) -> None:
        """Take up a network that has learned `domain`, and remember where the domain lies."""
        parameters = sum(own.numel() for own in network.slot(domain.name).parameters())
        with self.timed("routing"):  # by BPG's inference and the like: the method itself has no use for it
            found = self.survey(domain)
            self.network = network
            self.take_in(domain, found, Forced(self, domain.name, domain.classes), parameters=parameters)

    def forward(self, images: Tensor) -> Prediction:
        return self.compare(images, [self.way])[0]

    @torch.no_grad()
    def compare(self, images: Tensor, ways: Sequence[Way], *, true: str | None = None) -> list[Prediction]:
        check_learned(self)
        check_pixels(images)
        routed = [way for way in ways if way.router != OWN]
        found = dict(zip(routed, self.pool.predict(images, routed, true=true), strict=True)) if routed else {}
        return [self._own(images, way) if way.router == OWN else found[way] for way in ways]

    def _own(self, images: Tensor, way: Way) -> Prediction:
        logits, shares = self.answer(self.network, images, self.pool.computing(way.arithmetic))
        places = [self.network.names.index(name) for name in self.domains]
        weights = as_float64(shares[:, places])
        log_probs = torch.log_softmax(as_float64(logits)[:, self.network.head.places(self.classes)], dim=1)
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


def prefixes(blocks: Sequence[int], prompts: Tensor, *, projected: bool) -> dict[int, Prefix]:
    """Of prompts (blocks, P, d), or (B, blocks, P, d) with some for each image, those of each block."""
    own = zip(blocks, prompts.unbind(dim=-3), strict=True)
    return {block: halves(prompt, projected=projected) for block, prompt in own}


def patch_query(images: Tensor, backbone: Backbone, which: Literal["first", "mean"]) -> Tensor:
    """What an image is known by, (B, d): the frozen feature of its first patch, or the mean over patches."""
    with torch.no_grad():
        patches: Tensor = backbone(images, Tuning(readout="all"))[:, backbone.vit.config.specials :]
    return patches[:, 0] if which == "first" else patches.mean(dim=1)


def right_angles(known: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` rows (count, d) of length 1 at right angles to those `known` (n, d) and to each other.

    Where no direction is left, random ones take their place.
    """
    drawn = torch.randn(count, known.shape[1], dtype=torch.float64, generator=generator)
    basis, _ = torch.linalg.qr(torch.cat([known.double(), drawn]).T)  # Gram-Schmidt, but for signs
    made = basis.T[len(known) :]
    return torch.cat([made, F.normalize(drawn[len(made) :], dim=1)]).float()


def nearest_keys(query: Tensor, keys: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of queries (B, d), the `count` keys (n, d) of greatest cosine: which (B, count), and the cosines (B, count)."""
    cosines = F.normalize(query, dim=-1) @ F.normalize(keys, dim=-1).T
    found = cosines.topk(min(count, len(keys)), dim=1)
    return found.indices, found.values


def check_blocks(blocks: Sequence[int], depth: int) -> None:
    """Raise WrongUse for blocks that a ViT of `depth` blocks does not have, for one twice, and for none."""
    if not blocks or len(set(blocks)) != len(blocks) or not all(0 <= block < depth for block in blocks):
        raise WrongUse(
            "prompts for blocks that the backbone does not have, or for one twice",
            wanted=f"different blocks from 0 to {depth - 1}",
            came=", ".join(map(str, blocks)) or "none",
            remedy="Name blocks that it has, each once.",
        )
