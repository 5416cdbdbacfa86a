"""Pre-train the backbone: the student learns to see in a view what the teacher sees, and CIFAR-10's classes.

    python -m pretrain.train WORK

All that takes long is kept in the folder WORK, under a name that says by what settings and code it was made: stopped
at any moment, the same command goes on; changed, it begins anew from where the change matters, beside what was there.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from bpg.backbones.tuning import Tuning
from bpg.backbones.vit import ViT, ViTConfig
from bpg.progress import Progress
from bpg.randomness import generator_of
from bpg.training import Optimisation, Resume, fit
from pretrain.images import CIFAR_CLASSES, PIXELS, SEED, SIZE, UNLABELLED, cifar, clip_art, make_views
from pretrain.muon import Muon
from pretrain.teacher import GRID, LOCAL, POOLED, look

NANO = ViTConfig(image_size=SIZE, patch_size=8, width=192, depth=6, heads=3, hidden=768)
VIEWS = {"cifar": 1, "clip": 7}  # of each image
AREAS = {"cifar": (0.5, 1.0), "clip": (0.3, 1.0)}
SHIFT = 2  # pixels, either way: a quarter of a patch, so that places stay where they are
GREY = 0.2  # of the views
CLASS_WEIGHT = 0.15  # of the classes in the loss
BATCH = 128
TIMES = 15  # Muon's rate over AdamW's
FILE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the training. To see some of the patches costs less, and teaches nearly as much."""

    name: str
    steps: int
    patches: int  # that are seen of the 64
    optimisation: Optimisation


def _phase(name: str, steps: int, patches: int, lr: float) -> Phase:
    chosen = Optimisation(
        epochs=1, batch_size=BATCH, optimizer="adamw", lr=lr, weight_decay=0.05, warmup=100, clip_norm=1.0
    )
    return Phase(name, steps, patches, chosen)


PHASES = (_phase("part", 4600, 24, 1e-3), _phase("whole", 600, 64, 4e-4))


class Student(nn.Module):
    """The ViT and three heads that are thrown away afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = ViT(NANO)
        self.to_pooled = nn.Linear(NANO.width, POOLED)
        self.to_local = nn.Linear(NANO.width, LOCAL)
        self.to_class = nn.Linear(NANO.width, len(CIFAR_CLASSES))
        _initialise(self, generator_of(SEED, "student"))

    def forward(self, images: Tensor, patches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the teacher would see, at large and at `patches`, and class logits, from these patches alone."""
        tokens = self.vit.embed(images)
        tokens = torch.cat([tokens[:, :1], tokens[:, 1 + patches]], dim=1)
        seen = self.vit.read(self.vit.encode(tokens), Tuning(readout="all"))
        return self.to_pooled(seen[:, 0]), self.to_local(seen[:, 1:]), self.to_class(seen[:, 0])


