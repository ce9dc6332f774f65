"""What the front needs of a model besides its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tapetum.engine.defaults import GenerationDefaults
from tapetum.processing import load_processor
from tapetum.processing.base import Processor
from tapetum.text.template import ChatTemplate
from tapetum.text.tokenizer import Tokenizer


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
