"""A pool of experts, one a domain: routing, fusion, forgetting, merging."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bpg.backbones.backbone import FINISHED, Backbone, Probe
from bpg.backbones.faster import Arithmetic, check_arithmetic, faster
from bpg.backbones.survey import Survey
from bpg.compute import float64_device
from bpg.data.batches import Batches
from bpg.data.domain import Domain
from bpg.engine import run_apart, run_experts
from bpg.errors import ModelError, PluginError, WrongUse, unknown_name
from bpg.methods.base import Routable
from bpg.methods.parts.identity import check_classes
from bpg.methods.parts.states import joined
from bpg.methods.parts.ways import ORACLE, OWN, WAY_OPTIONS, Way, router_of, way_of
from bpg.mixture import mix, mixture_weights
from bpg.prototypes import LEVELS, Place, located
from bpg.randomness import seed_of
from bpg.registry import ROUTERS
from bpg.routing import Places, oracle, stops
from bpg.store import Learned, State, answering
from bpg.training import cross_entropy
from bpg.types import Prediction


@dataclass(frozen=True, slots=True)
class Member:
    """One domain's expert and what is known of the domain. Nothing in it changes once it is in a pool."""

    expert: Any  # an nn.Module; (images, backbone) -> logits (B, C_t); a Specialist, if the engine is to run it
    places: Mapping[Probe, Place]  # where the domain lies, at every depth that can be routed at
    facts: Mapping[str, Any]  # JSON; `classes` among them

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.facts["classes"])

    def learned(self) -> Learned:
        """As the store keeps it."""
        tensors = {f"expert/{name}": tensor for name, tensor in self.expert.state_dict().items()}
        for probe, place in self.places.items():
            tensors |= {_key("prototypes", probe): place.prototypes, _key("reach", probe): place.reach}
        return Learned(self.facts, tensors)

    @classmethod
    def restored(cls, expert: nn.Module, learned: Learned, backbone: Backbone) -> Member:
        """The member that the store kept, with `expert` made for it."""
        tensors = {key[len("expert/") :]: t for key, t in learned.tensors.items() if key.startswith("expert/")}
        places = {
            probe: Place(learned.tensors[_key("prototypes", probe)], learned.tensors[_key("reach", probe)])
            for probe in stops(backbone.depth)
        }
        classes = learned.facts["classes"]
        sound = all(_is_sound(place, backbone.width_of(probe)) for probe, place in places.items())
        named = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
        whole = len(tensors) + 2 * len(places) == len(learned.tensors)
        if not sound or not named or sorted(set(classes)) != classes or not whole:
            raise ValueError("prototypes, classes or tensors that no learner writes")
        expert.load_state_dict(tensors)
        return cls(expert, places, learned.facts)


# Images (B, 3, H, W) and their frozen features (B, d) of unit length -> confidences (B, T) in the order of the pool.
Choose = Callable[[Tensor, Tensor], Tensor]


