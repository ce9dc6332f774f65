"""The language model: RMSNorm, grouped-query attention with rotary positions, gated MLP or experts.

T packed tokens, R rows that sample, H query heads, K key-value heads, D head width. What differs between decoders of
this form is data in DecoderConfig.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tapetum.models.decoder_config import DecoderConfig, read_decoder
from tapetum.models.decoder_rope import Rope
from tapetum.models.decoder_slots import decoder_slots, ignored_slots
from tapetum.models.weights import Weights
from tapetum.ops.experts import Experts
from tapetum.ops.layout import AttentionLayout
from tapetum.ops.parts import DecoderParts, DeepFeatures, GatedMlp, LayerParts, Linear, TurnTable, num_levels
from tapetum.ops.table import OpTable

__all__ = ["Decoder", "DecoderConfig", "LayerByLayer", "decoder_slots", "ignored_slots", "read_decoder"]


class Decoder:
    def __init__(self, config: DecoderConfig, weights: Weights, ops: OpTable) -> None:
        self.ops = ops = ops.for_heads(config.head_dim)
        self._scale = config.embed_scale
        self._embedding = weights.take("embed")
        self._head = weights.linear("embed" if config.is_tied else "head")
        parts = DecoderParts(
            norm=weights.take("norm"),
            layers=tuple(_take_layer(config, layer, weights) for layer in range(config.num_layers)),
            turns=tuple(_turn_table(rope, self._embedding.device) for rope in config.ropes),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
            dtype=weights.dtype,
        )
        whole = ops.decoder if config.experts is None else None
        self._run = whole(parts) if whole else LayerByLayer(parts, ops)

    def embed(self, token_ids: Tensor) -> Tensor:
        embedded = F.embedding(token_ids, self._embedding)
        if self._scale == 1.0:
            return embedded
        return embedded.mul_(
            torch.tensor(self._scale, dtype=embedded.dtype)
        )  # rounded, as it was in training

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor,
        caches: Sequence[Tensor],
        layout: AttentionLayout,
        deep: Sequence[DeepFeatures] = (),
    ) -> Tensor:
        return self._run(x, position_ids, caches, layout, deep)

    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.ops.head(self._head, hidden)


class LayerByLayer:
    """All layers, one operation at a time: what runs where no operation runs all of them."""

    def __init__(self, parts: DecoderParts, ops: OpTable) -> None:
        self._parts, self._ops = parts, ops

    def __call__(
        self,
        x: Tensor,
        position_ids: Tensor,
        caches: Sequence[Tensor],
        layout: AttentionLayout,
        deep: Sequence[DeepFeatures],
    ) -> Tensor:
        ops, eps, last = self._ops, self._parts.eps, len(self._parts.layers) - 1
        turns = [self._turn(table, position_ids, x.dtype) for table in self._parts.turns]
        levels = num_levels(deep, x.shape[1])
        for index, (layer, cache) in enumerate(zip(self._parts.layers, caches, strict=True)):
            mixed = self._attend(layer, ops.rms_norm(x, layer.norm1, eps), turns[layer.turns], cache, layout)
            if index == last and levels <= last:  # from here on only what samples counts
                mixed, x = mixed[layout.sample_rows], x[layout.sample_rows]
            x = self._add(layer.out, mixed, x, layer.post1)
            x = self._add(layer.mlp, ops.rms_norm(x, layer.norm2, eps), x, layer.post2)
            if index < levels:
                _deepen(x, index, deep)
        if levels > last:
            x = x[layout.sample_rows]
        return ops.rms_norm(x, self._parts.norm, eps)

    def _turn(self, table: TurnTable, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if table.scale == 1.0:
            return self._ops.turns(position_ids, table.axes, table.frequencies, dtype)
        cos, sin = self._ops.turns(position_ids, table.axes, table.frequencies, torch.float32)
        return (cos * table.scale).to(dtype), (sin * table.scale).to(dtype)

    def _attend(
        self,
        layer: LayerParts,
        x: Tensor,
        turns: tuple[Tensor, Tensor],
        cache: Tensor,
        layout: AttentionLayout,
    ) -> Tensor:
        parts, ops = self._parts, self._ops
        queries, turned = parts.num_heads, parts.num_heads + parts.num_kv_heads
        heads = layer.qkv(x).view(len(x), -1, parts.head_dim)  # [T, H + 2 K, D]
        if layer.q_norm is not None and layer.k_norm is not None:
            heads[:, :queries] = ops.rms_norm(heads[:, :queries], layer.q_norm, parts.eps)
            heads[:, queries:turned] = ops.rms_norm(heads[:, queries:turned], layer.k_norm, parts.eps)
        rotated = ops.rotate(heads[:, :turned], *turns)
        ops.write_kv(cache, rotated[:, queries:], heads[:, turned:], layout.slots)
        return ops.paged_attention(rotated[:, :queries], cache, layout, layer.window).flatten(1)

    def _add(self, run: Linear, x: Tensor, residual: Tensor, post: Tensor | None) -> Tensor:
        """What `run` makes of x, normalised where the model has a norm there, is added."""
        if post is None:
            return run(x, residual)
        return residual + self._ops.rms_norm(run(x), post, self._parts.eps)


def _deepen(x: Tensor, level: int, deep: Sequence[DeepFeatures]) -> None:
    hidden = x.shape[1]
    for run in deep:
        x[run.start : run.end] += run.values[:, level * hidden : (level + 1) * hidden]


def _turn_table(rope: Rope, device: torch.device) -> TurnTable:
    return TurnTable(
        torch.tensor(rope.axes, device=device),
        torch.tensor(rope.frequencies, device=device, dtype=torch.float32),
        rope.scale,
    )


def _take_layer(config: DecoderConfig, layer: int, weights: Weights) -> LayerParts:
    name = f"layers.{layer}."
    return LayerParts(
        norm1=weights.take(name + "norm1"),
        qkv=weights.linear(name + "qkv.weight", name + "qkv.bias" if config.has_qkv_bias else None),
        q_norm=weights.take(name + "q_norm") if config.has_qk_norm else None,
        k_norm=weights.take(name + "k_norm") if config.has_qk_norm else None,
        turns=config.layer_ropes[layer],
        window=config.windows[layer],
        out=weights.linear(name + "out.weight", name + "out.bias" if config.has_out_bias else None),
        post1=weights.take(name + "post1") if config.is_gemma else None,
        norm2=weights.take(name + "norm2"),
        mlp=_take_mlp(config, layer, weights, name),
        post2=weights.take(name + "post2") if config.is_gemma else None,
    )


def _take_mlp(config: DecoderConfig, layer: int, weights: Weights, name: str) -> GatedMlp | Experts:
    experts = config.experts
    if experts is None or layer not in experts.layers:
        return _take_gated(config, weights, name)
    return Experts(
        router=weights.linear(name + "router"),
        mlps=[
            _take_gated(config, weights, f"{name}experts.{expert}.") for expert in range(experts.num_experts)
        ],
        num_chosen=experts.num_chosen,
        is_normalised=experts.is_normalised,
    )


def _take_gated(config: DecoderConfig, weights: Weights, name: str) -> GatedMlp:
    return GatedMlp(
        weights.linear(name + "gate_up", activation=config.activation), weights.linear(name + "down")
    )
