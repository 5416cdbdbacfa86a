"""What a method promises: to learn one domain after another, and to classify images from any of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from bpg.backbones.backbone import Backbone
from bpg.data.ahead import ahead
from bpg.data.decode import decode
from bpg.data.domain import Domain
from bpg.data.images import ImageSet
from bpg.errors import WrongUse
from bpg.store import State, digest_of, save_state
from bpg.training import once
from bpg.types import Prediction

Images = Tensor | ImageSet | Sequence[str | Path]  # prepared pixels (B, 3, H, W), labelled files, or files


class Learner(Protocol):
    """Learns one domain after another, then classifies images from any of them."""

    backbone: Backbone

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes it can answer with, sorted."""
        ...

    def learn(self, domain: Domain) -> None:
        """Train on `domain`. Earlier domains' images are gone, unless the method kept some."""
        ...

    def forward(self, images: Tensor) -> Prediction:
        """Log-probabilities (B, C) of prepared `images` (B, 3, H, W), and who spoke. No domain id is given."""
        ...

    def state(self) -> State:
        """All that is needed to make this learner again; `load_state` is its inverse."""
        ...

    def load_state(self, state: State) -> None: ...

    def predict(self, images: Images, *, batch_size: int = 32) -> list[str]:
        """The name of the likeliest class of each image."""
        return [self.classes[int(index)] for index in self.predict_proba(images, batch_size=batch_size).argmax(dim=1)]

    def predict_proba(self, images: Images, *, batch_size: int = 32) -> Tensor:
        """Probabilities (n, C) of `classes` for each image."""
        found = [self.forward(batch).log_probs.exp() for batch in prepared(self.backbone, images, batch_size)]
        return torch.cat(found) if found else torch.empty(0, len(self.classes))

    def score(self, images: ImageSet, *, batch_size: int = 32) -> float:
        """The share of labelled images that is classified right."""
        if not images:
            raise WrongUse("nothing to score", wanted="labelled images", came="none", remedy="Check the set.")
        truth = [images.classes[label] for label in images.labels]
        answers = self.predict(images, batch_size=batch_size)
        return sum(answer == true for answer, true in zip(answers, truth, strict=True)) / len(truth)

    def save(self, folder: str | Path, *, event: str = "saved") -> str:
        """Put this model into `folder`, in one step; its digest. Of several ranks, the first writes."""
        return once(lambda: save_state(self.state(), Path(folder), event=event), lambda: digest_of(Path(folder)))


@runtime_checkable
class Routable(Protocol):
    """Has experts that can be forced one by one, so that router and fusion are arguments."""

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the learned domains, sorted: the T of every weight."""
        ...

    @property
    def prototypes(self) -> list[Tensor]:
        """(k_t, d) of each domain."""
        ...

    def embed(self, images: Tensor) -> Tensor:
        """The frozen feature (B, d), of unit length, that is routed by."""
        ...

    def expert_logits(self, images: Tensor, expert: int) -> Tensor:
        """Logits (B, C_t) of the expert's own classes, whoever it is for."""
        ...


@runtime_checkable
class Isolated(Protocol):
    """A learned domain's bytes never change: only then can one be taken out, or models be merged."""

    def forget(self, name: str) -> None:
        """Become the model that never learned the domain `name`."""
        ...


def prepared(backbone: Backbone, images: Images, batch_size: int) -> Iterator[Tensor]:
    """`images` as batches that the backbone can see."""
    if isinstance(images, Tensor):
        yield from (images[start : start + batch_size] for start in range(0, len(images), batch_size))
        return
    paths = images.paths if isinstance(images, ImageSet) else tuple(Path(path) for path in images)
    files = ImageSet(paths, (0,) * len(paths), ("",))

    def load(index: int) -> Tensor:
        return backbone.prepare(decode(files.encoded(index), where=str(paths[index])))

    batch: list[Tensor] = []
    for image in ahead(load, range(len(files)), window=2 * batch_size):
        batch.append(image)
        if len(batch) == batch_size:
            yield torch.stack(batch).to(backbone.device)
            batch = []
    if batch:
        yield torch.stack(batch).to(backbone.device)
