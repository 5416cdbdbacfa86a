"""Real weights on real photos: the features are sensible."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from bpg import ImageSet, load_backbone, read_list, survey
from bpg.backbones.backbone import FINISHED, Probe

pytestmark = pytest.mark.real


def test_it_loads_by_its_timm_name_and_by_path(deit_tiny_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPG_WEIGHTS", str(deit_tiny_file.parent))
    by_name, by_path = load_backbone("deit_tiny_patch16_224"), load_backbone(deit_tiny_file)
    assert by_name.name == "deit_tiny_patch16_224.fb_in1k"
    assert by_name.digest() == by_path.digest()


@pytest.mark.slow
def test_nearest_class_mean_on_photos(deit_tiny_file: Path, pacs: Path) -> None:
    backbone = load_backbone(deit_tiny_file)
    train = survey(backbone, read_list(pacs / "photo_train.txt"), probes=[FINISHED, Probe(5, "moments")])
    test = survey(backbone, read_list(pacs / "photo_test.txt"))
    assert sum(train.counts.values()) == 700
    means = F.normalize(train.scatter.means.float(), dim=1)
    right = (test.features[FINISHED] @ means.T).argmax(dim=1) == test.labels
    assert right.float().mean() > 0.93
    assert 0.3 < train.scatter.between < 0.45
    assert 0.45 < train.scatter.within < 0.65


def test_batch_size_order_and_mates_change_no_real_feature(deit_tiny_file: Path, pacs: Path) -> None:
    backbone = load_backbone(deit_tiny_file)
    photos = read_list(pacs / "photo_test.txt")
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0)).tolist()

    def features(indices: list[int], batch_size: int) -> torch.Tensor:
        paths, labels = (tuple(values[i] for i in indices) for values in (photos.paths, photos.labels))
        chosen = ImageSet(paths, labels, photos.classes)
        return survey(backbone, chosen, batch_size=batch_size, cache=None).features[FINISHED]

    alone = features(list(range(24)), 1)
    assert (features(list(range(24)), 24) - alone).abs().max() < 1e-6
    assert (features(order, 7) - alone[order]).abs().max() < 1e-6
