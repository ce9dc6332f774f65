"""InternVL: InternViT over tiles, pixel shuffle and an MLP, any decoder; read from either layout of config.json."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from torch import Tensor

from tapetum.core.errors import CheckpointError
from tapetum.core.files import ConfigReader, require_json
from tapetum.models.composed import Blueprint
from tapetum.models.config_keys import IGNORED_KEYS
from tapetum.models.decoder_config import read_decoder
from tapetum.models.internvl.names import CURRENT, ORIGINAL, name_table
from tapetum.models.projectors import Mlp, Rows, TileEncoder, pixel_shuffle
from tapetum.models.tiled import TiledTower, TowerConfig
from tapetum.models.vit import BlockConfig
from tapetum.models.weights import Weights
from tapetum.ops.table import OpTable
from tapetum.processing.internvl import ORIGINAL_TYPE, Normalisation, read_normalisation, read_shape

PROJECTOR_EPS = 1e-5

# How the original layout was trained, and what the processor reads or the chat template says.
_IGNORED = (
    "_commit_hash", "dynamic_image_size", "hidden_size", "image_fold", "image_seq_length", "image_token_id",
    "max_dynamic_patch", "min_dynamic_patch", "pad2square", "system_message", "template", "use_backbone_lora",
    "use_llm_lora", "use_thumbnail",
)  # fmt: skip
_VISION_KEYS = (
    "capacity_factor", "drop_path_rate", "dropout", "eval_capacity_factor", "hidden_dropout_prob", "image_size",
    "laux_allreduce", "layer_scale_init_value", "moe_coeff_ratio", "moe_intermediate_size", "moe_output_scale",
    "noisy_gate_policy", "num_experts", "num_routed_experts", "num_shared_experts", "patch_size",
    "projection_dropout", "shared_expert_intermediate_size", "use_flash_attn", "use_residual", "use_rts",
    "use_weighted_residual",
)  # fmt: skip
_TEXT_KEYS = ("attn_implementation", "moe_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    tower: TowerConfig
    merge_size: int
    out_width: int

    @property
    def merged_width(self) -> int:
        return self.tower.block.width * self.merge_size**2

    @property
    def tile_tokens(self) -> int:
        return (self.tower.side // self.merge_size) ** 2


class Projector:
    """Squares of patches side by side, LayerNorm, two linear layers with GELU between."""

    def __init__(self, config: VisionConfig, weights: Weights, ops: OpTable) -> None:
        self._config, self._ops = config, ops
        self._norm = weights.take("projector.norm.weight"), weights.take("projector.norm.bias")
        self._mlp = Mlp(weights, "projector.")

    def __call__(self, rows: Rows, start: int, end: int) -> Tensor:
        config = self._config
        x = pixel_shuffle(rows, start, end, side=config.tower.side, merge_size=config.merge_size)
        return self._mlp(self._ops.layer_norm(x, *self._norm, PROJECTOR_EPS))


def make_encoder(config: VisionConfig, weights: Weights, ops: OpTable) -> TileEncoder:
    return TileEncoder(
        TiledTower(config.tower, weights, ops),
        Projector(config, weights, ops),
        tile_tokens=config.tile_tokens,
        out_width=config.out_width,
        work=config.out_width * (config.merged_width + config.out_width),
    )


def read(directory: Path) -> Blueprint:
    reader = ConfigReader(require_json(directory / "config.json"), "config.json")
    is_original = reader.word("model_type") == ORIGINAL_TYPE
    text = reader.section("llm_config" if is_original else "text_config")
    is_tied = text.flag("tie_word_embeddings", False) or reader.flag("tie_word_embeddings", False)
    decoder = read_decoder(text, is_tied=is_tied)
    text.only("bias", False)
    vision = reader.section("vision_config")
    config = _read_vision(reader, vision, decoder.hidden_size, read_normalisation(directory))
    names = ORIGINAL if is_original else CURRENT
    is_internlm2 = text.word("model_type") == "internlm2"
    text.finish((*IGNORED_KEYS, *_TEXT_KEYS))
    vision.finish((*IGNORED_KEYS, *_VISION_KEYS))
    reader.finish((*IGNORED_KEYS, *_IGNORED))
    return Blueprint(
        model_type=reader.word("model_type"),
        decoder=decoder,
        table=name_table(names, decoder, config.tower, config.merge_size, is_internlm2=is_internlm2),
        vision=config,
        vision_prefixes=names.prefixes,
        make_encoder=partial(make_encoder, config),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Keys and defaults of a layout's vision_config."""

    qkv_bias: str
    qk_norm: str
    has_qk_norm: bool
    norm: str
    width: int
    depth: int
    num_heads: int
    mlp_width: int


_CURRENT = _Layout(
    qkv_bias="attention_bias", qk_norm="use_qk_norm", has_qk_norm=False, norm="layer_norm",
    width=1024, depth=24, num_heads=16, mlp_width=4096,
)  # fmt: skip
_ORIGINAL = _Layout(
    qkv_bias="qkv_bias", qk_norm="qk_normalization", has_qk_norm=True, norm="rms_norm",
    width=3200, depth=48, num_heads=25, mlp_width=12800,
)  # fmt: skip
_NORMS: dict[str, Literal["layer", "rms"]] = {"layer_norm": "layer", "rms_norm": "rms"}


def _read_vision(
    reader: ConfigReader, vision: ConfigReader, out_width: int, normalisation: Normalisation
) -> VisionConfig:
    layout = _ORIGINAL if reader.word("model_type") == ORIGINAL_TYPE else _CURRENT
    _check_switches(reader, vision)
    shape, merge_size = read_shape(reader)
    norm = vision.word("norm_type", layout.norm)
    if norm not in _NORMS:
        raise CheckpointError(f"{vision.name}: norm_type is {norm!r}, supported are {', '.join(_NORMS)}")
    block = BlockConfig(
        width=vision.integer("hidden_size", layout.width),
        num_heads=vision.integer("num_attention_heads", layout.num_heads),
        mlp_width=vision.integer("intermediate_size", layout.mlp_width),
        activation="gelu",
        eps=vision.number("layer_norm_eps", 1e-6),
        norm=_NORMS[norm],
        has_qkv_bias=vision.flag(layout.qkv_bias, False),
        has_qk_norm=vision.flag(layout.qk_norm, layout.has_qk_norm),
    )
    tower = TowerConfig(
        block=block,
        depth=vision.integer("num_hidden_layers", layout.depth),
        patch_size=shape.patch_size,
        side=shape.side,
        image_mean=normalisation[0],
        image_std=normalisation[1],
        has_class_token=True,
    )
    return VisionConfig(tower=tower, merge_size=merge_size, out_width=out_width)


def _check_switches(reader: ConfigReader, vision: ConfigReader) -> None:
    """What no published checkpoint asks for."""
    for key, value in (
        ("ps_version", "v2"),
        ("select_layer", -1),
        ("vision_feature_layer", -1),
        ("vision_feature_select_strategy", "default"),
        ("projector_hidden_act", "gelu"),
    ):
        reader.only(key, value)
    for key, value in (
        ("hidden_act", "gelu"),
        ("num_channels", 3),
        ("use_absolute_position_embeddings", True),
        ("use_mask_token", False),
        ("use_mean_pooling", True),
        ("use_moe", False),
    ):
        vision.only(key, value)
