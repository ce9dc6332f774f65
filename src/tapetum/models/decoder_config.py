"""What a decoder is, read from the text part of config.json: everything in which decoders differ, as data.

A model_type has its own defaults, those of transformers' config class: published files often name only what differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tapetum.core.errors import CheckpointError
from tapetum.core.files import ConfigReader
from tapetum.models.decoder_rope import Rope, Sections, read_rope
from tapetum.ops.parts import Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A router that sends each token to a few of many gated MLPs."""

    num_experts: int
    num_chosen: int
    intermediate_size: int
    is_normalised: bool  # the shares of the chosen add to 1
    layers: frozenset[int]  # that have experts; the others have one MLP
    is_fused: bool  # the checkpoint holds those of a layer as one tensor


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
    max_position_embeddings: int
    is_tied: bool  # the head shares the embedding
    has_qkv_bias: bool
    has_out_bias: bool
    has_qk_norm: bool
    activation: Activation
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int, ...]  # which of them turns a layer
    windows: tuple[int, ...]  # tokens that a layer looks back on, its own included; 0 = all
    # norms behind attention and MLP too; weights of norms are stored less 1 and kept in float32
    is_gemma: bool = False
    embed_scale: float = 1.0
    query_scale: float = 1.0  # of queries, beside 1 / sqrt(head_dim)
    experts: ExpertsConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What a model_type means, and what its config.json need not say."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int | None = None  # None = one for each head
    head_dim: int | None = None  # None = the heads share the hidden size
    max_positions: int = 32768
    eps: float = 1e-6
    theta: float = 10_000.0
    activation: str = "silu"
    bias: Literal["never", "qkv", "key"] = "never"  # key: as attention_bias says
    has_qk_norm: bool = False
    sections: Sections | None = None
    # which layers have a window: none, all, those that use_sliding_window and max_window_layers say, five of six
    window: Literal["none", "all", "switched", "switched-all", "pattern"] = "none"
    sliding_window: int = 4096
    max_window_layers: int = 28
    num_experts: int = 0
    num_chosen: int = 0
    expert_width: int = 0
    has_fused_experts: bool = False
    is_gemma: bool = False


_QWEN2 = _Kind(
    vocab_size=151936, hidden_size=4096, intermediate_size=22016, num_layers=32, num_heads=32, num_kv_heads=32,
    bias="qkv", window="switched",
)  # fmt: skip
_QWEN2_VL = _Kind(
    vocab_size=152064, hidden_size=8192, intermediate_size=29568, num_layers=80, num_heads=64, num_kv_heads=8,
    eps=1e-5, theta=1_000_000.0, bias="qkv", window="switched", max_window_layers=80,
    sections=Sections((16, 24, 24), False),
)  # fmt: skip
_QWEN3 = _Kind(
    vocab_size=151936, hidden_size=4096, intermediate_size=22016, num_layers=32, num_heads=32, num_kv_heads=32,
    head_dim=128, bias="key", has_qk_norm=True, window="switched",
)  # fmt: skip
_KINDS = {
    "llama": _Kind(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_layers=32, num_heads=32,
        max_positions=2048, bias="key",
    ),
    "internlm2": _Kind(  # a Llama; its tensors have other names
        vocab_size=103168, hidden_size=4096, intermediate_size=11008, num_layers=32, num_heads=32,
        max_positions=2048,
    ),
    "mistral": _Kind(
        vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32, num_kv_heads=8,
        max_positions=131072, window="all",
    ),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2_VL,
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _Kind(
        vocab_size=151936, hidden_size=4096, intermediate_size=22016, num_layers=32, num_heads=32, num_kv_heads=32,
        head_dim=128, max_positions=128000, theta=500_000.0, bias="key", has_qk_norm=True,
        sections=Sections((24, 20, 20), True),
    ),
    "qwen3_moe": _Kind(
        vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_layers=24, num_heads=32, num_kv_heads=4,
        bias="key", has_qk_norm=True, window="switched-all", num_experts=128, num_chosen=8, expert_width=768,
    ),
    "qwen3_vl_moe_text": _Kind(
        vocab_size=151936, hidden_size=2048, intermediate_size=5632, num_layers=24, num_heads=16, num_kv_heads=16,
        max_positions=128000, theta=500_000.0, bias="key", has_qk_norm=True, sections=Sections((24, 20, 20), True),
        num_experts=60, num_chosen=4, expert_width=1408, has_fused_experts=True,
    ),
    "gemma3_text": _Kind(
        vocab_size=262208, hidden_size=2304, intermediate_size=9216, num_layers=26, num_heads=8, num_kv_heads=4,
        head_dim=256, max_positions=131072, theta=1_000_000.0, activation="gelu_pytorch_tanh", bias="key",
        has_qk_norm=True, window="pattern", is_gemma=True,
    ),
}  # fmt: skip
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu_mul", "gelu_pytorch_tanh": "gelu_tanh_mul"}


