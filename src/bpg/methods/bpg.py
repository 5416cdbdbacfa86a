"""BPG: an expert for each domain, as large as the domain is hard, and a soft mixture of them at test time.

Wang et al., "BPG: Balancing Plasticity and Generalization for Domain Incremental Learning", preprint.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from bpg.backbones.backbone import FINISHED, Backbone
from bpg.backbones.catalogue import catalogue
from bpg.backbones.survey import Survey, survey
from bpg.backbones.weights import load_backbone
from bpg.capacity import MAX_RANK, allocate
from bpg.config import settings
from bpg.data.batches import Batches
from bpg.data.domain import Domain
from bpg.data.transforms import Augmentation
from bpg.errors import ModelError, WrongUse
from bpg.experts.expert import Expert, ExpertSettings, parameter_count
from bpg.methods.base import Learner
from bpg.methods.parts.identity import as_json, check_backbone, check_classes, identity
from bpg.methods.parts.pool import ExpertPool, Member
from bpg.mixture import Fusion
from bpg.progress import Progress
from bpg.prototypes import prototypes
from bpg.randomness import generator_of, seed_of
from bpg.separability import Estimator, between_within, separability
from bpg.store import State, load_state
from bpg.training import Optimisation, Resume, cross_entropy, fit
from bpg.types import Prediction


@settings
class BPGSettings:
    """What makes a BPG model. All of it is stored with the model and never changes."""

    seed: Annotated[int, Field(ge=0)] = 0
    r0: PositiveInt = 64  # hidden dimension of the reference domain
    s0: PositiveFloat | None = None  # separability of the reference domain; the backbone's known one if not given
    budget: PositiveFloat | None = None  # lambda = s_0 r_0 itself, in the place of both
    rank: PositiveInt | None = None  # the same for every domain, in the place of the rule
    max_rank: PositiveInt = MAX_RANK
    estimator: Estimator = "plain"
    k: PositiveInt = 5  # prototypes a domain
    expert: ExpertSettings = ExpertSettings()
    optimisation: Optimisation = Optimisation()
    augmentation: Augmentation = Augmentation()


class BPG(Learner):
    """The user's model. `learn` domains in any order, `predict` images from any of them.

    `router` ("soft", "hard", or a function of distances) and `fusion` say who speaks at test time; they are no part of
    what is learned and may change at any time. With `scratch`, a folder, an interrupted `learn` goes on where it was.

    >>> import tempfile
    >>> from PIL import Image
    >>> from bpg.backbones.vit import ViT, ViTConfig
    >>> from bpg.data.images import ImageSet
    >>> from bpg.data.transforms import Preprocessing
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("black", "white"):
    ...     Image.new("RGB", (32, 32), name).save(folder / f"{name}.png")
    >>> images = ImageSet((folder / "black.png", folder / "white.png"), (0, 1), ("night", "day"))
    >>> vit = ViT(ViTConfig(image_size=32, patch_size=16, width=32, depth=1, heads=2, hidden=64))
    >>> backbone = Backbone(vit, Preprocessing(size=32), name="small")
    >>> model = BPG(backbone, rank=2, optimisation={"epochs": 30, "lr": 0.1})
    >>> model.learn(Domain("plain", images))
    >>> model.predict([folder / "white.png", folder / "black.png"])
    ['day', 'night']
    >>> model.score(images)
    1.0
    >>> digest = model.save(folder / "model")
    >>> BPG.load(folder / "model", backbone=backbone).domains
    ('plain',)
    """

    method = "bpg"

    def __init__(
        self,
        backbone: Backbone | str,
        *,
        router: str = "soft",
        fusion: Fusion = "threshold+l1",
        allow_new_classes: bool = False,
        scratch: str | Path | None = None,
        checkpoint_seconds: float = 5.0,
        progress: Callable[[Progress], None] | None = None,
        **values: Any,
    ) -> None:
        self.backbone = load_backbone(backbone) if isinstance(backbone, str) else backbone
        self.settings = BPGSettings(**values)
        self.router, self.fusion = router, fusion
        self.allow_new_classes = allow_new_classes
        self.scratch = Path(scratch) if scratch is not None else None  # where an interrupted `learn` goes on from
        self.checkpoint_seconds = checkpoint_seconds  # of work between two checkpoints: what a kill loses at most
        self.progress = progress
        self._pool = ExpertPool(self.backbone)
        self._weights = self.backbone.digest()

    @property
    def domains(self) -> tuple[str, ...]:
        return self._pool.domains

    @property
    def classes(self) -> tuple[str, ...]:
        return self._pool.classes

    @property
    def prototypes(self) -> list[Tensor]:
        return self._pool.prototypes

    def facts(self, domain: str) -> dict[str, Any]:
        """What is known of a learned domain: classes, s_t, r_t, images, parameters."""
        return dict(self._pool[domain].facts)

    def learn(self, domain: Domain) -> None:
        check_classes(self.classes, domain.classes, allowed=self.allow_new_classes)
        if domain.name in self._pool:
            warnings.warn(f"{domain.name} is known already: it is learned anew from these images alone", stacklevel=2)
        s = self.settings
        found = survey(self.backbone, domain.train)  # one pass: scatter, features for k-means
        rank, measured = self._capacity(domain, found)
        expert = Expert(
            self.backbone,
            domain.classes,
            rank=rank,
            settings=s.expert,
            generator=generator_of(s.seed, domain.name, "weights"),
        )

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(expert(images, self.backbone), labels, smoothing=s.optimisation.label_smoothing)

        o = s.optimisation
        batches = Batches(domain, self.backbone.preprocessing, s.augmentation, s.seed, o.batch_size, o.epochs)
        self.backbone.vit.recompute = o.recompute
        fit(
            expert,
            loss,
            batches,
            o,
            device=self.backbone.device,
            resume=self._resume(domain, rank),
            progress=self.progress,
            scaled=self.backbone.precision == "float16",
        )
        facts = {
            "classes": list(domain.classes),
            "images": len(domain.train),
            "rank": rank,
            "parameters": parameter_count(self.backbone, len(domain.classes), rank=rank, settings=s.expert),
            **measured,
        }
        centres = prototypes(found.features[FINISHED], k=s.k, seed=seed_of(s.seed, domain.name, "prototypes"))
        self._pool.add(domain.name, Member(expert, centres, facts))

    def forward(self, images: Tensor) -> Prediction:
        return self._pool.predict(images, router=self.router, fusion=self.fusion)

    def oracle(self, images: Tensor, domain: str) -> Prediction:
        """What the expert of the true domain says: the bound that no router passes. For measurements."""
        true = torch.full((len(images),), self.domains.index(domain))
        return self._pool.predict(images, router=self.router, fusion="threshold+l1", true=true)

    def embed(self, images: Tensor) -> Tensor:
        return self.backbone.embed(images)

    def expert_logits(self, images: Tensor, expert: int) -> Tensor:
        return self._pool.expert_logits(images, expert)

    def forget(self, name: str) -> None:
        """Become the model that never learned the domain `name`, bit for bit."""
        self._pool.forget(name)

    def merge(self, other: BPG) -> None:
        """Take over the domains of a model learned apart: the result is the model that learned them all."""
        mine, theirs = self.state(), other.state()
        for part in ("backbone", "settings"):
            ours, its = getattr(mine, part), getattr(theirs, part)
            if ours != its:
                differing = [key for key in ours if ours[key] != its.get(key)]
                raise ModelError(
                    f"models of different {part} cannot be merged",
                    wanted=f"the same {', '.join(differing)}",
                    came="; ".join(f"{key}: {ours[key]} and {its.get(key)}" for key in differing),
                    remedy="Learn the domain anew in one of them.",
                )
        check_classes(self.classes, other.classes, allowed=self.allow_new_classes)
        check_classes(other.classes, self.classes, allowed=self.allow_new_classes)
        self._pool.take_over(other._pool)

    def state(self) -> State:
        domains = {name: self._pool[name].learned() for name in self.domains}
        return State(self.method, as_json(self.settings), identity(self.backbone, self._weights), domains)

    def load_state(self, state: State) -> None:
        check_backbone(state, self.backbone, self._weights)
        self.settings = BPGSettings(**state.settings)
        self._pool = ExpertPool(self.backbone)
        for name, learned in state.domains.items():
            expert = Expert(
                self.backbone,
                learned.facts["classes"],
                rank=learned.facts["rank"],
                settings=self.settings.expert,
                generator=generator_of(0),
            )
            expert.load_state_dict(Member.expert_tensors(learned))
            self._pool.add(name, Member(expert, learned.tensors["prototypes"], learned.facts))

    @classmethod
    def load(cls, folder: str | Path, *, backbone: Backbone | str | None = None, **options: Any) -> BPG:
        """The model in `folder`, with the backbone it names unless another source of the same weights is given."""
        state = load_state(Path(folder))
        if state.method != cls.method:
            raise ModelError(
                f"{folder} is no BPG model", wanted=cls.method, came=state.method, remedy="Load it with its own method."
            )
        if backbone is None:
            backbone = load_backbone(state.backbone["name"], image_size=state.backbone["preprocessing"]["size"])
        model = cls(backbone, **options)
        model.load_state(state)
        return model

    def save(self, folder: str | Path, *, event: str = "saved") -> str:
        digest = super().save(folder, event=event)
        if self.scratch is not None:
            for file in self.scratch.glob("learn-*.safetensors"):
                file.unlink(missing_ok=True)
        return digest

    def _capacity(self, domain: Domain, found: Survey) -> tuple[int, dict[str, Any]]:
        """r_t, and what was measured on the way to it."""
        s = self.settings
        if len(domain.classes) < 2:
            warnings.warn(f"{domain.name} has one class only: separability is undefined, r_0 is given", stacklevel=3)
            return s.rank or s.r0, {"separability": None, "between": None, "within": None}
        between, within = between_within(found.scatter, estimator=s.estimator)
        score = separability(found.scatter, estimator=s.estimator)
        measured = {"separability": score, "between": between, "within": within}
        if s.rank is not None:
            return s.rank, measured
        return allocate(score, budget=self._budget(), max_rank=s.max_rank), measured

    def _budget(self) -> float:
        """lambda = s_0 r_0."""
        s = self.settings
        if s.budget is not None:
            return s.budget
        if s.s0 is not None:
            return s.s0 * s.r0
        entry = catalogue().get(self.backbone.name)
        if entry is None or entry.s_0 is None or entry.s_0_estimator != s.estimator:
            raise WrongUse(
                f"the reference separability s_0 of {self.backbone.name} is not known for the {s.estimator} estimator",
                wanted="s0, budget or rank among the settings",
                came="none of them",
                remedy="Measure s_0 on the images that the backbone was trained on, or set `rank`.",
            )
        return entry.s_0 * s.r0

    def _resume(self, domain: Domain, rank: int) -> Resume | None:
        if self.scratch is None:
            return None
        digest = hashlib.sha256(json.dumps([as_json(self.settings), self._weights, domain.name, rank]).encode())
        for index in range(len(domain.train)):
            digest.update(hashlib.sha256(domain.train.encoded(index)).digest())
            digest.update(str(domain.train.labels[index]).encode())
        identity = digest.hexdigest()
        file = self.scratch / f"learn-{identity[:32]}.safetensors"
        return Resume(file, identity, self.checkpoint_seconds)
