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
from tapetum.processing.internvl import ORIGINAL_TYPE, read_colours, read_shape
from tapetum.processing.settings import Normalisation, check_switches
from tapetum.processing.tiles import TileShape

PROJECTOR_EPS = 1e-5

_SWITCHES = {
    "ps_version": "v2",
    "select_layer": -1,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
    "projector_hidden_act": "gelu",
}
_VISION_SWITCHES = {
    "hidden_act": "gelu",
    "num_channels": 3,
    "use_absolute_position_embeddings": True,
    "use_mask_token": False,
    "use_mean_pooling": True,
    "use_moe": False,
}
# How a model was trained, what the processor reads, and what says nothing once switches are as above.
_KEYS = (
    "_commit_hash", "dynamic_image_size", "hidden_size", "image_fold", "image_token_id", "max_dynamic_patch",
    "min_dynamic_patch", "pad2square", "system_message", "template", "use_backbone_lora", "use_llm_lora",
    "use_thumbnail",
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
    is_tied = text.flag("tie_word_embeddings", False) | reader.flag("tie_word_embeddings", not is_original)
    usual = None if is_original else "qwen2"
    decoder = read_decoder(text, is_tied=is_tied, model_type=usual)
    is_internlm2 = text.word("model_type", usual) == "internlm2"
    text.only("bias", False)
    vision = reader.section("vision_config")
    check_switches(reader, _SWITCHES)
    check_switches(vision, _VISION_SWITCHES)
    shape, merge_size = read_shape(reader)
    tower = _read_tower(vision, shape, read_colours(directory), is_original=is_original)
    for part, keys in ((text, _TEXT_KEYS), (vision, _VISION_KEYS), (reader, _KEYS)):
        part.finish((*IGNORED_KEYS, *keys))
    config = VisionConfig(tower=tower, merge_size=merge_size, out_width=decoder.hidden_size)
    names = ORIGINAL if is_original else CURRENT
    return Blueprint(
        model_type=reader.word("model_type"),
        decoder=decoder,
        table=name_table(names, decoder, tower, merge_size, is_internlm2=is_internlm2),
        vision=config,
        vision_prefixes=names.prefixes,
        make_encoder=partial(make_encoder, config),
    )


_NORMS: dict[str, Literal["layer", "rms"]] = {"layer_norm": "layer", "rms_norm": "rms"}


def _read_tower(
    vision: ConfigReader, shape: TileShape, colours: Normalisation, *, is_original: bool
) -> TowerConfig:
    norm = vision.word("norm_type")
    if norm not in _NORMS:
        raise CheckpointError(f"{vision.name}: norm_type is {norm!r}, supported are {', '.join(_NORMS)}")
    bias, qk_norm = ("qkv_bias", "qk_normalization") if is_original else ("attention_bias", "use_qk_norm")
    return TowerConfig(
        block=BlockConfig(
            width=vision.integer("hidden_size"),
            num_heads=vision.integer("num_attention_heads"),
            mlp_width=vision.integer("intermediate_size"),
            activation="gelu",
            eps=vision.number("layer_norm_eps", 1e-6),
            norm=_NORMS[norm],
            has_qkv_bias=vision.flag(bias, False),
            has_qk_norm=vision.flag(qk_norm, is_original),
        ),
        depth=vision.integer("num_hidden_layers"),
        patch_size=shape.patch_size,
        side=shape.side,
        image_mean=colours[0],
        image_std=colours[1],
        has_class_token=True,
    )
