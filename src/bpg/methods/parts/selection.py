"""Ways to find the domain of an image that other methods have: the nearest k-means centre, patches in disorder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bpg.backbones.backbone import Backbone
from bpg.compute import as_float64
from bpg.randomness import generator_of


def chosen(domains: Tensor, count: int) -> Tensor:
    """Confidences (B, count): all of it in the domain that is chosen for each image, (B,)."""
    return F.one_hot(domains, count).double()


def nearest_centre(features: Tensor, centres: Sequence[Tensor]) -> Tensor:
    """Confidences (B, T): the domain that has the centre nearest to the feature (B, d), by sum of absolute differences.

    S-Prompts' code takes the root of a square channel by channel, then adds up: that is no Euclidean distance.
    """
    z = as_float64(features)
    distance = torch.stack([torch.cdist(z, own.to(z), p=1).amin(dim=1) for own in centres], dim=1)
    return chosen(distance.argmin(dim=1), len(centres))


class Styles:
    """What is left of images when their patches are in disorder: features of how they look, not of what they show.

    The orders are the same for every image, so that none depends on its mates; without any, images are as they are.
    """

    def __init__(self, backbone: Backbone, *, orders: int, grid: tuple[int, int], seed: int) -> None:
        self.backbone, self.grid = backbone, grid
        generator = generator_of(seed, "patch shuffle")
        self.orders = [torch.randperm(grid[0] * grid[1], generator=generator).tolist() for _ in range(orders)]

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The frozen feature (B, d) of unit length, the mean over the orders."""
        views = [shuffled(images, order, grid=self.grid) for order in self.orders] or [images]
        return F.normalize(torch.stack([self.backbone.embed(view) for view in views]).mean(dim=0), dim=1)


def shuffled(images: Tensor, order: Sequence[int], *, grid: tuple[int, int]) -> Tensor:
    """`images` (B, 3, H, W) cut into the cells of a grid, and put together in another order.

    Cells that differ by a pixel are resized to where they go.
    """
    rows = torch.tensor_split(images, grid[0], dim=2)
    cells = [cell for band in rows for cell in torch.tensor_split(band, grid[1], dim=3)]
    placed = []
    for place, cell in enumerate(order):
        size = cells[place].shape[-2:]
        own = cells[cell]
        placed.append(own if own.shape[-2:] == size else F.interpolate(own, size, mode="bilinear", antialias=True))
    bands = [torch.cat(placed[at : at + grid[1]], dim=3) for at in range(0, len(placed), grid[1])]
    return torch.cat(bands, dim=2)
