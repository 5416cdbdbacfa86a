"""The one training loop: it resumes to the same bytes, and splits a batch over micro-batches and ranks.

A loss returns one number per image. The loop divides their sum by the size of the whole batch, wherever its parts are
computed: so gradient accumulation, a smaller micro-batch after a GPU ran out of memory, and several ranks all compute
the same step.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

import torch
import torch.distributed as dist
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bpg.config import settings
from bpg.errors import TrainingError
from bpg.progress import Progress
from bpg.ranks import agree, rank_and_ranks


class Batched(Protocol):
    """What a loop trains on: a number of steps, and the batches from any of them on."""

    @property
    def steps(self) -> int: ...

    def stream(self, first: int, *, rank: int, ranks: int) -> Iterable[tuple[Tensor, Tensor, int]]:
        """(inputs, labels, size of the whole batch) of each step; of a batch only this rank's share."""


Loss = Callable[[Tensor, Tensor], Tensor]  # images (B, 3, H, W), labels (B,) -> losses (B,)


@settings
class Optimisation:
    """How an expert is trained; the defaults are the paper's for DomainNet."""

    epochs: PositiveInt = 30
    batch_size: PositiveInt = 128  # images a step, over all ranks
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01  # at its highest
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # of sgd
    weight_decay: NonNegativeFloat = 2e-4
    schedule: Literal["cosine", "constant"] = "cosine"  # per step, to 0
    warmup: NonNegativeInt = 0  # steps of a linear rise
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    clip_norm: PositiveFloat | None = None
    micro_batch: PositiveInt | None = None  # images at a time on a rank; the whole share if not set
    recompute: bool = False  # activations of the blocks are computed again in the backward pass, not kept


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a training keeps its state, and whose it is: a state under another identity is not taken up."""

    file: Path
    identity: str
    seconds: float = 5.0  # of work between two writes: what a kill loses at most


def fit(
    module: nn.Module,
    loss: Loss,
    batches: Batched,
    optimisation: Optimisation,
    *,
    device: torch.device,
    resume: Resume | None = None,
    progress: Callable[[Progress], None] | None = None,
    scaled: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    after: Callable[[], None] | None = None,
) -> None:
    """Train the parameters of `module` that want a gradient on `batches`, in place.

    `after` is called behind each step; what it keeps in the module's buffers is part of what is resumed.

    Under torchrun each rank computes its share of every batch. `scaled` guards float16 gradients against underflow. An
    `optimizer` of one's own takes the place of the one that `optimisation` names; its rate still follows the schedule.
    """
    rank, ranks = rank_and_ranks()
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    optimizer = optimizer or _optimizer(list(named.values()), optimisation)
    scaler = torch.amp.GradScaler(device.type, enabled=scaled and device.type == "cuda")
    if resume is not None and rank == 0:
        for part in resume.file.parent.glob(f"{resume.file.name}.*.part"):
            part.unlink(missing_ok=True)  # of a run that was killed while it wrote
    buffers = dict(module.named_buffers())
    first = _restore(resume, named, buffers, optimizer, scaler, device) if resume is not None else 0
    if ranks > 1:
        agree("the step to go on from", first)
    began = saved = time.monotonic()
    seen = 0
    micro = optimisation.micro_batch or max(1, -(-optimisation.batch_size // ranks))
    module.train()
    for step, (images, labels, whole) in enumerate(batches.stream(first, rank=rank, ranks=ranks), start=first):
        for group in optimizer.param_groups:
            group["lr"] = optimisation.lr * schedule(step, batches.steps, optimisation)
        total, micro = _gradients(named, loss, images.to(device), labels.to(device), whole, micro, scaler)
        if ranks > 1:
            total = _sum_over_ranks(named, total)
        if not math.isfinite(float(total)):
            raise TrainingError(
                f"the training diverged at step {step + 1} of {batches.steps}",
                wanted="a finite loss",
                came=str(float(total)),
                remedy="Lower the learning rate, or set clip_norm or a warm-up.",
            )
        scaler.unscale_(optimizer)
        if optimisation.clip_norm is not None:
            nn.utils.clip_grad_norm_(named.values(), optimisation.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        if after is not None:
            after()
        now, seen = time.monotonic(), seen + whole
        last = step + 1 == batches.steps
        if resume is not None and rank == 0 and (last or now - saved >= resume.seconds):
            _save(resume, step + 1, named, buffers, optimizer, scaler)
            saved = now
        if progress is not None and rank == 0:
            progress(Progress(step + 1, batches.steps, seen, float(total), now - began))
    module.eval()
    broken = [name for name, parameter in named.items() if not bool(parameter.isfinite().all())]
    if broken:
        raise TrainingError(
            "the training diverged in its last step",
            wanted="finite parameters",
            came=", ".join(broken[:3]),
            remedy="Lower the learning rate, or set clip_norm or a warm-up.",
        )
    if ranks > 1:
        dist.barrier()


def cross_entropy(logits: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """One loss per image, (B,)."""
    return nn.functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)


def schedule(step: int, steps: int, optimisation: Optimisation) -> float:
    """The learning rate of a step as a share of the highest."""
    if step < optimisation.warmup:
        return (step + 1) / (optimisation.warmup + 1)
    if optimisation.schedule == "constant":
        return 1.0
    done = (step - optimisation.warmup) / max(1, steps - optimisation.warmup)
    return 0.5 * (1 + math.cos(math.pi * done))


def _optimizer(parameters: list[nn.Parameter], optimisation: Optimisation) -> torch.optim.Optimizer:
    o = optimisation
    if o.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=o.lr, weight_decay=o.weight_decay)
    return torch.optim.SGD(parameters, lr=o.lr, momentum=o.momentum, weight_decay=o.weight_decay)


def _gradients(
    named: dict[str, nn.Parameter],
    loss: Loss,
    images: Tensor,
    labels: Tensor,
    whole: int,
    micro: int,
    scaler: torch.amp.GradScaler,
) -> tuple[Tensor, int]:
    """This rank's part of the batch's mean loss, its gradients in place, and the micro-batch that fitted."""
    while True:
        for parameter in named.values():
            parameter.grad = None
        total = torch.zeros((), device=images.device)
        try:
            for start in range(0, len(images), micro):
                part = slice(start, start + micro)
                share = loss(images[part], labels[part]).sum() / whole
                scaler.scale(share).backward()  # type: ignore[no-untyped-call]
                total += share.detach()
        except torch.OutOfMemoryError:
            if micro == 1:
                raise
            micro = -(-micro // 2)
            torch.cuda.empty_cache()
            warnings.warn(f"out of memory: going on with {micro} images at a time, to the same result", stacklevel=3)
        else:
            return total, micro


def _sum_over_ranks(named: dict[str, nn.Parameter], total: Tensor) -> Tensor:
    """Gradients and loss added up over the ranks, in one message."""
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in named.values()]
    flat = torch.cat([total.reshape(1), *(grad.reshape(-1) for grad in grads)])
    dist.all_reduce(flat)
    pieces = torch.split(flat[1:], [grad.numel() for grad in grads])
    for parameter, piece in zip(named.values(), pieces, strict=True):
        parameter.grad = piece.reshape(parameter.shape)
    return flat[0]


def _save(
    resume: Resume,
    step: int,
    named: dict[str, nn.Parameter],
    buffers: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> None:
    """Write the state beside its place and move it there in one go: a reader finds the old one or the new one."""
    tensors = {f"parameter/{name}": parameter.detach() for name, parameter in named.items()}
    tensors |= {f"buffer/{name}": buffer for name, buffer in buffers.items()}
    for (name, _), state in zip(named.items(), _states(named, optimizer), strict=True):
        tensors |= {f"optimizer/{name}/{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    notes = {"identity": resume.identity, "step": str(step), "scaler": json.dumps(scaler.state_dict())}
    notes["sha256"] = _digest(tensors)
    resume.file.parent.mkdir(parents=True, exist_ok=True)
    part = resume.file.with_name(f"{resume.file.name}.{os.getpid()}.part")
    try:
        save_file(tensors, part, metadata=notes)
    except SafetensorError as error:  # which hides what the system said
        raise OSError(f"cannot write {part}: {error}") from error
    part.replace(resume.file)


def _restore(
    resume: Resume,
    named: dict[str, nn.Parameter],
    buffers: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    device: torch.device,
) -> int:
    """Take up the state of an interrupted training; the first step to do."""
    try:
        with safe_open(resume.file, framework="pt", device=str(device)) as file:
            notes = file.metadata() or {}
            if notes.get("identity") != resume.identity:
                return 0
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (no mapping)
    except (FileNotFoundError, SafetensorError):
        return 0
    if _digest(tensors) != notes.get("sha256"):
        warnings.warn(f"{resume.file} is damaged: training begins anew", stacklevel=3)
        return 0
    with torch.no_grad():
        for name, buffer in buffers.items():
            buffer.copy_(tensors[f"buffer/{name}"])
        for name, parameter in named.items():
            parameter.copy_(tensors[f"parameter/{name}"])
            prefix = f"optimizer/{name}/"
            state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            if state:
                optimizer.state[parameter] = state
    scaler.load_state_dict(json.loads(notes["scaler"]))
    return int(notes["step"])


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _states(named: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> Iterator[dict[str, object]]:
    return (optimizer.state.get(parameter, {}) for parameter in named.values())
