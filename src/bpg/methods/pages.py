"""What a method says of itself, for `bpg methods` and the docs: from its module's docstring and its settings.

The docstring of a method's module begins with the idea, in a few sentences. Then, a paragraph of lines that begin with
`Trained:`, `Stored:`, `Paper:` and `Here:` says what is trained and stored, where it was published, and how it differs
here from the original.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from bpg.errors import PluginError
from bpg.registry import METHODS

PARTS = ("Trained", "Stored", "Paper", "Here")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, by its full name."""

    name: str
    default: Any
    what: str


@dataclass(frozen=True, slots=True)
class Page:
    """What is told of a method."""

    name: str
    summary: str  # a sentence
    idea: str
    parts: dict[str, str]
    settings: tuple[Setting, ...]


def page(name: str) -> Page:
    """The page of a registered method."""
    method = METHODS[name]
    idea, parts = _read(inspect.cleandoc(sys.modules[method.__module__].__doc__ or ""))
    try:
        described = tuple(_settings(method.Settings()))
    except TypeError as error:
        raise PluginError(
            f"the method {name} has settings without a default",
            wanted="Settings() to make settings that work",
            came=str(error),
            remedy="Give each of them one.",
        ) from error
    return Page(name, (method.__doc__ or "").strip().split("\n")[0], idea, parts, described)


def markdown(told: Page) -> str:
    """The page as it stands in the docs."""
    lines = [f"# `{told.name}`", "", told.summary, "", told.idea, ""]
    lines += [f"- **{part}.** {text[:1].upper()}{text[1:]}" for part, text in told.parts.items()]
    lines += ["", "## Settings", "", "| setting | default | |", "| --- | --- | --- |"]
    lines += [f"| `{each.name}` | `{_toml(each.default)}` | {each.what} |" for each in told.settings]
    return "\n".join([*lines, ""])


def _read(text: str) -> tuple[str, dict[str, str]]:
    """The idea, and the parts that have a name."""
    first, *rest = text.split("\n\n")
    idea = " ".join(first.split())
    idea = idea.partition(": ")[2] if ": " in idea.split(".")[0] else idea
    found: dict[str, str] = {}
    for line in "\n".join(rest).split("\n"):
        name, colon, said = line.partition(": ")
        if colon and name in PARTS:
            found[name] = said
        elif found and line.strip():
            found[list(found)[-1]] += f" {line.strip()}"
    return idea[:1].upper() + idea[1:], found


def _settings(settings: Any, prefix: str = "") -> list[Setting]:
    said = _comments(type(settings))
    found = []
    for field in fields(settings):
        value, name = getattr(settings, field.name), f"{prefix}{field.name}"
        if is_dataclass(value):
            found += _settings(value, f"{name}.")
        else:
            found.append(Setting(name, value, said.get(field.name, "")))
    return found


def _comments(kind: type[Any]) -> dict[str, str]:
    """What stands behind each field in the source of a class and of those it derives from."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if is_dataclass(each):
            lines = re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(each), flags=re.MULTILINE)
            found |= dict(lines)
    return found


def _toml(value: Any) -> str:
    """A default as a config would write it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(each) for each in value)}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
