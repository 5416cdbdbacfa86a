"""JPEG files give the pixels that Pillow gives, bit for bit, and fail as they fail there."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import bpg.data.decode as module
from bpg.data.decode import decode
from bpg.errors import ImageError

simplejpeg = pytest.importorskip("simplejpeg")


def picture(width: int, height: int, *, rough: int = 1) -> Image.Image:
    """Noise, or blurred noise: `rough` pixels to a grain."""
    generator = np.random.default_rng(width + 1000 * height)
    shape = (max(1, height // rough), max(1, width // rough), 3)
    return Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).resize((width, height))


def jpeg(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def both(encoded: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor | str, torch.Tensor | str]:
    """What is decoded, and what Pillow alone decodes; of a failure the message."""

    def found() -> torch.Tensor | str:
        try:
            return decode(encoded, where="here")
        except ImageError as error:
            return str(error)

    ours = found()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_simplejpeg", lambda: None)
        return ours, found()


def count_fast(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each image from here on, whether Pillow was spared."""
    taken: list[bool] = []
    plain: Callable[..., object] = module._jpeg

    def counted(encoded: bytes, image: Image.Image) -> object:
        taken.append((pixels := plain(encoded, image)) is not None)
        return pixels

    monkeypatch.setattr(module, "_jpeg", counted)
    return taken


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1"])
def test_pixels_are_pillows(mode: str, subsampling: str, progressive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = count_fast(monkeypatch)
    for width, height, rough in ((1, 1, 1), (7, 9, 1), (16, 17, 1), (65, 33, 4), (227, 227, 8), (201, 300, 2)):
        for quality in (10, 75, 95):
            image = picture(width, height, rough=rough).convert(mode)
            ours, pillows = both(
                jpeg(image, quality=quality, subsampling=subsampling, progressive=progressive), monkeypatch
            )
            assert torch.equal(ours, pillows)
            assert ours.stride() == pillows.stride()
    assert taken == [True, False] * 18


@pytest.mark.parametrize("options", [{"optimize": True}, {"restart_marker_rows": 1}, {"keep_rgb": True}])
def test_files_of_other_makers(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    taken = count_fast(monkeypatch)
    encoded = jpeg(picture(90, 61), **options)
    for file in (encoded, encoded + b"what a camera leaves behind", encoded + encoded):
        assert torch.equal(*both(file, monkeypatch))
    assert taken[0]
    for subsampling in ("440", "411", "Gray"):
        file = simplejpeg.encode_jpeg(np.asarray(picture(67, 101)), 90, "RGB", subsampling)
        assert torch.equal(*both(file, monkeypatch))


@pytest.mark.parametrize("orientation", range(10))
def test_every_way_a_camera_is_held(orientation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    taken = count_fast(monkeypatch)
    ours, pillows = both(jpeg(picture(30, 20), exif=exif), monkeypatch)
    assert torch.equal(ours, pillows)
    assert ours.shape == ((3, 30, 20) if orientation in (5, 6, 7, 8) else (3, 20, 30))
    assert ours.stride() == pillows.stride()
    assert taken == [True, False]


def test_what_only_pillow_reads_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = count_fast(monkeypatch)
    assert torch.equal(*both(jpeg(picture(40, 30).convert("CMYK")), monkeypatch))
    buffer = io.BytesIO()
    picture(40, 30).save(buffer, "MPO", save_all=True, append_images=[picture(40, 30, rough=3)])
    assert torch.equal(*both(buffer.getvalue(), monkeypatch))
    buffer = io.BytesIO()
    picture(40, 30).save(buffer, "PNG")
    assert torch.equal(*both(buffer.getvalue(), monkeypatch))
    assert not any(taken)


@pytest.mark.parametrize("progressive", [False, True])
def test_truncated_files_fail_as_in_pillow(progressive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = jpeg(picture(24, 24), progressive=progressive)
    for kept in range(0, len(whole), 7):
        ours, pillows = both(whole[:kept], monkeypatch)
        assert isinstance(ours, str)
        assert ours == pillows


def test_damaged_files_are_what_pillow_makes_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    whole = jpeg(picture(90, 70, rough=5))
    failed = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for place in generator.integers(0, len(whole), 2):
            damaged[place] = generator.integers(0, 256)
        ours, pillows = both(bytes(damaged), monkeypatch)
        failed += isinstance(ours, str)
        assert ours == pillows if isinstance(ours, str) else torch.equal(ours, pillows)
    assert 0 < failed < 300


def test_a_library_that_rounds_otherwise_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module._simplejpeg.cache_clear()
    assert module._simplejpeg() is simplejpeg
    plain = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *given: plain(*given, fastupsample=True))
    module._simplejpeg.cache_clear()
    assert module._simplejpeg() is None
    module._simplejpeg.cache_clear()


@pytest.mark.real
def test_photographs_are_pillows(pacs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(pacs.rglob("*.jpg"))
    taken = count_fast(monkeypatch)
    for file in files[:: max(1, len(files) // 400)]:
        assert torch.equal(*both(file.read_bytes(), monkeypatch))
    assert len(taken) >= 800
    assert all(taken[::2])