def read_decoder(reader: ConfigReader, *, is_tied: bool, model_type: str | None = None) -> DecoderConfig:
    """A decoder from the flat or nested part of config.json; `model_type` is that of a part that names none."""
    named = reader.word("model_type", model_type)
    kind = _KINDS.get(named)
    if kind is None:
        known = ", ".join(sorted(_KINDS))
        raise CheckpointError(f"{reader.name}: model_type of the decoder is {named!r}, supported are {known}")
    width = reader.integer("hidden_size", kind.hidden_size)
    num_layers = reader.integer("num_hidden_layers", kind.num_layers)
    heads, kv_heads = _read_heads(reader, kind)
    head_dim = reader.integer("head_dim", kind.head_dim or width // heads)
    is_sliding = _read_sliding(reader, kind, num_layers)
    ropes = _read_ropes(reader, kind, head_dim)
    has_bias = kind.bias == "key" and reader.flag("attention_bias", False)
    _refuse_what_is_not_there(reader)
    return DecoderConfig(
        vocab_size=reader.integer("vocab_size", kind.vocab_size),
        hidden_size=width,
        intermediate_size=reader.integer("intermediate_size", kind.intermediate_size),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=reader.number("rms_norm_eps", kind.eps),
        max_position_embeddings=reader.integer("max_position_embeddings", kind.max_positions),
        is_tied=is_tied,
        has_qkv_bias=has_bias or kind.bias == "qkv",
        has_out_bias=has_bias,
        has_qk_norm=kind.has_qk_norm,
        activation=_read_activation(reader, kind),
        ropes=ropes,
        layer_ropes=tuple(len(ropes) - 1 if sliding else 0 for sliding in is_sliding),
        windows=_read_windows(reader, kind, is_sliding),
        is_gemma=kind.is_gemma,
        embed_scale=width**0.5 if kind.is_gemma else 1.0,
        query_scale=_read_query_scale(reader, kind, head_dim),
        experts=_read_experts(reader, kind, num_layers),
    )


def _read_heads(reader: ConfigReader, kind: _Kind) -> tuple[int, int]:
    heads = reader.integer("num_attention_heads", kind.num_heads)
    kv_heads = reader.integer("num_key_value_heads", kind.num_kv_heads or heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"{reader.name}: num_attention_heads is {heads}, must be a multiple of num_key_value_heads, {kv_heads}"
        )
    return heads, kv_heads


def _read_sliding(reader: ConfigReader, kind: _Kind, num_layers: int) -> tuple[bool, ...]:
    """Which layers are those of a sliding window."""
    first = 0
    if kind.window == "none":
        first = num_layers
    elif kind.window.startswith("switched") and not reader.flag("use_sliding_window", False):
        first = num_layers
        reader.ignore("layer_types", "max_window_layers")
    elif kind.window == "switched":
        first = reader.integer("max_window_layers", kind.max_window_layers, low=0)
    elif kind.window == "pattern":
        period = reader.integer("sliding_window_pattern", 6)
        if not reader.has("layer_types"):
            return tuple(bool((layer + 1) % period) for layer in range(num_layers))
    if kind.window in ("switched", "pattern") and reader.has("layer_types"):
        return _read_layer_types(reader, num_layers)
    return tuple(layer >= first for layer in range(num_layers))


def _read_layer_types(reader: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    types = reader.words("layer_types")
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown or len(types) != num_layers:
        what = f"names {', '.join(unknown)}" if unknown else f"names {len(types)} layers"
        raise CheckpointError(
            f"{reader.name}: layer_types {what}, must be full_attention or sliding_attention for each of"
            f" {num_layers} layers"
        )
    return tuple(name == "sliding_attention" for name in types)


def _read_windows(reader: ConfigReader, kind: _Kind, is_sliding: tuple[bool, ...]) -> tuple[int, ...]:
    reader.ignore("sliding_window")
    if kind.window == "none" or not any(is_sliding):
        return (0,) * len(is_sliding)
    window = 0 if reader.is_null("sliding_window") else reader.integer("sliding_window", kind.sliding_window)
    return tuple(window if sliding else 0 for sliding in is_sliding)


def _read_ropes(reader: ConfigReader, kind: _Kind, head_dim: int) -> tuple[Rope, ...]:
    """One for all layers; for a pattern of layers that of the full ones, then that of those with a window."""
    most = reader.integer("max_position_embeddings", kind.max_positions)
    theta = reader.number("rope_theta", kind.theta)
    rope = reader.section("rope_parameters" if reader.has("rope_parameters") else "rope_scaling")
    if kind.window != "pattern":
        return (read_rope(rope, theta, head_dim, most, kind.sections),)
    local = reader.number("rope_local_base_freq", 10_000.0)
    is_nested = rope.has("full_attention") or rope.has("sliding_attention")
    full = rope.section("full_attention") if is_nested else rope
    sliding = rope.section("sliding_attention") if is_nested else ConfigReader({}, rope.name)
    ropes = read_rope(full, theta, head_dim, most), read_rope(sliding, local, head_dim, most)
    rope.finish()
    return ropes


def _read_activation(reader: ConfigReader, kind: _Kind) -> Activation:
    key = "hidden_activation" if kind.is_gemma else "hidden_act"
    name = reader.word(key, kind.activation)
    if name not in _ACTIVATIONS:
        raise CheckpointError(
            f"{reader.name}: {key} is {name!r}, supported are {', '.join(_ACTIVATIONS)}; use another checkpoint"
        )
    return _ACTIVATIONS[name]


def _read_query_scale(reader: ConfigReader, kind: _Kind, head_dim: int) -> float:
    if not kind.is_gemma:
        return 1.0
    return (head_dim / reader.number("query_pre_attn_scalar", 256.0, above=0)) ** 0.5


def _read_experts(reader: ConfigReader, kind: _Kind, num_layers: int) -> ExpertsConfig | None:
    if not kind.num_experts:
        return None
    step = reader.integer("decoder_sparse_step", 1)
    dense = set(reader.integers("mlp_only_layers", ()))
    count = reader.integer("num_experts", reader.integer("num_local_experts", kind.num_experts))
    chosen = reader.integer("num_experts_per_tok", kind.num_chosen)
    if chosen > count:
        raise CheckpointError(
            f"{reader.name}: num_experts_per_tok is {chosen}, must be at most num_experts, {count}"
        )
    return ExpertsConfig(
        num_experts=count,
        num_chosen=chosen,
        intermediate_size=reader.integer("moe_intermediate_size", kind.expert_width),
        is_normalised=reader.flag("norm_topk_prob", False) or kind.has_fused_experts,
        layers=frozenset(
            layer for layer in range(num_layers) if layer not in dense and not (layer + 1) % step
        ),
        is_fused=kind.has_fused_experts,
    )


def _refuse_what_is_not_there(reader: ConfigReader) -> None:
    reader.only("mlp_bias", False)
    reader.only("rope_interleaved", False)
    reader.only("use_bidirectional_attention", False)
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if reader.has(key):
            raise CheckpointError(
                f"{reader.name}: {key} is set, scores that are capped are not supported; use another checkpoint"
            )
        reader.ignore(key)
