"""The survey embeds once, in file order, whatever the cache holds."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.testing import assert_close

import bpg.backbones.survey as module
from bpg import Backbone, ImageSet, survey
from bpg.backbones.backbone import FINISHED, Probe
from bpg.backbones.cache import FeatureCache
from bpg.data.decode import decode
from bpg.errors import ImageError, WrongUse

PROBES = (FINISHED, Probe(2, "moments"), Probe(1), Probe(3))


@pytest.fixture
def pictures(tmp_path: Path) -> ImageSet:
    """Thirty small pictures of three classes, of different sizes; the fourth class has none."""
    generator = np.random.default_rng(0)
    paths, labels = [], []
    for index in range(30):
        shape = (int(generator.integers(20, 60)), int(generator.integers(20, 60)), 3)
        path = tmp_path / f"{index:02}.png"
        Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(path)
        paths.append(path)
        labels.append(index % 3)
    return ImageSet(tuple(paths), tuple(labels), ("a", "b", "c", "d"))


def embedded(backbone: Backbone, pictures: ImageSet) -> torch.Tensor:
    """Features one image after the other, without the survey."""
    pixels = [backbone.prepare(decode(path.read_bytes(), where=str(path))) for path in pictures.paths]
    return torch.cat([backbone.embed(image[None]) for image in pixels])


def count_forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that the backbone is asked for from here on."""
    sizes: list[int] = []
    features = Backbone.features

    def counted(self: Backbone, images: torch.Tensor, probes: object) -> list[torch.Tensor]:
        sizes.append(len(images))
        return features(self, images, probes)  # type: ignore[arg-type]

    monkeypatch.setattr(Backbone, "features", counted)
    return sizes


def test_a_survey_counts_embeds_and_measures(small: Backbone, pictures: ImageSet) -> None:
    seen: list[tuple[int, int]] = []
    found = survey(small, pictures, probes=PROBES, batch_size=7, progress=lambda *counts: seen.append(counts))
    assert found.counts == {"a": 10, "b": 10, "c": 10, "d": 0}
    assert found.labels.tolist() == list(pictures.labels)
    assert_close(found.features[FINISHED], embedded(small, pictures), rtol=0, atol=1e-6)
    assert [found.features[probe].shape[1] for probe in PROBES] == [64, 128, 64, 64]
    for features in found.features.values():
        assert_close(features.norm(dim=1), torch.ones(30))
    assert seen[-1] == (30, 30)
    means = torch.stack([found.features[FINISHED][found.labels == label].mean(dim=0) for label in range(3)])
    between = (means - means.mean(dim=0)).square().sum(dim=1).mean()
    assert found.scatter.between == pytest.approx(float(between), rel=1e-4)


def test_probes_are_what_they_say(small: Backbone, images: torch.Tensor) -> None:
    states = list(small.vit.layers(small.vit.embed(images)))
    moments, early, last = small.features(images, [Probe(2, "moments"), Probe(1), Probe(3)])
    patches = states[1][:, 1:]
    wanted = torch.cat([patches.mean(dim=1), patches.std(dim=1, correction=0)], dim=1)
    assert_close(moments, wanted / wanted.norm(dim=1, keepdim=True))
    assert_close(early, states[0][:, 0] / states[0][:, 0].norm(dim=1, keepdim=True))
    assert_close(last, states[2][:, 0] / states[2][:, 0].norm(dim=1, keepdim=True))


def test_a_shallow_probe_does_not_run_the_deep_blocks(small: Backbone, images: torch.Tensor) -> None:
    ran: list[int] = []
    for index, block in enumerate(small.vit.blocks):
        block.register_forward_hook(lambda *_, index=index: ran.append(index))
    small.features(images, [Probe(2)])
    assert ran == [0, 1]


