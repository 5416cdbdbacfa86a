"""Domain-incremental learning on a frozen vision transformer.

backbone = bpg.load_backbone("deit_tiny_patch16_224.fb_in1k")   # a frozen ViT, and the pixels it expects
photos = bpg.read_list("photo_train.txt")                       # labelled images, read when asked for
survey = bpg.survey(backbone, photos)                           # one pass: counts, scatter, unit-length features
prompt = bpg.Tuning(tokens=torch.zeros(10, backbone.width))     # what an expert may do to the frozen ViT
features = backbone(images, prompt)                             # (B, d), the backbone itself unchanged
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bpg.backbones.backbone import Backbone as Backbone
    from bpg.backbones.survey import Survey as Survey
    from bpg.backbones.survey import survey as survey
    from bpg.backbones.tuning import Prefix as Prefix
    from bpg.backbones.tuning import Tuning as Tuning
    from bpg.backbones.weights import load_backbone as load_backbone
    from bpg.data.images import ImageSet as ImageSet
    from bpg.data.lists import read_list as read_list
    from bpg.errors import BPGError as BPGError

__version__ = "0.1.0"

# The names are found on first use, so that `import bpg` and `bpg --help` do not pay for torch.
_HOMES = {
    "BPGError": "bpg.errors",
    "Backbone": "bpg.backbones.backbone",
    "ImageSet": "bpg.data.images",
    "Prefix": "bpg.backbones.tuning",
    "Survey": "bpg.backbones.survey",
    "Tuning": "bpg.backbones.tuning",
    "load_backbone": "bpg.backbones.weights",
    "read_list": "bpg.data.lists",
    "survey": "bpg.backbones.survey",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bpg' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