class ExpertPool:
    """Experts in the order of their domains' names, whatever the order of learning."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.choose: Choose | None = None  # a method's own way to find the domain
        self._members: dict[str, Member] = {}
        self._places: dict[Probe, Places] = {}  # of these members; made when it is asked for
        self._vocabulary: tuple[list[Tensor], Tensor] | None = None  # likewise
        self._backbones: dict[Arithmetic, Backbone] = {}  # made when it is asked for

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
        return [member.places[FINISHED].prototypes for member in self.members]

    def places(self, probe: Probe) -> Places:
        """Where the domains lie, as `probe` sees it."""
        if probe not in self._places:
            self._places[probe] = Places(self.located(probe))
        return self._places[probe]

    def located(self, probe: Probe) -> list[Place]:
        """The place of each domain."""
        return [member.places[probe] for member in self.members]

    def add(self, name: str, member: Member) -> None:
        """Take a domain in, or put it in the place of the one of that name."""
        member.expert.requires_grad_(False).eval()
        self._members[name] = member
        self._changed()

    def forget(self, name: str) -> None:
        self[name]  # a name that is not there gets the nearest one told
        del self._members[name]
        self._changed()

    def take_over(self, other: ExpertPool) -> None:
        """Add the members of `other`."""
        self._members |= other._members
        self._changed()

    def _changed(self) -> None:
        self._places.clear()
        self._vocabulary = None

    @torch.no_grad()
    def predict(self, images: Tensor, ways: Sequence[Way], *, true: str | None = None) -> list[Prediction]:
        """Route `images`, run who is let through, fuse: once for each of `ways`. No expert runs twice.

        `true` is the images' domain, which the oracle alone is told.
        """
        check_pixels(images)
        answers: dict[Way, Prediction] = {}
        for arithmetic in dict.fromkeys(way.arithmetic for way in ways):
            alike = [way for way in dict.fromkeys(ways) if way.arithmetic == arithmetic]
            answers |= zip(alike, self._answers(self.computing(arithmetic), images, alike, true), strict=True)
        return [answers[way] for way in ways]

    def computing(self, arithmetic: Arithmetic) -> Backbone:
        """The frozen backbone in this arithmetic."""
        if arithmetic not in self._backbones:
            self._backbones[arithmetic] = faster(self.backbone, arithmetic)
        return self._backbones[arithmetic]

    def _answers(
        self, backbone: Backbone, images: Tensor, ways: Sequence[Way], true: str | None
    ) -> Iterator[Prediction]:
        tokens = backbone.start(images)
        probes = tuple(dict.fromkeys(self._probe(way) for way in ways if way.router != ORACLE))
        seen = dict(zip(probes, backbone.probed(tokens, probes), strict=True))
        unit = {probe: F.normalize(found, dim=-1) for probe, found in seen.items()}
        distance = {probe: self.places(probe).distances(found) for probe, found in unit.items()}
        trusts = [self._confidence(way, images, unit, distance, true) for way in ways]
        weights = [mixture_weights(t, way.fusion, most=way.max_experts) for t, way in zip(trusts, ways, strict=True)]
        columns, known = self.vocabulary()
        experts = [member.expert for member in self.members]
        spoken = torch.stack(weights).sum(dim=0)
        if all(hasattr(expert, "tuning") for expert in experts):
            query = seen.get(FINISHED)
            logits = run_experts(
                backbone, tokens, spoken, experts, columns=columns, classes=known.shape[1], query=query
            )
        else:
            logits = run_apart(backbone, images, spoken, experts, columns=columns, classes=known.shape[1])
        for way, trust, weight in zip(ways, trusts, weights, strict=True):
            mixed = mix(logits, weight, known.to(logits.device), way.fusion)
            probe = self._probe(way)
            unknown = self.places(probe).unknown(distance[probe]) if way.router != ORACLE else None
            yield Prediction(torch.log_softmax(mixed, dim=1), weight, (weight > 0).sum(dim=1), trust, unknown)

    def vocabulary(self) -> tuple[list[Tensor], Tensor]:
        """Of each expert, where its classes stand among all (C_t,); and who knows which class, (T, C)."""
        if self._vocabulary is not None:
            return self._vocabulary
        place = {name: index for index, name in enumerate(self.classes)}
        columns = [torch.tensor([place[name] for name in member.classes]) for member in self.members]
        known = torch.zeros(len(columns), len(place), dtype=torch.bool)
        for expert, own in enumerate(columns):
            known[expert, own] = True
        self._vocabulary = columns, known
        return self._vocabulary

    def _probe(self, way: Way) -> Probe:
        """Where images are looked at: a method's own inference sees the finished feature."""
        return FINISHED if way.router == OWN else self.stop(way.route_depth)

    def stop(self, route_depth: int) -> Probe:
        """Where the model routes when it may look at `route_depth` blocks; 0 is the finished feature."""
        known = {probe.depth: probe for probe in stops(self.backbone.depth)}
        if route_depth not in known:
            raise WrongUse(
                f"images cannot be routed after block {route_depth}",
                wanted=f"a route_depth of {', '.join(map(str, sorted(known)))} (0: after the last)",
                came=str(route_depth),
                remedy="`bpg evaluate --profile` says what each of them is worth.",
            )
        return known[route_depth]

    def _confidence(
        self,
        way: Way,
        images: Tensor,
        seen: Mapping[Probe, Tensor],
        distances: Mapping[Probe, Tensor],
        true: str | None,
    ) -> Tensor:
        if way.router == ORACLE:
            if true is None:
                raise WrongUse(
                    "the oracle is not told the domain",
                    wanted="the name of the images' domain",
                    came="none",
                    remedy="Give it as `true`, or take another router.",
                )
            self[true]  # must be one that is known
            place = torch.full((len(images),), self.domains.index(true), device=float64_device(images.device))
            return oracle(place, len(self))
        if way.router == OWN:
            if self.choose is None:
                raise WrongUse(
                    "there is no inference but the routers'",
                    wanted=", ".join(ROUTERS),
                    came=OWN,
                    remedy="Name one of them.",
                )
            return self.choose(images, seen[FINISHED])
        probe = self.stop(way.route_depth)
        distance = distances[probe]
        confidence = router_of(way.router)(distance, self.places(probe).spread)
        _check_confidence(confidence, distance)
        return confidence

    def expert_logits(self, images: Tensor, expert: int) -> Tensor:
        logits: Tensor = self.members[expert].expert(images, self.backbone)
        return logits


