"""What a training step costs, as a multiple of a forward pass over the same images; interleaved, medians and spread.

Run it with `make bench`. With a frozen backbone the ideal is 2: a forward, and a backward without weight gradients.
"""

from __future__ import annotations

import torch

from benchmarks.backbone import compare
from bpg.backbones.backbone import Backbone
from bpg.backbones.catalogue import find
from bpg.backbones.vit import ViT
from bpg.experts.expert import Expert, ExpertSettings
from bpg.randomness import generator_of
from bpg.training import cross_entropy

BATCH, CLASSES = 8, 345


def measure(name: str = "vit_base_patch16_224.augreg_in21k_ft_in1k") -> dict[str, dict[str, float]]:
    """Seconds of a step over seconds of a plain forward, for several ranks."""
    entry = find(name)
    torch.manual_seed(0)
    backbone = Backbone(ViT(entry.vit), entry.preprocessing, name=entry.name)
    images, labels = torch.randn(BATCH, 3, 224, 224), torch.arange(BATCH)
    classes = [str(index) for index in range(CLASSES)]

    def step(rank: int, recompute: bool) -> None:
        expert = experts[rank]
        backbone.vit.recompute = recompute
        expert.zero_grad()
        cross_entropy(expert(images, backbone), labels).mean().backward()
        optimizers[rank].step()

    experts = {
        rank: Expert(backbone, classes, rank=rank, settings=ExpertSettings(), generator=generator_of(rank))
        for rank in (64, 256)
    }
    optimizers = {rank: torch.optim.SGD(expert.parameters(), lr=0.01, momentum=0.9) for rank, expert in experts.items()}
    with torch.no_grad():
        backbone(images)

    def forward() -> None:
        with torch.no_grad():
            backbone(images)

    return compare(
        forward,
        {
            "step, r = 64": lambda: step(64, False),
            "step, r = 256": lambda: step(256, False),
            "step, r = 64, activations recomputed": lambda: step(64, True),
        },
    )


if __name__ == "__main__":
    print("training step of ViT-B/16, over a plain forward")
    for name, ratio in measure().items():
        print(f"  {name:<36} {ratio['median']:.2f}  ({ratio['low']:.2f} to {ratio['high']:.2f})")
