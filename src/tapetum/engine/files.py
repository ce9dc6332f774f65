"""What the front needs of a model besides its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tapetum.core.errors import CheckpointError
from tapetum.core.media import MediaKind
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
        _check_placeholders(processor, tokenizer)
        return cls(
            processor=processor,
            tokenizer=tokenizer,
            template=ChatTemplate.load(directory, tokenizer, _marks(processor)),
            defaults=GenerationDefaults.load(directory),
        )


def _check_placeholders(processor: Processor, tokenizer: Tokenizer) -> None:
    for kind, token_id in processor.media_tokens.items():
        if not tokenizer.token_bytes(token_id):
            raise CheckpointError(
                f"tokenizer.json has no token {token_id}, the placeholder of {kind} items by config.json; "
                "take the tokenizer that goes with this checkpoint"
            )


def _marks(processor: Processor) -> dict[MediaKind, str]:
    """The slots that need nothing around them, so that they may stand in any text."""
    return {kind: slot for slot, kind in processor.slots.items() if isinstance(slot, str)}
