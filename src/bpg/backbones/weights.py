"""Names and files to backbones: where weights lie, how they are read, and what they must hold.

A source is a known name (`bpg backbones`), a safetensors file, a folder with one, or a hub repository. Files are
looked for in `$BPG_WEIGHTS`, then in the hub's cache, then on the hub. Only safetensors are opened: a pickle can run
code.
"""

from __future__ import annotations

import json
import os
import socket
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from bpg.backbones.backbone import Backbone
from bpg.backbones.catalogue import Entry, catalogue, find
from bpg.backbones.clip import TextConfig, TextTower
from bpg.backbones.dialects import (
    HF_CLIP,
    HF_VIT,
    OPENCLIP,
    Dialect,
    State,
    check_complete,
    recognise,
    text_shape,
    vit_shape,
)
from bpg.backbones.vit import ViT, ViTConfig, resize_positions
from bpg.compute import Precision, choose_device
from bpg.config import parse
from bpg.data.transforms import Preprocessing
from bpg.errors import BPGError, UnknownName, WeightsError, WeightsNotFound, WrongUse
from bpg.registry import BACKBONES

SIDECARS = ("config.json", "open_clip_config.json", "preprocessor_config.json")
UNSUPPORTED = "This architecture is not supported, or its config is wrong; `bpg backbones` lists those that are."
LARGEST_IMAGE = 4096  # pixels
WEIGHT_FILES = ("model.safetensors", "open_clip_model.safetensors")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A weights file and what is known of it beside its tensors."""

    file: Path
    name: str
    entry: Entry | None = None
    sidecars: Mapping[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hints:
    """What tensors do not tell: from the catalogue, a config beside the file, or the dialect's custom."""

    heads: int | None = None
    activation: str | None = None
    norm_epsilon: float | None = None
    text_heads: int | None = None
    text_activation: str | None = None
    text_epsilon: float | None = None
    preprocessing: Preprocessing | None = None


def load_backbone(
    source: str | Path,
    *,
    architecture: str | None = None,
    image_size: int | None = None,
    preprocessing: Preprocessing | None = None,
    device: str | torch.device = "cpu",
    precision: Precision = "float32",
    compiled: bool = False,
    revision: str | None = None,
    local_files_only: bool = False,
) -> Backbone:
    """The frozen backbone that `source` names: a known name, a safetensors file, a folder, or a hub repository.

    Another package may bring names of its own (entry point `bpg.backbones`): a function without arguments that returns
    a Backbone.

    `architecture` is a known name that says what a bare file holds. `image_size` other than the weights' own resizes
    the position embeddings; `preprocessing` takes the place of the weights' own. `precision` and `compiled` trade
    exactness for speed. `revision` and `local_files_only` go to the hub.
    """
    device = choose_device(device) if isinstance(device, str) else device
    if isinstance(source, str) and source in BACKBONES:
        brought: Backbone = BACKBONES[source]()
        return brought.to(device)
    checkpoint = locate(source, architecture=architecture, revision=revision, local_files_only=local_files_only)
    where = str(checkpoint.file)
    tensors = read_tensors(checkpoint.file)
    dialect = recognise(tensors, where=where)
    state = dialect.translate(tensors, where=where)
    try:
        hints = _hints(checkpoint, dialect, tensors)
        vit_config = _vit_config(state, hints, dialect, where)
        text_config = _text_config(state, hints, dialect, where) if dialect.has_text else None
    except WrongUse as error:  # the file's settings are wrong, not the user's
        raise WeightsError(error.problem, wanted=error.wanted, came=error.came, remedy=UNSUPPORTED) from error
    if checkpoint.entry is not None:
        _check_entry(checkpoint.entry, vit_config, text_config, where)

    own = hints.preprocessing or _assumed_pixels(dialect, where)
    pixels = preprocessing or replace(own, size=vit_config.image_size)
    size = pixels.size if image_size is None else image_size
    if not 1 <= size <= LARGEST_IMAGE:
        raise WrongUse(
            "no such image size",
            wanted=f"1 to {LARGEST_IMAGE} pixels",
            came=str(size),
            remedy="Leave it out to use the weights' own.",
        )
    vit_config, state["vit.position"] = _at_size(vit_config, state["vit.position"], size)
    logit_scale = float(state.pop("logit_scale").exp()) if "logit_scale" in state else None
    if logit_scale is not None and not 0 < logit_scale < 1e4:
        raise WeightsError(
            f"{where} has an impossible logit scale", wanted="about 100", came=f"{logit_scale}", remedy="Fetch it anew."
        )
    with torch.device("meta"):
        vit = ViT(vit_config)
        text = TextTower(text_config) if text_config is not None else None
    towers = nn.ModuleDict({"vit": vit} | ({"text": text} if text is not None else {}))
    check_complete(state, towers.state_dict(), where=where)
    towers.load_state_dict(state, assign=True)
    backbone = Backbone(
        vit,
        replace(pixels, size=size),
        name=checkpoint.name,
        text=text,
        logit_scale=logit_scale,
        precision=precision,
    ).to(device)
    if compiled:
        backbone.compile_blocks()
    return backbone