@dataclass(frozen=True, eq=False)
class Lessons:
    """What the loop trains on: views by step, and for labels their numbers, those of mirrored ones below 0."""

    pixels: NDArray[np.uint8]  # (n, 3, 64, 64)
    phase: str
    steps: int

    def stream(self, first: int, *, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Of each step the views as they are shown, and which they are. Order and changes depend on the step alone."""
        an_epoch = len(self.pixels) // BATCH
        for step in range(first, self.steps):
            epoch, place = divmod(step, an_epoch)
            order = torch.randperm(len(self.pixels), generator=generator_of(SEED, self.phase, "order", epoch))
            chosen = order[place * BATCH : (place + 1) * BATCH][rank::ranks]
            views = torch.from_numpy(self.pixels[chosen.numpy()])
            generator = generator_of(SEED, self.phase, "shown", step, rank)
            mirrored = torch.rand(len(views), generator=generator) < 0.5
            views[mirrored] = views[mirrored].flip(-1)
            yield shown(views, generator), torch.where(mirrored, -1 - chosen, chosen), BATCH


def shown(views: Tensor, generator: torch.Generator) -> Tensor:
    """Views (B, 3, 64, 64) uint8 moved, lit and greyed by chance, as the network takes them."""
    count = len(views)
    pixels = F.pad(views.float() / 255, [SHIFT] * 4, mode="replicate")
    down, right = torch.randint(0, 2 * SHIFT + 1, (2, count), generator=generator).tolist()
    pixels = torch.stack(
        [image[:, d : d + SIZE, r : r + SIZE] for image, d, r in zip(pixels, down, right, strict=True)]
    )
    light, contrast = (0.8 + 0.4 * torch.rand((2, count, 1, 1, 1), generator=generator)).unbind()
    pixels = ((pixels - 0.5) * contrast + 0.5) * light
    grey = torch.rand(count, generator=generator) < GREY
    pixels[grey] = pixels[grey].mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    mean, std = torch.tensor(PIXELS.mean)[:, None, None], torch.tensor(PIXELS.std)[:, None, None]
    return (pixels.clamp(0, 1) - mean) / std


@dataclass(frozen=True, eq=False)
class Answers:
    """What there is to be learned of each view."""

    labels: Tensor  # (n,) CIFAR-10's, or UNLABELLED
    features: Tensor  # (n, 1280 + 64 * 112) half: the teacher's
    mean: Tensor
    std: Tensor

    def of(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pooled (B, 1280) and local (B, 64, 112) features, each of mean 0 and deviation 1, and labels (B,)."""
        mirrored, rows = rows < 0, torch.where(rows < 0, -1 - rows, rows)
        scaled = ((self.features[rows].float() - self.mean) / self.std).clamp(-5, 5)
        local = scaled[:, POOLED:].view(-1, GRID, GRID, LOCAL)
        local = torch.where(mirrored[:, None, None, None], local.flip(2), local)
        return scaled[:, :POOLED], local.flatten(1, 2), self.labels[rows]


def prepare(work: Path) -> tuple[NDArray[np.uint8], Answers]:
    """All views, and what is to be learned of them."""
    pixels, labels, features = [], [], []
    for kind, copies in VIEWS.items():
        name = f"{kind}-{_digest(_source('images'), copies, AREAS[kind])}"
        file = work / f"{name}.npz"
        if not file.is_file():
            if kind == "cifar":
                raw, classes = cifar(work, "train")
                images, known = list(torch.from_numpy(raw)), classes.tolist()
            else:
                images = clip_art(work)
                known = [UNLABELLED] * len(images)
            made = make_views(images, known, copies, AREAS[kind], kind)
            part = file.with_suffix(".part.npz")
            np.savez(part, pixels=made.pixels, labels=made.labels)
            part.replace(file)
        views = np.load(file)
        pixels.append(views["pixels"])
        labels.append(views["labels"])
        features.append(look(work, pixels[-1], work / f"{name}-teacher-{_digest(_source('teacher'))}.npy"))
        print(f"{kind}: {len(pixels[-1])} views", flush=True)
    seen = torch.from_numpy(np.concatenate(features))
    sample = seen[:: max(1, len(seen) // 10000)].float()
    std, mean = torch.std_mean(sample, dim=0)
    places = sample[:, POOLED:].reshape(-1, LOCAL)  # of a local feature over all places
    std[POOLED:], mean[POOLED:] = places.std(dim=0).repeat(GRID**2), places.mean(dim=0).repeat(GRID**2)
    return np.concatenate(pixels), Answers(torch.from_numpy(np.concatenate(labels)), seen, mean, std + 1e-3)


def exported(vit: ViT) -> dict[str, Tensor]:
    """The weights in half precision, as timm would name and shape them."""
    named = {}
    for name, tensor in vit.state_dict().items():
        name = name.replace("class_token", "cls_token").replace("position", "pos_embed")
        name = name.replace("patch.", "patch_embed.proj.")
        name = re.sub(r"^(blocks\.\d+)\.(qkv|proj)\.", r"\1.attn.\2.", name)
        name = re.sub(r"^(blocks\.\d+)\.(fc[12])\.", r"\1.mlp.\2.", name)
        lone = {"cls_token": (1, 1, -1), "pos_embed": (1, *tensor.shape)}
        named[name] = tensor.reshape(lone.get(name, tensor.shape)).half().contiguous()
    return named


def main() -> None:
    """Prepare, train, and write the student's ViT to WORK/model.safetensors, under timm's names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    work: Path = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    pixels, answers = prepare(work)
    student = Student()
    recipe = _digest(*(_source(part) for part in ("images", "teacher", "train", "muon")))
    for phase in PHASES:
        recipe = _digest(recipe, phase)
        learn(student, phase, pixels, answers, work, recipe)
    save_file(exported(student.vit), work / FILE)


def learn(student: Student, phase: Phase, pixels: NDArray[np.uint8], answers: Answers, work: Path, recipe: str) -> None:
    """One phase; one that was done or begun before is taken up from its file in `work`."""

    def loss(images: Tensor, rows: Tensor) -> Tensor:
        order = torch.randperm(GRID**2, generator=generator_of(SEED, "patches", *rows[:2].tolist()))
        patches = order[: phase.patches]
        pooled, local, labels = answers.of(rows)
        at_large, at_places, logits = student(images, patches)
        missed = F.smooth_l1_loss(at_large, pooled, reduction="none").mean(dim=1)
        missed += F.smooth_l1_loss(at_places, local[:, patches], reduction="none").mean(dim=(1, 2))
        classes = F.cross_entropy(logits, labels, reduction="none", ignore_index=UNLABELLED, label_smoothing=0.1)
        return missed + CLASS_WEIGHT * classes

    def tell(now: Progress) -> None:
        if now.step % 50 == 0 or now.step == now.steps:
            line = f"{time.strftime('%H:%M:%S')} {phase.name}: step {now.step} of {now.steps}, loss {now.loss:.4f}"
            print(line, f"{now.images / now.seconds:.0f} images/s", flush=True)

    resume = Resume(work / f"{phase.name}-{recipe}.safetensors", recipe, seconds=60)
    lessons = Lessons(pixels, phase.name, phase.steps)
    named = dict(student.named_parameters())
    hidden = [name for name in named if name.startswith("vit.blocks.") and named[name].ndim == 2]
    matrices, others = [named.pop(name) for name in hidden], list(named.values())
    optimizer = Muon(matrices, others, times=TIMES, weight_decay=phase.optimisation.weight_decay)
    fit(
        student,
        loss,
        lessons,
        phase.optimisation,
        device=torch.device("cpu"),
        resume=resume,
        progress=tell,
        optimizer=optimizer,
    )


def _source(module: str) -> str:
    return Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]


def _initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Xavier's weights, biases at 0, positions as waves across and down; norms stay as they are."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            fans = part.weight.shape[0] + part.weight[0].numel()
            nn.init.normal_(part.weight, std=(2 / fans) ** 0.5, generator=generator)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, ViT):
            nn.init.normal_(part.class_token, std=0.02, generator=generator)
            with torch.no_grad():
                part.position[1:] = 0.3 * _waves(part.config.grid, part.config.width)


def _waves(grid: int, width: int) -> Tensor:
    """(grid^2, width): sines and cosines of a patch's place across and down, a quarter of the channels each."""
    speeds = 100.0 ** -(torch.arange(width // 4) / (width // 4))
    down, across = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    angles = [place.reshape(-1, 1) * speeds for place in (across, down)]
    return torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)


if __name__ == "__main__":
    main()
