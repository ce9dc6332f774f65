"""A checkpoint of transformers as a GGUF file, as llama.cpp converts it: its names, its order of rows, its keys."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from tests.gguf_files import TOKENIZER, gguf, write_gguf

ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
}  # fmt: skip
_KEYS = {
    "num_hidden_layers": "block_count", "max_position_embeddings": "context_length", "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "head_dim": "attention.key_length", "sliding_window": "attention.sliding_window", "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
}  # fmt: skip


def convert(directory: Path, path: Path) -> Path:
    config = json.loads((directory / "config.json").read_text())
    config.setdefault("num_experts", config.get("num_local_experts"))
    kind = ARCHITECTURES[config["model_type"]]
    values = {f"{kind}.{ours}": config[key] for key, ours in _KEYS.items() if config.get(key) is not None}
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    values[f"{kind}.rope.freq_base"] = float(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        values[f"{kind}.rope.scaling.type"] = rope["rope_type"]
        values[f"{kind}.rope.scaling.factor"] = float(rope["factor"])
    if rope["rope_type"] == "yarn":
        values[f"{kind}.rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return write_gguf(path, values | TOKENIZER, _tensors(directory, config, kind), kind)


def _tensors(directory: Path, config: dict, kind: str) -> dict[str, tuple[NDArray[np.generic], str]]:
    architecture = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    stored = load_file(directory / "model.safetensors")
    tensors: dict[str, tuple[NDArray[np.generic], str]] = {}
    for name, tensor in _stacked(stored, config["num_experts"]).items():
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        if kind == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            key = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            tensor = permuted(tensor, config[key])
        if kind == "gemma3" and name.endswith("norm.weight"):
            tensor = tensor + 1
        tensors[theirs] = (tensor.float().numpy(), "F32")
    if config["rope_parameters"].get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = (_llama3_factors(config), "F32")
    return tensors


def permuted(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """As LlamaModel.permute of convert_hf_to_gguf.py."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape).contiguous()


def _stacked(tensors: dict[str, torch.Tensor], num_experts: int | None) -> dict[str, torch.Tensor]:
    """The experts of a layer side by side."""
    done = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for name in tensors:
        if ".experts.0." in name:
            parts = [
                tensors[name.replace(".experts.0.", f".experts.{index}.")]
                for index in range(num_experts or 0)
            ]
            done[name.replace(".experts.0.", ".experts.")] = torch.stack(parts)
    return done


def _llama3_factors(config: dict) -> NDArray[np.float32]:
    """As convert_hf_to_gguf.py writes rope_freqs."""
    rope, dim = config["rope_parameters"], config["head_dim"]
    frequencies = 1.0 / (rope["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope["original_max_position_embeddings"]
    factors = []
    for frequency in frequencies:
        length = 2 * torch.pi / frequency
        smooth = (context / length - low) / (high - low)
        if length < context / high:
            factors.append(1.0)
        elif length > context / low:
            factors.append(rope["factor"])
        else:
            factors.append(float(1 / ((1 - smooth) / rope["factor"] + smooth)))
    return np.array(factors, np.float32)
