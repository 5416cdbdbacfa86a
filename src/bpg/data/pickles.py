"""Lists, tables and arrays of numbers out of a pickle, without running what else it says.

A pickle is a program. Here it can build Python's own containers, texts and numbers, and numpy's arrays of numbers,
which are made by this file; any other name in it is refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpg.errors import WrongUse

KINDS = frozenset("biuf")  # of numbers: no objects


class _Type:
    """numpy's dtype, of numbers only."""

    def __init__(self, name: Any, *_: object) -> None:
        self.kind = np.dtype(_text(name))
        if self.kind.kind not in KINDS:
            raise pickle.UnpicklingError(f"an array of {self.kind}")

    def __setstate__(self, state: Any) -> None:
        self.kind = self.kind.newbyteorder("big" if _text(state[1]) == ">" else "little")


class _Array:
    """What stands for numpy's array, whose state says all of it: `np.asarray` makes one of it."""

    values: NDArray[Any]

    def __init__(self, *_: object) -> None:
        self.values = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        flat = np.frombuffer(_bytes(data), dtype=kind.kind)
        self.values = flat.reshape(shape, order="F" if fortran else "C")

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        del copy
        return self.values if dtype is None else self.values.astype(dtype)


def _filled(data: Any, kind: _Type, shape: Any, order: Any = "C") -> _Array:
    """numpy's array as newer pickles have it."""
    made = _Array()
    made.__setstate__((1, shape, kind, _text(order) == "F", data))
    return made


def _scalar(kind: _Type, data: Any) -> Any:
    return np.frombuffer(_bytes(data), dtype=kind.kind)[0].item()


def _encode(text: str, _encoding: str = "latin1") -> bytes:
    return text.encode("latin1")


# What a pickle may name, and what it gets instead.
NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
} | {
    (f"numpy.{core}.multiarray", name): ours
    for core in ("core", "_core")
    for name, ours in (("_reconstruct", _Array), ("scalar", _scalar))
}
NAMES |= {(f"numpy.{core}.numeric", "_frombuffer"): _filled for core in ("core", "_core")}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return NAMES[module, name]


def read_pickle(encoded: bytes, *, where: str) -> Any:
    """What the pickle holds: containers, texts, numbers, and what `np.asarray` makes arrays of."""
    try:
        return _Reader(io.BytesIO(encoded), encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise WrongUse(
            f"cannot read {where}",
            wanted="a pickle of lists, texts and numbers",
            came=f"{type(error).__name__}: {error}",
            remedy="Fetch it anew. What else a pickle asks for is not run.",
        ) from error


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> bytes:
    return value.encode("latin1") if isinstance(value, str) else bytes(value)