class Pooled(Routable, Protocol):
    """A learner whose experts live in a pool: routable. The options of `way_of` make its first way; where a method
    has an inference of its own, that is its first way unless a mixture or a router is named.
    """

    usual: ClassVar[str | None] = None  # the router that it answers by, if it is not a mixture's: OWN, or another
    pool: ExpertPool

    def __init__(self, backbone: Backbone | str, **options: Any) -> None:
        asked = {key: options.pop(key) for key in WAY_OPTIONS if key in options}
        if self.usual is not None and not {"mixture", "router"} & set(asked):
            asked["router"] = self.usual
        self.way = way_of(**asked)
        if self.way.router == OWN and self.usual != OWN:
            raise WrongUse(
                f"{self.method} has no inference of its own",
                wanted=", ".join(ROUTERS),
                came=OWN,
                remedy="Leave the router out.",
            )
        super().__init__(backbone, **options)
        self.pool.stop(self.way.route_depth)  # what this backbone does not have is told before anything is learned
        check_arithmetic(self.backbone, self.way.arithmetic)

    @classmethod
    def load(cls, folder: str | Path, **options: Any) -> Self:
        """The model in `folder`, answering by the options kept with it unless others are given."""
        kept = answering(Path(folder))
        strange = sorted(set(kept) - set(WAY_OPTIONS))
        if strange:
            raise ModelError(
                f"{Path(folder) / 'answering.json'} names options that do not exist",
                wanted=", ".join(WAY_OPTIONS),
                came=", ".join(strange),
                remedy="Remove them, or the file.",
            )
        if "mixture" in options:  # stands for a router and a fusion
            kept = {key: value for key, value in kept.items() if key not in ("router", "fusion")}
        return super().load(folder, **(kept | options))

    def begin(self) -> None:
        self.pool = ExpertPool(self.backbone)
        self.pool.choose = getattr(self, "choose", None)

    def survey(self, domain: Domain, probes: Sequence[Probe] = ()) -> Survey:
        return super().survey(domain, probes or stops(self.backbone.depth))

    def locate(self, domain: Domain, found: Survey) -> dict[Probe, Place]:
        """Where a surveyed domain lies, at every depth that can be routed at."""
        s = self.settings
        seed = seed_of(s.seed, domain.name, "prototypes")
        with self.timed("prototypes"):
            return {probe: located(features, k=s.k, seed=seed) for probe, features in found.features.items()}

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
        return self.compare(images, [self.way])[0]

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

    def admit(self, domain: Domain) -> None:
        """Check that `domain` may be learned, and say so if it takes the place of one."""
        others = {name for known in self.domains if known != domain.name for name in self.pool[known].classes}
        check_classes(sorted(others), domain.classes, allowed=self.allow_new_classes)
        if domain.name in self.pool:
            warnings.warn(f"{domain.name} is known already: it is learned anew from these images alone", stacklevel=3)

    def train_expert(
        self, expert: nn.Module, domain: Domain, *more: str | int, module: nn.Module | None = None
    ) -> None:
        """Train an expert on its domain, or a `module` that it is part of; `more` is what the result depends on."""
        s, o = self.settings, self.settings.optimisation

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(expert(images, self.backbone), labels, smoothing=o.label_smoothing)

        batches = Batches(domain, self.backbone.preprocessing, s.augmentation, s.seed, o.batch_size, o.epochs)
        self.fit(module or expert, loss, batches, vit=self.backbone.vit, resume=self.resume(domain, *more))

    def take_in(self, domain: Domain, found: Survey, expert: nn.Module, **facts: Any) -> None:
        """Put what was learned of a surveyed domain into the pool."""
        known = {
            "classes": list(domain.classes),
            "images": len(domain.train),
            "images_sha256": found.sha256,
            "parameters": sum(own.numel() for own in expert.parameters()),
        }
        self.pool.add(domain.name, Member(expert, self.locate(domain, found), known | facts))

    def state(self) -> State:
        return self.make_state({name: self.pool[name].learned() for name in self.domains})


