"""Media and their places in a prompt: how many there may be, and which goes where."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

from tapetum.core.chat import ChatInput, MediaPart, TextInput
from tapetum.core.config import MEDIA_LIMIT
from tapetum.core.errors import InvalidParameter, MediaTooLarge
from tapetum.core.media import MediaKind
from tapetum.text.template import MediaSlot
from tapetum.text.tokenizer import Tokenizer


def media_of(prompt: ChatInput | TextInput) -> tuple[MediaPart, ...]:
    if isinstance(prompt, TextInput):
        return prompt.media
    parts = (part for message in prompt.messages for part in message.content)
    return tuple(part for part in parts if isinstance(part, MediaPart))


def check_count(media: tuple[MediaPart, ...], limit: int | Mapping[MediaKind, int]) -> None:
    if isinstance(limit, int):
        counts = [(len(media), "pictures and clips", limit)]
    else:
        kinds = [part.kind for part in media]
        counts = [
            (kinds.count("image"), "pictures", limit.get("image", MEDIA_LIMIT)),
            (kinds.count("video"), "clips", limit.get("video", MEDIA_LIMIT)),
        ]
    for count, what, most in counts:
        if count > most:
            named = what if count > 1 else what.removesuffix("s")
            raise MediaTooLarge(
                f"prompt has {count} {named}, limit {most}; send fewer or raise --limit-mm-per-prompt"
            )


def split_ids(token_ids: tuple[int, ...], tokenizer: Tokenizer) -> list[tuple[int, ...] | MediaSlot]:
    """Segments of a prompt of token ids: a placeholder is a slot, as in text."""
    segments: list[tuple[int, ...] | MediaSlot] = []
    start = 0
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InvalidParameter(
                f"prompt holds the token {token_id}, tokens are integers from 0 to {tokenizer.vocab_size - 1}",
                param="prompt",
            )
        if token_id in tokenizer.media_tokens:
            segments += [token_ids[start:index], MediaSlot(tokenizer.media_tokens[token_id])]
            start = index + 1
    return [*segments, token_ids[start:]]


def bind(
    segments: list[tuple[int, ...] | MediaSlot],
    media: tuple[MediaPart, ...],
    written: Mapping[MediaKind, str],
) -> list[tuple[int, ...] | MediaPart]:
    """Give every slot the next media part of its kind; refuse when they do not come out even."""
    waiting: defaultdict[str, deque[MediaPart]] = defaultdict(deque)
    for part in media:
        waiting[part.kind].append(part)
    slots = [segment.kind for segment in segments if isinstance(segment, MediaSlot)]
    for kind, placeholder in written.items():
        if slots.count(kind) != len(waiting[kind]):
            raise InvalidParameter(
                f"prompt has {placeholder} {slots.count(kind)} times, and {len(waiting[kind])} {kind} parts came "
                "with it; write it once for each, or send chat messages, where the template writes it",
                param="prompt",
            )
    return [waiting[part.kind].popleft() if isinstance(part, MediaSlot) else part for part in segments]
