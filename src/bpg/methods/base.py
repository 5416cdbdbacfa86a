"""What a method promises: to learn one domain after another, and to classify images from any of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from bpg.backbones.backbone import FINISHED, Backbone, Probe
from bpg.backbones.survey import Survey, survey
from bpg.backbones.vit import ViT
from bpg.backbones.weights import load_backbone
from bpg.data.ahead import ahead
from bpg.data.decode import decode
from bpg.data.domain import Domain
from bpg.data.images import ImageSet
from bpg.data.transforms import Preprocessing
from bpg.errors import ModelError, UnknownName, WeightsNotFound, WrongUse
from bpg.methods.parts.identity import as_json, check_backbone, identity
from bpg.methods.parts.ways import Way
from bpg.progress import Clock, Progress, added, counted
from bpg.ranks import in_order, once, rank_and_ranks, share
from bpg.registry import METHODS
from bpg.store import Learned, State, digest_of, load_state, method_of, save_state
from bpg.training import Batched, Loss, Optimisation, Resume, cross_entropy, fit
from bpg.types import Prediction

Images = Tensor | ImageSet | Sequence[str | Path] | str | Path  # prepared pixels (B, 3, H, W), or files


class Learner(Protocol):
    """Learns one domain after another, then classifies images from any of them.

    A method derives from it and says what is its own: `Settings`, `begin`, `classes`, `learn`, `forward`, `state`,
    `restore`. With `scratch`, a folder, an interrupted `learn` goes on where it was.
    """

    method: ClassVar[str]  # its name in the registry
    Settings: ClassVar[type[Any]]  # all of it is stored with a model and never changes
    settings: Any
    backbone: Backbone
    weights: str  # the backbone's digest
    allow_new_classes: bool
    scratch: Path | None
    checkpoint_seconds: float  # of work between two checkpoints: what a kill loses at most
    progress: Callable[[Progress], None] | None
    trained_numbers: int  # parameters that were trained at once, at most, since somebody set it to 0
    spent: dict[str, dict[str, float]]  # seconds by activity, since somebody emptied it
    _timing: dict[str, Clock]
    _stored: dict[Path, str]
    _checkpoints: list[Path]

    def __init__(
        self,
        backbone: Backbone | str,
        *,
        allow_new_classes: bool = False,
        scratch: str | Path | None = None,
        checkpoint_seconds: float = 5.0,
        progress: Callable[[Progress], None] | None = None,
        **values: Any,
    ) -> None:
        self.backbone = load_backbone(backbone) if isinstance(backbone, str) else backbone
        self.weights = self.backbone.digest()
        self.settings = self.Settings(**values)
        self.allow_new_classes = allow_new_classes
        self.scratch = Path(scratch) if scratch is not None else None
        self.checkpoint_seconds = checkpoint_seconds
        self.progress = progress
        self.trained_numbers = 0
        self.spent = {}
        self._timing: dict[str, Clock] = {}  # what is being done
        self._stored: dict[Path, str] = {}  # the digests of what this model was loaded from and saved to
        self._checkpoints: list[Path] = []
        self.begin()

    def begin(self) -> None:
        """Have learned nothing yet."""
        ...

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

    def restore(self, state: State) -> None:
        """Take up what `state` has learned; settings and backbone are seen to."""
        ...

    def load_state(self, state: State) -> None:
        """Become the model of `state`, whatever was learned before."""
        if state.method != self.method:
            raise ModelError(
                "this is another method's model", wanted=self.method, came=state.method, remedy="Load it with its own."
            )
        check_backbone(state, self.backbone, self.weights)
        before = dict(vars(self))
        try:
            self.settings = self.Settings(**state.settings)
            self.begin()
            self.restore(state)
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            vars(self).update(before)  # what was learned before stays
            raise ModelError(
                "the model is not sound",
                wanted="settings, facts and tensors that fit each other",
                came=f"{type(error).__name__}: {error}",
                remedy="Take the model from a copy, or learn its domains anew.",
            ) from error

    def predict(self, images: Images, *, batch_size: int = 32) -> list[str]:
        """The name of the likeliest class of each image."""
        return [self.classes[int(index)] for index in self.predict_proba(images, batch_size=batch_size).argmax(dim=1)]

    def predict_proba(self, images: Images, *, batch_size: int = 32) -> Tensor:
        """Probabilities (n, C) of `classes` for each image."""
        if not self.classes:
            raise WrongUse(
                "nothing is learned yet", wanted="a learned domain", came="none", remedy="Call `learn` first."
            )
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
        place = Path(folder)
        known = self._stored.get(place.resolve())
        digest = once(lambda: save_state(self.state(), place, event=event, expects=known))
        self._stored[place.resolve()] = digest
        for file in self._checkpoints:
            file.unlink(missing_ok=True)  # what it was kept for is safe now
        self._checkpoints.clear()
        return digest

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        backbone: Backbone | str | None = None,
        device: str | torch.device = "cpu",
        **options: Any,
    ) -> Self:
        """The model in `folder`, with the backbone it names unless another source of the same weights is given."""
        state, digest = load_state(Path(folder)), digest_of(Path(folder))
        if not isinstance(backbone, Backbone):
            backbone = _backbone_of(state, backbone, device)
        model = cls(backbone, **(dict(state.settings) | options))
        model.load_state(state)
        model._stored[Path(folder).resolve()] = digest
        return model

    def make_state(
        self,
        domains: Mapping[str, Learned] | None = None,
        *,
        shared: Mapping[str, Tensor] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> State:
        """A state of this method, settings and backbone."""
        backbone = identity(self.backbone, self.weights)
        return State(self.method, as_json(self.settings), backbone, domains or {}, shared or {}, facts or {})

    def fit(
        self,
        module: nn.Module,
        loss: Loss,
        batches: Batched,
        *,
        vit: ViT | None,
        resume: Resume | None,
        optimisation: Optimisation | None = None,
        after: Callable[[], None] | None = None,
        activity: str = "training",
    ) -> None:
        """Train `module` by this method's settings, unless others are given.

        `vit` is the one whose activations may be recomputed; `after` is called behind each step. A training beside the
        one that a method is about has another `activity`.
        """
        tell = self.progress
        optimisation = optimisation or self.settings.optimisation
        trained = sum(own.numel() for own in module.parameters() if own.requires_grad)
        self.trained_numbers = max(self.trained_numbers, trained)
        if vit is not None:
            vit.recompute = optimisation.recompute
        try:
            with self.timed(activity):
                fit(
                    module,
                    loss,
                    batches,
                    optimisation,
                    device=self.backbone.device,
                    resume=resume,
                    progress=None if tell is None else lambda now: tell(replace(now, activity=activity)),
                    scaled=self.backbone.precision == "float16",
                    after=after,
                )
        finally:
            if vit is not None:
                vit.recompute = False

    def fit_features(
        self, module: nn.Module, batches: Batched, *, optimisation: Optimisation, activity: str = "training"
    ) -> None:
        """Train `module` by cross-entropy on numbers that are at hand: it takes seconds, and is not taken up again."""

        def loss(features: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(module(features), labels, smoothing=optimisation.label_smoothing)

        self.fit(module, loss, batches, vit=None, resume=None, optimisation=optimisation, activity=activity)

    def survey(self, domain: Domain, probes: Sequence[Probe] = (FINISHED,)) -> Survey:
        """One pass over the domain's training images, shared by all ranks, with progress told."""
        tell = counted(self.progress, "survey") if self.progress is not None else None
        with self.timed("survey"):
            return survey(self.backbone, domain.train, probes=probes, shared=True, progress=tell)

    @contextmanager
    def timed(self, activity: str) -> Iterator[None]:
        """Note how long what is done inside takes."""
        began = self._timing[activity] = Clock()
        try:
            yield
            self.spent[activity] = added(began.as_dict(), self.spent.get(activity, {}))
        finally:
            self._timing.pop(activity, None)

    @property
    def spent_so_far(self) -> dict[str, dict[str, float]]:
        """`spent`, and what has passed of what is being done."""
        return self.spent | {on: added(began.as_dict(), self.spent.get(on, {})) for on, began in self._timing.items()}

    def resume(self, domain: Domain, *more: str | int) -> Resume | None:
        """Where training on `domain` keeps its state; `more` is what it depends on besides settings and images."""
        if self.scratch is None:
            return None
        key = [
            as_json(self.settings),
            identity(self.backbone, self.weights),
            self.backbone.compiled,
            domain.name,
            *more,
        ]
        digest = hashlib.sha256(json.dumps(key).encode())
        for index, label in enumerate(domain.train.labels):
            digest.update(hashlib.sha256(domain.train.encoded(index)).digest())
            digest.update(domain.train.classes[label].encode())
        file = self.scratch / f"learn-{digest.hexdigest()[:32]}.safetensors"
        self._checkpoints.append(file)
        return Resume(file, digest.hexdigest(), self.checkpoint_seconds)


