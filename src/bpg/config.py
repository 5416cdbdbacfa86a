"""Settings: frozen, strict, and faulted all at once.

A component's settings are a pydantic dataclass made with `@settings`. Files and flags are read into it by `parse`,
which collects every fault before it speaks, each with the nearest right name.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast, dataclass_transform

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from bpg.errors import BPGError, SettingsError

S = TypeVar("S")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def settings(cls: type[S]) -> type[S]:
    """Make `cls` a frozen keyword-only dataclass that checks its values and refuses unknown keys."""
    made: Any = pydantic_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))(cls)
    checked = made.__init__

    @wraps(checked)
    def init(self: S, **values: Any) -> None:
        try:
            checked(self, **values)
        except ValidationError as error:
            raise _error(made, error) from None

    made.__init__ = init
    return cast(type[S], made)


def parse(cls: type[S], values: Mapping[str, Any], *, where: str) -> S:
    """`cls(**values)`; `where` names the values' origin in an error: a file, a section, a flag."""
    try:
        return cls(**values)
    except BPGError as error:
        error.problem = f"{where}: {error.problem}"
        raise


def _error(cls: type[Any], error: ValidationError) -> BPGError:
    """Every fault in one error of ours; a lone complaint of the class's own check as it stands."""
    faults = error.errors()
    own = faults[0].get("ctx", {}).get("error")
    if len(faults) == 1 and isinstance(own, BPGError):
        return own
    known = list(cls.__dataclass_fields__)
    return SettingsError(
        f"{len(faults)} wrong setting{'s' if len(faults) > 1 else ''} of {cls.__name__}",
        wanted=", ".join(known),
        came="; ".join(_fault(dict(fault), known) for fault in faults),
        remedy="Correct each of them and run again.",
    )


def _fault(fault: dict[str, Any], known: list[str]) -> str:
    path = ".".join(str(part) for part in fault["loc"])
    if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        near = get_close_matches(path.rsplit(".", 1)[-1], known, n=1)
        return f"{path}: no such setting" + (f", did you mean {near[0]}?" if near else "")
    return f"{path}: {fault['msg'][:1].lower()}{fault['msg'][1:]}, not {fault['input']!r}"
