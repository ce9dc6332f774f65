"""The Qwen2 decoder with M-RoPE, trained on many packed branches at once.

Besides the hidden states it returns what guided attention needs (Trace). B sequences, S positions, D head width,
K kv heads, G query heads to one kv head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.network.attention import attend, rotate
from training.network.config import NetworkConfig

EARLY, LATE = 2, 4  # the trainer looks at the states before these layers
# Layers whose attention is guided: where a word is printed, where the answer stands, where its next token stands.
MATCH_LAYER, FIELD_LAYER, ANSWER_LAYER = 1, 3, LATE


@dataclass(frozen=True, slots=True)
class Watch:
    """Attention to report: in sequence b, from position query to position key. `every` skips kv heads.

    Entries of one group are looked at together: how they share the attention is free.
    """

    b: Tensor
    query: Tensor
    key: Tensor
    group: Tensor
    weights: Tensor  # of the groups
    every: int = 1


@dataclass(slots=True)
class Trace:
    """States [B, S, hidden] before the layers EARLY, FIELD_LAYER and LATE; attention [watched, heads] by layer."""

    early: Tensor
    middle: Tensor
    late: Tensor
    watched: dict[int, Tensor] = field(default_factory=dict)


class RMSNorm(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.hidden_size))
        self.eps = config.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, config.value_size)
        self.v_proj = nn.Linear(config.hidden_size, config.value_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """[B, S, hidden] before o_proj, and the probabilities [B, K, G, S, S]."""
        B, S, _ = x.shape
        H, K, D = self.config.num_heads, self.config.num_kv_heads, self.config.head_size
        weight = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))
        qkv = F.linear(x, weight, torch.cat((self.q_proj.bias, self.k_proj.bias, self.v_proj.bias)))
        qkv = qkv.view(B, S, H + 2 * K, D).transpose(1, 2)
        qk = rotate(qkv[:, : H + K], cos, sin)
        # The queries of a kv head stand one after another in the sequence: keys and values need no copies.
        q = qk[:, :H].reshape(B * K, H // K * S, D)
        k, v = qk[:, H:].reshape(B * K, S, D), qkv[:, H + K :].reshape(B * K, S, D)
        out, probabilities = attend(q, k, v, bias)
        out = out.view(B, H, S, D).transpose(1, 2).reshape(B, S, H * D)
        return out, probabilities.view(B, K, H // K, S, S)


class FeedForward(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = RMSNorm(config)
        self.post_attention_layernorm = RMSNorm(config)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`rows` (numbers in B * S) keeps only these positions, for the last layer."""
        out, probabilities = self.self_attn(self.input_layernorm(x), cos, sin, bias)
        if rows is not None:
            out, x = out.flatten(0, 1)[rows], x.flatten(0, 1)[rows]
        x = x + self.self_attn.o_proj(out)
        return x + self.mlp(self.post_attention_layernorm(x)), probabilities


class Decoder(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config)

    def forward(
        self, x: Tensor, position_ids: Tensor, bias: Tensor, watch: Mapping[int, Watch], rows: Tensor
    ) -> tuple[Tensor, Trace]:
        """Embeddings [B, S, hidden], positions [3, B, S], bias [B, S, S] -> normed states [rows, hidden]."""
        cos, sin = self._angles(position_ids, x.dtype)
        bias = self._bias_of_heads(bias)
        trace = Trace(early=x, middle=x, late=x)
        for number, layer in enumerate(self.layers):
            if number == EARLY:
                trace.early = x
            if number == FIELD_LAYER:
                trace.middle = x
            if number == LATE:
                trace.late = x
            is_last = number == len(self.layers) - 1
            x, probabilities = layer(x, cos, sin, bias, rows if is_last else None)
            if number in watch:
                trace.watched[number] = _watched(probabilities, watch[number])
        return self.norm(x), trace

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.embed_tokens.weight)

    def values(self, number: int, x: Tensor) -> Tensor:
        """What a layer stores as values of the states before it: [..., K * D]."""
        layer = self.layers[number]
        assert isinstance(layer, Layer)
        return layer.self_attn.v_proj(layer.input_layernorm(x))

    def _angles(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """[B, 1, S, D / 2]; each frequency follows the axis that the M-RoPE sections give it."""
        half = self.config.head_size // 2
        frequencies = self.config.rope_theta ** (-torch.arange(half).float() / half)
        axes = torch.cat([torch.full((n,), axis) for axis, n in enumerate(self.config.mrope_section)])
        angles = position_ids.float()[axes].permute(1, 2, 0) * frequencies
        return angles.cos().to(dtype)[:, None], angles.sin().to(dtype)[:, None]

    def _bias_of_heads(self, bias: Tensor) -> Tensor:
        """[B, S, S] -> [B * K, G * S, S]"""
        B, S, _ = bias.shape
        K = self.config.num_kv_heads
        G = self.config.num_heads // K
        return bias[:, None, None].expand(B, K, G, S, S).reshape(B * K, G * S, S)


def _watched(probabilities: Tensor, watch: Watch) -> Tensor:
    """Of each kv head's first query head."""
    return probabilities[watch.b, :, 0, watch.query, watch.key][:, :: watch.every]