@runtime_checkable
class Routable(Learner, Protocol):
    """Has experts that can be forced one by one, so that router and fusion are arguments."""

    way: Way  # it answers in by itself; no part of what is learned, and may change at any time

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

    def compare(self, images: Tensor, ways: Sequence[Way], *, true: str | None = None) -> list[Prediction]:
        """The answers under several routers and fusions; `true` is the domain, which the oracle alone is told."""
        ...


def is_routable(method: type[Learner]) -> bool:
    """Whether the learners of a class are Routable, which Python tells of objects only."""
    return hasattr(method, "compare")


def usual_of(method: type[Learner]) -> str | None:
    """The router that a method answers by unless another is named, or its own inference; None: a mixture."""
    return getattr(method, "usual", None)


@runtime_checkable
class Isolated(Protocol):
    """A learned domain's bytes never change: only then can one be taken out, or models be merged."""

    def forget(self, name: str) -> None:
        """Become the model that never learned the domain `name`."""
        ...

    def merge(self, other: Any) -> None:
        """Become the model that learned the domains of `other` too, which has the same settings and backbone."""
        ...


def load(
    folder: str | Path,
    *,
    backbone: Backbone | str | None = None,
    device: str | torch.device = "cpu",
    **options: Any,
) -> Learner:
    """The model in `folder`, whatever its method; `backbone` says where its weights are, if they are not found by name.

    `options` are the method's, such as `router` and `fusion`.
    """
    method: type[Learner] = METHODS[method_of(Path(folder))]
    return method.load(folder, backbone=backbone, device=device, **options)


