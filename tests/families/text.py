"""Decoders alone: Llama, Mistral, Qwen2, Qwen3, its mixture of experts, and Gemma 3, each with what it alone has.

Windows are shorter than most prompts, and positions are stretched from an original length that prompts go beyond.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tapetum.assets import MODEL_DIR
from tests.families.kit import Family, Inputs, Messages, Oracle, counted, randomise, user, words
from tests.mini import VOCAB_SIZE

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
STRETCHED = {"factor": 8.0, "original_max_position_embeddings": 32}
OWN: dict[str, dict[str, object]] = {
    "llama": {
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            **STRETCHED,
        },
    },
    "mistral": {"head_dim": 24, "sliding_window": 20, "num_key_value_heads": 1},
    "qwen2": {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    "qwen3": {
        "head_dim": 32,
        "attention_bias": True,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, **STRETCHED},
    },
    "qwen3_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "gemma3_text": {
        "head_dim": 32,
        "sliding_window": 24,
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
}


def family(name: str) -> Family:
    return Family(
        name=name,
        write=lambda directory, seed: write_checkpoint(directory, name, seed),
        oracle=oracle,
        conversations=conversations,
    )


def conversations() -> list[Messages]:
    counts = (1, 2, 3, 5, 9, 14, 20, 30, 45, 70)
    turns = [user(words(20, 9)), {"role": "assistant", "content": "Athens"}, user(words(21, 30))]
    system = {"role": "system", "content": "Answer briefly."}
    return [*([user(words(seed, count))] for seed, count in enumerate(counts)), turns, [system, *turns]]


def write_checkpoint(directory: Path, name: str, seed: int, **own: object) -> Path:
    """A small random model of a model_type, with the bundled tokenizer and template; `own` keys go before ours."""
    config = AutoConfig.for_model(name, **{**SIZES, **OWN[name], **own})
    model = AutoModelForCausalLM.from_config(config).eval()
    randomise(model, seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 3:  # experts, side by side
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            if name == "gemma3_text" and "norm" in parameter_name:  # layers that outweigh the tied embedding
                parameter.add_(2.0 if "post_" in parameter_name else -1.0)
    model.save_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    tokenizer.save_pretrained(directory)
    return directory


def oracle(directory: Path, dtype: torch.dtype = torch.float32) -> Oracle:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    return Oracle(model=model, tokenizer=tokenizer, read=partial(read, tokenizer), mean=(), std=())


def read(tokenizer, messages: Messages) -> Inputs:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    encoded = tokenizer(text, return_tensors="pt")
    arguments = {key: encoded[key] for key in ("input_ids", "attention_mask")}
    return Inputs(arguments=arguments, position_ids=counted(arguments["input_ids"]))
