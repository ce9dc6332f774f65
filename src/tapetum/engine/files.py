"""Where a model lives and what the front needs of it besides the weights."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tapetum.assets import MODEL_DIR
from tapetum.core.config import ModelConfig
from tapetum.core.errors import CheckpointError, ConfigError
from tapetum.engine.defaults import GenerationDefaults
from tapetum.processing import load_processor
from tapetum.processing.base import Processor
from tapetum.text.template import ChatTemplate
from tapetum.text.tokenizer import Tokenizer

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_PATTERNS = ("*.json", "*.jinja", "*.safetensors", "*.txt")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelFiles:
    """Everything read from a model's directory but its weights."""

    processor: Processor
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)

    @classmethod
    def load(cls, directory: Path) -> ModelFiles:
        processor = load_processor(directory)
        tokenizer = Tokenizer.load(directory, processor.slots)
        return cls(
            processor=processor,
            tokenizer=tokenizer,
            template=ChatTemplate.load(directory, tokenizer),
            defaults=GenerationDefaults.load(directory),
        )


def find_model(config: ModelConfig) -> Path:
    """The directory of a model: the bundled one, a path, or a hub id, which is downloaded or found in the cache."""
    if config.model is None:
        return MODEL_DIR
    directory = Path(config.model).expanduser()
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            raise CheckpointError(f"{directory} has no config.json; name the directory of a checkpoint")
        return directory
    if not _HUB_ID.fullmatch(config.model):
        raise ConfigError(
            f"model is {config.model!r}, neither a directory nor a hub id such as Qwen/Qwen2-VL-2B"
        )
    return _download(config.model, config.revision)


def _download(hub_id: str, revision: str | None) -> Path:
    # Imported here: a model on disk needs no hub and no network.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(_PATTERNS)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"model {hub_id!r} is neither a directory nor to be had from the hub: {error}; "
            "check its name, the network, and HF_TOKEN for a gated model"
        ) from error
