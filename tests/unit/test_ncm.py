"""The nearest class mean: the order of domains does not matter, and the means are those of all images."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch.testing import assert_close

from bpg.methods.base import prepared
from bpg.methods.ncm import NCM
from tests.toy import toy_backbone, toy_stream


def test_means_are_of_all_images_in_any_order(tmp_path: Path) -> None:
    stream, backbone = toy_stream(tmp_path, count=9), toy_backbone()
    forward, backward = NCM(backbone), NCM(backbone)
    for domain in stream.domains:
        forward.learn(domain)
    for domain in reversed(stream.domains):
        backward.learn(domain)
    (images,) = prepared(backbone, stream.tests[0].images, 32)
    assert_close(forward.forward(images).log_probs, backward.forward(images).log_probs, rtol=0, atol=1e-12)
    features: list[torch.Tensor] = []
    labels: list[str] = []
    for domain in stream.domains:
        features += [backbone.embed(batch) for batch in prepared(backbone, domain.train, 32)]
        labels += [domain.train.classes[label] for label in domain.train.labels]
    rows = torch.cat(features).double()
    means = torch.stack([rows[torch.tensor([n == name for n in labels])].mean(dim=0) for name in forward.classes])
    nearest = (backbone.embed(images).double() @ F.normalize(means, dim=1).T).argmax(dim=1)
    assert torch.equal(nearest, forward.forward(images).log_probs.argmax(dim=1))
    assert forward.state().shared["counts"].tolist() == [9, 9, 9]