def locate(
    source: str | Path, *, architecture: str | None = None, revision: str | None = None, local_files_only: bool = False
) -> Checkpoint:
    """The weights file of `source`, fetched from the hub if it must be."""
    named = find(architecture) if architecture else None
    if isinstance(source, str) and source in catalogue():  # a folder of that name does not stand in its way
        return _known(catalogue()[source], revision, local_files_only)
    path = Path(os.path.expanduser(source))
    try:
        found = path.is_file(), path.is_dir() and bool(str(source))
    except OSError as error:
        raise WeightsNotFound(
            f"{path} cannot be looked at", wanted="a readable path", came=str(error.strerror), remedy="Check the path."
        ) from error
    if found[0]:
        entry = named or _entry_of_stem(path.stem)
        return Checkpoint(path, path.stem, entry, {} if entry else _read_sidecars(path.parent))
    if found[1]:
        files = [path / file for file in WEIGHT_FILES if (path / file).is_file()][:1]
        files = files or sorted(path.glob("*.safetensors"))
        if len(files) != 1:
            raise WeightsNotFound(
                f"{path} is no checkpoint folder",
                wanted=f"one of {', '.join(WEIGHT_FILES)}, or a single safetensors file",
                came=f"{len(files)} of them" if files else "none of them",
                remedy="Name the file itself.",
            )
        return Checkpoint(files[0], path.resolve().name, named, {} if named else _read_sidecars(path))
    name = str(source)
    if isinstance(source, Path) or name.endswith(".safetensors") or name.startswith((".", "/", "~")):
        raise WeightsNotFound(
            f"there is no file {name}", wanted="a safetensors file", came="nothing there", remedy="Check the path."
        )
    try:
        entry = find(name)
    except UnknownName:
        if name.count("/") != 1:
            raise
        return _from_repository(name, named, revision, local_files_only)
    return _known(entry, revision, local_files_only)


def _known(entry: Entry, revision: str | None, local_files_only: bool) -> Checkpoint:
    file = _own_copy(entry) if revision is None else None
    if entry.shipped and file is None:
        raise WeightsNotFound(
            f"{entry.name} ships with the package and comes from nowhere else",
            wanted="its file in the package, and no revision",
            came="a revision" if revision is not None else "no such file",
            remedy="Leave the revision out." if revision is not None else "Install the package anew.",
        )
    return Checkpoint(file or _fetch(entry.hub, entry.file, revision, local_files_only), entry.name, entry)