def _backbone_of(state: State, source: str | None, device: str | torch.device) -> Backbone:
    named = state.backbone
    pixels = Preprocessing(**named["preprocessing"])
    try:
        found = load_backbone(
            source or named["name"], preprocessing=pixels, precision=named["precision"], device=device
        )
    except (UnknownName, WeightsNotFound) as error:
        if source is not None:
            raise
        raise WeightsNotFound(
            f"the weights of the model's backbone {named['name']} are not found by this name",
            wanted=f"weights of sha256 {named['sha256'][:16]}...",
            came=f"{error.problem}: {error.came}",
            remedy="Say where the file is (backbone, --backbone FILE), or put it into the folder $BPG_WEIGHTS.",
        ) from error
    if source is not None and found.digest() == named["sha256"]:
        found.name = named["name"]  # the same weights from elsewhere; s_0 is known by the name
    return found


def passed(learner: Learner, images: ImageSet, see: Callable[[Tensor], Tensor]) -> Tensor:
    """What `see` makes of all images (n, ...) as evaluation sees them, batch by batch, with progress told.

    All ranks call it, as they call `learn`, and each sees its share.
    """
    tell = counted(learner.progress, "survey") if learner.progress is not None else None
    found: list[Tensor] = []
    done = 0
    with torch.no_grad():
        batches = prepared(learner.backbone, images.subset(share(len(images), 32)), 32)
        seen = (see(batch) for batch in batches)
        if rank_and_ranks()[1] > 1:
            seen = (rows.cpu().clone() for rows in seen)  # a view would be sent with all that it is a view of
        for rows in in_order(seen):
            found.append(rows)
            done += len(rows)
            if tell is not None:
                tell(done, len(images))
    device = learner.backbone.device
    return torch.cat(found).to(device) if found else torch.empty(0, learner.backbone.feature_width, device=device)


def prepared(backbone: Backbone, images: Images, batch_size: int) -> Iterator[Tensor]:
    """`images` as batches that the backbone can see."""
    if batch_size < 1:
        raise WrongUse("no such batch size", wanted="1 or more", came=str(batch_size), remedy="Leave it out.")
    if isinstance(images, Tensor):
        yield from (images[start : start + batch_size] for start in range(0, len(images), batch_size))
        return
    if isinstance(images, str | Path):
        images = [images]
    if not isinstance(images, ImageSet):
        paths = tuple(Path(path) for path in images)
        images = ImageSet(paths, (0,) * len(paths), ("unlabelled",))
    files = images

    def load(index: int) -> Tensor:
        return backbone.prepare(decode(files.encoded(index), where=str(files.paths[index])))

    batch: list[Tensor] = []
    for image in ahead(load, range(len(files)), window=2 * batch_size):
        batch.append(image)
        if len(batch) == batch_size:
            yield torch.stack(batch).to(backbone.device)
            batch = []
    if batch:
        yield torch.stack(batch).to(backbone.device)
