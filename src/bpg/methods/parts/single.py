"""One network that all domains share, with one head: what is trained of it, and what is kept beside it, a method says.

Labels are shared by default: one row of the head for each class. Methods that were made for new classes know a second
way, where every domain has rows of its own for its classes, and the best row of a class answers for it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bpg.backbones.vit import ViT
from bpg.compute import as_float64
from bpg.data.batches import Batches
from bpg.data.domain import Domain
from bpg.data.images import ImageSet, sha256_of
from bpg.methods.base import Learner, passed
from bpg.methods.parts.heads import OF, classes_of, per_class
from bpg.methods.parts.identity import check_classes, tensors_digest
from bpg.methods.parts.memory import Memory, MemorySettings, Replayed
from bpg.store import State
from bpg.training import Batched, Optimisation, cross_entropy
from bpg.types import Prediction

Labels = Literal["shared", "expanded"]
NOTHING = MemorySettings(images=0)
SingleLoss = Callable[[Any, Tensor, Tensor], Tensor]  # network, images (B, 3, H, W), rows of the head (B,) -> (B,)


class Single(Learner):
    """A network that goes on learning with each new domain. Its settings have `seed`, `optimisation`, `augmentation`;
    with `memory` among them it keeps images, with `labels` the head may have rows for each domain.
    """

    network: Any  # an nn.Module with a GrowingHead `head`; it knows what it has `learned_from`, a digest a domain
    memory: Memory  # empty for good where there is none among the settings

    def build(self) -> nn.Module:
        """The network that has learned nothing yet."""
        raise NotImplementedError

    def logits(self, network: Any, images: Tensor) -> Tensor:
        """(B, rows of the head)."""
        found: Tensor = network(images)
        return found

    def vit(self, network: Any) -> ViT:
        """The ViT whose activations take the room."""
        raise NotImplementedError

    def open(self, network: Any, domain: Domain) -> None:
        """Make room in the network for a new domain, and say which parameters are trained on it: all."""
        del domain
        network.requires_grad_(True)

    def begin(self) -> None:
        self.network = self.build()
        self.network.learned_from = {}
        self.memory = Memory(getattr(self.settings, "memory", NOTHING))

    @property
    def expanded(self) -> bool:
        return getattr(self.settings, "labels", "shared") == "expanded"

    @property
    def classes(self) -> tuple[str, ...]:
        return classes_of(self.network.head.classes)

    def row(self, name: str, domain: str) -> str:
        """The head's row for a class of a domain."""
        return f"{name}{OF}{domain}" if self.expanded else name

    def grown(self, domain: Domain, start: Any = None) -> Any:
        """A copy of the network, or `start` in its place, with room for `domain`; the network itself stays."""
        check_classes(self.classes, domain.classes, allowed=self.allow_new_classes)
        network = deepcopy(self.network) if start is None else start
        new = [self.row(name, domain.name) for name in domain.classes]
        network.head.grow([*self.network.head.classes, *new], seed=self.settings.seed)
        network.learned_from = {**self.network.learned_from, domain.name: sha256_of(domain.train)}
        network.requires_grad_(False)
        self.open(network, domain)
        return network

    def train(
        self,
        network: Any,
        domain: Domain,
        loss: SingleLoss | None = None,
        *,
        batches: Batched | None = None,
        rows: Tensor | None = None,
        optimisation: Optimisation | None = None,
        after: Callable[[], None] | None = None,
    ) -> Any:
        """`network`, trained on `domain`, or on `batches` whose labels have these `rows` of the head."""
        o = optimisation or self.settings.optimisation
        own = self.rows(network, domain) if rows is None else rows
        loss = loss or self.task

        def of_labels(images: Tensor, labels: Tensor) -> Tensor:
            return loss(network, images, own.to(labels.device)[labels])

        batches = batches or self.batches(domain, o)
        resume = self.resume(domain, tensors_digest(self.network), self.memory.digest())
        self.fit(network, of_labels, batches, vit=self.vit(network), resume=resume, optimisation=o, after=after)
        return network.requires_grad_(False)

    def replayed(self, network: Any, domain: Domain, draws: int = 1) -> dict[str, Any]:
        """What `train` is given so that images of other domains stand behind each batch; nothing while none is kept."""
        memory = self.memory.without(domain.name)
        if not memory:
            return {}
        own = self.batches(domain, self.settings.optimisation)
        kept = network.head.places([self.row(each.name, each.domain) for each in memory.kept])
        return {
            "batches": Replayed(own, memory, draws),
            "rows": torch.cat([self.rows(network, domain), *[kept] * draws]),
        }

    def batches(self, domain: Domain, o: Optimisation) -> Batches:
        """The domain's own, under the settings."""
        s = self.settings
        return Batches(domain, self.backbone.preprocessing, s.augmentation, s.seed, o.batch_size, o.epochs)

    def remembered(self, network: Any, domain: Domain) -> Memory:
        """The memory when `domain` is learned, too."""
        return self.memory.after(domain, seed=self.settings.seed, features=lambda own: self.features(network, own))

    @torch.no_grad()
    def features(self, network: Any, images: ImageSet) -> Tensor:
        """Unit-length features (n, d) of images as evaluation sees them: frozen ones, unless a method has others."""
        del network
        return passed(self, images, self.backbone.embed)

    def rows(self, network: Any, domain: Domain) -> Tensor:
        """Where the classes of `domain`, which may be called by their rows already, stand in the head."""
        known = network.head.classes
        names = [name if name in known else self.row(name, domain.name) for name in domain.classes]
        found: Tensor = network.head.places(names)
        return found

    def task(self, network: Any, images: Tensor, rows: Tensor) -> Tensor:
        """The loss of every method here but for what is its own: to name the class."""
        return self.named(self.logits(network, images), rows)

    def named(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Cross-entropy, by the settings."""
        return cross_entropy(logits, rows, smoothing=self.settings.optimisation.label_smoothing)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Prediction:
        log_probs = per_class(as_float64(self.logits(self.network, images)), self.network.head.classes)
        return Prediction.of_one(log_probs)

    def state(self) -> State:
        shared = {f"network/{name}": tensor for name, tensor in self.network.state_dict().items()}
        facts: dict[str, Any] = {"classes": list(self.network.head.classes)}
        facts["images_sha256"] = dict(self.network.learned_from)
        if self.memory.seen:
            shared |= self.memory.tensors()
            facts["memory"] = self.memory.facts()
        return self.make_state(shared=shared, facts=facts)

    def restore(self, state: State) -> None:
        self.network.head.grow(state.facts["classes"], seed=0)
        self.network.load_state_dict(state.below("network/"))
        self.network.to(self.backbone.device).requires_grad_(False)
        self.network.learned_from = dict(state.facts.get("images_sha256", {}))  # older models do not know
        if "memory" in state.facts:
            self.memory.restore(state.below("memory/"), state.facts["memory"])
