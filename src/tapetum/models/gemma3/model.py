"""Gemma 3 (2025): a SigLIP tower over one square, its patches averaged to 256 tokens, a norm and one matrix, Gemma."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from tapetum.core.files import ConfigReader, require_json
from tapetum.models.composed import Blueprint
from tapetum.models.config_keys import IGNORED_KEYS
from tapetum.models.decoder_config import read_decoder
from tapetum.models.gemma3.names import PROJECTOR, TOWER, name_table
from tapetum.models.projectors import Rows, TileEncoder, pixel_shuffle
from tapetum.models.siglip import read_siglip
from tapetum.models.tiled import TiledTower, TowerConfig
from tapetum.models.weights import Weights
from tapetum.ops.table import OpTable
from tapetum.processing.gemma3 import read_shape

_IGNORED = ("boi_token_index", "eoi_token_index", "image_token_index")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    tower: TowerConfig
    side: int  # visual tokens along a side of the square
    out_width: int

    @property
    def pool_size(self) -> int:
        """Patches along a side of a visual token."""
        return self.tower.side // self.side


def read(directory: Path) -> Blueprint:
    reader = ConfigReader(require_json(directory / "config.json"), "config.json")
    text, vision = reader.section("text_config"), reader.section("vision_config")
    decoder = read_decoder(text, is_tied=reader.flag("tie_word_embeddings", True), model_type="gemma3_text")
    shape, side = read_shape(directory, reader)
    tower = read_siglip(vision, shape, directory, width=768, num_heads=12)
    text.finish((*IGNORED_KEYS, "tie_word_embeddings"))
    reader.finish((*IGNORED_KEYS, *_IGNORED))
    config = VisionConfig(tower=tower, side=side, out_width=decoder.hidden_size)
    return Blueprint(
        model_type=reader.word("model_type"),
        decoder=decoder,
        table=name_table(decoder, tower),
        vision=config,
        vision_prefixes=(TOWER, PROJECTOR),
        make_encoder=partial(make_encoder, config),
    )


def make_encoder(config: VisionConfig, weights: Weights, ops: OpTable) -> TileEncoder:
    return TileEncoder(
        TiledTower(config.tower, weights, ops),
        Projector(config, weights, ops),
        tile_tokens=config.side**2,
        out_width=config.out_width,
        work=config.tower.block.width * (config.out_width + config.pool_size**2),
    )


class Projector:
    """The mean of the patches of a visual token, RMSNorm, one matrix."""

    def __init__(self, config: VisionConfig, weights: Weights, ops: OpTable) -> None:
        self._config, self._ops = config, ops
        self._norm = weights.take("projector.norm")
        self._out = weights.linear("projector")

    def __call__(self, rows: Rows, start: int, end: int) -> Tensor:
        config = self._config
        x = pixel_shuffle(rows, start, end, side=config.tower.side, merge_size=config.pool_size)
        pooled = x.unflatten(1, (-1, config.tower.block.width)).float().mean(1).to(x.dtype)
        return self._out(self._ops.rms_norm(pooled, self._norm, config.tower.block.eps))
