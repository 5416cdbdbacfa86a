"""A device mix-up is caught without a GPU: the forward runs on tensors that only claim to be on one."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: fake devices leave traces in torch. No gradients: backward aborts the interpreter here.
SCRIPT = """
import sys
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bpg.backbones.backbone import FINISHED, Backbone, Probe
from bpg.backbones.clip import TextConfig, TextTower
from bpg.backbones.tuning import Prefix, Tuning
from bpg.backbones.vit import ViT, ViTConfig
from bpg.data.transforms import Preprocessing

D = 64


def getitem(x, index):
    # x[...] asks for a device guard that only CUDA builds have; the calls that it stands for do not
    index, axis = index if isinstance(index, tuple) else (index,), 0
    if all(isinstance(part, torch.Tensor) for part in index):
        return torch.ops.aten.index.Tensor(x, list(index))
    for part in index:
        if part is None:
            x, axis = x.unsqueeze(axis), axis + 1
        elif isinstance(part, int):
            x = x.select(axis, part)
        else:
            start, stop, _ = part.indices(x.shape[axis])
            x, axis = x.narrow(axis, start, stop - start), axis + 1
    return x


torch.Tensor.__getitem__ = getitem


def on_cuda(module):
    # parameters are made anew on the fake device: a copy to one needs a CUDA build
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                fake = torch.empty(parameter.shape, device="cuda")
                part._parameters[name] = torch.nn.Parameter(fake, requires_grad=False)
    return module


with FakeTensorMode(), torch.no_grad():
    config = ViTConfig(image_size=32, patch_size=8, width=D, depth=3, heads=4, hidden=128, registers=2,
                       pre_norm=True, layer_scale=True, projection=24)
    text = TextTower(TextConfig(width=D, depth=2, heads=4, hidden=128, projection=24))
    backbone = Backbone(ViT(config), Preprocessing(size=32), name="fake", text=text)
    on_cuda(backbone)
    with torch.device("cuda"):
        images, prompt, context = torch.empty(2, 3, 32, 32), torch.empty(4, D), torch.empty(4, D)
        ids = torch.zeros(2, 77, dtype=torch.long)
        prefix = Prefix(torch.empty(2, D), torch.empty(2, D), projected=False)
    adapter, delta, final = (on_cuda(torch.nn.Linear(D, D)) for _ in range(3))
    places, linears = ("attention", "mlp", "residual", "block"), ("q", "k", "v", "proj", "fc1", "fc2")
    wide, narrow = (on_cuda(torch.nn.Linear(*shape)) for shape in ((D, 128), (128, D)))
    everything = lambda query: Tuning(
        tokens=torch.empty(len(query), 3, D, device=query.device),
        prefix={0: prefix, 1: Prefix(prefix.keys, prefix.values, projected=True)},
        branch={1: dict.fromkeys(places, adapter)},
        delta={2: dict.fromkeys(linears, delta) | {"fc1": wide, "fc2": narrow}},
        final=final,
        readout="all",
    )
    print("set up")
    if sys.argv[1] == "sound":
        found = [backbone(images), backbone(images, Tuning(tokens=prompt)), backbone(images, everything)]
        found += backbone.features(images, [FINISHED, Probe(1), Probe(2, "moments")])
        found += [backbone.text(ids), backbone.text(ids, context=context)]
        assert all(str(feature.device) == "cuda:0" for feature in found), [feature.device for feature in found]
    elif sys.argv[1] == "prompt":
        backbone(images, Tuning(tokens=torch.empty(4, D, device="cpu")))
    elif sys.argv[1] == "adapter":
        backbone(images, Tuning(branch={0: {"mlp": lambda x: x @ torch.ones(D, D)}}))
    elif sys.argv[1] == "images":
        backbone(torch.empty(2, 3, 32, 32))
    print("ran")
"""


# Fake tensors would compute in float64 on any device; a real one of this kind does not.
WITHOUT_FLOAT64 = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from bpg.compute import as_float64
from bpg.prototypes import LEVELS, Place
from bpg.routing import Places, calibrated

places = Places([Place(torch.rand(2, 8).double(), torch.linspace(0, 1, LEVELS).double()) for _ in range(3)])


class AsOnMPS(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.device.type == "mps" and found.dtype == torch.float64:
            raise TypeError("MPS has no float64")
        return found


with AsOnMPS(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
    features = torch.empty(5, 8, device="mps")
    try:
        features.double()
    except TypeError as error:
        print(error)
    distance = places.distances(features)
    found = [as_float64(features), distance, calibrated(distance, places.spread), places.unknown(distance)]
    print({(each.device.type, each.dtype) for each in found})
"""


def fake(case: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", SCRIPT, case], capture_output=True, text=True, check=False)


def test_routing_goes_to_the_cpu_where_a_device_has_no_float64() -> None:
    found = subprocess.run([sys.executable, "-c", WITHOUT_FLOAT64], capture_output=True, text=True, check=False)
    assert found.stdout == "MPS has no float64\n{('cpu', torch.float64)}\n", found.stderr


def test_every_site_stays_on_the_device() -> None:
    found = fake("sound")
    assert found.stdout == "set up\nran\n", found.stderr


@pytest.mark.parametrize("case", ["prompt", "adapter", "images"])
def test_a_mix_up_is_caught(case: str) -> None:
    found = fake(case)
    assert found.returncode != 0
    assert "device" in found.stderr.splitlines()[-1]
    assert found.stdout == "set up\n"
