"""Names of published checkpoints for the tensors of a GGUF file, and how llama.cpp stores what it changes.

It reorders the rows of Llama's queries and keys for its own rotary code, adds one to Gemma's norms, and stacks the
experts of a layer. Source: convert_hf_to_gguf.py and tensor_mapping.py of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tapetum.core.errors import CheckpointError
from tapetum.models.gguf.reader import GGUFFile

Change = Literal["none", "rows in halves", "less one"]

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_GEMMA_PARTS = _PARTS | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERT_PARTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_USED_ELSEWHERE = ("rope_freqs.weight",)  # config.py reads it


@dataclass(frozen=True, slots=True)
class Home:
    """Where a tensor of a published checkpoint is in the file."""

    name: str  # in the file
    expert: int | None = None  # which of the stacked ones; None = all of it
    change: Change = "none"  # what undoes what llama.cpp did
    num_heads: int = 0  # of a tensor whose rows are in halves


def find_homes(file: GGUFFile) -> Mapping[str, Home]:
    """Every tensor of the file by its published names."""
    homes: dict[str, Home] = {}
    for name in file.tensors:
        if name not in _USED_ELSEWHERE:
            homes.update(_homes_of(file, name))
    return homes


def _homes_of(file: GGUFFile, name: str) -> dict[str, Home]:
    kind = str(file.metadata["general.architecture"])
    if name in _TOP:
        return {_TOP[name]: Home(name, change=_change(kind, name))}
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    layer, part, what = found.groups() if found else ("", "", "")
    if part in _EXPERT_PARTS and kind == "qwen3moe":
        theirs = f"model.layers.{layer}.mlp.experts.{{}}.{_EXPERT_PARTS[part]}.{what}"
        return {theirs.format(expert): Home(name, expert) for expert in range(file.tensors[name].shape[0])}
    parts = _GEMMA_PARTS if kind == "gemma3" else _PARTS
    if part not in parts:
        raise CheckpointError(f"{file.path} has a tensor {name}, which no {kind} is known to have")
    change = _change(kind, part)
    heads = 0
    if change == "rows in halves":
        heads = _num_heads(file, "head_count" if part == "attn_q" else "head_count_kv")
    return {f"model.layers.{layer}.{parts[part]}.{what}": Home(name, None, change, heads)}


def _change(kind: str, part: str) -> Change:
    if kind == "llama" and part in ("attn_q", "attn_k"):
        return "rows in halves"
    return "less one" if kind == "gemma3" and "norm" in part else "none"


def _num_heads(file: GGUFFile, key: str) -> int:
    found = file.metadata.get(f"llama.attention.{key}", file.metadata.get("llama.attention.head_count"))
    if not isinstance(found, int) or found < 1:
        raise CheckpointError(
            f"{file.path}: llama.attention.{key} is {found!r}, must be an integer of at least 1"
        )
    return found
