"""Weights come from names, files, folders and the hub's cache; what is wrong is told in one error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from bpg import Backbone, load_backbone
from bpg.backbones.catalogue import catalogue, find
from bpg.backbones.clip import TextTower
from bpg.backbones.vit import ViT
from bpg.backbones.weights import locate, on_disk
from bpg.data.transforms import Preprocessing
from bpg.errors import BPGError, DeviceError, UnknownName, WeightsError, WeightsNotFound, WrongUse
from tests.oracles import oracle

NAME = "deit_tiny_patch16_224.fb_in1k"


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    """A checkpoint with DeiT-Tiny's keys and shapes."""
    model = oracle("timm").create_model("deit_tiny_patch16_224")
    return {key: tensor.contiguous() for key, tensor in model.state_dict().items()}


@pytest.fixture
def file(tensors: dict[str, torch.Tensor], tmp_path: Path) -> Path:
    path = tmp_path / "deit_tiny_patch16_224.safetensors"
    save_file(tensors, path)
    return path


def test_a_known_name_is_found_in_the_users_own_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPG_WEIGHTS", str(file.parent))
    by_name, by_path = load_backbone("deit_tiny_patch16_224"), load_backbone(str(file))
    assert by_name.name == NAME
    assert by_name.digest() == by_path.digest() == load_backbone(NAME).digest()
    assert by_name.preprocessing == by_path.preprocessing == find(NAME).preprocessing
    assert on_disk(find(NAME)) == file


def test_a_name_with_several_weights_must_be_told_apart() -> None:
    with pytest.raises(WrongUse, match=r"several sets of weights.*augreg_in21k_ft_in1k.*Say which"):
        load_backbone("vit_base_patch16_224")


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean deit_tiny_patch16_224"):
        load_backbone("deit_tny_patch16_224")


def test_a_folder_and_its_config(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    file.rename(folder / "model.safetensors")
    pixels = {"input_size": [3, 224, 224], "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7], "crop_pct": 0.95}
    pixels |= {"interpolation": "bilinear", "crop_mode": "squash"}
    config = {"architecture": "deit_tiny_patch16_224", "pretrained_cfg": pixels}
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load_backbone(folder).preprocessing
    assert (loaded.size, loaded.mean, loaded.std) == (224, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    assert (loaded.interpolation, loaded.crop, loaded.crop_fraction) == ("bilinear", "squash", 0.95)


def test_a_bare_file_of_unknown_name_says_what_it_assumes(file: Path) -> None:
    file = file.rename(file.with_name("mine.safetensors"))
    with pytest.warns(UserWarning, match="does not tell") as told_so:
        assumed = load_backbone(file)
    assert [str(warning.message).split("safetensors ")[1] for warning in told_so] == [
        "does not tell its heads: taking 3 of 64 channels",
        "does not tell its pixels: taking mean (0.485, 0.456, 0.406) and std (0.229, 0.224, 0.225)",
    ]
    told = load_backbone(file, architecture=NAME)
    assert assumed.digest() == told.digest()
    assert told.preprocessing.crop_fraction == 0.9


def test_another_image_size_keeps_the_crop(file: Path) -> None:
    backbone = load_backbone(file, image_size=96)
    assert (backbone.preprocessing.size, backbone.preprocessing.crop_fraction) == (96, 0.9)
    assert backbone(torch.zeros(1, 3, 96, 96)).shape == (1, 192)
    with pytest.raises(WrongUse, match=r"16 divides, came 100\. Use 96"):
        load_backbone(file, image_size=100)


def hub_cache(file: Path, home: Path, *, revision: str = "0" * 40) -> None:
    """`file` as the hub's client would have cached it."""
    repository = home / "hub" / f"models--timm--{NAME}"
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(revision)
    (snapshot / "model.safetensors").write_bytes(file.read_bytes())


LOAD = f"import bpg, sys; print(bpg.load_backbone({NAME!r}, **eval(sys.argv[1])).digest())"


def in_new_process(arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The hub's client reads its environment when it is imported: only a new process sees a changed one."""
    return subprocess.run(
        [sys.executable, "-c", LOAD, arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        ("{}", {"HF_HUB_OFFLINE": "1"}),
        ("{'local_files_only': True}", {}),
        ("{'revision': '" + "0" * 40 + "'}", {"HF_HUB_OFFLINE": "1"}),
    ],
)
def test_the_hubs_cache_is_used_without_a_network(
    arguments: str, environment: dict[str, str], file: Path, tmp_path: Path
) -> None:
    hub_cache(file, tmp_path / "home")
    found = in_new_process(arguments, HF_HOME=str(tmp_path / "home"), **environment)
    assert found.stdout.strip() == load_backbone(file).digest(), found.stderr


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        ("{}", {"HF_HUB_OFFLINE": "1"}),
        ("{'local_files_only': True}", {}),
        ("{'revision': '" + "1" * 40 + "', 'local_files_only': True}", {}),
        ("{}", {"HF_ENDPOINT": "https://hub.invalid"}),
    ],
    ids=["offline", "local files only", "a revision that is not cached", "no network"],
)
def test_no_network_and_no_file_is_one_error(arguments: str, environment: dict[str, str], tmp_path: Path) -> None:
    found = in_new_process(arguments, HF_HOME=str(tmp_path / "home"), **environment)
    assert found.returncode == 1
    last = found.stderr.strip().splitlines()[-1]
    assert last.startswith("bpg.errors.WeightsNotFound: no weights for timm/")
    assert "$BPG_WEIGHTS" in last


def test_a_repository_that_is_not_known_needs_the_hub() -> None:
    with pytest.raises(WeightsNotFound, match="somebody/something"):
        locate("somebody/something", local_files_only=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"<!DOCTYPE html><html>not found</html>", "cannot be read"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-lfs pointer"),
    ],
    ids=["empty", "a web page", "a git-lfs pointer"],
)
def test_a_foreign_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "deit_tiny_patch16_224.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        load_backbone(path)


@pytest.mark.parametrize("kept", [4, 100, 5000, 0.3, 0.999999])
def test_a_truncated_file_is_refused(kept: float, file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(kept) if kept >= 1 else int(kept * len(content))])
    with pytest.raises(WeightsError, match="cannot be read.*fetch it anew"):
        load_backbone(file)


