"""Which module loads which model_type; a literal table, nothing registers itself."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import torch

from tapetum.core.errors import CheckpointError
from tapetum.core.files import require_json
from tapetum.models.base import VisionLanguageModel
from tapetum.models.composed import Blueprint, compose
from tapetum.ops.table import OpTable

FAMILIES = {
    "qwen2_vl": "tapetum.models.qwen_vl.model",
    "qwen2_5_vl": "tapetum.models.qwen_vl.model",
    "qwen3_vl": "tapetum.models.qwen_vl.model",
    "qwen3_vl_moe": "tapetum.models.qwen_vl.model",
    "idefics3": "tapetum.models.idefics.model",
    "smolvlm": "tapetum.models.idefics.model",
    "gemma3": "tapetum.models.gemma3.model",
    "internvl": "tapetum.models.internvl.model",
    "internvl_chat": "tapetum.models.internvl.model",
    "llava": "tapetum.models.llava.model",
    "llava_next": "tapetum.models.llava.model",
    "llava_onevision": "tapetum.models.llava.model",
    "llama": "tapetum.models.text.model",
    "mistral": "tapetum.models.text.model",
    "qwen2": "tapetum.models.text.model",
    "qwen3": "tapetum.models.text.model",
    "qwen3_moe": "tapetum.models.text.model",
    "gemma3_text": "tapetum.models.text.model",
}


def load_model(
    directory: Path, dtype: torch.dtype, device: torch.device, ops: OpTable, pack_folder: Path | None = None
) -> VisionLanguageModel:
    """The model of a checkpoint directory. Weights that `ops` packs are kept in `pack_folder` for the next start."""
    return compose(directory, read_blueprint(directory), dtype, device, ops, pack_folder)


def read_blueprint(directory: Path) -> Blueprint:
    """What the family of a checkpoint makes of its files; no weight is read."""
    config = require_json(directory / "config.json")
    _refuse_quantised(config)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise CheckpointError(
            f"config.json in {directory} has model_type {model_type!r}; supported are {known}"
        )
    blueprint: Blueprint = import_module(FAMILIES[model_type]).read(directory)
    return blueprint


def _refuse_quantised(config: Mapping[str, object]) -> None:
    text = config.get("text_config")
    for values in (config, text if isinstance(text, dict) else {}):
        found = values.get("quantization_config") or values.get("compression_config")
        if found:
            method = found.get("quant_method", "no name") if isinstance(found, dict) else found
            raise CheckpointError(
                f"config.json has a quantization_config of {method!r}; quantised safetensors are not read, take the "
                "checkpoint that is not quantised, or a GGUF file of it"
            )