def on_disk(entry: Entry) -> Path | None:
    """Where the weights of a known backbone lie on this machine, or None. Nothing is fetched."""
    from huggingface_hub import try_to_load_from_cache

    found = _own_copy(entry)
    if found is not None or entry.shipped:
        return found
    cached = try_to_load_from_cache(entry.hub, entry.file)
    return Path(cached) if isinstance(cached, str) else None


def read_tensors(file: Path) -> State:
    """Every tensor of a safetensors file, whole and readable, or WeightsError."""
    if file.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".npz"):
        raise WeightsError(
            f"{file} is not opened",
            wanted="a safetensors file",
            came=f"a {file.suffix} file, which may run code when it is read",
            remedy="Most models are published as safetensors too; or convert it with safetensors.torch.save_file.",
        )
    try:
        return load(file.read_bytes())  # a copy of our own: a mapped file that changes would change the frozen weights
    except (SafetensorError, OSError, ValueError) as error:
        size = file.stat().st_size if file.is_file() else 0
        raise WeightsError(
            f"{file} cannot be read",
            wanted="a whole safetensors file",
            came=f"{size} bytes that are none ({error})",
            remedy="It may be cut short, a web page, or a git-lfs pointer: fetch it anew.",
        ) from error


def _own_copy(entry: Entry) -> Path | None:
    """What ships with the package, or NAME.safetensors in `$BPG_WEIGHTS`.

    The file has the full name, or that of an architecture that has no other weights.
    """
    if entry.shipped:
        shipped = Path(str(files("bpg").joinpath("shipped", entry.name, entry.file)))
        return shipped if shipped.is_file() else None
    folder = os.environ.get("BPG_WEIGHTS")
    if not folder:
        return None
    alone = sum(other.architecture == entry.architecture for other in catalogue().values()) == 1
    names = [entry.name, entry.architecture] if alone else [entry.name]
    found = (Path(os.path.expanduser(folder)) / f"{name.replace('/', '--')}.safetensors" for name in names)
    return next((file for file in found if file.is_file()), None)


def _entry_of_stem(stem: str) -> Entry | None:
    try:
        return find(stem.replace("--", "/"))
    except WrongUse:  # no known name, or one of several: the tensors must speak for themselves
        return None


def _from_repository(repository: str, named: Entry | None, revision: str | None, local_files_only: bool) -> Checkpoint:
    """The one weights file of a hub repository, and the configs beside it."""
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    def fetched(files: tuple[str, ...], *, enough: int) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for file in files:
            if len(found) == enough:
                break
            if try_to_load_from_cache(repository, file, revision=revision) is _CACHED_NO_EXIST:
                continue
            try:
                found[file] = _fetch(repository, file, revision, local_files_only)
            except WeightsNotFound as error:
                no_such_file = isinstance(error.__cause__, EntryNotFoundError)
                if not no_such_file:  # but no such repository, or no network
                    raise
        return found

    weights = fetched(WEIGHT_FILES, enough=1)
    if not weights:
        raise WeightsNotFound(
            f"the repository {repository} has no weights that can be read",
            wanted=" or ".join(WEIGHT_FILES),
            came="neither, on the hub or in its cache",
            remedy="Choose a repository with a single safetensors file, or go online once to fetch it.",
        )
    sidecars = {file: _read_json(path) for file, path in fetched(SIDECARS, enough=len(SIDECARS)).items()}
    return Checkpoint(next(iter(weights.values())), repository, named, sidecars)