def changed(tensors: dict[str, torch.Tensor], file: Path, **changes: torch.Tensor | None) -> Path:
    """The checkpoint with some tensors replaced, or left out where None."""
    names = {key.replace("__", "."): value for key, value in changes.items()}
    save_file({key: tensor for key, tensor in (tensors | names).items() if tensor is not None}, file)
    return file


def test_a_missing_key_is_named(tensors: dict[str, torch.Tensor], file: Path) -> None:
    with pytest.raises(WeightsError, match=r"1 missing \(vit\.blocks\.7\.fc1\.bias\)"):
        load_backbone(changed(tensors, file, blocks__7__mlp__fc1__bias=None))
    with pytest.raises(WeightsError, match=r"wanted the tensor vit\.position"):
        load_backbone(changed(tensors, file, pos_embed=None))
    with pytest.raises(WeightsError, match="no class token"):
        load_backbone(changed(tensors, file, cls_token=None))


def test_a_shape_that_does_not_fit_is_named(tensors: dict[str, torch.Tensor], file: Path) -> None:
    with pytest.raises(WeightsError, match=r"vit\.norm\.weight of shape \(192,\), came \(193,\)"):
        load_backbone(changed(tensors, file, norm__weight=torch.zeros(193)))


def test_unknown_keys_are_refused(tensors: dict[str, torch.Tensor], file: Path) -> None:
    with pytest.raises(WeightsError, match=r"no place for.*blocks\.0\.attn\.q_norm\.weight"):
        load_backbone(changed(tensors, file, blocks__0__attn__q_norm__weight=torch.ones(64)))


def test_numbers_that_are_none_are_refused(tensors: dict[str, torch.Tensor], file: Path) -> None:
    with pytest.raises(WeightsError, match=r"finite.*norm\.bias.*infinite or undefined"):
        load_backbone(changed(tensors, file, norm__bias=torch.full((192,), float("nan"))))
    with pytest.raises(WeightsError, match="came torch.int8"):
        load_backbone(changed(tensors, file, norm__bias=torch.zeros(192, dtype=torch.int8)))


