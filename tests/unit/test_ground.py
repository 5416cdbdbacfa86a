"""Errors, settings and the choice of a device."""

from __future__ import annotations

import inspect
import pickle

import pytest
import torch

import bpg.errors
from bpg.backbones.vit import ViTConfig
from bpg.compute import as_float64, available_cores, choose_device, float64_device, set_threads
from bpg.config import parse
from bpg.errors import BPGError, DeviceError, SettingsError, WrongUse

FAMILY = [kind for _, kind in inspect.getmembers(bpg.errors, inspect.isclass) if issubclass(kind, BPGError)]


@pytest.mark.parametrize("kind", FAMILY)
def test_every_error_says_what_was_wanted_what_came_and_what_to_do(kind: type[BPGError]) -> None:
    error = kind("no bread", wanted="a loaf", came="a stone", remedy="Ask again.")
    assert str(error) == "no bread: wanted a loaf, came a stone. Ask again."
    assert kind.exit_code in (1, 2)
    if kind is not BPGError:  # a caller may catch the builtin too
        assert issubclass(kind, ValueError | LookupError | RuntimeError | OSError | ArithmeticError)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own bytes)
    assert (type(again), str(again)) == (kind, str(error))


def test_settings_tell_every_fault_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        parse(ViTConfig, {"width": "wide", "dept": 3, "activation": "relu"}, where="my.toml")
    message = str(caught.value)
    assert message.startswith("my.toml: 3 wrong settings of ViTConfig")
    assert "width: input should be a valid integer" in message
    assert "dept: no such setting, did you mean depth?" in message
    assert "activation: input should be 'gelu' or 'quick_gelu'" in message


def test_settings_keep_a_complaint_of_their_own() -> None:
    with pytest.raises(WrongUse, match="heads do not share the width evenly: wanted a divisor of 768, came 7 heads"):
        ViTConfig(heads=7)


def test_settings_are_frozen() -> None:
    config = ViTConfig()
    with pytest.raises(AttributeError):
        config.width = 3  # type: ignore[misc]


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(DeviceError, match="'gpu' is no device"):
        choose_device("gpu")
    with pytest.raises(DeviceError, match="there is no device cuda:99"):
        choose_device("cuda:99")
    with pytest.raises(DeviceError, match="there is no device xpu"):
        choose_device("xpu")


def test_float64_is_computed_where_there_is_one() -> None:
    assert float64_device(torch.device("cuda:1")) == torch.device("cuda:1")
    assert float64_device(torch.device("mps:0")) == torch.device("cpu")
    assert as_float64(torch.ones(1)).dtype == torch.float64


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set_threads(1) == torch.get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert set_threads(None) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")  # of nested regions
    assert set_threads(None) == available_cores()
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert set_threads(None) == available_cores()
    for wrong in (0, 100_000):
        with pytest.raises(WrongUse, match=f"1 to 512, came {wrong}"):
            set_threads(wrong)