def _fetch(repository: str, file: str, revision: str | None, local_files_only: bool) -> Path:
    """A file of a hub repository: its cached copy if there is one, so that the same machine meets the same weights."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        try:
            return Path(hf_hub_download(repository, file, revision=revision, local_files_only=True))
        except LocalEntryNotFoundError:
            if local_files_only or constants.HF_HUB_OFFLINE:
                raise
            _check_network(constants.ENDPOINT)
            return Path(hf_hub_download(repository, file, revision=revision))
    except Exception as error:  # the hub's client raises its own, the HTTP library's and the system's errors
        raise WeightsNotFound(
            f"no weights for {repository}",
            wanted=f"{file}{f' at revision {revision}' if revision else ''}, on this machine or from the hub",
            came=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no answer'}",
            remedy="Check name and network, or put a known NAME.safetensors into $BPG_WEIGHTS, or pass a file.",
        ) from error


def _check_network(endpoint: str) -> None:
    """Fail at once where the hub cannot be reached at all: its client would try for half a minute."""
    host = urlsplit(endpoint).hostname
    if host and not {"https", "http", "all"} & set(getproxies()):  # behind a proxy, names are resolved elsewhere
        try:
            socket.getaddrinfo(host, 443)
        except OSError as error:
            raise ConnectionError(f"no network: the hub's address is not found ({error.strerror})") from error


def _read_sidecars(folder: Path) -> dict[str, dict[str, Any]]:
    return {sidecar: _read_json(folder / sidecar) for sidecar in SIDECARS if (folder / sidecar).is_file()}


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"{file} cannot be read", wanted="a JSON object", came=str(error), remedy="Fetch it anew or remove it."
        ) from error
    return content


def _hints(checkpoint: Checkpoint, dialect: Dialect, tensors: Mapping[str, Tensor]) -> Hints:
    """The best that is known of a checkpoint: the catalogue first, then a config beside the file."""
    entry = checkpoint.entry
    if entry is not None:
        return Hints(
            entry.vit.heads,
            entry.vit.activation,
            entry.vit.norm_epsilon,
            entry.text.heads if entry.text else None,
            entry.text.activation if entry.text else None,
            entry.text.norm_epsilon if entry.text else None,
            entry.preprocessing,
        )
    hints = Hints()
    try:
        if "open_clip_config.json" in checkpoint.sidecars and dialect is OPENCLIP:
            hints = _openclip_hints(checkpoint.sidecars["open_clip_config.json"])
        elif "config.json" in checkpoint.sidecars:
            hints = _config_hints(checkpoint.sidecars["config.json"], dialect)
        elif dialect is OPENCLIP and "input_resolution" in tensors:
            hints = _openai_hints(tensors)
        if hints.preprocessing is None and "preprocessor_config.json" in checkpoint.sidecars:
            pixels = _hf_pixels(checkpoint.sidecars["preprocessor_config.json"], dialect)
            hints = replace(hints, preprocessing=pixels)
    except (AttributeError, ArithmeticError, LookupError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, BPGError):
            raise
        raise WeightsError(
            f"the config beside {checkpoint.file} is not understood",
            wanted="a timm, OpenCLIP or Hugging Face config of a plain ViT or CLIP",
            came=f"{type(error).__name__}: {error}",
            remedy="Fetch it anew, or pass `architecture`.",
        ) from error
    return hints


def _openai_hints(tensors: Mapping[str, Tensor]) -> Hints:
    """OpenAI's own release carries its image size; heads of 64 channels and quick-GELU are its custom."""
    return Hints(
        heads=len(tensors["visual.conv1.weight"]) // 64,
        activation="quick_gelu",
        text_heads=len(tensors["ln_final.weight"]) // 64 if "ln_final.weight" in tensors else None,
        preprocessing=replace(find("ViT-B-16.openai").preprocessing, size=int(tensors["input_resolution"])),
    )


def _config_hints(config: dict[str, Any], dialect: Dialect) -> Hints:
    """From a config.json: timm's has an architecture, Hugging Face's a model type."""
    if "architecture" in config:
        return _timm_hints(config)
    if dialect not in (HF_CLIP, HF_VIT):
        return Hints()
    # Old configs say it twice, and the second word counts; what they leave out is the class's default.
    vision = {**(config.get("vision_config") or {}), **(config.get("vision_config_dict") or {})}
    text = {**(config.get("text_config") or {}), **(config.get("text_config_dict") or {})}
    if dialect is HF_VIT:
        vision = {"num_attention_heads": 12, "hidden_act": "gelu", "layer_norm_eps": 1e-12} | config
    else:
        vision = {"num_attention_heads": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5} | vision
        text = {"num_attention_heads": 8, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5} | text
    return Hints(
        heads=vision["num_attention_heads"],
        activation=vision["hidden_act"],
        norm_epsilon=vision["layer_norm_eps"],
        text_heads=text.get("num_attention_heads"),
        text_activation=text.get("hidden_act"),
        text_epsilon=text.get("layer_norm_eps"),
    )