def test_a_file_under_the_wrong_name_is_found_out(file: Path) -> None:
    wrong = file.rename(file.with_name("deit_small_patch16_224.safetensors"))
    with pytest.raises(WeightsError, match="is not deit_small_patch16_224.fb_in1k.*width 384.*width 192"):
        load_backbone(wrong)


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    tensors = {"conv1.weight": torch.zeros(8, 3, 7, 7), "fc.weight": torch.zeros(10, 8)}
    save_file(tensors, tmp_path / "resnet.safetensors")
    with pytest.raises(WeightsError, match="no checkpoint of a vision transformer.*conv1.weight"):
        load_backbone(tmp_path / "resnet.safetensors")


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    torch.save({"a": 1}, tmp_path / "model.pt")
    with pytest.raises(WeightsError, match="may run code"):
        load_backbone(tmp_path / "model.pt")


def test_files_and_folders_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsNotFound, match="there is no file"):
        load_backbone(tmp_path / "gone.safetensors")
    with pytest.raises(WeightsNotFound, match="no checkpoint folder.*none of them"):
        load_backbone(tmp_path)


@pytest.mark.parametrize(
    "config", ["[", "[]", '{"architecture": "x", "pretrained_cfg": 3}', "[" * 100_000, '{"architecture": 5}']
)
def test_a_broken_config_is_one_error(config: str, file: Path) -> None:
    file = file.rename(file.with_name("model.safetensors"))
    (file.parent / "config.json").write_text(config)
    with pytest.raises(WeightsError, match="config"):
        load_backbone(file)
    assert load_backbone(file, architecture=NAME).name == "model"  # told what it is, the file needs no config


def test_half_precision_files_are_read_as_float32(tensors: dict[str, torch.Tensor], file: Path) -> None:
    exact = load_backbone(file)
    halved = load_backbone(changed(tensors, file, **{key.replace(".", "__"): t.half() for key, t in tensors.items()}))
    assert halved.vit.norm.weight.dtype == torch.float32
    images = torch.randn(2, 3, 224, 224)
    assert_close(halved.embed(images), exact.embed(images), rtol=0, atol=1e-2)


def test_the_digest_tells_backbones_apart(file: Path) -> None:
    one, other = load_backbone(file), load_backbone(file, image_size=160)
    assert one.digest() == load_backbone(file).digest() != other.digest()
    with torch.no_grad():
        one.vit.norm.bias[3] += 1e-6
    assert one.digest() != load_backbone(file).digest()


def test_every_known_name_can_be_built() -> None:
    assert len(catalogue()) >= 30
    for entry in catalogue().values():
        with torch.device("meta"):
            vit = ViT(entry.vit)
            text = TextTower(entry.text) if entry.text else None
        backbone = Backbone(vit, entry.preprocessing, name=entry.name, text=text)
        assert backbone.feature_width == (entry.text.projection if entry.text else entry.vit.width)
        assert (entry.s_0 is None) == (entry.s_0_source == "") == (entry.s_0_estimator == "")


def test_options_reach_the_backbone(file: Path) -> None:
    own = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    backbone = load_backbone(file, precision="bfloat16", compiled=True, preprocessing=own, device="auto")
    assert (backbone.precision, backbone.compiled, backbone.preprocessing) == ("bfloat16", True, own)
    with pytest.raises(DeviceError, match="'gpu' is no device"):
        load_backbone(file, device="gpu")


def test_a_folder_of_a_known_name_does_not_hide_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPG_WEIGHTS", str(file.parent))
    monkeypatch.chdir(file.parent)
    (file.parent / NAME).mkdir()
    assert load_backbone(NAME).name == NAME


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1, 1), (2, 5), (0,)])
@pytest.mark.parametrize(
    "key",
    [
        "pos_embed",
        "cls_token",
        "patch_embed.proj.weight",
        "blocks.3.attn.qkv.weight",
        "norm.weight",
        "blocks.0.mlp.fc1.bias",
    ],
)
def test_a_tensor_of_any_shape_is_one_error(
    key: str, shape: tuple[int, ...], tensors: dict[str, torch.Tensor], file: Path
) -> None:
    with pytest.raises(WeightsError):
        load_backbone(changed(tensors, file, **{key.replace(".", "__"): torch.zeros(shape)}))


