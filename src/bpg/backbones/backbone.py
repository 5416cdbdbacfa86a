"""A frozen backbone: the ViT, the pixels it expects, and its text tower if it has one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bpg.backbones.clip import TextTower
from bpg.backbones.graph import Graphs
from bpg.backbones.tuning import PLAIN, Tuning, TuningOf
from bpg.backbones.vit import ViT
from bpg.compute import PRECISIONS, Precision
from bpg.data.transforms import Preprocessing, evaluation
from bpg.errors import WrongUse


@dataclass(frozen=True, slots=True)
class Probe:
    """Where a frozen feature is taken, and which.

    `depth` counts the blocks done, from 1; 0 is the finished feature, behind the last norm and CLIP's projection,
    which is the z of the paper. `kind` is the class token, or the mean and the standard deviation of the patch tokens
    side by side.
    """

    depth: int = 0
    kind: Literal["class", "moments"] = "class"

    def __post_init__(self) -> None:
        if self.kind not in ("class", "moments") or self.depth < 0 or (self.kind == "moments" and not self.depth):
            raise WrongUse(
                "no such probe",
                wanted="Probe() for the finished feature, or a depth from 1 and the kind class or moments",
                came=repr(self),
                remedy="Moments are taken behind a block: give its number.",
            )

    def __str__(self) -> str:
        return f"{self.kind} token" if not self.depth else f"{self.kind} after block {self.depth}"


FINISHED = Probe()


class Backbone(nn.Module):
    """A frozen vision transformer. `backbone(images)` is the plain feature, `backbone(images, tuning)` an expert's.

    >>> from bpg.backbones.vit import ViTConfig
    >>> small = ViT(ViTConfig(image_size=32, patch_size=16, width=48, depth=2, heads=3, hidden=96))
    >>> backbone = Backbone(small, Preprocessing(size=32), name="small")
    >>> backbone(torch.zeros(4, 3, 32, 32)).shape
    torch.Size([4, 48])
    """

    def __init__(
        self,
        vit: ViT,
        preprocessing: Preprocessing,
        *,
        name: str,
        text: TextTower | None = None,
        logit_scale: float | None = None,
        precision: Precision = "float32",
    ) -> None:
        super().__init__()
        if preprocessing.size != vit.config.image_size:
            raise WrongUse(
                "the pixels do not fit the ViT",
                wanted=f"images of {vit.config.image_size} pixels",
                came=f"preprocessing for {preprocessing.size}",
                remedy="Give both the same size.",
            )
        if precision not in PRECISIONS:
            raise WrongUse(
                "no such precision", wanted=", ".join(PRECISIONS), came=repr(precision), remedy="Use float32."
            )
        self.vit = vit
        self.text = text
        self.name = name
        self.preprocessing = preprocessing
        self.logit_scale = logit_scale  # already exponentiated: about 100 in trained CLIPs
        self.precision = precision
        self.compiled = False
        self.graphs: Graphs | None = None  # of passes over tokens, in a copy that answers through them
        self.requires_grad_(False).eval()

    @property
    def width(self) -> int:
        """Channels of a token, d; prompts and adapters have this width."""
        return self.vit.config.width

    @property
    def feature_width(self) -> int:
        """Channels of the finished feature: d, or the width of the space that CLIP shares with text."""
        return self.vit.config.projection or self.vit.config.width

    def width_of(self, probe: Probe) -> int:
        """Channels of the feature that `probe` takes."""
        if not probe.depth:
            return self.feature_width
        return 2 * self.width if probe.kind == "moments" else self.width

    @property
    def depth(self) -> int:
        """Blocks, L."""
        return self.vit.config.depth

    @property
    def device(self) -> torch.device:
        return self.vit.position.device

    def prepare(self, image: Tensor) -> Tensor:
        """The tensor (3, size, size) that this backbone wants to see of an image (3, H, W) uint8."""
        return evaluation(image, self.preprocessing)

    def forward(self, images: Tensor, tuning: Tuning | TuningOf = PLAIN, *, query: Tensor | None = None) -> Tensor:
        """Features (B, d) of prepared images, or tokens (B, n, d) where `tuning.readout` asks for them; float32."""
        with self._autocast():
            feature: Tensor = self.vit(images, tuning, query=query)
        return feature.float()

    def start(self, images: Tensor) -> Tensor:
        """Tokens (B, n, d) of prepared images before block 0: the part that all experts share."""
        with self._autocast():
            return self.vit.embed(images)

    def finish(self, tokens: Tensor, tuning: Tuning = PLAIN, *, owner: nn.Module | None = None) -> Tensor:
        """`forward` from there on, equal within rounding and a little cheaper.

        `owner` is the frozen expert that never comes with another tuning: where there are graphs, it has its own.
        """

        def act(tokens: Tensor) -> Tensor:
            with self._autocast():
                return self.vit.finish(tokens, tuning).float()

        owner = self if tuning is PLAIN else owner
        return act(tokens) if self.graphs is None or owner is None else self.graphs.run(act, tokens, owner=owner)

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """The frozen feature z (B, d), of unit length."""
        return F.normalize(self(images), dim=-1)

    @torch.no_grad()
    def features(self, images: Tensor, probes: Sequence[Probe]) -> list[Tensor]:
        """A unit-length feature (B, d) of each probe (moments: 2d), in one pass that ends at the deepest of them."""
        # What is kept must not depend on the batch it was computed in: a product over few tokens rounds otherwise.
        return [F.normalize(found, dim=-1) for found in self.probed(self.start(images), probes, whole=True)]

    def probed(self, tokens: Tensor, probes: Sequence[Probe], *, whole: bool = False) -> list[Tensor]:
        """The feature of each probe as it is, from tokens (B, n, d) that `start` gave.

        Unless it is to be done as a `whole`, the last block works for the class token alone: equal within rounding.
        """
        check_probes(probes, self.depth)
        if not probes:
            return []
        if self.graphs is None or whole:
            return list(self._found(tokens, probes, whole=whole))
        return list(self.graphs.run(lambda z: self._found(z, probes), tokens, owner=self, key=tuple(probes)))

    def _found(self, tokens: Tensor, probes: Sequence[Probe], *, whole: bool = False) -> tuple[Tensor, ...]:
        found: dict[Probe, Tensor] = {}
        sparing = not whole and Probe(self.depth, "moments") not in probes
        with self._autocast():
            for depth, z in enumerate(self.vit.layers(tokens, sparing=sparing), start=1):
                for probe in probes:
                    if probe.depth == depth:
                        found[probe] = z[:, 0] if probe.kind == "class" else self._moments(z)
                if depth == self.depth and FINISHED in probes:
                    found[FINISHED] = self.vit.read(z)
                if len(found) == len(set(probes)):
                    break
        return tuple(found[probe].float() for probe in probes)

    def class_features(
        self, names: Sequence[str], *, template: str = "a photo of a {}.", context: Tensor | None = None
    ) -> Tensor:
        """Unit-length text features (C, E) of class names, from CLIP's text tower."""
        if self.text is None:
            raise WrongUse(
                f"{self.name} has no text tower",
                wanted="a CLIP backbone",
                came="a vision transformer without text",
                remedy="Use a CLIP model (`bpg backbones` lists them) or a linear head.",
            )
        with self._autocast():
            return self.text.class_features(names, template=template, context=context)

    def compile_blocks(self) -> None:
        """Compile the blocks: faster after a slow first call; equal within rounding, not bit for bit."""
        for block in self.vit.blocks:
            block.compile(dynamic=True)
        self.compiled = True

    def digest(self) -> str:
        """The sha256 of what this backbone computes: its shape and every tensor, whatever file they came from."""
        digest = hashlib.sha256()
        shapes = {"vit": asdict(self.vit.config), "text": asdict(self.text.config) if self.text else None}
        digest.update(json.dumps([shapes, self.logit_scale], sort_keys=True).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def _moments(self, z: Tensor) -> Tensor:
        patches = z[:, self.vit.config.specials :].float()
        std, mean = torch.std_mean(patches, dim=1, correction=0)
        return torch.cat([mean, std], dim=1)

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, getattr(torch, self.precision), enabled=self.precision != "float32")


def check_probes(probes: Iterable[Probe], depth: int) -> None:
    """Raise WrongUse for a probe that a ViT of `depth` blocks does not have."""
    for probe in probes:
        if probe.depth > depth:
            raise WrongUse(
                "no such probe",
                wanted=f"a depth of at most {depth}, the blocks of this backbone",
                came=repr(probe),
                remedy="Choose a block of this backbone, or Probe() for the finished feature.",
            )
