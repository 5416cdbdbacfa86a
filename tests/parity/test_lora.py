"""A low-rank delta gives what peft's LoRA gives for the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from bpg import Tuning, load_backbone
from tests.conftest import shaken
from tests.oracles import oracle


class Pair(nn.Module):
    """up(down(x)) times a scale."""

    def __init__(self, down: Tensor, up: Tensor, scale: float) -> None:
        super().__init__()
        self.down, self.up, self.scale = down, up, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x @ self.down.T @ self.up.T)


@pytest.mark.parametrize(
    ("targets", "sites"),
    [
        (["q_proj", "v_proj"], {"q_proj": "q", "v_proj": "v"}),
        (["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"],
         {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "proj", "fc1": "fc1", "fc2": "fc2"}),
    ],
    ids=["q and v", "every linear"],
)  # fmt: skip
def test_features_equal_pefts_lora(targets: list[str], sites: dict[str, str], tmp_path: Path) -> None:
    transformers, peft = oracle("transformers"), oracle("peft")
    config = transformers.ViTConfig(
        hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=200, image_size=64, patch_size=16
    )
    theirs = shaken(transformers.ViTModel(config, add_pooling_layer=False)).eval()
    theirs.save_pretrained(tmp_path)
    ours = load_backbone(tmp_path)

    adapted = peft.get_peft_model(theirs, peft.LoraConfig(r=5, lora_alpha=8, target_modules=targets)).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:  # B starts at zero, which would compare nothing
                parameter.normal_(std=0.1)
    delta: dict[int, dict[str, nn.Module]] = {}
    for name, module in adapted.named_modules():
        leaf = name.rsplit(".", 1)[-1]
        if leaf in sites and hasattr(module, "lora_A"):
            block = int(next(part for part in name.split(".") if part.isdigit()))
            pair = Pair(module.lora_A["default"].weight, module.lora_B["default"].weight, module.scaling["default"])
            delta.setdefault(block, {})[sites[leaf]] = pair
    assert sorted(delta) == [0, 1, 2]
    assert all(sorted(linears) == sorted(sites.values()) for linears in delta.values())

    images = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        wanted = adapted(images).last_hidden_state[:, 0]
        plain = ours(images)
        assert_close(ours(images, Tuning(delta=delta)), wanted, rtol=0, atol=1e-5)
        assert (plain - wanted).abs().max() > 0.01
