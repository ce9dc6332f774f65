"""A model of an encoder and a decoder: what a family says of a checkpoint, and how that becomes a loaded model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tapetum.core.media import Geometry
from tapetum.models.base import ModelSpec
from tapetum.models.decoder import Decoder, DecoderConfig
from tapetum.models.encoding import Encoding, KnownParts
from tapetum.models.step_memory import step_memory
from tapetum.models.weights import Checkpoint, NameTable, Slot, Weights
from tapetum.ops.layout import AttentionLayout
from tapetum.ops.parts import DeepFeatures
from tapetum.ops.table import OpTable


class PictureEncoder(Protocol):
    """Vision tower and projector of one checkpoint."""

    def begin(
        self, patches: Sequence[Tensor], geometries: Sequence[Geometry], known: Sequence[KnownParts] = ()
    ) -> Encoding:
        """As VisionLanguageModel.begin_encode."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """A checkpoint as its config.json and processor files describe it, before any weight is read."""

    model_type: str
    decoder: DecoderConfig
    table: NameTable
    vision: object = None  # the frozen numbers of tower and projector; None = the model reads text only
    vision_prefixes: tuple[str, ...] = ()  # of the canonical names of their tensors
    make_encoder: Callable[[Weights, OpTable], PictureEncoder] | None = None
    has_windows: bool = False  # whose first layers see nothing beyond them
    deep_levels: int = 0  # decoder layers that get visual features of their own


class Composed:
    """Implements models.base.VisionLanguageModel."""

    def __init__(
        self,
        spec: ModelSpec,
        fingerprints: tuple[bytes, bytes],
        encoder: PictureEncoder | None,
        decoder: Decoder,
    ) -> None:
        self.spec = spec
        self.weights_fingerprint, self.encoder_fingerprint = fingerprints
        self.ops = decoder.ops
        self._encoder, self._decoder = encoder, decoder

    def begin_encode(
        self, patches: Sequence[Tensor], geometries: Sequence[Geometry], known: Sequence[KnownParts] = ()
    ) -> Encoding:
        assert self._encoder is not None, "the processor of a text model takes no media"
        return self._encoder.begin(patches, geometries, known)

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._decoder.embed(token_ids)

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor,
        caches: Sequence[Tensor],
        layout: AttentionLayout,
        deep: Sequence[DeepFeatures] = (),
    ) -> Tensor:
        return self._decoder.forward(x, position_ids, caches, layout, deep)

    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self._decoder.head(hidden)


def compose(
    directory: Path,
    blueprint: Blueprint,
    dtype: torch.dtype,
    device: torch.device,
    ops: OpTable,
    pack_folder: Path | None = None,
) -> Composed:
    """Read, check and pack the weights of a checkpoint directory."""
    checkpoint = Checkpoint(directory, blueprint.table)
    if blueprint.decoder.is_tied and (head := checkpoint.own_head()):
        blueprint = _untied(blueprint, head)
        checkpoint = Checkpoint(directory, blueprint.table)
    weights = checkpoint.weights(dtype, device, ops, pack_folder)
    make = blueprint.make_encoder
    encoder = None if make is None else make(weights, ops)
    decoder = Decoder(blueprint.decoder, weights, ops)
    weights.finish(checkpoint.is_current)
    return Composed(
        make_spec(blueprint, dtype, device), _fingerprints(checkpoint, blueprint), encoder, decoder
    )


def _untied(blueprint: Blueprint, head: str) -> Blueprint:
    """With the head that the checkpoint holds, which goes before what its config.json says, as in transformers."""
    decoder = replace(blueprint.decoder, is_tied=False)
    slot = Slot("head", (head,), (decoder.vocab_size, decoder.hidden_size))
    table = replace(blueprint.table, slots=(*blueprint.table.slots, slot))
    return replace(blueprint, decoder=decoder, table=table)


def make_spec(blueprint: Blueprint, dtype: torch.dtype, device: torch.device) -> ModelSpec:
    decoder = blueprint.decoder
    feature_size = decoder.hidden_size * (1 + blueprint.deep_levels)
    return ModelSpec(
        model_type=blueprint.model_type,
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        num_layers=decoder.num_layers,
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
        max_model_len=decoder.max_position_embeddings,
        dtype=dtype,
        device=device,
        feature_size=feature_size,
        has_windows=blueprint.has_windows,
        step=step_memory(decoder, blueprint.vision, feature_size, dtype),
        key_frequencies=tuple(decoder.ropes[rope].frequencies for rope in decoder.layer_ropes),
    )


def _fingerprints(checkpoint: Checkpoint, blueprint: Blueprint) -> tuple[bytes, bytes]:
    """Of all weights, and of what pictures are encoded with: weights and numbers."""
    encoder = hashlib.sha256(checkpoint.fingerprint(blueprint.vision_prefixes))
    encoder.update(repr(blueprint.vision).encode())
    return checkpoint.fingerprint(), encoder.digest()
