"""Settings: frozen, strict, and faulted all at once.

A component's settings are a pydantic dataclass made with `@settings`. Files and flags are read into it by `parse`,
which collects every fault before it speaks, each with the nearest right name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field as dataclass_field
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar, cast, dataclass_transform, get_type_hints

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from bpg.errors import BPGError, SettingsError

S = TypeVar("S")


def later(default: Any) -> Any:
    """The default of a setting that came when runs and models were kept already. While it has this value, what is named
    by its settings is named without it: they keep their names.
    """
    return dataclass_field(default=default, metadata={"later": True})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(later,))
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
        converted = _converted(values, self)
        if converted:
            raise faulty(f"wrong settings of {made.__name__}", converted, wanted="values of the right kind")

    made.__init__ = init
    return cast(type[S], made)


def parse(cls: type[S], values: Mapping[str, Any], *, where: str) -> S:
    """`cls(**values)`; `where` names the values' origin in an error: a file, a section, a flag."""
    try:
        return cls(**values)
    except BPGError as error:
        error.problem = f"{where}: {error.problem}"
        raise


def faults(cls: type[Any], values: Mapping[str, Any], *, where: str = "") -> list[str]:
    """Everything that is wrong with `values` as settings of `cls`, each by its full name below `where`."""
    try:
        made = cls.__pydantic_validator__.validate_python(dict(values))
    except ValidationError as error:
        return [_fault(dict(fault), cls, where) for fault in error.errors()]
    return _converted(values, made, where)


def faulty(problem: str, found: list[str], *, wanted: str) -> SettingsError:
    """One error for all faults that were `found`."""
    return SettingsError(problem, wanted=wanted, came="; ".join(found), remedy="Correct each of them and run again.")


def flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Settings by their full names, as `--set` takes them."""
    found: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            found |= flat(value, f"{prefix}{field.name}.")
        else:
            found[f"{prefix}{field.name}"] = list(value) if isinstance(value, tuple) else value
    return found


def flat_dict(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings as read from JSON or flags, by their full names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat_dict(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _error(cls: type[Any], error: ValidationError) -> BPGError:
    """Every fault in one error of ours; a lone complaint of the class's own check as it stands."""
    found = error.errors()
    own = found[0].get("ctx", {}).get("error")
    if len(found) == 1 and isinstance(own, BPGError):
        return own
    return faulty(
        f"{len(found)} wrong setting{'s' if len(found) > 1 else ''} of {cls.__name__}",
        [_fault(dict(fault), cls, "") for fault in found],
        wanted=", ".join(cls.__dataclass_fields__),
    )


def _fault(fault: dict[str, Any], cls: type[Any], where: str) -> str:
    path = ".".join([*([where] if where else []), *(str(part) for part in fault["loc"])])
    if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        near = get_close_matches(str(fault["loc"][-1]), _names_at(cls, fault["loc"][:-1]), n=1)
        return f"{path}: no such setting" + (f", did you mean {near[0]}?" if near else "")
    if fault["type"] in ("missing", "missing_keyword_only_argument"):
        return f"{path}: is not given"
    own = fault.get("ctx", {}).get("error")
    if isinstance(own, BPGError):
        return f"{path}: {own.problem}: wanted {own.wanted}, came {own.came}"
    return f"{path}: {fault['msg'][:1].lower()}{fault['msg'][1:]}, not {fault['input']!r}"


def _converted(given: object, taken: object, where: str = "") -> list[str]:
    """Where pydantic made a number of a text or of yes and no: a slip of the pen, which it would take for the thing."""
    if isinstance(given, Mapping) and is_dataclass(taken):
        below = f"{where}." if where else ""
        return [fault for key, value in given.items() for fault in _converted(value, getattr(taken, key), below + key)]
    if isinstance(given, list | tuple) and isinstance(taken, list | tuple):
        return [fault for one, other in zip(given, taken, strict=True) for fault in _converted(one, other, where)]
    if type(given) is not type(taken) and (isinstance(given, str | bool) or isinstance(taken, str | bool)):
        return [f"{where}: {given!r} is not of the right kind, {taken!r} would be"]
    return []


def _names_at(cls: type[Any], path: tuple[int | str, ...]) -> list[str]:
    """The settings of `cls`, or of the part of it that `path` leads to."""
    for part in path:
        inner = get_type_hints(cls).get(str(part))
        if not is_dataclass(inner):
            break
        cls = cast(type[Any], inner)
    return list(cls.__dataclass_fields__)
