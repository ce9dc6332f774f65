"""The language model: RMSNorm, grouped-query attention with rotary positions on three axes, SwiGLU.

T packed tokens, R rows that sample, H query heads, K key-value heads, D head width. What differs between decoders of
this form (biases, tied head, frequency sections) is data in DecoderConfig.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tapetum.core.errors import CheckpointError
from tapetum.core.files import ConfigReader
from tapetum.models.weights import Slot, Weights
from tapetum.ops.layout import AttentionLayout
from tapetum.ops.parts import DecoderParts, DeepFeatures, LayerParts
from tapetum.ops.table import OpTable


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    mrope_section: tuple[int, int, int]  # frequencies turned by time, height and width
    max_position_embeddings: int
    is_tied: bool  # the head shares the embedding


def read_decoder(reader: ConfigReader, *, is_tied: bool) -> DecoderConfig:
    """Qwen2-style decoder from the flat or nested part of config.json; old and new spelling of rope."""
    heads, width = reader.integer("num_attention_heads"), reader.integer("hidden_size")
    if reader.flag("use_sliding_window", False):
        raise CheckpointError("config.json: use_sliding_window is true; sliding windows are not supported")
    if reader.word("hidden_act", "silu") != "silu":
        raise CheckpointError(
            f"config.json: hidden_act is {reader.word('hidden_act')!r}, only silu is supported"
        )
    key = "rope_parameters" if reader.has("rope_parameters") else "rope_scaling"
    rope = reader.section(key)
    kind = rope.word("rope_type", rope.word("type", "default"))
    if kind not in ("default", "mrope"):
        raise CheckpointError(f"config.json: rope type is {kind!r}; default and mrope are supported")
    theta = rope.number("rope_theta", reader.number("rope_theta", 1_000_000.0))
    head_dim = reader.integer("head_dim", width // heads)
    section = rope.integers("mrope_section", (16, 24, 24))
    rope.finish()
    if len(section) != 3 or sum(section) != head_dim // 2:
        raise CheckpointError(
            f"config.json: mrope_section is {section}, must be three numbers that add to {head_dim // 2}"
        )
    return DecoderConfig(
        vocab_size=reader.integer("vocab_size"),
        hidden_size=width,
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=reader.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=reader.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        rms_norm_eps=reader.number("rms_norm_eps", 1e-5),
        rope_theta=theta,
        mrope_section=(section[0], section[1], section[2]),
        max_position_embeddings=reader.integer("max_position_embeddings", 32768),
        is_tied=is_tied,
    )


def decoder_slots(config: DecoderConfig) -> tuple[Slot, ...]:
    """Our decoder tensors and the names of published checkpoints; q, k, v and gate, up are joined."""
    width, heads = config.hidden_size, config.head_dim * config.num_heads
    joined = heads + 2 * config.head_dim * config.num_kv_heads
    slots = [
        Slot("embed", ("model.embed_tokens.weight",), (config.vocab_size, width)),
        Slot("norm", ("model.norm.weight",), (width,)),
    ]
    if not config.is_tied:
        slots.append(Slot("head", ("lm_head.weight",), (config.vocab_size, width)))
    for layer in range(config.num_layers):
        theirs = f"model.layers.{layer}."
        attention = [f"{theirs}self_attn.{name}_proj." for name in "qkv"]
        mlp = [f"{theirs}mlp.{name}_proj.weight" for name in ("gate", "up")]
        ours = f"layers.{layer}."
        slots += [
            Slot(ours + "norm1", (theirs + "input_layernorm.weight",), (width,)),
            Slot(ours + "qkv.weight", tuple(name + "weight" for name in attention), (joined, width)),
            Slot(ours + "qkv.bias", tuple(name + "bias" for name in attention), (joined,)),
            Slot(ours + "out", (theirs + "self_attn.o_proj.weight",), (width, heads)),
            Slot(ours + "norm2", (theirs + "post_attention_layernorm.weight",), (width,)),
            Slot(ours + "gate_up", tuple(mlp), (2 * config.intermediate_size, width)),
            Slot(ours + "down", (theirs + "mlp.down_proj.weight",), (width, config.intermediate_size)),
        ]
    return tuple(slots)


class Decoder:
    def __init__(self, config: DecoderConfig, weights: Weights, ops: OpTable) -> None:
        self._ops = ops
        self._embedding = weights.take("embed")
        self._head = weights.linear("embed" if config.is_tied else "head")
        device = self._embedding.device
        step = torch.arange(config.head_dim // 2, device=device, dtype=torch.float32) * 2 / config.head_dim
        axes = [axis for axis, count in enumerate(config.mrope_section) for _ in range(count)]
        parts = DecoderParts(
            norm=weights.take("norm"),
            layers=tuple(_take_layer(weights, f"layers.{i}.") for i in range(config.num_layers)),
            axes=torch.tensor(axes, device=device),  # (t, h, w)
            frequencies=config.rope_theta**-step,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
        )
        self._run = ops.decoder(parts) if ops.decoder else LayerByLayer(parts, ops)

    def embed(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self._embedding)

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor,
        caches: Sequence[Tensor],
        layout: AttentionLayout,
        deep: Sequence[DeepFeatures] = (),
    ) -> Tensor:
        assert not deep, "no decoder takes deep features yet"
        return self._run(x, position_ids, caches, layout)

    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self._ops.head(self._head, hidden)


class LayerByLayer:
    """All layers, one operation at a time: what runs where no operation runs all of them."""

    def __init__(self, parts: DecoderParts, ops: OpTable) -> None:
        self._parts, self._ops = parts, ops

    def __call__(
        self, x: Tensor, position_ids: Tensor, caches: Sequence[Tensor], layout: AttentionLayout
    ) -> Tensor:
        ops, eps = self._ops, self._parts.eps
        turns = ops.turns(position_ids, self._parts.axes, self._parts.frequencies, x.dtype)
        last = self._parts.layers[-1]
        for layer, cache in zip(self._parts.layers, caches, strict=True):
            mixed = self._attend(layer, ops.rms_norm(x, layer.norm1, eps), turns, cache, layout)
            if layer is last:  # from here on only what samples counts
                mixed, x = mixed[layout.sample_rows], x[layout.sample_rows]
            x = layer.out(mixed, x)
            x = layer.down(layer.gate_up(ops.rms_norm(x, layer.norm2, eps)), x)
        return ops.rms_norm(x, self._parts.norm, eps)

    def _attend(
        self,
        layer: LayerParts,
        x: Tensor,
        turns: tuple[Tensor, Tensor],
        cache: Tensor,
        layout: AttentionLayout,
    ) -> Tensor:
        parts, ops = self._parts, self._ops
        num_turned = parts.num_heads + parts.num_kv_heads
        heads = layer.qkv(x).view(len(x), -1, parts.head_dim)  # [T, H + 2 K, D]
        turned = ops.rotate(heads[:, :num_turned], *turns)
        ops.write_kv(cache, turned[:, parts.num_heads :], heads[:, num_turned:], layout.slots)
        return ops.paged_attention(turned[:, : parts.num_heads], cache, layout).flatten(1)


def _take_layer(weights: Weights, name: str) -> LayerParts:
    return LayerParts(
        norm1=weights.take(name + "norm1"),
        norm2=weights.take(name + "norm2"),
        qkv=weights.linear(name + "qkv.weight", name + "qkv.bias"),
        out=weights.linear(name + "out"),
        gate_up=weights.linear(name + "gate_up", activation="silu_mul"),
        down=weights.linear(name + "down"),
    )
