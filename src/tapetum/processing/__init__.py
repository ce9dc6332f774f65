"""One file a model family: header -> geometry and prompt layout, pixels -> uint8 patches. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tapetum.core.errors import CheckpointError
from tapetum.core.files import require_json
from tapetum.processing.base import Processor
from tapetum.processing.gemma3 import Gemma3Processor
from tapetum.processing.idefics import IdeficsProcessor
from tapetum.processing.internvl import InternVLProcessor
from tapetum.processing.llava import LlavaProcessor
from tapetum.processing.qwen_vl import QwenVLProcessor
from tapetum.processing.text import TextProcessor

_FAMILIES: Mapping[str, Callable[[Path, Mapping[str, object]], Processor]] = {
    "qwen2_vl": QwenVLProcessor.load,
    "qwen2_5_vl": QwenVLProcessor.load,
    "qwen3_vl": QwenVLProcessor.load,
    "qwen3_vl_moe": QwenVLProcessor.load,
    "idefics3": IdeficsProcessor.load,
    "smolvlm": IdeficsProcessor.load,
    "gemma3": Gemma3Processor.load,
    "internvl": InternVLProcessor.load,
    "internvl_chat": InternVLProcessor.load,
    "llava": LlavaProcessor.load,
    "llava_next": LlavaProcessor.load,
    "llava_onevision": LlavaProcessor.load,
    "llama": TextProcessor.load,
    "mistral": TextProcessor.load,
    "qwen2": TextProcessor.load,
    "qwen3": TextProcessor.load,
    "qwen3_moe": TextProcessor.load,
    "gemma3_text": TextProcessor.load,
}


def load_processor(directory: Path) -> Processor:
    """The processor of a checkpoint; its family is config.json's model_type."""
    config = require_json(directory / "config.json")
    family = _FAMILIES.get(str(config.get("model_type")))
    if family is None:
        known = ", ".join(_FAMILIES)
        raise CheckpointError(
            f"config.json in {directory} has model_type {config.get('model_type')!r}; supported are {known}"
        )
    return family(directory, config)