def _timm_hints(config: dict[str, Any]) -> Hints:
    name, pretrained = config["architecture"], config.get("pretrained_cfg", config)
    if config.get("global_pool", "token") != "token":
        raise ValueError(f"global_pool {config['global_pool']}, where only the class token is read")
    known = next((entry.vit for entry in catalogue().values() if entry.architecture == name), None)
    if known is not None:
        shape = Hints(known.heads, known.activation, known.norm_epsilon)
    else:  # timm tells the activations apart by name; OpenAI's own weights have one only
        quick = "quickgelu" in name or "openai" in pretrained.get("tag", "")
        heads = (config.get("model_args") or {}).get("num_heads")
        shape = Hints(heads=heads, activation="quick_gelu" if quick else "gelu")
    return replace(shape, preprocessing=_timm_pixels(pretrained))


VISION_KEYS = {"image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio"}
TEXT_KEYS = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"}


def _openclip_hints(config: dict[str, Any]) -> Hints:
    """From an open_clip_config.json; a setting that this CLIP does not have would compute something else."""
    model, pixels = config["model_cfg"], config.get("preprocess_cfg") or {}
    vision, text = model["vision_cfg"], model["text_cfg"]
    for tower, known in ((vision, VISION_KEYS), (text, TEXT_KEYS)):
        strange = {key for key, value in tower.items() if key not in known and value not in (None, False)}
        if strange:
            raise ValueError(f"settings that this CLIP does not have: {', '.join(sorted(strange))}")
    if pixels.get("resize_mode", "shortest") not in ("shortest", "squash"):
        raise ValueError(f"resize_mode {pixels['resize_mode']}")
    known_pixels = {key: pixels[key] for key in ("mean", "std", "interpolation") if key in pixels}
    known_pixels["crop"] = "squash" if pixels.get("resize_mode") == "squash" else "center"
    clip = asdict(find("ViT-B-16.openai").preprocessing)
    return Hints(
        heads=vision["width"] // vision.get("head_width", 64),
        activation="quick_gelu" if model.get("quick_gelu") else "gelu",
        text_heads=text.get("heads", 8),
        preprocessing=parse(Preprocessing, clip | known_pixels, where="open_clip_config.json"),
    )


def _timm_pixels(config: dict[str, Any]) -> Preprocessing | None:
    if "mean" not in config:
        return None
    values = {
        "size": config["input_size"][-1],
        "mean": config["mean"],
        "std": config["std"],
        "interpolation": config.get("interpolation", "bicubic"),
        "crop_fraction": config.get("crop_pct", 0.875),
        "crop": config.get("crop_mode", "center"),
    }
    return parse(Preprocessing, values, where="config.json")


