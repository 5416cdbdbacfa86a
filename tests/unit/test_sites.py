"""Each site of the ViT against an independent computation."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from bpg import Backbone, Prefix, Tuning
from bpg.backbones.tuning import Readout
from bpg.backbones.vit import Block, ViT
from bpg.data.transforms import Preprocessing
from bpg.errors import DeviceError, TuningError, WrongUse
from tests.conftest import shaken, small_config

D, HEADS, DEPTH, PATCHES = 64, 4, 3, 16
VARIANTS = {
    "plain": {},
    "clip": {"pre_norm": True, "patch_bias": False, "activation": "quick_gelu", "projection": 24, "norm_epsilon": 1e-5},
    "layer scale, registers": {"layer_scale": True, "registers": 2, "prefix_positions": False},
}


def vit_of(variant: str) -> ViT:
    vit = ViT(small_config(**VARIANTS[variant]))
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return vit.requires_grad_(False)


@pytest.fixture(params=list(VARIANTS))
def vit(request: pytest.FixtureRequest) -> ViT:
    return vit_of(request.param)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention of (B, n, d) with HEADS heads, written out."""
    split = lambda x: x.reshape(len(x), -1, HEADS, D // HEADS).permute(0, 2, 1, 3)  # noqa: E731
    weights = (split(q) @ split(k).transpose(2, 3) / (D // HEADS) ** 0.5).softmax(dim=-1)
    return (weights @ split(v)).permute(0, 2, 1, 3).reshape(len(q), -1, D)


def block_by_hand(
    block: Block,
    z: Tensor,
    *,
    keys: Tensor | None = None,  # projected prefix (B, P, d)
    values: Tensor | None = None,
    beside_attention: nn.Module | None = None,
    beside_mlp: nn.Module | None = None,
    on_residual: nn.Module | None = None,
    behind: nn.Module | None = None,
) -> Tensor:
    """A transformer layer with its sites, from its definition."""
    u = F.layer_norm(z, (D,), block.norm1.weight, block.norm1.bias, block.norm1.eps)
    q, k, v = (u @ block.qkv.weight.T + block.qkv.bias).split(D, dim=2)
    if keys is not None and values is not None:
        k, v = torch.cat([keys, k], dim=1), torch.cat([values, v], dim=1)
    attention = attend(q, k, v) @ block.proj.weight.T + block.proj.bias
    h = z + attention * (1 if block.scale1 is None else block.scale1)
    if beside_attention is not None:
        h = h + beside_attention(u)
    u = F.layer_norm(h, (D,), block.norm2.weight, block.norm2.bias, block.norm2.eps)
    mlp = block.activation(u @ block.fc1.weight.T + block.fc1.bias) @ block.fc2.weight.T + block.fc2.bias
    z = h + mlp * (1 if block.scale2 is None else block.scale2)
    if beside_mlp is not None:
        z = z + beside_mlp(u)
    if on_residual is not None:
        z = z + on_residual(h)
    return z if behind is None else z + behind(z)


def tokens_by_hand(vit: ViT, images: Tensor, added: Tensor | None = None) -> Tensor:
    """The tokens that enter block 0."""
    size = vit.config.patch_size
    patches = images.unfold(2, size, size).unfold(3, size, size).permute(0, 2, 3, 1, 4, 5)
    patches = patches.reshape(len(images), PATCHES, -1) @ vit.patch.weight.reshape(D, -1).T
    patches = patches if vit.patch.bias is None else patches + vit.patch.bias
    specials = [vit.class_token[None]] + ([] if vit.register_tokens is None else [vit.register_tokens])
    rows = []
    for image in patches:
        if vit.config.prefix_positions:
            row = torch.cat([*specials, image]) + vit.position
        else:
            row = torch.cat([*specials, image + vit.position])
        rows.append(row if added is None else torch.cat([row, added]))
    z = torch.stack(rows)
    return z if vit.pre_norm is None else vit.pre_norm(z)


def read_by_hand(vit: ViT, z: Tensor) -> Tensor:
    feature = F.layer_norm(z[:, 0], (D,), vit.norm.weight, vit.norm.bias, vit.norm.eps)
    return feature if vit.projection is None else feature @ vit.projection


class Bottleneck(nn.Module):
    """down, ReLU, up, with biases."""

    def __init__(self, rank: int = 6, *, zero: bool = False) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(D, rank), nn.Linear(rank, D)
        if zero:
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x).relu())


def test_the_plain_forward_is_the_definition(vit: ViT, images: Tensor) -> None:
    z = tokens_by_hand(vit, images)
    for block in vit.blocks:
        z = block_by_hand(block, z)
    assert_close(vit(images), read_by_hand(vit, z), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_with_nothing_set_it_is_the_plain_vit_bit_for_bit(vit: ViT, images: Tensor) -> None:
    """A ViT without any site, made of torch's own calls."""
    z = vit.patch(images).flatten(2).transpose(1, 2)
    specials = vit.class_token[None]
    if vit.register_tokens is not None:
        specials = torch.cat([specials, vit.register_tokens])
    specials = specials.expand(len(images), -1, -1)
    if vit.config.prefix_positions:
        z = torch.cat([specials, z], dim=1) + vit.position
    else:
        z = torch.cat([specials, z + vit.position], dim=1)
    z = z if vit.pre_norm is None else vit.pre_norm(z)
    for block in vit.blocks:
        qkv = block.qkv(block.norm1(z)).reshape(len(z), -1, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        mixed = block.proj(F.scaled_dot_product_attention(*qkv).transpose(1, 2).reshape(z.shape))
        z = z + (mixed if block.scale1 is None else mixed * block.scale1)
        mixed = block.fc2(block.activation(block.fc1(block.norm2(z))))
        z = z + (mixed if block.scale2 is None else mixed * block.scale2)
    feature = vit.norm(z)[:, 0]
    feature = feature if vit.projection is None else feature @ vit.projection
    assert torch.equal(vit(images), feature)
    assert torch.equal(vit(images, Tuning()), feature)


def test_token_prompts_equal_concatenation_by_hand(vit: ViT, images: Tensor) -> None:
    prompt = torch.randn(7, D)
    z = tokens_by_hand(vit, images, added=prompt)
    for block in vit.blocks:
        z = block_by_hand(block, z)
    assert_close(vit(images, Tuning(tokens=prompt)), read_by_hand(vit, z), rtol=1e-5, atol=1e-5)


def test_where_added_tokens_stand_does_not_matter(images: Tensor) -> None:
    vit = vit_of("plain")
    prompt = torch.randn(7, D)
    z = tokens_by_hand(vit, images)
    z = torch.cat([z[:, :1], prompt.expand(len(z), -1, -1), z[:, 1:]], dim=1)  # as S-Prompts does
    for block in vit.blocks:
        z = block_by_hand(block, z)
    assert_close(vit(images, Tuning(tokens=prompt)), read_by_hand(vit, z), rtol=1e-5, atol=1e-5)


def test_a_prefix_of_length_zero_changes_nothing(vit: ViT, images: Tensor) -> None:
    nothing = torch.empty(0, D)
    for projected in (True, False):
        prefix = {block: Prefix(nothing, nothing, projected=projected) for block in range(DEPTH)}
        assert torch.equal(vit(images, Tuning(prefix=prefix)), vit(images))
    assert torch.equal(vit(images, Tuning(tokens=nothing)), vit(images))


def test_a_projected_prefix_is_put_before_keys_and_values(vit: ViT, images: Tensor) -> None:
    keys, values = torch.randn(5, D), torch.randn(5, D)
    z = tokens_by_hand(vit, images)
    for index, block in enumerate(vit.blocks):
        given = {"keys": keys.expand(5, -1, -1), "values": values.expand(5, -1, -1)} if index == 1 else {}
        z = block_by_hand(block, z, **given)
    tuning = Tuning(prefix={1: Prefix(keys, values, projected=True)})
    assert_close(vit(images, tuning), read_by_hand(vit, z), rtol=1e-5, atol=1e-5)
    assert vit(images, Tuning(prefix=tuning.prefix, readout="all")).shape[1] == vit.config.specials + PATCHES


def test_the_two_kinds_of_prefix_agree(vit: ViT, images: Tensor) -> None:
    keys, values = torch.randn(5, D), torch.randn(5, D)
    block = vit.blocks[2]
    _, k_weight, v_weight = block.qkv.weight.chunk(3)
    _, k_bias, v_bias = block.qkv.bias.chunk(3)
    in_tokens = Prefix(keys, values, projected=False)
    projected = Prefix(keys @ k_weight.T + k_bias, values @ v_weight.T + v_bias, projected=True)
    given, made = Tuning(prefix={2: in_tokens}), Tuning(prefix={2: projected})
    assert_close(vit(images, given), vit(images, made), rtol=1e-5, atol=1e-5)
    assert (vit(images, given) - vit(images)).abs().max() > 1e-3


@pytest.mark.parametrize("place", ["attention", "mlp", "residual", "block"])
def test_branches_act_at_their_places(place: str, vit: ViT, images: Tensor) -> None:
    branch = Bottleneck()
    arguments = {"attention": "beside_attention", "mlp": "beside_mlp", "residual": "on_residual", "block": "behind"}
    z = tokens_by_hand(vit, images)
    for block in vit.blocks:
        z = block_by_hand(block, z, **{arguments[place]: branch})
    tuning = Tuning(branch={block: {place: branch} for block in range(DEPTH)})
    assert_close(vit(images, tuning), read_by_hand(vit, z), rtol=1e-5, atol=1e-5)


def test_a_parallel_adapter_with_zero_up_projection_leaves_features_unchanged(vit: ViT, images: Tensor) -> None:
    tuning = Tuning(branch={block: {"mlp": Bottleneck(zero=True)} for block in range(DEPTH)})
    assert torch.equal(vit(images, tuning), vit(images))


def test_the_final_branch_acts_behind_the_last_norm_and_before_the_projection(vit: ViT, images: Tensor) -> None:
    branch = Bottleneck()
    feature = vit.norm(vit.encode(vit.embed(images))[:, 0])
    feature = feature + branch(feature)
    wanted = feature if vit.projection is None else feature @ vit.projection
    assert_close(vit(images, Tuning(final=branch)), wanted)


@pytest.mark.parametrize("linear", ["q", "k", "v", "proj", "fc1", "fc2"])
def test_a_delta_equals_the_changed_weight(linear: str, vit: ViT, images: Tensor) -> None:
    changed = ViT(vit.config)
    changed.load_state_dict(vit.state_dict())
    deltas = {}
    for index, block in enumerate(changed.blocks):
        target = block.qkv if linear in "qkv" else getattr(block, linear)
        rows = {"q": slice(0, D), "k": slice(D, 2 * D), "v": slice(2 * D, 3 * D)}.get(linear, slice(None))
        down = torch.randn(4, target.in_features)
        up = 0.1 * torch.randn(len(target.weight[rows]), 4)
        with torch.no_grad():
            target.weight[rows] += up @ down
        deltas[index] = {linear: lambda x, down=down, up=up: x @ down.T @ up.T}
    assert_close(vit(images, Tuning(delta=deltas)), changed(images), rtol=1e-4, atol=1e-5)


def test_a_delta_of_k_and_v_changes_a_prefix_in_token_space_too(images: Tensor) -> None:
    vit = vit_of("plain")
    changed = ViT(vit.config)
    changed.load_state_dict(vit.state_dict())
    down, up = torch.randn(4, D), 0.1 * torch.randn(D, 4)
    with torch.no_grad():
        changed.blocks[1].qkv.weight[D : 2 * D] += up @ down
    prefix = {1: Prefix(torch.randn(3, D), torch.randn(3, D), projected=False)}
    found = vit(images, Tuning(prefix=prefix, delta={1: {"k": lambda x: x @ down.T @ up.T}}))
    assert_close(found, changed(images, Tuning(prefix=prefix)), rtol=1e-4, atol=1e-5)


def test_readout_chooses_the_tokens(vit: ViT, images: Tensor) -> None:
    prompt = torch.randn(7, D)
    everything = vit(images, Tuning(tokens=prompt, readout="all"))
    assert everything.shape[1] == vit.config.specials + PATCHES + 7
    assert_close(vit(images, Tuning(tokens=prompt)), everything[:, 0])
    assert_close(vit(images, Tuning(tokens=prompt, readout="tokens")), everything[:, -7:])


def test_per_sample_prompts_equal_one_by_one_runs(vit: ViT, images: Tensor) -> None:
    tokens, keys, values = torch.randn(5, 6, D), torch.randn(5, 4, D), torch.randn(5, 4, D)
    for projected in (True, False):
        together = vit(images, Tuning(tokens=tokens, prefix={0: Prefix(keys, values, projected)}))
        for index in range(5):
            prefix = {0: Prefix(keys[index], values[index], projected)}
            alone = vit(images[index : index + 1], Tuning(tokens=tokens[index], prefix=prefix))
            assert_close(together[index : index + 1], alone, rtol=1e-5, atol=1e-5)


def test_a_function_of_the_frozen_query_may_take_the_place_of_a_tuning(vit: ViT, images: Tensor) -> None:
    width = vit.config.projection or D
    mapping = torch.randn(width, 3 * D)
    asked: list[Tensor] = []

    def tuning_of(query: Tensor) -> Tuning:
        asked.append(query)
        tokens = (query @ mapping).reshape(-1, 3, D)
        return Tuning(tokens=tokens, prefix={1: Prefix(tokens, 2 * tokens, projected=True)})

    found = vit(images, tuning_of)
    assert_close(asked[0], vit(images))
    assert_close(found, vit(images, tuning_of(vit(images))))
    own = torch.randn(5, width)
    assert_close(vit(images, tuning_of, query=own), vit(images, tuning_of(own)))


def test_an_empty_batch_gives_no_features(vit: ViT) -> None:
    assert vit(torch.empty(0, 3, 32, 32)).shape == (0, vit.config.projection or D)


def test_gradients_reach_what_is_set_and_nothing_frozen(small: Backbone, images: Tensor) -> None:
    prompt = nn.Parameter(torch.randn(4, D))
    branch = Bottleneck()
    small(images, Tuning(tokens=prompt, branch={0: {"mlp": branch}})).square().sum().backward()
    assert prompt.grad is not None
    assert all(parameter.grad is not None for parameter in branch.parameters())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in small.parameters())


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        (Tuning(tokens=torch.zeros(3, D + 1)), r"tokens does not fit.*\(3, 65\)"),
        (Tuning(tokens=torch.zeros(4, 3, D)), r"tokens does not fit.*\(5, length, 64\)"),
        (Tuning(branch={3: {}}), r"no site branch\[3\].*0 to 2"),
        (Tuning(branch={0: {"mpl": abs}}), r"attention, mlp, residual, block.*'mpl'"),
        (Tuning(delta={0: {"w": abs}}), r"q, k, v, proj, fc1, fc2.*'w'"),
        (Tuning(prefix={0: Prefix(torch.zeros(2, D), torch.zeros(3, D), True)}), "unequal parts"),
        (Tuning(readout="tokens"), "no added tokens"),
        (Tuning(tokens=lambda query: query), "tokens is of the wrong kind: wanted a tensor or None, came function"),
        (Tuning(tokens=[[0.0] * D]), "tokens is of the wrong kind"),
        (Tuning(prefix={0: (torch.zeros(2, D), torch.zeros(2, D))}), r"prefix\[0\] is of the wrong kind.*came tuple"),
        (Tuning(branch={0: {"mlp": None}}), r"branch\[0\]\[mlp\] is of the wrong kind"),
        (Tuning(delta={0: {"q": torch.zeros(D, D)}}), r"delta\[0\]\[q\] is of the wrong kind.*came Tensor"),
        (Tuning(final=3), "final is of the wrong kind"),
        (Tuning(readout="cls"), "class, tokens, all.*'cls'"),
    ],
)
def test_a_tuning_that_does_not_fit_is_refused(tuning: Tuning, message: str, small: Backbone, images: Tensor) -> None:
    with pytest.raises(TuningError, match=message):
        small(images, tuning)


