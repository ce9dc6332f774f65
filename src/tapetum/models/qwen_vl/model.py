"""Qwen2-VL (2024) and Qwen2.5-VL (2025): vision tower and merger, decoder with M-RoPE; any size by its config.json."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tapetum.core.errors import CheckpointError
from tapetum.core.files import ConfigReader, require_json
from tapetum.models.composed import Blueprint
from tapetum.models.decoder import DecoderConfig, read_decoder
from tapetum.models.qwen_vl.names import name_table
from tapetum.models.qwen_vl.vision import VisionConfig, VisionTower
from tapetum.processing.qwen_vl import read_normalisation

# Keys that say nothing about inference, or repeat what other files say.
IGNORED_KEYS = (
    "_name_or_path", "architectures", "attention_dropout", "bos_token_id", "chunk_size_feed_forward", "dtype",
    "eos_token_id", "initializer_range", "is_encoder_decoder", "layer_types", "max_window_layers", "model_type",
    "output_attentions", "output_hidden_states", "pad_token_id", "return_dict", "sliding_window", "torch_dtype",
    "transformers_version", "use_cache",
)  # fmt: skip
TOKEN_KEYS = (
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "vision_token_id",
)


def read(directory: Path) -> Blueprint:
    model_type, decoder, vision = read_config(directory)
    return Blueprint(
        model_type=model_type,
        decoder=decoder,
        table=name_table(decoder, vision),
        vision=vision,
        vision_prefixes=("visual.",),
        make_encoder=partial(VisionTower, vision),
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
    decoder = read_decoder(text, is_tied=is_tied)
    tower = _read_vision(vision, model_type, decoder.hidden_size, read_normalisation(directory))
    reader.ignore(*TOKEN_KEYS)
    for part in {id(item): item for item in (reader, text, vision)}.values():
        part.finish(IGNORED_KEYS)
    return model_type, decoder, tower


def _read_vision(
    reader: ConfigReader,
    model_type: str,
    hidden: int,
    normalisation: tuple[tuple[float, ...], tuple[float, ...]],
) -> VisionConfig:
    is_newer = model_type == "qwen2_5_vl"
    depth, patch, merge = (
        reader.integer("depth", 32),
        reader.integer("patch_size", 14),
        reader.integer("spatial_merge_size", 2),
    )
    width = reader.integer("hidden_size" if is_newer else "embed_dim", 1280)
    out_width = reader.integer("out_hidden_size" if is_newer else "hidden_size", hidden)
    if out_width != hidden:
        raise CheckpointError(
            f"config.json: the vision tower gives width {out_width}, the decoder takes {hidden}"
        )
    activation = reader.word("hidden_act", "silu" if is_newer else "quick_gelu")
    if activation != ("silu" if is_newer else "quick_gelu"):
        raise CheckpointError(
            f"config.json: vision hidden_act {activation!r} is not supported for {model_type}"
        )
    mlp_width = (
        reader.integer("intermediate_size", 3420) if is_newer else width * reader.integer("mlp_ratio", 4)
    )
    full = (
        frozenset(reader.integers("fullatt_block_indexes", (7, 15, 23, 31)))
        if is_newer
        else frozenset(range(depth))
    )
    channels = reader.integer("in_channels", reader.integer("in_chans", 3))
    reader.ignore("rope_parameters", "spatial_patch_size", "tokens_per_second")
    return VisionConfig(
        depth=depth,
        width=width,
        num_heads=reader.integer("num_heads", 16),
        mlp_width=mlp_width,
        out_width=out_width,
        in_channels=channels,
        patch_size=patch,
        merge_size=merge,
        temporal_patch_size=reader.integer("temporal_patch_size", 2),
        has_layer_norm=not is_newer,
        has_gated_mlp=is_newer,
        window_size=reader.integer("window_size", 112) if is_newer else 0,
        full_attention_layers=full,
        image_mean=normalisation[0],
        image_std=normalisation[1],
    )
