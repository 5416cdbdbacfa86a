"""A learned model on disk: read whole and checked, or not at all; replaced in one step, or not at all.

    model/
      model.json                    format, method, settings, backbone; the domains in name order, each with the sha256
                                    of its tensors; the file's own digest
      experts/SHA256.safetensors    a domain's tensors, named by their content
      state-SHA256.safetensors      what a method keeps that is no domain's own
      history.jsonl                 when what was learned; not part of the model's digest
      answering.json                options to answer by, where somebody has chosen some; not part of it either

Replacing model.json is the only commit point. A reader sees the old model or the new one; one writer writes at a time.
Only JSON and safetensors are read, sizes are capped, and every byte of what was learned is covered by a digest.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bpg.errors import ModelError

FORMAT = 1
LARGEST_JSON = 64 * 2**20  # bytes
LARGEST_TENSORS = 16 * 2**30  # bytes

# How a model.json of an older format becomes one of the next: MIGRATIONS[n] turns format n into n + 1.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


@dataclass(frozen=True, slots=True)
class Learned:
    """What one domain left behind."""

    facts: Mapping[str, Any]  # JSON: classes, s_t, r_t, counts
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class State:
    """A model, as tensors and JSON: all that `load_state` needs to make it again."""

    method: str
    settings: Mapping[str, Any]
    backbone: Mapping[str, Any]  # name, sha256, preprocessing
    domains: Mapping[str, Learned]
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON that is no domain's own

    def below(self, prefix: str) -> dict[str, Tensor]:
        """The shared tensors whose names begin with `prefix`, by the rest of their names."""
        return {name.removeprefix(prefix): own for name, own in self.shared.items() if name.startswith(prefix)}


def save_state(state: State, folder: Path, *, event: str, expects: str | None = None) -> str:
    """Put `state` in the place of whatever model is in `folder`; its digest. `event` goes into the history.

    With `expects`, the digest of the model that is there now, a folder that somebody else has changed is left alone.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _save(state, folder, event, expects)
    except (OSError, UnicodeEncodeError) as error:
        raise ModelError(
            f"the model cannot be written to {folder}",
            wanted="a folder to write to",
            came=str(error),
            remedy="Save elsewhere.",
        ) from error


def _save(state: State, folder: Path, event: str, expects: str | None) -> str:
    with _writing(folder):
        if expects is not None and digest_of(folder) != expects:
            raise ModelError(
                f"{folder} was changed by somebody else since it was loaded",
                wanted=f"the model {expects[:16]}...",
                came=f"{digest_of(folder)[:16]}...",
                remedy="Save elsewhere and merge the two, or load it again.",
            )
        (folder / "experts").mkdir(exist_ok=True)
        domains = {}
        for name in sorted(state.domains):
            learned = state.domains[name]
            content = save(_plain(learned.tensors))
            sha = hashlib.sha256(content).hexdigest()
            expert = folder / "experts" / f"{sha}.safetensors"
            if not expert.is_file() or expert.read_bytes() != content:  # a damaged one is mended
                _replace(expert, content)
            domains[name] = {**learned.facts, "sha256": sha}
        shared = save(_plain(state.shared)) if state.shared else None
        if shared is not None:
            # Named by its content too while the old model.json still points to the old one.
            _replace(folder / f"state-{hashlib.sha256(shared).hexdigest()}.safetensors", shared)
        document = {
            "format": FORMAT,
            "method": state.method,
            "settings": dict(state.settings),
            "backbone": dict(state.backbone),
            "domains": domains,
            "shared": hashlib.sha256(shared).hexdigest() if shared is not None else None,
            "facts": dict(state.facts),
        }
        content, digest = _sealed(document)
        _remember(folder, event, digest)  # first: no reader may find a model without its history
        _replace(folder / "model.json", content)
        _sweep(folder, document)
    return digest


