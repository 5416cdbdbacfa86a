"""BPG: every domain has an expert on a frozen backbone, whose size follows from how separable the domain's frozen
features are: the harder the domain, the larger. At test time an image's distance to each domain's prototypes says who
may speak. Those who are let through are mixed, so that an image between domains is answered by several.

Trained: prompt tokens, adapters or LoRA of rank r_t, and a head, for each domain.
Stored: these, and five prototypes a domain, with how far its own images lie from them.
Paper: Wang et al., "BPG: Balancing Plasticity and Generalization for Domain Incremental Learning", preprint.
Here: two mixtures: the paper's, and one at a temperature that follows from the domains (calibrated), which is the
default outside of experiments.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveFloat, PositiveInt

from bpg.backbones.catalogue import catalogue
from bpg.backbones.survey import Survey
from bpg.capacity import MAX_RANK, allocate, solve_budget
from bpg.config import settings
from bpg.data.domain import TEMPLATE, Domain
from bpg.data.transforms import Augmentation
from bpg.errors import WrongUse
from bpg.experts.expert import Expert, ExpertSettings, parameter_count
from bpg.experts.head import check_text
from bpg.methods.parts.pool import Member, Separate
from bpg.randomness import generator_of
from bpg.separability import Estimator, between_within, separability
from bpg.store import State
from bpg.training import Optimisation


@settings
class BPGSettings:
    """What makes a BPG model."""

    seed: Annotated[int, Field(ge=0)] = 0
    r0: PositiveInt = 64  # hidden dimension of the reference domain
    s0: PositiveFloat | None = None  # separability of the reference domain; the backbone's known one if not given
    lam: PositiveFloat | None = None  # lambda = s_0 r_0 itself, in the place of both; `solve_capacity` finds one
    rank: PositiveInt | None = None  # the same for every domain, in the place of the rule
    max_rank: PositiveInt = MAX_RANK
    estimator: Estimator = "plain"
    k: PositiveInt = 5  # prototypes a domain
    expert: ExpertSettings = ExpertSettings()
    optimisation: Optimisation = Optimisation()
    augmentation: Augmentation = Augmentation()


class BPG(Separate):
    """An expert for each domain, as large as the domain is hard, and a soft mixture of them at test time.

    The user's model: `learn` domains in any order, `predict` images from any of them.

    `mixture`, `router`, `fusion`, `route_depth`, `max_experts` and `arithmetic` say who speaks at test time
    (`bpg.methods.parts.ways`); they are no part of what is learned and may change at any time. With `scratch`, a
    folder, an interrupted `learn` goes on where it was.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from bpg.backbones.backbone import Backbone
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
    Settings = BPGSettings
    settings: BPGSettings

    def learn(self, domain: Domain) -> None:
        self.admit(domain)
        s = self.settings
        found = self.survey(domain)  # one pass: scatter, features for k-means
        rank, measured = self.capacity(domain, found)
        expert = self.expert(domain.classes, rank, generator_of(s.seed, domain.name, "weights"), domain.template)
        self.train_expert(expert, domain, str(rank))
        facts = measured | ({"template": domain.template} if s.expert.head == "text" else {})
        self.take_in(domain, found, expert, rank=rank, **facts)

    def restore(self, state: State) -> None:
        for name, learned in state.domains.items():
            facts = learned.facts
            expert = self.expert(facts["classes"], facts["rank"], generator_of(0), facts.get("template", TEMPLATE))
            self.pool.add(name, Member.restored(expert, learned, self.backbone))

    def begin(self) -> None:
        super().begin()
        s = self.settings
        if s.rank is None:
            self._lambda()  # what it cannot follow from is told before anything is surveyed
        if s.expert.head == "text":
            check_text(self.backbone)

    def solve_capacity(
        self, domains: Sequence[Domain], *, parameters: float | None = None, megabytes: float | None = None
    ) -> float:
        """lambda for which the experts of `domains` have `parameters` or `megabytes` (float32) together, at most.

        Surveys every domain. Give the result to a new model as `lam`: it is stored with it and never solved again.
        """
        if (parameters is None) == (megabytes is None):
            raise WrongUse(
                "one budget, please",
                wanted="parameters or megabytes",
                came="both or neither",
                remedy="Give one of them.",
            )
        total, size = (parameters, 1.0) if parameters is not None else (float(megabytes or 0), 4 / 1e6)
        s = self.settings
        scores = [separability(self.survey(d).scatter, estimator=s.estimator) for d in domains]

        def cost(rank: int, domain: int) -> float:
            return size * parameter_count(self.backbone, len(domains[domain].classes), rank=rank, settings=s.expert)

        return solve_budget(scores, cost=cost, total=total, max_rank=s.max_rank)

    def expert(self, classes: Sequence[str], rank: int, generator: torch.Generator, template: str = TEMPLATE) -> Expert:
        """An expert of this model's settings that has learned nothing yet."""
        return Expert(
            self.backbone, classes, rank=rank, settings=self.settings.expert, generator=generator, template=template
        )

    def capacity(self, domain: Domain, found: Survey) -> tuple[int, dict[str, Any]]:
        """r_t of a surveyed domain, and what was measured on the way to it."""
        s = self.settings
        measured: dict[str, Any] = {"separability": None, "between": None, "within": None}
        if len(domain.classes) < 2:
            if s.rank is None:
                warnings.warn(
                    f"{domain.name} has one class only: separability is undefined, r_0 is given", stacklevel=3
                )
            return s.rank or min(s.r0, s.max_rank), measured
        alone = int(found.scatter.counts.max()) == 1
        if s.rank is not None and alone and s.estimator == "corrected":
            return s.rank, measured  # nothing to measure, and nothing depends on it
        measured["between"], measured["within"] = between_within(found.scatter, estimator=s.estimator)
        measured["separability"] = separability(found.scatter, estimator=s.estimator)
        if s.rank is not None:
            return s.rank, measured
        if alone:
            warnings.warn(f"{domain.name} has one image a class: its separability means nothing", stacklevel=3)
        return allocate(measured["separability"], lam=self._lambda(), max_rank=s.max_rank), measured

    def _lambda(self) -> float:
        """lambda = s_0 r_0."""
        s = self.settings
        if s.lam is not None:
            return s.lam
        if s.s0 is not None:
            return s.s0 * s.r0
        entry = catalogue().get(self.backbone.name)
        if entry is None or entry.s_0 is None or entry.s_0_estimator != s.estimator:
            raise WrongUse(
                f"the reference separability s_0 of {self.backbone.name} is not known for the {s.estimator} estimator",
                wanted="s0, lam or rank among the settings",
                came="none of them",
                remedy="Measure s_0 on the images that the backbone was trained on, or set `rank`.",
            )
        return entry.s_0 * s.r0
