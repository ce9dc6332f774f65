"""Names of published decoders for each of our tensors; q, k, v and gate, up are joined."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from tapetum.models.decoder_config import DecoderConfig, ExpertsConfig
from tapetum.models.weights import Slot


def decoder_slots(config: DecoderConfig, prefix: str = "model.") -> tuple[Slot, ...]:
    """Of the whole decoder: its tensors are under `prefix`, the head beside it."""
    width = config.hidden_size
    slots = [
        Slot("embed", (prefix + "embed_tokens.weight",), (config.vocab_size, width)),
        _norm(config, "norm", prefix + "norm", width),
    ]
    if not config.is_tied:
        slots.append(Slot("head", ("lm_head.weight",), (config.vocab_size, width)))
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.", f"{prefix}layers.{layer}."
        slots += [
            *_attention(config, ours, theirs + "self_attn."),
            *_layer_norms(config, ours, theirs),
            *_mlp(config, layer, ours, theirs + "mlp."),
        ]
    return tuple(slots)


def ignored_slots(config: DecoderConfig, prefix: str = "model.") -> tuple[str, ...]:
    """What checkpoints may hold beside: a head that is the embedding, and frequencies of positions."""
    head = ("lm_head.weight",) if config.is_tied else ()
    layers = (f"{prefix}layers.{layer}.self_attn.rotary_emb." for layer in range(config.num_layers))
    return (*head, prefix + "rotary_emb.", *layers)


def _attention(config: DecoderConfig, ours: str, theirs: str) -> list[Slot]:
    width, heads = config.hidden_size, config.head_dim * config.num_heads
    joined = heads + 2 * config.head_dim * config.num_kv_heads
    parts = [f"{theirs}{name}_proj." for name in "qkv"]
    slots = [
        Slot(ours + "qkv.weight", tuple(name + "weight" for name in parts), (joined, width)),
        Slot(ours + "out.weight", (theirs + "o_proj.weight",), (width, heads)),
    ]
    if config.has_qkv_bias:
        slots.append(Slot(ours + "qkv.bias", tuple(name + "bias" for name in parts), (joined,)))
    if config.has_out_bias:
        slots.append(Slot(ours + "out.bias", (theirs + "o_proj.bias",), (width,)))
    if config.has_qk_norm:
        slots += [
            _norm(config, ours + "q_norm", theirs + "q_norm", config.head_dim, config.query_scale),
            _norm(config, ours + "k_norm", theirs + "k_norm", config.head_dim),
        ]
    return slots


def _layer_norms(config: DecoderConfig, ours: str, theirs: str) -> list[Slot]:
    names = {"norm1": "input_layernorm", "norm2": "post_attention_layernorm"}
    if config.is_gemma:
        names = {
            "norm1": "input_layernorm",
            "norm2": "pre_feedforward_layernorm",
            "post1": "post_attention_layernorm",
            "post2": "post_feedforward_layernorm",
        }
    return [_norm(config, ours + name, theirs + full, config.hidden_size) for name, full in names.items()]


def _norm(config: DecoderConfig, ours: str, theirs: str, width: int, factor: float = 1.0) -> Slot:
    if not config.is_gemma:
        return Slot(ours, (theirs + ".weight",), (width,))
    return Slot(ours, (theirs + ".weight",), (width,), partial(_whole_norm, factor), is_wide=True)


def _whole_norm(factor: float, sources: list[Tensor]) -> Tensor:
    return (sources[0].float() + 1.0) * factor


def _mlp(config: DecoderConfig, layer: int, ours: str, theirs: str) -> list[Slot]:
    experts = config.experts
    if experts is None or layer not in experts.layers:
        return _gated(ours, theirs, config.hidden_size, config.intermediate_size)
    slots = [Slot(ours + "router", (theirs + "gate.weight",), (experts.num_experts, config.hidden_size))]
    for expert in range(experts.num_experts):
        name = f"{ours}experts.{expert}."
        if experts.is_fused:
            slots += _fused(name, theirs + "experts.", config.hidden_size, experts, expert)
        else:
            slots += _gated(name, f"{theirs}experts.{expert}.", config.hidden_size, experts.intermediate_size)
    return slots


def _gated(ours: str, theirs: str, width: int, inner: int) -> list[Slot]:
    pair = (theirs + "gate_proj.weight", theirs + "up_proj.weight")
    return [
        Slot(ours + "gate_up", pair, (2 * inner, width)),
        Slot(ours + "down", (theirs + "down_proj.weight",), (width, inner)),
    ]


def _fused(ours: str, theirs: str, width: int, experts: ExpertsConfig, expert: int) -> list[Slot]:
    inner = experts.intermediate_size
    return [
        Slot(name, (theirs + source,), shape, partial(_take_expert, expert, (experts.num_experts, *shape)))
        for name, source, shape in (
            (ours + "gate_up", "gate_up_proj", (2 * inner, width)),
            (ours + "down", "down_proj", (width, inner)),
        )
    ]


def _take_expert(expert: int, shape: tuple[int, ...], sources: list[Tensor]) -> Tensor:
    """Published tensors are [experts, inputs, outputs], those that transformers 5 writes [experts, outputs, inputs]."""
    (fused,) = sources
    if fused.dim() != 3 or len(fused) != shape[0]:
        return fused  # whose shape is refused
    return fused[expert] if tuple(fused.shape) == shape else fused[expert].t()
