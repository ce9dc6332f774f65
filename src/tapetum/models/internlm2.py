"""InternLM2 (2024): a Llama whose tensors have other names, and one of them another order.

`wqkv` holds the queries, the key and the value of one key head after the other.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tapetum.models.decoder_config import DecoderConfig
from tapetum.models.weights import Slot

_NAMES = {
    "model.embed_tokens.": "model.tok_embeddings.",
    "lm_head.": "output.",
    "self_attn.q_proj.": "attention.wqkv.",
    "self_attn.o_proj.": "attention.wo.",
    "self_attn.rotary_emb.": "attention.rotary_emb.",
    "mlp.gate_proj.": "feed_forward.w1.",
    "mlp.up_proj.": "feed_forward.w3.",
    "mlp.down_proj.": "feed_forward.w2.",
    "input_layernorm.": "attention_norm.",
    "post_attention_layernorm.": "ffn_norm.",
}


def internlm2_slots(slots: tuple[Slot, ...], decoder: DecoderConfig) -> tuple[Slot, ...]:
    """The slots of a Llama as the checkpoint of an InternLM2 fills them."""
    split = partial(_split_groups, decoder.num_heads // decoder.num_kv_heads, decoder.head_dim)
    return tuple(
        replace(slot, sources=(internlm2_name(slot.sources[0]),), convert=split)
        if ".self_attn.q_proj." in slot.sources[0]
        else replace(slot, sources=tuple(map(internlm2_name, slot.sources)))
        for slot in slots
    )


def internlm2_name(name: str) -> str:
    """What a tensor of a Llama is called."""
    for theirs, internlm2 in _NAMES.items():
        name = name.replace(theirs, internlm2)
    return name


def _split_groups(num_queries: int, head_dim: int, parts: list[Tensor]) -> Tensor:
    """[key heads * (queries of each + 2) * D, ...] -> all queries, all keys, all values."""
    fused = parts[0]
    if len(fused) % ((num_queries + 2) * head_dim):
        return fused  # whose shape is refused
    groups = fused.unflatten(0, (-1, num_queries + 2, head_dim))
    shares = groups.split((num_queries, 1, 1), 1)
    return torch.cat([share.flatten(0, 2) for share in shares])
