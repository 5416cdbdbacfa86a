"""SOYO: every domain has an expert of its own, and a classifier of domains, trained on all of them, says whose is used.
The images of old domains are gone when a new one comes: in their place, features are drawn from a mixture of Gaussians
that was fitted to each. So the classifier of domains sees old and new ones alike.

Trained: prompt tokens, linear adapters and a head for each domain; one linear map from features to domains.
Stored: these, and two Gaussians with full covariances a domain.
Paper: Wang et al., "Boosting Domain Incremental Learning: Selecting the Optimal Parameters is All You Need", CVPR 2025,
arXiv 2505.23744.
Here: as in the released code, without the fusion of several depths that the paper has. The classifier of domains and
the Gaussians see features of images as evaluation does, not of crops. A small variance is added to every channel.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from bpg.backbones.backbone import FINISHED
from bpg.config import settings
from bpg.data.batches import FeatureBatches
from bpg.data.domain import Domain
from bpg.data.transforms import Augmentation
from bpg.experts.head import check_text
from bpg.methods.parts.aligned import Aligned, Kind, head_of
from bpg.methods.parts.gaussians import Gaussians, fitted
from bpg.methods.parts.pool import Member, Pooled
from bpg.methods.parts.selection import chosen
from bpg.randomness import generator_of, seed_of
from bpg.store import State
from bpg.training import Optimisation, cross_entropy

MIXTURE = ("shares", "means", "covariances")


@settings
class SOYOSettings:
    """For DomainNet."""

    seed: Annotated[int, Field(ge=0)] = 0
    prompts: PositiveInt = 10  # tokens
    hidden: PositiveInt = 16  # h, rank of the adapters
    where: Literal["deep", "shallow"] = "deep"  # adapters behind every block, or one behind the last norm
    head: Kind = "linear"  # text: CLIP's class names behind learned words
    context: PositiveInt = 16  # words of a text head
    k: PositiveInt = 5  # prototypes a domain, for other routers
    components: PositiveInt = 2  # Gaussians a domain
    optimisation: Optimisation = Optimisation()
    selection: Optimisation = Optimisation(lr=0.1)  # of the classifier of domains
    augmentation: Augmentation = Augmentation()


class SOYO(Pooled):
    """An expert for each domain, chosen by a classifier of domains that replays old features from Gaussians."""

    method = "soyo"
    Settings = SOYOSettings
    settings: SOYOSettings
    has_own = True

    def begin(self) -> None:
        super().begin()
        self.pool.choose = self.choose
        self.order: list[str] = []  # of the selector's rows: domains as they were learned
        self.selector: nn.Linear | None = None
        if self.settings.head == "text":
            check_text(self.backbone)

    def learn(self, domain: Domain) -> None:
        self.admit(domain)
        s, found = self.settings, self.survey(domain)
        expert = self._expert(list(domain.classes), domain.name)
        self.train_expert(expert, domain)
        order = self.order if domain.name in self.order else [*self.order, domain.name]
        selector = self._selector(domain.name, order, found.features[FINISHED])
        mixture = fitted(found.features[FINISHED], k=s.components, seed=seed_of(s.seed, domain.name, "gaussians"))
        for part in MIXTURE:
            expert.register_buffer(part, getattr(mixture, part))
        facts = {
            "classes": list(domain.classes),
            "images": len(domain.train),
            "images_sha256": found.sha256,
            "parameters": sum(own.numel() for own in expert.parameters()),
        }
        self.pool.add(domain.name, Member(expert, self.locate(domain, found), facts))
        self.order, self.selector = order, selector

    def _expert(self, classes: list[str], name: str) -> Aligned:
        s, generator = self.settings, generator_of(self.settings.seed, name, "weights")
        head = head_of(s.head, self.backbone, classes, context=s.context, generator=generator)
        return Aligned(self.backbone, head, prompts=s.prompts, hidden=s.hidden, where=s.where, generator=generator)

    def _selector(self, name: str, order: list[str], features: Tensor) -> nn.Linear:
        """The classifier of domains, trained on with `features` of the new one and drawn ones of the others."""
        s, o = self.settings, self.settings.selection
        linear = nn.Linear(self.backbone.feature_width, len(order))
        generator = generator_of(s.seed, name, "selector")
        bound = linear.in_features**-0.5
        for part in (linear.weight, linear.bias):
            nn.init.uniform_(part, -bound, bound, generator=generator)
        if self.selector is not None:
            linear.weight.data[: len(self.order)] = self.selector.weight.cpu()
            linear.bias.data[: len(self.order)] = self.selector.bias.cpu()
        linear.to(self.backbone.device)
        others = [other for other in order if other != name]
        drawn = [self._mixture(other).sample(len(features), generator) for other in others]
        labels = [torch.full((len(features),), order.index(other)) for other in others]
        own = torch.full((len(features),), order.index(name))
        new_ones = FeatureBatches(features.cpu(), own, name, s.seed, o.batch_size, o.epochs)
        batches = Replay(new_ones, torch.cat(drawn), torch.cat(labels)) if others else new_ones

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(linear(x), y)

        self.fit(linear, loss, batches, vit=None, resume=None, optimisation=o)
        return linear.requires_grad_(False)

    def _mixture(self, name: str) -> Gaussians:
        kept = self.pool[name].expert
        return Gaussians(*(getattr(kept, part).cpu() for part in MIXTURE))

    def choose(self, images: Tensor, features: Tensor) -> Tensor:
        """The likeliest domain."""
        del images
        assert self.selector is not None
        likely = self.selector(features).argmax(dim=1)
        places = torch.tensor([self.domains.index(name) for name in self.order])
        return chosen(places[likely.cpu()], len(self.order)).to(features.device)

    def state(self) -> State:
        rows = self.selector.state_dict() if self.selector is not None else {}
        shared = {f"selector/{name}": own for name, own in rows.items()}
        return self.make_state(super().state().domains, shared=shared, facts={"order": list(self.order)})

    def restore(self, state: State) -> None:
        self.order = list(state.facts["order"])
        if sorted(self.order) != sorted(state.domains):
            raise ValueError("an order of other domains")
        if self.order:
            selector = nn.Linear(self.backbone.feature_width, len(self.order), device=self.backbone.device)
            selector.load_state_dict({n.removeprefix("selector/"): own for n, own in state.shared.items()})
            self.selector = selector.requires_grad_(False)
        for name, learned in state.domains.items():
            expert: Any = self._expert(learned.facts["classes"], name)
            for part in MIXTURE:
                expert.register_buffer(part, torch.empty_like(learned.tensors[f"expert/{part}"]))
            self.pool.add(name, Member.restored(expert, learned, self.backbone))


@dataclass(frozen=True, eq=False)
class Replay:
    """Batches in which every domain has the same share: the new one's features, and drawn ones of the others."""

    own: FeatureBatches
    features: Tensor  # drawn, (m, d)
    labels: Tensor  # (m,)

    @property
    def steps(self) -> int:
        return self.own.steps

    def stream(self, first: int, *, rank: int = 0, ranks: int = 1) -> Generator[tuple[Tensor, Tensor, int], None, None]:
        """(features, domains, size of the whole batch) of each step from `first` on."""
        domains = len(set(self.labels.tolist())) + 1
        for step, (x, y, _) in enumerate(self.own.stream(first), start=first):
            kept = max(1, len(x) // domains)
            generator = generator_of(self.own.seed, self.own.domain, "drawn", step)
            drawn = torch.randint(len(self.features), (max(1, len(x) - kept),), generator=generator)
            whole = torch.cat([x[:kept], self.features[drawn]])
            domain = torch.cat([y[:kept], self.labels[drawn]])
            yield whole[rank::ranks], domain[rank::ranks], len(whole)
