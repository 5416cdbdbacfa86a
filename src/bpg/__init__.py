"""Domain-incremental learning on a frozen vision transformer.

model = bpg.BPG("deit_tiny_patch16_224", rank=16)                     # a frozen ViT, no experts yet
model.learn(bpg.Domain("photo", bpg.read_list("photo_train.txt")))    # an expert for the first domain
model.learn(bpg.Domain("sketch", bpg.read_list("sketch_train.txt")))  # one for the next; the first stays as it is
model.predict(["a.jpg", "b.png"])                                     # class names, from images of any domain
model.score(bpg.read_list("photo_test.txt"))                          # the share that is right
model.forget("sketch")                                                # the model that never learned it, bit for bit
model.save("model")                                                   # and bpg.BPG.load("model")
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
    from bpg.data.domain import Domain as Domain
    from bpg.data.domain import DomainStream as DomainStream
    from bpg.data.domain import TestSet as TestSet
    from bpg.data.folder import read_folder as read_folder
    from bpg.data.images import ImageSet as ImageSet
    from bpg.data.lists import read_list as read_list
    from bpg.errors import BPGError as BPGError
    from bpg.methods.base import load as load
    from bpg.methods.bpg import BPG as BPG

__version__ = "0.1.0"

# The names are found on first use, so that `import bpg` and `bpg --help` do not pay for torch.
_HOMES = {
    "BPG": "bpg.methods.bpg",
    "BPGError": "bpg.errors",
    "Backbone": "bpg.backbones.backbone",
    "Domain": "bpg.data.domain",
    "DomainStream": "bpg.data.domain",
    "ImageSet": "bpg.data.images",
    "Prefix": "bpg.backbones.tuning",
    "Survey": "bpg.backbones.survey",
    "TestSet": "bpg.data.domain",
    "Tuning": "bpg.backbones.tuning",
    "load": "bpg.methods.base",
    "load_backbone": "bpg.backbones.weights",
    "read_folder": "bpg.data.folder",
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