def answering(folder: Path) -> dict[str, Any]:
    """How the model in `folder` is to answer unless it is told otherwise; nothing if nobody has said so."""
    file = folder / "answering.json"
    try:
        found = json.loads(file.read_bytes()) if file.is_file() else {}
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__}")
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{file} is damaged",
            wanted="options as `bpg tune-routing` writes them",
            came=str(error),
            remedy="Remove the file: what the model has learned is elsewhere.",
        ) from error
    return found


def set_answering(folder: Path, options: Mapping[str, Any]) -> None:
    """Let the model in `folder` answer by these options from now on. What it has learned stays as it is."""
    try:
        with _writing(folder):
            _replace(folder / "answering.json", (json.dumps(dict(options), sort_keys=True) + "\n").encode())
    except OSError as error:
        raise ModelError(
            f"the choice cannot be written to {folder}",
            wanted="a folder to write to",
            came=str(error),
            remedy="Give it as options instead.",
        ) from error


def load_state(folder: Path) -> State:
    """The model in `folder`, every byte checked."""
    while True:
        document, digest = _read_document(folder)
        try:
            domains = {
                name: Learned(
                    {key: value for key, value in facts.items() if key != "sha256"},
                    _read_tensors(folder / "experts" / f"{facts['sha256']}.safetensors", facts["sha256"]),
                )
                for name, facts in document["domains"].items()
            }
            shared = document["shared"]
            tensors = _read_tensors(folder / f"state-{shared}.safetensors", shared) if shared else {}
        except _Gone as gone:
            if _read_document(folder)[1] == digest:
                raise _damaged(gone.file, "is missing", "a file that model.json names", "nothing") from None
            continue  # a writer replaced the model while we read: begin again with the new one
        history(folder)
        return State(
            document["method"], document["settings"], document["backbone"], domains, tensors, document["facts"]
        )


def digest_of(folder: Path) -> str:
    """The digest of the model in `folder`, without reading its tensors."""
    return _read_document(folder)[1]


def method_of(folder: Path) -> str:
    """The method whose model is in `folder`."""
    return str(_read_document(folder)[0]["method"])


def history(folder: Path) -> list[dict[str, Any]]:
    """What was done to the model in `folder`, oldest first; each entry seals those before it."""
    file = folder / "history.jsonl"
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise _damaged(file, "is missing", "the model's history", "nothing") from None
    seal = ""
    entries: list[dict[str, Any]] = []
    lines = content.split(b"\n")
    try:
        if lines[-1] != b"":
            raise ValueError("the last line is cut")
        for line in lines[:-2]:
            entry = json.loads(line)
            if _canonical(entry) != line or entry.pop("seal") != _seal(seal, entry):
                raise ValueError(f"line {len(entries) + 1} is not what was written")
            seal = _seal(seal, entry)
            entries.append(entry)
        if lines[-2] != _canonical({"entries": len(entries), "seal": seal}):
            raise ValueError("the closing line does not fit")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise _damaged(file, "is damaged", "lines that seal each other", str(error)) from None
    return entries


def _remember(folder: Path, event: str, digest: str) -> None:
    file = folder / "history.jsonl"
    past = history(folder) if file.exists() else []
    now = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, "model": digest}
    seal, lines = "", []
    for entry in [*past, now]:
        seal = _seal(seal, entry)
        lines.append(_canonical({**entry, "seal": seal}))
    lines.append(_canonical({"entries": len(lines), "seal": seal}))
    _replace(file, b"\n".join(lines) + b"\n")


