"""What config.json and generation_config.json would say of a GGUF file, from its metadata.

Owns the keys of the architectures that are read, and what llama.cpp knows without a key: Gemma's pattern of windows,
Llama 3's rotary scaling, which is stored as the factors that come of it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tapetum.core.errors import CheckpointError
from tapetum.core.files import ConfigReader
from tapetum.models.gguf.reader import GGUFFile

MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma3": "gemma3_text",
}
_DTYPES = {"F32": "float32", "F16": "float16"}  # what matrices are stored as; of all others bfloat16 is made
_GEMMA_27B_LAYERS = 62
_LLAMA3_CONTEXT, _LLAMA3_LOW, _LLAMA3_HIGH = 8192, 1.0, 4.0  # the same in all of Llama 3.1 to 3.3


def read_config(file: GGUFFile) -> dict[str, object]:
    """The values of config.json."""
    reader = ConfigReader(file.metadata, str(file.path))
    kind = reader.word("general.architecture")
    if kind not in MODEL_TYPES:
        raise CheckpointError(
            f"{file.path}: general.architecture is {kind!r}, which is not read; read are {', '.join(MODEL_TYPES)}"
        )
    if reader.integer("split.count", 1) > 1:
        raise CheckpointError(
            f"{file.path} is one part of {reader.integer('split.count')}; join them with llama-gguf-split --merge"
        )
    values = _sizes(file, reader, f"{kind}.")
    if kind == "qwen3moe":
        values |= _experts(reader, f"{kind}.")
    if kind == "gemma3":
        values |= _gemma(reader, values)
    return {"model_type": MODEL_TYPES[kind], **values}


def read_generation(file: GGUFFile) -> dict[str, object]:
    """The values of generation_config.json: where an answer ends."""
    keys = ("eos", "eot", "eom")
    found = (file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys)
    return {"eos_token_id": sorted({token_id for token_id in found if isinstance(token_id, int)})}


def _sizes(file: GGUFFile, reader: ConfigReader, prefix: str) -> dict[str, object]:
    width, heads = (
        reader.integer(prefix + "embedding_length"),
        reader.integer(prefix + "attention.head_count"),
    )
    head_dim = reader.integer(
        prefix + "attention.key_length", reader.integer(prefix + "rope.dimension_count", width // heads)
    )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(
            f"{file.path} has no tensor token_embd.weight; only whole language models are read"
        )
    inner = reader.integer(prefix + "feed_forward_length", 0, low=0)
    return {
        "dtype": _DTYPES.get(embedding.kind.name, "bfloat16"),
        "vocab_size": embedding.shape[0],
        "hidden_size": width,
        "intermediate_size": inner or reader.integer(prefix + "expert_feed_forward_length"),
        "num_hidden_layers": reader.integer(prefix + "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.integer(prefix + "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": reader.number(prefix + "attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": reader.integer(prefix + "context_length"),
        "rope_theta": reader.number(prefix + "rope.freq_base", 10_000.0),
        **_rope_scaling(file, reader, prefix),
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }


def _rope_scaling(file: GGUFFile, reader: ConfigReader, prefix: str) -> dict[str, object]:
    if "rope_freqs.weight" in file.tensors:
        return {"rope_scaling": _llama3_scaling(file, reader.number(prefix + "rope.freq_base", 10_000.0))}
    kind = reader.word(prefix + "rope.scaling.type", "none")
    if kind == "none":
        return {}
    scaling: dict[str, object] = {"rope_type": kind, "factor": reader.number(prefix + "rope.scaling.factor")}
    if reader.has(prefix + "rope.scaling.original_context_length"):
        original = reader.integer(prefix + "rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = original
    return {"rope_scaling": scaling}


def _llama3_scaling(file: GGUFFile, theta: float) -> dict[str, object]:
    """The numbers that give the factors in the file."""
    factors = file.blocks("rope_freqs.weight").view("<f4")
    factor = float(factors.max())
    if not np.allclose(factors, _llama3_factors(len(factors), theta, factor), rtol=1e-3):
        raise CheckpointError(
            f"{file.path}: tensor rope_freqs.weight is no rotary scaling of Llama 3; take the checkpoint in safetensors"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }


def _llama3_factors(count: int, theta: float, factor: float) -> NDArray[np.float64]:
    """What each frequency is divided by: nothing where it is high, `factor` where it is low, smoothly between."""
    turns = _LLAMA3_CONTEXT / (2 * math.pi) * theta ** -(np.arange(count) / count)  # in the first context
    share = np.clip((turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW), 0, 1)
    result: NDArray[np.float64] = 1 / ((1 - share) / factor + share)
    return result


def _experts(reader: ConfigReader, prefix: str) -> dict[str, object]:
    return {
        "num_experts": reader.integer(prefix + "expert_count"),
        "num_experts_per_tok": reader.integer(prefix + "expert_used_count"),
        "moe_intermediate_size": reader.integer(prefix + "expert_feed_forward_length"),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _gemma(reader: ConfigReader, values: dict[str, object]) -> dict[str, object]:
    layers, head_dim = reader.integer("gemma3.block_count"), values["head_dim"]
    width, heads = reader.integer("gemma3.embedding_length"), reader.integer("gemma3.attention.head_count")
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width // heads if layers == _GEMMA_27B_LAYERS else head_dim,
        "sliding_window": reader.integer("gemma3.attention.sliding_window"),
        "layer_types": [
            "full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(layers)
        ],
        "rope_theta": reader.number("gemma3.rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": 10_000.0,
    }
