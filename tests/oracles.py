"""The code bases that ours is compared with. They are imported here and nowhere else."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType

import torch


def oracle(name: str) -> ModuleType:
    """Import timm, open_clip, transformers, peft or torchvision beside a CPU build of torch.

    Their torchvision wheel looks for two compiled operators that only exist beside a CUDA torch. None of the oracles
    uses them here: it is enough that they are declared.
    """
    for operator in ("nms", "qnms"):
        try:
            getattr(torch.ops.torchvision, operator)
        except AttributeError:
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)
