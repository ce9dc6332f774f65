"""LLaVA-1.5 (2023), LLaVA-NeXT and LLaVA-OneVision (2024): CLIP or SigLIP over tiles, an MLP, any decoder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import Tensor

from tapetum.core.errors import CheckpointError
from tapetum.core.files import ConfigReader, require_json
from tapetum.models.composed import Blueprint
from tapetum.models.config_keys import IGNORED_KEYS
from tapetum.models.decoder_config import read_decoder
from tapetum.models.llava.names import VISION, name_table
from tapetum.models.llava.vision import Arrangement, VisionConfig
from tapetum.models.projectors import Mlp, Rows, TileEncoder
from tapetum.models.tiled import TiledTower, TowerConfig
from tapetum.models.vit import BlockConfig, read_activation
from tapetum.models.weights import Weights
from tapetum.ops.table import OpTable
from tapetum.processing.llava_files import ONE_TILE, ONE_VISION, read_colours, read_most_cells
from tapetum.processing.settings import read_settings

CLIP, SIGLIP = "clip_vision_model", "siglip_vision_model"
# The token of a picture is the processor's, its tiles too; how long a picture usually is follows from them.
NOT_THE_MODELS = (
    "ignore_index", "image_grid_pinpoints", "image_seq_length", "image_token_id", "image_token_index",
    "use_image_newline_parameter", "video_token_id", "video_token_index", "vocab_size",
)  # fmt: skip
OF_OTHER_HEADS = ("projection_dim", "vision_use_head", "vocab_size")


def read(directory: Path) -> Blueprint:
    reader = ConfigReader(require_json(directory / "config.json"), "config.json")
    model_type = reader.word("model_type")
    text = reader.section("text_config")
    is_tied = text.flag("tie_word_embeddings", False)
    is_tied = reader.flag("tie_word_embeddings", is_tied) or is_tied
    usual = "qwen2" if model_type == ONE_VISION else "llama"
    decoder = read_decoder(text, is_tied=is_tied, model_type=usual)
    vision = _read_vision(reader, model_type, directory)
    text.finish(IGNORED_KEYS)
    reader.finish((*IGNORED_KEYS, *NOT_THE_MODELS))
    return Blueprint(
        model_type=model_type,
        decoder=decoder,
        table=name_table(decoder, vision),
        vision=vision,
        vision_prefixes=VISION,
        make_encoder=partial(make_encoder, vision, decoder.hidden_size),
    )


def make_encoder(config: VisionConfig, hidden: int, weights: Weights, ops: OpTable) -> TileEncoder:
    mlp = Mlp(weights, "projector.", config.activation, has_bias=config.has_projector_bias)

    def project(rows: Rows, start: int, end: int) -> Tensor:
        return mlp(rows(start, end))

    return TileEncoder(
        TiledTower(config.tower, weights, ops),
        project,
        tile_tokens=config.tower.num_patches,
        out_width=hidden,
        work=hidden * (config.tower.block.width + hidden),
        arrange=Arrangement(config, weights.take("newline") if config.has_newline else None),
    )


def _read_vision(reader: ConfigReader, model_type: str, directory: Path) -> VisionConfig:
    is_one_vision = model_type == ONE_VISION
    part = reader.section("vision_config")
    num_layers = part.integer("num_hidden_layers")
    layer = reader.integer("vision_feature_layer", -1 if is_one_vision else -2, low=-num_layers)
    depth = layer if layer >= 0 else num_layers + 1 + layer
    if not 1 <= depth <= num_layers:
        raise CheckpointError(
            f"config.json: vision_feature_layer is {layer}, the vision tower has {num_layers} layers"
        )
    tower = _read_tower(part, depth, directory, SIGLIP if is_one_vision else CLIP)
    kept = (
        "default" if tower.has_class_token else "full"
    )  # which leaves out what is no patch, if there is any
    reader.only("vision_feature_select_strategy", kept)
    part.finish((*IGNORED_KEYS, *OF_OTHER_HEADS))
    return VisionConfig(
        tower=tower,
        num_layers=num_layers,
        activation=read_activation(reader, "projector_hidden_act", "gelu"),
        has_projector_bias=reader.flag("multimodal_projector_bias", True),
        has_newline=model_type != ONE_TILE,
        most_cells=read_most_cells(reader) if is_one_vision else None,
    )


def _read_tower(reader: ConfigReader, depth: int, directory: Path, usual: str) -> TowerConfig:
    kind = reader.word("model_type", usual)
    if kind not in (CLIP, SIGLIP):
        raise CheckpointError(
            f"{reader.name}: model_type is {kind!r}, supported are {CLIP} and {SIGLIP}; use another checkpoint"
        )
    is_clip, patch, tile = kind == CLIP, reader.side("patch_size"), reader.side("image_size")
    if patch > tile:
        raise CheckpointError(f"{reader.name}: patch_size is {patch}, must be at most image_size, {tile}")
    reader.only("num_channels", 3)
    mean, std = read_colours(read_settings(directory))
    return TowerConfig(
        block=BlockConfig(
            width=reader.integer("hidden_size"),
            num_heads=reader.integer("num_attention_heads"),
            mlp_width=reader.integer("intermediate_size"),
            activation=read_activation(
                reader, "hidden_act", "quick_gelu" if is_clip else "gelu_pytorch_tanh"
            ),
            eps=reader.number("layer_norm_eps", 1e-5 if is_clip else 1e-6),
        ),
        depth=depth,
        patch_size=patch,
        side=tile // patch,
        image_mean=mean,
        image_std=std,
        has_patch_bias=not is_clip,
        has_class_token=is_clip,
        has_pre_norm=is_clip,
    )
