"""Qwen2-VL (2024) and Qwen2.5-VL (2025): vision tower and merger, decoder with M-RoPE; any size by its config.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tapetum.core.errors import CheckpointError
from tapetum.core.files import ConfigReader, require_json
from tapetum.models.base import ModelSpec
from tapetum.models.decoder import Decoder, DecoderConfig, read_decoder
from tapetum.models.encoding import Encoding
from tapetum.models.qwen_vl.names import name_table
from tapetum.models.qwen_vl.vision import Grid, VisionConfig, VisionTower
from tapetum.models.weights import Checkpoint
from tapetum.ops.layout import AttentionLayout
from tapetum.ops.table import OpTable
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


class QwenVL:
    """The three stages of one checkpoint. See models/base.py for shapes."""

    def __init__(
        self,
        spec: ModelSpec,
        fingerprints: tuple[bytes, bytes],
        vision: VisionTower,
        decoder: Decoder,
    ) -> None:
        self.spec = spec
        self.weights_fingerprint, self.encoder_fingerprint = fingerprints
        self._vision, self._decoder = vision, decoder

    def begin_encode(self, patches: Sequence[Tensor], grids: Sequence[Grid]) -> Encoding:
        return self._vision.begin(patches, grids)

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._decoder.embed(token_ids)

    def forward(
        self, x: Tensor, position_ids: Tensor, caches: Sequence[Tensor], layout: AttentionLayout
    ) -> Tensor:
        return self._decoder.forward(x, position_ids, caches, layout)

    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self._decoder.head(hidden)


def load(
    directory: Path, dtype: torch.dtype, device: torch.device, ops: OpTable, pack_folder: Path | None
) -> QwenVL:
    """Read, check and pack a checkpoint directory."""
    model_type, decoder_config, vision_config = read_config(directory)
    checkpoint = Checkpoint(directory, name_table(decoder_config, vision_config))
    weights = checkpoint.weights(dtype, device, ops, pack_folder)
    spec = ModelSpec(
        model_type=model_type,
        vocab_size=decoder_config.vocab_size,
        hidden_size=decoder_config.hidden_size,
        num_layers=decoder_config.num_layers,
        num_kv_heads=decoder_config.num_kv_heads,
        head_dim=decoder_config.head_dim,
        max_model_len=decoder_config.max_position_embeddings,
        dtype=dtype,
        device=device,
    )
    prints = (checkpoint.fingerprint(), checkpoint.fingerprint("visual."))
    vision = VisionTower(vision_config, weights, ops)
    decoder = Decoder(decoder_config, weights, ops)
    weights.finish(checkpoint.is_current)
    return QwenVL(spec, prints, vision, decoder)


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
