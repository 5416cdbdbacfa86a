"""Images come out right, lists are read as they stand, and what is wrong is named."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bpg import ImageSet, read_list
from bpg.data.decode import decode
from bpg.data.transforms import Augmentation, Preprocessing, evaluation, training
from bpg.errors import ImageError, SettingsError, WrongUse

RED = (200, 30, 40)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def middle(pixels: torch.Tensor) -> list[int]:
    assert pixels.dtype == torch.uint8
    assert pixels.shape[0] == 3
    return pixels[:, pixels.shape[1] // 2, pixels.shape[2] // 2].tolist()


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP", "JPEG"])
def test_formats(kind: str) -> None:
    pixels = decode(encoded(Image.new("RGB", (20, 10), RED), kind), where="test")
    assert pixels.shape == (3, 10, 20)
    assert middle(pixels) == pytest.approx(RED, abs=3)


def test_modes_become_rgb() -> None:
    grey = decode(encoded(Image.new("L", (8, 8), 77), "PNG"), where="test")
    assert middle(grey) == [77, 77, 77]
    few = Image.new("RGB", (8, 8), RED).convert("P", palette=Image.Palette.ADAPTIVE)
    assert middle(decode(encoded(few, "PNG"), where="test")) == pytest.approx(RED, abs=3)
    cmyk = decode(encoded(Image.new("RGB", (8, 8), RED).convert("CMYK"), "TIFF"), where="test")
    assert middle(cmyk) == pytest.approx(RED, abs=3)
    deep = Image.fromarray(np.full((8, 8), 0x4D12, dtype=np.uint16))
    assert middle(decode(encoded(deep, "PNG"), where="test")) == [0x4D, 0x4D, 0x4D]


def test_transparency_is_laid_on_white() -> None:
    clear = decode(encoded(Image.new("RGBA", (8, 8), (*RED, 0)), "PNG"), where="test")
    assert middle(clear) == [255, 255, 255]
    opaque = decode(encoded(Image.new("RGBA", (8, 8), (*RED, 255)), "PNG"), where="test")
    assert middle(opaque) == list(RED)


def test_exif_rotation_is_applied() -> None:
    image = Image.new("RGB", (30, 10), "black")
    image.paste(RED, (0, 0, 10, 10))  # the left third
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    pixels = decode(encoded(image, "PNG", exif=exif), where="test")
    assert pixels.shape == (3, 30, 10)
    assert pixels[0, 0].min() == RED[0]
    assert pixels[0, -1].max() == 0


@pytest.mark.parametrize("kept", [0, 1, 30, 0.5])
def test_a_broken_image_is_one_error(kept: float) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    whole = encoded(noise, "PNG")
    with pytest.raises(ImageError, match=r"some/where\.png"):
        decode(whole[: int(kept) if kept >= 1 else int(kept * len(whole))], where="some/where.png")


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ImageError, match="decompression bomb"):
        decode(encoded(Image.new("RGB", (40, 40)), "PNG"), where="bomb.png")


def test_other_formats_are_named() -> None:
    with pytest.raises(ImageError, match="a GIF file"):
        decode(encoded(Image.new("RGB", (8, 8)), "GIF"), where="test")
    with pytest.raises(ImageError, match="unknown format"):
        decode(b"%!PS-nothing of the kind", where="test")


@pytest.mark.parametrize("shape", [(1, 5000), (5000, 1), (1, 1), (2, 65000)])
def test_thin_images_stay_small(shape: tuple[int, int]) -> None:
    pixels = torch.full((3, *shape), 100, dtype=torch.uint8)
    found = evaluation(pixels, Preprocessing(size=224, mean=(0, 0, 0), std=(1, 1, 1)))
    assert found.shape == (3, 224, 224)
    assert found.unique().tolist() == pytest.approx([100 / 255])


@pytest.mark.parametrize(
    "pixels", [torch.zeros(3, 8, 8), torch.zeros(1, 8, 8, dtype=torch.uint8), torch.zeros(3, 0, 8, dtype=torch.uint8)]
)
def test_what_is_no_image_is_not_prepared(pixels: torch.Tensor) -> None:
    with pytest.raises(WrongUse, match="no pixels of an image"):
        evaluation(pixels, Preprocessing())


def write_list(folder: Path, *lines: str, classes: str | None = None) -> Path:
    (folder / "list.txt").write_text("\n".join(lines))
    if classes is not None:
        (folder / "classes.txt").write_text(classes)
    return folder / "list.txt"


def test_a_list_with_class_names_beside_it(tmp_path: Path) -> None:
    found = read_list(write_list(tmp_path, "real/dog/a b.jpg 1", "", "real/cat/c.jpg 0", classes="cat\ndog\nelk\n"))
    assert found.classes == ("cat", "dog", "elk")
    assert found.labels == (1, 0)
    assert found.paths == (tmp_path / "real/dog/a b.jpg", tmp_path / "real/cat/c.jpg")


def test_a_list_whose_folders_name_the_classes(tmp_path: Path) -> None:
    file = write_list(tmp_path, "real/dog/a.jpg 2", "real/cat/c.jpg 0")
    assert read_list(file, root="/images").paths[0] == Path("/images/real/dog/a.jpg")
    assert read_list(file).classes == ("cat", "class 1", "dog")
    assert read_list(file, classes=["x", "y", "z"]).classes == ("x", "y", "z")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a/b.jpg one"], "line 1 .* is no list entry"),
        (["a/b.jpg 0", "3"], "line 2 .* is no list entry"),
        (["a/b.jpg -1"], "is no list entry"),
        (["a/b.jpg 99999999"], "at most 6 digits"),
        ([""], "lists nothing"),
        (["a/b.jpg 0", "c/d.jpg 0"], "label 0 .* has no single name.*a and c"),
    ],
)
def test_a_wrong_list_is_refused(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=message):
        read_list(write_list(tmp_path, *lines))


def test_a_list_from_an_editor_of_windows(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbfdog/a.jpg  0\r\ndog/b.jpg 0\r\n")
    assert [path.name for path in read_list(tmp_path / "list.txt").paths] == ["a.jpg", "b.jpg"]
    assert read_list(tmp_path / "list.txt").paths[0].parent == tmp_path / "dog"
    (tmp_path / "classes.txt").write_bytes("größe".encode("latin-1"))
    with pytest.raises(WrongUse, match="Save it as UTF-8"):
        read_list(tmp_path / "list.txt")
    with pytest.raises(WrongUse, match="a list of names, came 'dog'"):
        read_list(tmp_path / "list.txt", classes="dog")


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="cannot read the list"):
        read_list(tmp_path / "gone.txt")


def test_labels_must_have_classes_and_images() -> None:
    with pytest.raises(WrongUse, match="labels from 0 to 0, came labels from 0 to 1"):
        ImageSet((Path("a"), Path("b")), (0, 1), ("cat",))
    with pytest.raises(WrongUse, match="two labels have one name.*cat more than once"):
        ImageSet((Path("a"), Path("b")), (0, 1), ("cat", "cat"))
    with pytest.raises(WrongUse, match="2 labels, one an image"):
        ImageSet((Path("a"), Path("b")), (0,), ("cat",))


def test_floating_point_pixels_are_refused() -> None:
    with pytest.raises(ImageError, match="floating-point pixels"):
        decode(encoded(Image.new("F", (8, 8)), "TIFF"), where="test")


def test_a_cmyk_jpeg_has_its_colours() -> None:
    pixels = decode(encoded(Image.new("RGB", (8, 8), RED).convert("CMYK"), "JPEG", quality=95), where="test")
    assert (pixels.float().mean(dim=(1, 2)) - torch.tensor(RED)).abs().max() < 8


def training_of(augmentation: Augmentation, *, seed: int, image: torch.Tensor) -> torch.Tensor:
    wanted = Preprocessing(size=32, mean=(0, 0, 0), std=(1, 1, 1), crop_fraction=0.5)
    return training(image, wanted, augmentation, torch.Generator().manual_seed(seed))


def test_a_shifted_crop_is_cut_from_the_image_as_evaluation_resizes_it() -> None:
    image = torch.arange(64, dtype=torch.uint8).expand(3, 64, 64).contiguous()  # columns tell where they come from
    found = {
        float(training_of(Augmentation(crop="shifted", flip=False), seed=seed, image=image)[0, 0, 0] * 255)
        for seed in range(200)
    }
    assert found == {float(left) for left in range(33)}  # every place, and nothing is resized


def test_brightness_is_drawn_around_one() -> None:
    image = torch.full((3, 40, 40), 100, dtype=torch.uint8)
    plain = Augmentation(flip=False)
    lit = Augmentation(flip=False, brightness=63 / 255)
    light = [float(training_of(lit, seed=seed, image=image).mean() * 255 / 100) for seed in range(300)]
    assert 1 - 63 / 255 <= min(light) < 0.78
    assert 1.22 < max(light) <= 1 + 63 / 255
    assert sum(light) / len(light) == pytest.approx(1, abs=0.03)
    assert float(training_of(plain, seed=0, image=image).mean() * 255) == pytest.approx(100)
    assert float(training_of(lit, seed=3, image=image + 155).max()) <= 1  # clipped at white
    with pytest.raises(SettingsError, match="brightness"):
        Augmentation(brightness=2)
