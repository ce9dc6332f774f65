"""Vision towers of equal tiles against transformers with the same random weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    InternVLVisionConfig,
    InternVLVisionModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from tapetum.core.errors import CheckpointError
from tapetum.models.encoding import Encoding
from tapetum.models.tiled import CLIP_NAMES, TiledTower, TowerConfig, TowerNames, tower_slots
from tapetum.models.vit import BlockConfig, BlockNames
from tapetum.models.weights import Checkpoint, NameTable
from tapetum.ops.table import OpTable, choose_table, reference_table
from tests.geometries import bare

CPU = torch.device("cpu")
MEAN, STD = (0.48, 0.45, 0.40), (0.27, 0.26, 0.28)
SIDE, PATCH = 4, 6
SIZES = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4}
INTERNVL_NAMES = TowerNames(
    patch="embeddings.patch_embeddings.projection",
    positions="embeddings.position_embeddings",
    blocks="encoder.layer.",
    block=BlockNames(
        norm1="layernorm_before",
        qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        out="attention.projection_layer",
        norm2="layernorm_after",
        mlp_in=("mlp.fc1",),
        mlp_out="mlp.fc2",
        qk_norms=("attention.q_norm", "attention.k_norm"),
        scales=("lambda_1", "lambda_2"),
    ),
    class_token="embeddings.cls_token",
    post_norm="layernorm",
)
MADE = {
    "clip": (
        CLIPVisionModel,
        CLIPVisionConfig(**SIZES, image_size=SIDE * PATCH, patch_size=PATCH),
        CLIP_NAMES,
        {"has_patch_bias": False, "has_class_token": True, "has_pre_norm": True},
    ),
    "siglip": (
        SiglipVisionModel,
        SiglipVisionConfig(**SIZES, image_size=SIDE * PATCH, patch_size=PATCH, vision_use_head=False),
        CLIP_NAMES,
        {"has_post_norm": True},
    ),
    "internvit": (
        InternVLVisionModel,
        InternVLVisionConfig(
            **SIZES,
            image_size=[SIDE * PATCH] * 2,
            patch_size=[PATCH] * 2,
            use_qk_norm=True,
            norm_type="rms_norm",
            use_mean_pooling=True,
        ),
        INTERNVL_NAMES,
        {"has_class_token": True},
    ),
}
ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}


class Pair:
    """A tower of transformers and ours, of one random checkpoint."""

    def __init__(self, directory: Path, kind: str) -> None:
        model_class, config, self._names, self._switches = MADE[kind]
        torch.manual_seed(0)
        self.theirs = model_class(config).eval()
        with torch.no_grad():
            for parameter in self.theirs.parameters():
                parameter.normal_(1 if parameter.dim() == 1 else 0, 0.2)
        self.theirs.save_pretrained(directory)
        self._directory, self._config, self._is_rms = directory, config, kind == "internvit"

    def ours(self, depth: int = 3, *, ops: OpTable | None = None, side: int = SIDE, **switches) -> TiledTower:
        config = TowerConfig(
            block=BlockConfig(
                width=48,
                num_heads=4,
                mlp_width=80,
                activation=ACTIVATIONS[self._config.hidden_act],
                eps=self._config.layer_norm_eps,
                norm="rms" if self._is_rms else "layer",
                has_qk_norm=self._is_rms,
                has_qkv_bias=not self._is_rms,
            ),
            depth=depth,
            patch_size=PATCH,
            side=side,
            image_mean=MEAN,
            image_std=STD,
            **{**self._switches, **switches},
        )
        table = NameTable(tower_slots(config, self._names, ""), ignored=("post_", "encoder."))
        checkpoint = Checkpoint(self._directory, table)
        ops = ops or choose_table(CPU, torch.float32)
        weights = checkpoint.weights(torch.float32, CPU, ops, None)
        tower = TiledTower(config, weights, ops)
        weights.finish(checkpoint.is_current)
        return tower


@pytest.fixture(scope="module", params=MADE)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp(request.param), request.param)


def tiles(*counts: int) -> list[Tensor]:
    """Bytes of pictures of so many tiles, [tiles, 3, pixels, pixels]."""
    generator = torch.Generator().manual_seed(len(counts))
    size = SIDE * PATCH
    return [torch.randint(0, 256, (n, 3, size, size), generator=generator, dtype=torch.uint8) for n in counts]


def cut(pixels: Tensor) -> Tensor:
    """[tiles * patches, values]"""
    blocks = pixels.view(len(pixels), 3, SIDE, PATCH, SIDE, PATCH)
    return blocks.permute(0, 2, 4, 1, 3, 5).reshape(-1, 3 * PATCH**2).contiguous()


def normalised(pixels: Tensor) -> Tensor:
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


def run(tower: TiledTower, pictures: list[Tensor], shares: list[float] = ()) -> Tensor:
    patches = [cut(picture) for picture in pictures]
    counts = [len(picture) for picture in pictures]
    batch = tower.pack(patches, bare([(count, SIDE, SIDE) for count in counts]), counts)
    total = sum(map(len, patches))
    encoding = Encoding(tower.stages(batch, patches), lambda: [tower.rows(batch, 0, total)])
    for share in shares:
        encoding.advance(share)
    return encoding.finish()[0]


@pytest.mark.parametrize("depth", [1, 2, 3])
@torch.inference_mode()
def test_any_layer_is_the_one_of_transformers(pair: Pair, depth: int) -> None:
    """Before the last norm, as the layer of the features is counted there."""
    pictures = tiles(3, 1, 2)
    wanted = pair.theirs(normalised(torch.cat(pictures)), output_hidden_states=True).hidden_states[depth]
    found = run(pair.ours(depth, has_post_norm=False), pictures).view(6, SIDE**2, 48)
    torch.testing.assert_close(found, wanted[:, -(SIDE**2) :], rtol=2e-4, atol=2e-4)


@torch.inference_mode()
def test_the_last_norm_is_part_of_the_rows(tmp_path: Path) -> None:
    pair, pictures = Pair(tmp_path, "siglip"), tiles(2)
    wanted = pair.theirs(normalised(pictures[0])).last_hidden_state
    torch.testing.assert_close(run(pair.ours(), pictures), wanted.flatten(0, 1), rtol=2e-4, atol=2e-4)


@torch.inference_mode()
def test_slices_and_company_change_nothing(pair: Pair) -> None:
    tower, pictures = pair.ours(ops=reference_table()), tiles(9, 1, 2)
    whole = run(tower, pictures)

    @settings(max_examples=10, deadline=None)
    @given(shares=st.lists(st.floats(0, 1), max_size=8).map(sorted))
    def check(shares: list[float]) -> None:
        torch.testing.assert_close(run(tower, pictures, shares), whole, rtol=1e-5, atol=1e-5)

    check()
    alone = torch.cat([run(tower, [picture]) for picture in pictures])
    torch.testing.assert_close(alone, whole, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_slices_by_native_kernels_are_equal_to_the_bit(pair: Pair) -> None:
    tower, pictures = pair.ours(), tiles(9, 1)
    if not choose_table(CPU, torch.float32).name.startswith("native"):
        pytest.skip("no native kernels")
    assert torch.equal(run(tower, pictures, [0.01, 0.2, 0.21, 0.5, 0.9]), run(tower, pictures))


def test_patches_that_are_no_whole_tiles_are_refused(pair: Pair) -> None:
    tower = pair.ours()
    for shape, grid in (((15, 108), (1, 4, 4)), ((16, 108), (1, 2, 8)), ((16, 100), (1, 4, 4))):
        with pytest.raises(ValueError, match="tiles of 4 x 4 patches of 108 values are wanted"):
            tower.pack([torch.zeros(shape, dtype=torch.uint8)], bare([grid]), [grid[0]])


def test_positions_of_another_tile_are_refused(pair: Pair) -> None:
    with pytest.raises(CheckpointError, match=r"position_embedding.* has shape"):
        pair.ours(side=5)
