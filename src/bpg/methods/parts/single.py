"""One network that all domains share, with one head: what is trained of it, and what is kept beside it, a method says.

Labels are shared by default: one row of the head for each class. Methods that were made for new classes know a second
way, where every domain has rows of its own for its classes, and the best row of a class answers for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bpg.backbones.vit import ViT
from bpg.compute import as_float64
from bpg.data.batches import Batches
from bpg.data.domain import Domain
from bpg.data.images import ImageSet
from bpg.methods.base import Learner, prepared
from bpg.methods.parts.identity import check_classes, tensors_digest
from bpg.methods.parts.memory import Memory, Replayed
from bpg.store import State
from bpg.training import Batched, Optimisation, cross_entropy
from bpg.types import Prediction

Labels = Literal["shared", "expanded"]
OF = "\u241f"  # between class and domain in the name of a row, where every domain has its own
SingleLoss = Callable[[Any, Tensor, Tensor], Tensor]  # network, images (B, 3, H, W), rows of the head (B,) -> (B,)


class Single(Learner):
    """A network that goes on learning with each new domain. Its settings have `seed`, `optimisation`, `augmentation`;
    with `memory` among them it keeps images, with `labels` the head may have rows for each domain.
    """

    network: Any  # an nn.Module with a GrowingHead `head`
    memory: Memory | None

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
        kept = getattr(self.settings, "memory", None)
        self.memory = Memory(kept) if kept is not None else None

    @property
    def expanded(self) -> bool:
        return getattr(self.settings, "labels", "shared") == "expanded"

    @property
    def classes(self) -> tuple[str, ...]:
        rows: tuple[str, ...] = self.network.head.classes
        return tuple(sorted({row.partition(OF)[0] for row in rows}))

    def row(self, name: str, domain: str) -> str:
        """The head's row for a class of a domain."""
        return f"{name}{OF}{domain}" if self.expanded else name

    def grown(self, domain: Domain, start: Any = None) -> Any:
        """A copy of the network, or of `start`, with room for `domain`; an interrupted training leaves no trace."""
        check_classes(self.classes, domain.classes, allowed=self.allow_new_classes)
        network = deepcopy(self.network if start is None else start)
        network.head.grow([self.row(name, domain.name) for name in domain.classes], seed=self.settings.seed)
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
        also: Sequence[str | int] = (),
        after: Callable[[], None] | None = None,
    ) -> Any:
        """`network`, trained on `domain`, or on `batches` whose labels have these `rows` of the head."""
        s, o = self.settings, optimisation or self.settings.optimisation
        own = self.rows(network, domain) if rows is None else rows
        loss = loss or self.task

        def of_labels(images: Tensor, labels: Tensor) -> Tensor:
            return loss(network, images, own.to(labels.device)[labels])

        batches = batches or Batches(
            domain, self.backbone.preprocessing, s.augmentation, s.seed, o.batch_size, o.epochs
        )
        kept = self.memory.digest() if self.memory is not None else ""
        resume = self.resume(domain, tensors_digest(self.network), kept, *also)
        self.fit(network, of_labels, batches, vit=self.vit(network), resume=resume, optimisation=o, after=after)
        return network.requires_grad_(False)

    def replayed(self, network: Any, domain: Domain, draws: int = 1) -> dict[str, Any]:
        """What `train` is given so that images of the memory stand behind each batch; nothing while it is empty."""
        if not self.memory:
            return {}
        s, o = self.settings, self.settings.optimisation
        own = Batches(domain, self.backbone.preprocessing, s.augmentation, s.seed, o.batch_size, o.epochs)
        kept = network.head.places([self.row(each.name, each.domain) for each in self.memory.kept])
        return {
            "batches": Replayed(own, self.memory, draws),
            "rows": torch.cat([self.rows(network, domain), *[kept] * draws]),
        }

    def remembered(self, network: Any, domain: Domain) -> Memory | None:
        """The memory when `domain` is learned, too."""
        if self.memory is None:
            return None
        return self.memory.after(domain, seed=self.settings.seed, features=lambda own: self.features(network, own))

    @torch.no_grad()
    def features(self, network: Any, images: ImageSet) -> Tensor:
        """Unit-length features (n, d) of images as evaluation sees them: frozen ones, unless a method has others."""
        del network
        found = [self.backbone.embed(batch) for batch in prepared(self.backbone, images, 32)]
        return torch.cat(found) if found else torch.empty(0, self.backbone.feature_width)

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
        log_probs = self.per_class(as_float64(self.logits(self.network, images)))
        return Prediction(log_probs, None, torch.ones(len(images), dtype=torch.long))

    def per_class(self, logits: Tensor) -> Tensor:
        """Log-probabilities (B, C) from logits (B, rows): the best row of a class speaks for it."""
        names = [row.partition(OF)[0] for row in self.network.head.classes]
        if self.expanded:
            owner = [[at for at, name in enumerate(names) if name == own] for own in self.classes]
            logits = torch.stack([logits[:, own].amax(dim=1) for own in owner], dim=1)
        return torch.log_softmax(logits, dim=1)

    def state(self) -> State:
        shared = {f"network/{name}": tensor for name, tensor in self.network.state_dict().items()}
        facts: dict[str, Any] = {"classes": list(self.network.head.classes)}
        if self.memory is not None:
            shared |= self.memory.tensors()
            facts["memory"] = self.memory.facts()
        return self.make_state(shared=shared, facts=facts)

    def restore(self, state: State) -> None:
        self.network.head.grow(state.facts["classes"], seed=0)
        self.network.load_state_dict(_below("network/", state))
        self.network.to(self.backbone.device)
        if self.memory is not None:
            self.memory.restore(_below("memory/", state), state.facts["memory"])


def _below(prefix: str, state: State) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.shared.items() if name.startswith(prefix)}