def test_images_that_do_not_fit_are_refused(small: Backbone) -> None:
    with pytest.raises(WrongUse, match=r"\(batch, 3, 32, 32\), came \(2, 3, 40, 32\)"):
        small(torch.zeros(2, 3, 40, 32))
    with pytest.raises(WrongUse, match=r"torch.float32, the type of the weights, came torch.uint8"):
        small(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    with pytest.raises(DeviceError, match="images on meta"):
        small(torch.zeros(2, 3, 32, 32, device="meta"))


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_batch_size_order_and_mates_change_no_feature(variant: str) -> None:
    config = small_config(**VARIANTS[variant])
    backbone = Backbone(shaken(ViT(config)), Preprocessing(size=32), name=variant)
    images = torch.randn(24, 3, 32, 32)
    together = backbone.embed(images)
    order = torch.randperm(24)
    assert (backbone.embed(images[order]) - together[order]).abs().max() < 1e-6
    for size in (1, 5, 7):
        pieces = torch.cat([backbone.embed(piece) for piece in images.split(size)])
        assert (pieces - together).abs().max() < 1e-6


def test_a_pass_holds_no_layer_longer_than_the_next_one_needs() -> None:
    vit = ViT(small_config()).requires_grad_(False)
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    for block in vit.blocks:
        block.register_forward_pre_hook(lambda *_: alive.append(sum(made_by() is not None for made_by in made)))
        block.register_forward_hook(lambda _block, _given, output: made.append(weakref.ref(output)))
    side = vit.config.image_size
    vit.finish(vit.embed(torch.zeros(2, 3, side, side)))
    assert len(alive) >= 3
    assert max(alive) == 1


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("readout", ["class", "tokens", "all"])
def test_a_training_step_does_no_work_for_tokens_that_are_not_read(
    readout: Readout, recompute: bool, vit: ViT, images: Tensor
) -> None:
    vit.double()  # so that rounding, which differs between processors, is no matter
    images, vit.recompute = images.double(), recompute
    seen: list[int] = []  # by the last block's MLP
    vit.blocks[-1].get_submodule("fc1").register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    prompt = torch.full((3, vit.config.width), 0.1, dtype=torch.float64, requires_grad=True)
    tuning = Tuning(tokens=prompt, readout=readout)

    def gradient(feature: Tensor) -> Tensor:
        return torch.autograd.grad(feature.square().sum(), prompt)[0]

    sparing = gradient(vit(images, tuning))
    every = vit.config.specials + vit.config.grid**2 + 3
    assert set(seen) == {{"class": 1, "tokens": 3, "all": every}[readout]}
    assert_close(sparing, gradient(vit.read(vit.encode(vit.embed(images), tuning), tuning)), rtol=1e-9, atol=1e-10)
    assert seen[-1] == every
