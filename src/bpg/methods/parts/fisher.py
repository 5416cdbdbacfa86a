"""How much an answer depends on each parameter: the empirical Fisher information, from gradients of single images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bpg.data.decode import decode
from bpg.data.domain import Domain
from bpg.data.transforms import Preprocessing, evaluation
from bpg.randomness import generator_of
from bpg.training import cross_entropy


def fisher_information(
    module: nn.Module,
    domain: Domain,
    preprocessing: Preprocessing,
    places: Tensor,
    *,
    images: int,
    seed: int,
    device: torch.device,
) -> dict[str, Tensor]:
    """The mean over images of the squared gradient of their loss, by the true label, of each parameter of `module`.

    At most `images` of the domain are taken, as evaluation sees them, one at a time: the square of a batch's gradient
    is not the mean of squares. `places` (classes of the domain,) says which logit a class has.
    """
    named = {name: parameter.requires_grad_(True) for name, parameter in module.named_parameters()}
    total = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
    order = torch.randperm(len(domain.train), generator=generator_of(seed, domain.name, "fisher"))[:images].tolist()
    own = {name: place for place, name in enumerate(domain.classes)}
    for index in order:
        pixels = decode(domain.train.encoded(index), where=str(domain.train.paths[index]))
        label = places[own[domain.train.classes[domain.train.labels[index]]]]
        loss = cross_entropy(module(evaluation(pixels, preprocessing)[None].to(device)), label[None].to(device)).sum()
        for name, gradient in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
            total[name] += gradient.square() / len(order)
    module.requires_grad_(False)
    return total


def with_rows(information: Mapping[str, Tensor], before: tuple[str, ...], after: tuple[str, ...]) -> dict[str, Tensor]:
    """The same information for a head that has more classes `after` than `before`: of the new ones nothing is known."""
    if before == after:
        return dict(information)
    grown = dict(information)
    places = torch.tensor([after.index(name) for name in before])
    for name in ("head.weight", "head.bias"):
        rows = torch.zeros(len(after), *information[name].shape[1:]).to(information[name])
        rows[places] = information[name]
        grown[name] = rows
    return grown
