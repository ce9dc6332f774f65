"""Qwen2-VL (2024), Qwen2.5-VL and Qwen3-VL (2025), dense and with experts; any size by its config.json."""

from __future__ import annotations

from functools import partial
from math import isqrt
from pathlib import Path
from typing import TypedDict

from tapetum.core.errors import CheckpointError
from tapetum.core.files import ConfigReader, require_json
from tapetum.models.composed import Blueprint
from tapetum.models.config_keys import IGNORED_KEYS, TOKEN_KEYS
from tapetum.models.decoder_config import DecoderConfig, read_decoder
from tapetum.models.qwen_vl.names import name_table
from tapetum.models.qwen_vl.vision import Generation, VisionConfig, VisionTower
from tapetum.models.vit import BlockConfig
from tapetum.processing.qwen_vl_files import read_normalisation

GENERATIONS: dict[str, Generation] = {
    "qwen2_vl": "2",
    "qwen2_5_vl": "2.5",
    "qwen3_vl": "3",
    "qwen3_vl_moe": "3",
}
NORM_EPS = 1e-6


def read(directory: Path) -> Blueprint:
    model_type, decoder, vision = read_config(directory)
    return Blueprint(
        model_type=model_type,
        decoder=decoder,
        table=name_table(decoder, vision),
        vision=vision,
        vision_prefixes=("visual.",),
        make_encoder=partial(VisionTower, vision),
        has_windows=vision.num_early > 0,
        deep_levels=len(vision.deep_layers),
    )


def read_config(directory: Path) -> tuple[str, DecoderConfig, VisionConfig]:
    """(model_type, decoder, vision) from config.json and preprocessor_config.json."""
    reader = ConfigReader(require_json(directory / "config.json"), "config.json")
    model_type = reader.word("model_type")
    vision = reader.section("vision_config")
    is_tied = reader.flag("tie_word_embeddings", False)
    text = reader.section("text_config") if reader.has("text_config") else reader
    if text is not reader:
        is_tied = text.flag("tie_word_embeddings", is_tied) or is_tied
    decoder = read_decoder(text, is_tied=is_tied, model_type=f"{model_type}_text")
    tower = _read_vision(vision, GENERATIONS[model_type], read_normalisation(directory))
    if tower.out_width != decoder.hidden_size:
        raise CheckpointError(
            f"config.json: the vision tower gives width {tower.out_width}, the decoder takes {decoder.hidden_size}"
        )
    if len(tower.deep_layers) > decoder.num_layers:
        raise CheckpointError(
            f"config.json: {len(tower.deep_layers)} deepstack_visual_indexes, but the decoder has only "
            f"{decoder.num_layers} layers to add their features to"
        )
    reader.ignore(*TOKEN_KEYS)
    for part in {id(item): item for item in (reader, text, vision)}.values():
        part.finish(IGNORED_KEYS)
    return model_type, decoder, tower


def _read_vision(
    reader: ConfigReader,
    generation: Generation,
    normalisation: tuple[tuple[float, ...], tuple[float, ...]],
) -> VisionConfig:
    is_newest = generation == "3"
    patch, merge = (
        reader.integer("patch_size", 16 if is_newest else 14),
        reader.integer("spatial_merge_size", 2),
    )
    depth = reader.integer("depth", 27 if is_newest else 32)
    reader.ignore("rope_parameters", "spatial_patch_size", "tokens_per_second")
    return VisionConfig(
        generation=generation,
        block=_read_block(reader, generation),
        depth=depth,
        out_width=reader.integer("hidden_size" if generation == "2" else "out_hidden_size"),
        in_channels=reader.integer("in_channels", reader.integer("in_chans", 3)),
        patch_size=patch,
        merge_size=merge,
        temporal_patch_size=reader.integer("temporal_patch_size", 2),
        image_mean=normalisation[0],
        image_std=normalisation[1],
        **_read_extras(reader, generation, patch * merge, depth),
    )


def _read_block(reader: ConfigReader, generation: Generation) -> BlockConfig:
    heads = reader.integer("num_heads", 16)
    if generation == "2":
        reader.only("hidden_act", "quick_gelu")
        width = reader.integer("embed_dim", 1280)
        inner = width * reader.integer("mlp_ratio", 4)
        return BlockConfig(
            width=width, num_heads=heads, mlp_width=inner, activation="quick_gelu", eps=NORM_EPS
        )
    if generation == "2.5":
        reader.only("hidden_act", "silu")
        return BlockConfig(
            width=reader.integer("hidden_size", 1280),
            num_heads=heads,
            mlp_width=reader.integer("intermediate_size", 3420),
            activation="silu_mul",
            eps=NORM_EPS,
            norm="rms",
        )
    reader.only("hidden_act", "gelu_pytorch_tanh")
    return BlockConfig(
        width=reader.integer("hidden_size", 1152),
        num_heads=heads,
        mlp_width=reader.integer("intermediate_size", 4304),
        activation="gelu_tanh",
        eps=NORM_EPS,
    )


class _Extras(TypedDict, total=False):
    window: int
    full_attention_layers: frozenset[int]
    position_side: int
    deep_layers: tuple[int, ...]


def _read_extras(reader: ConfigReader, generation: Generation, factor: int, depth: int) -> _Extras:
    """What only one generation has; `factor` pixels are a side of a visual token."""
    if generation == "2.5":
        full = reader.integers("fullatt_block_indexes", (7, 15, 23, 31))
        return {
            "window": reader.integer("window_size", 112) // factor,
            "full_attention_layers": frozenset(full),
        }
    if generation == "3":
        count = reader.integer("num_position_embeddings", 2304)
        if isqrt(count) ** 2 != count:
            raise CheckpointError(
                f"{reader.name}: num_position_embeddings is {count}, must be a square such as 2304"
            )
        deep = reader.integers("deepstack_visual_indexes", (8, 16, 24))
        if sorted(set(deep)) != list(deep) or not set(deep) <= set(range(depth)):
            raise CheckpointError(
                f"{reader.name}: deepstack_visual_indexes are {deep}, must ascend and be layers of a depth of {depth}"
            )
        return {"position_side": isqrt(count), "deep_layers": deep}
    return {}