def _seal(before: str, entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(before.encode() + _canonical(entry)).hexdigest()


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


def _sealed(document: dict[str, Any]) -> tuple[bytes, str]:
    """The bytes of model.json, which hold their own digest."""
    digest = hashlib.sha256(_canonical(document)).hexdigest()
    text = json.dumps({"digest": digest, **document}, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n", digest


def _read_document(folder: Path) -> tuple[dict[str, Any], str]:
    file = folder / "model.json"
    try:
        if file.stat().st_size > LARGEST_JSON:
            raise _damaged(file, "is too large", f"at most {LARGEST_JSON} bytes", str(file.stat().st_size))
        content = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        raise ModelError(
            f"there is no model in {folder}",
            wanted="a model.json",
            came="none",
            remedy="Check the path, or learn a domain first.",
        ) from None
    try:
        document = json.loads(content)
        digest = document.pop("digest")
        version = document["format"]
        if type(version) is not int or version not in {*MIGRATIONS, FORMAT}:
            raise ModelError(
                f"{file} is of a format that this bpg does not know",
                wanted=f"format {FORMAT}",
                came=str(version),
                remedy="Update bpg if it is a later one.",
            )
        if _sealed(document) != (content, digest):
            raise ValueError("its digest does not match")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ModelError):
            raise
        raise _damaged(file, "is damaged", "a model.json as it was written", str(error)) from None
    for step in range(version, FORMAT):
        document = MIGRATIONS[step](document)
    _check_document(document, file)
    return document, digest


def _check_document(document: dict[str, Any], file: Path) -> None:
    """Raise ModelError unless everything in a model.json is of the kind that readers count on."""
    kinds = {"method": str, "settings": dict, "backbone": dict, "domains": dict, "facts": dict}
    wrong = [name for name, kind in kinds.items() if not isinstance(document.get(name), kind)]
    if not wrong:
        wrong += [f"backbone.{key}" for key in ("name", "sha256") if not isinstance(document["backbone"].get(key), str)]
        if not isinstance(document["backbone"].get("preprocessing", {}), dict):
            wrong.append("backbone.preprocessing")
        for name, facts in document["domains"].items():
            if not name.isprintable() or not isinstance(facts, dict) or not _is_digest(facts.get("sha256")):
                wrong.append(f"the domain {name[:40]!r}")
        if document.get("shared") is not None and not _is_digest(document["shared"]):
            wrong.append("shared")
    if wrong:
        raise _damaged(
            file, "is no sound model.json", "names, digests and settings in their places", ", ".join(wrong[:5])
        )


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


class _Gone(Exception):
    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self.file = file


def _read_tensors(file: Path, sha: str) -> dict[str, Tensor]:
    try:
        if file.stat().st_size > LARGEST_TENSORS:
            raise _damaged(file, "is too large", f"at most {LARGEST_TENSORS} bytes", str(file.stat().st_size))
        content = file.read_bytes()
    except FileNotFoundError:
        raise _Gone(file) from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha:
        raise _damaged(
            file, "is damaged", f"bytes of sha256 {sha[:12]}...", f"{len(content)} of sha256 {found[:12]}..."
        )
    try:
        return load(content)
    except SafetensorError as error:
        raise _damaged(file, "is no safetensors file", "tensors", str(error)) from None


def _damaged(file: Path, problem: str, wanted: str, came: str) -> ModelError:
    return ModelError(
        f"{file} {problem}", wanted=wanted, came=came, remedy="Take the model from a copy, or learn its domains anew."
    )


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _replace(file: Path, content: bytes) -> None:
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    with part.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    part.replace(file)


def _sweep(folder: Path, document: Mapping[str, Any]) -> None:
    """Remove what no longer belongs to the model: forgotten experts, and parts of interrupted writes."""
    kept = {f"{facts['sha256']}.safetensors" for facts in document["domains"].values()}
    kept |= {f"state-{document['shared']}.safetensors", "model.json", "history.jsonl", "experts", LOCK}
    for file in [*folder.iterdir(), *(folder / "experts").iterdir()]:
        ours = re.fullmatch(r"\..+\.part|(state-)?[0-9a-f]{64}\.safetensors", file.name)
        if ours and file.name not in kept:
            file.unlink(missing_ok=True)


LOCK = ".lock"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """One writer at a time; the others wait."""
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