def hf_vit(folder: Path, *, pixels: dict[str, object] | None = None, **config: object) -> Path:
    """A small Hugging Face ViT with a changed config."""
    transformers = oracle("transformers")
    shape = {"hidden_size": 48, "num_hidden_layers": 1, "intermediate_size": 96, "image_size": 32, "patch_size": 16}
    transformers.ViTModel(transformers.ViTConfig(**shape, num_attention_heads=3)).save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(values))
    if pixels is not None:
        usual = {"size": 32, "image_mean": [0.4] * 3, "image_std": [0.2] * 3}
        (folder / "preprocessor_config.json").write_text(json.dumps(usual | pixels))
    return folder


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_act": "gelu_new"}, "activation: input should be 'gelu' or 'quick_gelu', not 'gelu_new'"),
        ({"num_attention_heads": 7}, "heads do not share the width evenly"),
        ({"layer_norm_eps": -1}, "norm_epsilon"),
        ({"num_attention_heads": "many"}, "heads"),
    ],
)
def test_a_config_that_this_vit_cannot_follow_is_an_error_of_the_file(
    config: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match=message):
        load_backbone(hf_vit(tmp_path, **config))


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        ({"resample": 1}, "resample 1"),
        ({"resample": None}, "resample None"),
        ({"do_resize": False}, "do_resize"),
        ({"size": []}, "not understood"),
        ({"image_std": [0, 0, 0]}, "std"),
        ({"image_mean": [float("nan")] * 3}, "mean"),
        ({"size": 0, "crop_size": 0, "do_center_crop": True}, "not understood"),
    ],
)
def test_pixels_that_are_not_understood_are_refused(pixels: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        load_backbone(hf_vit(tmp_path, pixels=pixels))


@pytest.mark.parametrize(
    ("pixels", "wanted"),
    [
        ({"size": 32}, ("squash", "bilinear", 1.0)),
        ({"size": 64, "crop_size": 32, "do_center_crop": True}, ("squash", "bilinear", 0.5)),  # DeiT's way
        ({"size": {"shortest_edge": 64}, "crop_size": {"height": 32}, "do_center_crop": True, "resample": 3},
         ("center", "bicubic", 0.5)),
        ({"size": {"height": 32, "width": 32}, "do_normalize": False}, ("squash", "bilinear", 1.0)),
    ],
)  # fmt: skip
def test_hugging_faces_pixels_old_and_new(
    pixels: dict[str, object], wanted: tuple[object, ...], tmp_path: Path
) -> None:
    found = load_backbone(hf_vit(tmp_path, pixels=pixels)).preprocessing
    assert (found.crop, found.interpolation, found.crop_fraction) == wanted
    assert found.mean == ((0.0, 0.0, 0.0) if "do_normalize" in pixels else (0.4, 0.4, 0.4))


def test_a_loaded_backbone_does_not_follow_its_file(file: Path) -> None:
    backbone = load_backbone(file)
    before = backbone.digest()
    with file.open("r+b") as content:
        content.seek(100_000)
        content.write(bytes(1_000_000))
    assert backbone.digest() == before
    os.truncate(file, 1000)
    assert torch.isfinite(backbone(torch.zeros(1, 3, 224, 224))).all()


def test_mean_pooling_is_refused_where_a_config_tells(file: Path) -> None:
    file = file.rename(file.with_name("model.safetensors"))
    (file.parent / "config.json").write_text('{"architecture": "vit_strange", "global_pool": "avg"}')
    with pytest.raises(WeightsError, match="global_pool avg"):
        load_backbone(file)


def test_heads_are_told_by_timms_model_args_or_not_guessed(tmp_path: Path) -> None:
    model = oracle("timm").create_model("test_vit")
    save_file({key: tensor.contiguous() for key, tensor in model.state_dict().items()}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="does not tell its number of heads.*width 64"):
        load_backbone(tmp_path)
    config = {"architecture": "test_vit", "model_args": {"num_heads": 2}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="pixels"):
        assert load_backbone(tmp_path).vit.config.heads == 2


@pytest.mark.parametrize("size", [0, 5000, 160_000])
def test_an_impossible_image_size_is_refused(size: int, file: Path) -> None:
    with pytest.raises(WrongUse, match=f"1 to 4096 pixels, came {size}"):
        load_backbone(file, image_size=size)


@pytest.mark.parametrize("source", ["x" * 300, "~nobody_here/x", ""])
def test_a_source_that_cannot_be_is_an_error_of_ours(source: str) -> None:
    with pytest.raises(BPGError):
        load_backbone(source, local_files_only=True)


def test_two_tensors_for_one_place_are_refused(tensors: dict[str, torch.Tensor], file: Path) -> None:
    both = {"reg_token": torch.zeros(1, 1, 192), "dist_token": torch.zeros(1, 1, 192)}
    with pytest.raises(WeightsError, match="two tensors for one place"):
        load_backbone(changed(tensors, file, **both))
