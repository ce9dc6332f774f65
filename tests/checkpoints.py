"""Small random checkpoints of each family, written by transformers, with the bundled tokenizer and template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from tapetum.assets import MODEL_DIR
from tests.families.kit import randomise

FAMILIES = ("qwen2_vl", "qwen2_5_vl")
COPIED = (
    "tokenizer.json tokenizer_config.json chat_template.jinja chat_template.json preprocessor_config.json"
    " video_preprocessor_config.json vocab.json merges.txt generation_config.json"
)


def write_checkpoint(
    directory: Path,
    family: str,
    *,
    seed: int = 0,
    is_tied: bool = False,
    shard: str = "5GB",
    max_pixels: int = 62_720,
) -> Path:
    """A random model of `family` whose greedy text is not one token repeated; returns the directory."""
    model_class, config = _make_config(family, is_tied)
    model = model_class(config).eval()
    randomise(model, seed)
    model.save_pretrained(directory, max_shard_size=shard)
    for name in COPIED.split():
        shutil.copy(MODEL_DIR / name, directory / name)
    _edit(directory / "preprocessor_config.json", max_pixels)
    _edit(directory / "video_preprocessor_config.json", max_pixels)
    return directory


def load_oracle(directory: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """The same checkpoint in transformers."""
    family = json.loads((directory / "config.json").read_text())["model_type"]
    model_class = (
        Qwen2VLForConditionalGeneration if family == "qwen2_vl" else Qwen2_5_VLForConditionalGeneration
    )
    return model_class.from_pretrained(directory, dtype=dtype).eval()


def _make_config(family: str, is_tied: bool):
    own = json.loads((MODEL_DIR / "config.json").read_text())
    ids = {
        key: own[key]
        for key in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    }
    text = {
        "vocab_size": own["vocab_size"],
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
        "bos_token_id": own["bos_token_id"],
        "eos_token_id": own["eos_token_id"],
        "pad_token_id": own["pad_token_id"],
        "tie_word_embeddings": is_tied,
    }
    if family == "qwen2_vl":
        vision = {"depth": 2, "embed_dim": 64, "num_heads": 2, "hidden_size": 128, "mlp_ratio": 2}
        config = Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=is_tied, **ids)
        return Qwen2VLForConditionalGeneration, config
    vision = {
        "depth": 3,
        "hidden_size": 64,
        "num_heads": 2,
        "intermediate_size": 96,
        "out_hidden_size": 128,
        "fullatt_block_indexes": [1],
        "window_size": 112,
    }
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=is_tied, **ids)
    return Qwen2_5_VLForConditionalGeneration, config


def _edit(path: Path, max_pixels: int) -> None:
    values = json.loads(path.read_text())
    values["max_pixels"] = max_pixels
    values["size"]["longest_edge"] = max_pixels
    path.write_text(json.dumps(values))