def _hf_pixels(config: dict[str, Any], dialect: Dialect) -> Preprocessing:
    """From a preprocessor_config.json, old or new; what it leaves out is the custom of its model."""
    custom = find(dialect.pixels).preprocessing
    size, crop = config["size"], config.get("crop_size")
    shortest = "shortest_edge" in size if isinstance(size, dict) else dialect is HF_CLIP
    resized = size if isinstance(size, int) else size.get("shortest_edge", size.get("height"))
    cut = config.get("do_center_crop", custom.crop == "center")
    cropped = crop if isinstance(crop, int) else (crop or {}).get("height", resized)
    filters = {2: "bilinear", 3: "bicubic"}
    resample = config.get("resample", 3 if custom.interpolation == "bicubic" else 2)
    if resample not in filters:
        raise ValueError(f"resample {resample}, where only 2 (bilinear) and 3 (bicubic) are known")
    if not config.get("do_resize", True):
        raise ValueError("do_resize false, where images must be resized")
    normalised = config.get("do_normalize", True)
    values = {
        "size": cropped if cut else resized,
        "mean": config.get("image_mean", custom.mean) if normalised else (0, 0, 0),
        "std": config.get("image_std", custom.std) if normalised else (1, 1, 1),
        "interpolation": filters[resample],
        "crop": "center" if shortest else "squash",
        "crop_fraction": cropped / resized if cut else 1.0,
    }
    return parse(Preprocessing, values, where="preprocessor_config.json")


def _assumed_pixels(dialect: Dialect, where: str) -> Preprocessing:
    assumed = find(dialect.pixels).preprocessing
    warnings.warn(f"{where} does not tell its pixels: taking mean {assumed.mean} and std {assumed.std}", stacklevel=3)
    return assumed


def _vit_config(state: State, hints: Hints, dialect: Dialect, where: str) -> ViTConfig:
    shape = vit_shape(state, where=where)
    if shape["pre_norm"] and hints.activation is None:
        raise WeightsError(
            f"{where} does not tell its activation",
            wanted="gelu or quick_gelu: CLIP weights exist for both",
            came="a CLIP without a config beside it",
            remedy="Put its config.json or open_clip_config.json beside the file, or pass `architecture`.",
        )
    custom = 1e-5 if shape["pre_norm"] else dialect.norm_epsilon
    values = shape | {
        "heads": hints.heads or _custom_heads(shape["width"], where),
        "activation": hints.activation or "gelu",
        "norm_epsilon": hints.norm_epsilon or custom,
    }
    return parse(ViTConfig, values, where=where)


def _text_config(state: State, hints: Hints, dialect: Dialect, where: str) -> TextConfig:
    shape = text_shape(state, where=where)
    values = shape | {
        "heads": hints.text_heads or _custom_heads(shape["width"], where),
        "activation": hints.text_activation or hints.activation or "quick_gelu",
        "norm_epsilon": hints.text_epsilon or dialect.norm_epsilon,
    }
    return parse(TextConfig, values, where=where)


def _custom_heads(width: int, where: str) -> int:
    """Heads of 64 channels, which the ViTs of these widths have; wider and narrower ones differ among themselves."""
    if width not in (192, 384, 512, 768, 1024):
        raise WeightsError(
            f"{where} does not tell its number of heads",
            wanted="a config, or one of the usual widths",
            came=f"width {width}",
            remedy="Put the model's config.json beside the file, or pass `architecture`.",
        )
    warnings.warn(f"{where} does not tell its heads: taking {width // 64} of 64 channels", stacklevel=2)
    return width // 64


def _check_entry(entry: Entry, vit: ViTConfig, text: TextConfig | None, where: str) -> None:
    for tower, wanted, came in (("image", entry.vit, vit), ("text", entry.text, text)):
        if wanted == came:
            continue
        before, after = asdict(wanted) if wanted else {}, asdict(came) if came else {}
        differing = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        raise WeightsError(
            f"{where} is not {entry.name}",
            wanted=f"an {tower} tower with " + ", ".join(f"{key} {before.get(key)}" for key in differing),
            came=", ".join(f"{key} {after.get(key)}" for key in differing),
            remedy="Load the file under its own name, or without one.",
        )


def _at_size(config: ViTConfig, position: Tensor, size: int) -> tuple[ViTConfig, Tensor]:
    """The settings and position embeddings of the same ViT on images of `size` pixels."""
    resized = replace(config, image_size=size)
    specials = config.specials if config.prefix_positions else 0
    return resized, resize_positions(position, specials=specials, grid=resized.grid)
