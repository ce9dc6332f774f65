"""A prompt between its text and its tokens: plain text, special tokens, and the places of media.

Text stays text until it is known what the media beside it write into the prompt, for a tokenizer may merge across the
seam.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tapetum.core.media import MediaKind
from tapetum.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class MediaSlot:
    """The place of the next picture or clip."""

    kind: MediaKind


Run = str | int | MediaSlot


def split_runs(tokenizer: Tokenizer, text: str, reveal: Callable[[str], str] = str) -> list[Run]:
    """Runs of a prompt whose special tokens count; `reveal` gives what a stretch of plain text says."""
    return [
        reveal(piece) if isinstance(piece, str) else _slot_or_token(piece, tokenizer)
        for piece in tokenizer.split(text)
    ]


def split_ids(token_ids: Sequence[int], tokenizer: Tokenizer) -> list[Run]:
    """Runs of a prompt of tokens: a placeholder is a slot, as in text."""
    return [_slot_or_token(token_id, tokenizer) for token_id in token_ids]


def _slot_or_token(token_id: int, tokenizer: Tokenizer) -> int | MediaSlot:
    kind = tokenizer.slots.get(token_id)
    return token_id if kind is None else MediaSlot(kind)