class Separate(Pooled, Protocol):
    """A learner whose experts owe nothing to each other: one can be taken out, and models be merged."""

    def forget(self, name: str) -> None:
        """Become the model that never learned the domain `name`, bit for bit."""
        self.pool.forget(name)

    def merge(self, other: Self) -> None:
        """Take over the domains of a model learned apart: the result is the model that learned them all."""
        joined(self.state(), other.state(), allow_new_classes=self.allow_new_classes)  # refuses what does not fit
        self.pool.take_over(other.pool)


def check_pixels(images: Tensor) -> None:
    """Raise WrongUse for images that no backbone can see."""
    if not images.isfinite().all():
        raise WrongUse(
            "there are pixels that are no numbers",
            wanted="images as `backbone.prepare` makes them",
            came="NaN or infinity",
            remedy="Prepare the images again from their files.",
        )


def check_learned(learner: Routable) -> None:
    """Raise WrongUse for a learner that knows no domain."""
    if not learner.domains:
        raise WrongUse("nothing is learned yet", wanted="a learned domain", came="none", remedy="Call `learn` first.")


def _check_confidence(confidence: Tensor, distance: Tensor) -> None:
    shaped = confidence.shape == distance.shape
    if not shaped or not bool(((confidence.sum(dim=1) - 1).abs() < 1e-6).all() and (confidence >= 0).all()):
        raise PluginError(
            "the router gave no confidences",
            wanted=f"numbers of shape {tuple(distance.shape)} from 0 on, each row with a sum of 1",
            came=f"shape {tuple(confidence.shape)}" if not shaped else "other or undefined numbers",
            remedy="Check the images for undefined pixels, and the router if it is a plug-in.",
        )


def for_routing(name: str) -> bool:
    """Whether a tensor of a domain says where the domain lies, and nothing of what its expert does."""
    return name.partition("/")[0] in ("prototypes", "reach")


def _key(what: str, probe: Probe) -> str:
    return what if probe == FINISHED else f"{what}/{probe.kind}-{probe.depth}"


def _is_sound(place: Place, width: int) -> bool:
    centres, reach = place.prototypes, place.reach
    shaped = centres.ndim == 2 and len(centres) > 0 and centres.shape[1] == width and reach.shape == (LEVELS,)
    return shaped and bool(centres.isfinite().all() and reach.isfinite().all() and (reach.diff() >= 0).all())
