"""Idefics3 (2024) and SmolVLM (2024, 2025): a SigLIP tower over tiles, pixel shuffle and one linear layer, Llama."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from tapetum.core.files import ConfigReader, require_json
from tapetum.models.composed import Blueprint
from tapetum.models.config_keys import IGNORED_KEYS
from tapetum.models.decoder_config import read_decoder
from tapetum.models.idefics.names import CONNECTOR, TOWER, name_table
from tapetum.models.projectors import Rows, TileEncoder, pixel_shuffle
from tapetum.models.siglip import read_siglip
from tapetum.models.tiled import TiledTower, TowerConfig
from tapetum.models.weights import Weights
from tapetum.ops.table import OpTable
from tapetum.processing.idefics import read_shape

# What processor and tokenizer say, how it was trained, and parts of Idefics2 that later files still describe.
_IGNORED = (
    "_flash_attn_2_enabled", "_pad_token_id", "freeze_lm_head", "freeze_text_layers", "freeze_vision_layers",
    "freeze_text_module_exceptions", "freeze_vision_module_exceptions", "image_token_id", "is_llama_config",
    "max_image_size", "neftune_noise_alpha", "perceiver_config", "pixel_shuffle_factor", "qk_layer_norms",
    "rope_interleaved", "size", "tie_word_embeddings", "transformers.js_config", "use_base_siglip",
    "use_reentrant_checkpointing", "use_resampler", "vocab_size", *IGNORED_KEYS,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    tower: TowerConfig
    merge_size: int  # patches of a visual token's side
    out_width: int

    @property
    def merged_width(self) -> int:
        return self.tower.block.width * self.merge_size**2


def read(directory: Path) -> Blueprint:
    reader = ConfigReader(require_json(directory / "config.json"), "config.json")
    text, vision = reader.section("text_config"), reader.section("vision_config")
    decoder = read_decoder(text, is_tied=reader.flag("tie_word_embeddings", False), model_type="llama")
    shape, merge_size = read_shape(directory, reader)
    table_side = vision.side("image_size", 224) // shape.patch_size
    vision.ignore(*_IGNORED)
    tower = read_siglip(vision, shape, directory, width=1152, num_heads=16)
    text.finish(_IGNORED)
    reader.finish(_IGNORED)
    config = VisionConfig(tower=tower, merge_size=merge_size, out_width=decoder.hidden_size)
    return Blueprint(
        model_type=reader.word("model_type"),
        decoder=decoder,
        table=name_table(decoder, tower, table_side, merge_size),
        vision=config,
        vision_prefixes=(TOWER, CONNECTOR),
        make_encoder=partial(make_encoder, config),
    )


def make_encoder(config: VisionConfig, weights: Weights, ops: OpTable) -> TileEncoder:
    tower = TiledTower(config.tower, weights, ops)
    connector = weights.linear("connector")
    side, merge_size = config.tower.side, config.merge_size

    def project(rows: Rows, start: int, end: int) -> Tensor:
        return connector(pixel_shuffle(rows, start, end, side=side, merge_size=merge_size))

    return TileEncoder(
        tower,
        project,
        tile_tokens=(side // merge_size) ** 2,
        out_width=config.out_width,
        work=config.merged_width * config.out_width,
    )
