"""The one family of errors: each says what was wanted, what came, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar


class BPGError(Exception):
    """Something a user can mend. `exit_code` is what the command returns for it.

    >>> print(BPGError("no such room", wanted="kitchen or hall", came="'kichen'", remedy="Did you mean kitchen?"))
    no such room: wanted kitchen or hall, came 'kichen'. Did you mean kitchen?
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, *, wanted: str, came: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem, self.wanted, self.came, self.remedy = problem, wanted, came, remedy

    def __str__(self) -> str:
        return f"{self.problem}: wanted {self.wanted}, came {self.came}. {self.remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only fields do not survive the default pickling, and errors cross process borders.
        return _rebuild, (type(self), self.as_dict())

    def as_dict(self) -> dict[str, str]:
        """The four parts by name, as `--json` prints them."""
        return {"problem": self.problem, "wanted": self.wanted, "came": self.came, "remedy": self.remedy}


def _rebuild(kind: type[BPGError], parts: dict[str, str]) -> BPGError:
    return kind(parts["problem"], wanted=parts["wanted"], came=parts["came"], remedy=parts["remedy"])


class WrongUse(BPGError, ValueError):
    """An argument that cannot be meant: the command was called wrongly."""

    exit_code = 2


class UnknownName(WrongUse, KeyError):
    """A name that nothing is registered under."""


class SettingsError(WrongUse):
    """One or more settings are wrong; all faults are told together."""


class DeviceError(WrongUse, RuntimeError):
    """A device that is not there, or tensors on two devices."""


class WeightsNotFound(BPGError, FileNotFoundError):
    """No weights where they were looked for, or no network to fetch them."""


class WeightsError(BPGError, ValueError):
    """A weights file that cannot be read, is not what its name says, or does not fit."""


class ImageError(BPGError, OSError):
    """An image that cannot be read."""


class TuningError(BPGError, ValueError):
    """A tuning that does not fit the transformer it is set on."""


class TrainingError(BPGError, ArithmeticError):
    """A training that cannot go on: its numbers are none any more."""


class RanksError(BPGError, RuntimeError):
    """Processes that work together and do not see the same."""


class PluginError(BPGError, RuntimeError):
    """Another package's method, backbone, data set or router that cannot be used."""


class ModelError(BPGError, ValueError):
    """A stored model that is damaged, not a model, or does not fit another."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for a name nobody owns, with the nearest known one as the remedy."""
    names = sorted(known)
    near = get_close_matches(name, names, n=3, cutoff=0.4)
    some = f"Known: {', '.join(names[:8])}{' and more' if len(names) > 8 else ''}."
    remedy = f"Did you mean {' or '.join(near)}?" if near else some if names else "None is known yet."
    return UnknownName(
        f"no {kind} is called {name!r}", wanted=f"one of {len(names)} known names", came=repr(name), remedy=remedy
    )