def test_a_second_survey_computes_nothing(small: Backbone, pictures: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    first = survey(small, pictures, probes=PROBES)
    sizes = count_forwards(monkeypatch)
    second = survey(small, pictures, probes=PROBES)
    assert sizes == []
    for probe in PROBES:
        assert torch.equal(first.features[probe], second.features[probe])
        assert torch.equal(first.scatters[probe].spreads, second.scatters[probe].spreads)


def test_only_new_images_are_computed(small: Backbone, pictures: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    some = ImageSet(pictures.paths[::2], pictures.labels[::2], pictures.classes)
    survey(small, some)
    sizes = count_forwards(monkeypatch)
    found = survey(small, pictures)
    assert sum(sizes) == 15
    assert_close(found.features[FINISHED], embedded(small, pictures), rtol=0, atol=1e-6)


def test_the_key_is_content_weights_pixels_depth_and_type(
    small: Backbone, pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey(small, pictures)
    sizes = count_forwards(monkeypatch)

    moved = tmp_path / "moved.png"
    moved.write_bytes(pictures.paths[0].read_bytes())
    survey(small, ImageSet((moved,), (0,), ("a",)))
    assert sum(sizes) == 0  # another path, the same content

    survey(small, pictures, probes=[Probe(1)])
    assert sum(sizes) == 30
    survey(small, pictures, probes=[Probe(1, "moments")])
    assert sum(sizes) == 60

    from dataclasses import replace

    small.preprocessing = replace(small.preprocessing, mean=(0.5, 0.5, 0.5))
    survey(small, pictures)
    assert sum(sizes) == 90
    small.precision = "bfloat16"
    survey(small, pictures)
    assert sum(sizes) == 120
    small.compiled = True
    survey(small, pictures)
    assert sum(sizes) == 150
    with torch.no_grad():
        small.vit.class_token[0] += 1
    survey(small, pictures)
    assert sum(sizes) == 180


def test_a_damaged_cache_is_found_out_and_computed_again(small: Backbone, pictures: ImageSet, tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    first = survey(small, pictures, cache=cache)
    (shard,) = (tmp_path / "cache").rglob("*.safetensors")
    assert hashlib.sha256(shard.read_bytes()).hexdigest() == shard.stem
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.warns(UserWarning, match="damaged cache file"):
        second = survey(small, pictures, cache=cache)
    assert torch.equal(first.features[FINISHED], second.features[FINISHED])


def test_a_cache_that_cannot_be_written_costs_no_run(small: Backbone, pictures: ImageSet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(UserWarning, match="features are not cached"):
        found = survey(small, pictures, cache=FeatureCache(tmp_path / "file"))
    assert len(found.features[FINISHED]) == 30


def test_what_was_computed_before_an_interruption_is_kept(
    small: Backbone, pictures: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, _: int) -> None:
        if done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        survey(small, pictures, batch_size=4, progress=stop)
    sizes = count_forwards(monkeypatch)
    survey(small, pictures, batch_size=4)
    assert sum(sizes) == 30 - 12


def test_no_cache_is_written_when_none_is_asked_for(small: Backbone, pictures: ImageSet, tmp_path: Path) -> None:
    found = survey(small, pictures, cache=None, keep_features=False)
    assert not (tmp_path / "bpg-cache").exists()
    assert found.features == {}
    assert found.scatter.within > 0


def test_long_surveys_are_written_in_pieces(
    small: Backbone, pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH", 8)
    survey(small, pictures, batch_size=4, cache=FeatureCache(tmp_path / "cache"))
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 4  # 8, 8, 8, 6


def test_an_unreadable_image_is_named(small: Backbone, pictures: ImageSet, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff and no more")
    with pytest.raises(ImageError, match=r"broken\.jpg"):
        survey(small, ImageSet((*pictures.paths, broken), (*pictures.labels, 0), pictures.classes))
    with pytest.raises(ImageError, match=r"gone\.jpg.*No such file"):
        survey(small, ImageSet((tmp_path / "gone.jpg",), (0,), ("a",)))


def test_wrong_surveys_are_refused(small: Backbone, pictures: ImageSet) -> None:
    with pytest.raises(WrongUse, match="nothing to survey"):
        survey(small, ImageSet((), (), ()))
    with pytest.raises(WrongUse, match="a depth of at most 3"):
        survey(small, pictures, probes=[Probe(4)])
    for wrong in ({"depth": 0, "kind": "moments"}, {"depth": 2, "kind": "mean"}, {"depth": -1}):
        with pytest.raises(WrongUse, match="no such probe"):
            Probe(**wrong)  # type: ignore[arg-type]
    with pytest.raises(WrongUse, match="0 probes, batch size 32"):
        survey(small, pictures, probes=[])
    with pytest.raises(WrongUse, match="1 probes, batch size 0"):
        survey(small, pictures, batch_size=0)
    with pytest.raises(WrongUse, match="the finished feature was not surveyed"):
        survey(small, pictures, probes=[Probe(1)]).scatter  # noqa: B018


def test_equal_images_are_computed_once(
    small: Backbone, pictures: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = count_forwards(monkeypatch)
    twice = ImageSet(pictures.paths * 2, pictures.labels * 2, pictures.classes)
    cache = FeatureCache(tmp_path / "cache")
    found = survey(small, twice, cache=cache, batch_size=8)
    assert sum(sizes) == 30
    assert torch.equal(found.features[FINISHED][:30], found.features[FINISHED][30:])
    (shard,) = (tmp_path / "cache").rglob("*.safetensors")
    assert len(load_file(shard)["images"]) == 30


def test_an_unreadable_shard_is_passed_over(small: Backbone, pictures: ImageSet, tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    survey(small, pictures, cache=cache)
    (shelf,) = (tmp_path / "cache" / "features").iterdir()
    (shelf / "folder.safetensors").mkdir()
    with pytest.warns(UserWarning, match="cannot be used and is passed over"):
        survey(small, pictures, cache=cache)
