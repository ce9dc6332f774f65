"""Media and their places in a prompt: how many there may be, and which goes where."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import replace

from tapetum.core.chat import ChatInput, DocumentPart, MediaPart, Message, TextInput
from tapetum.core.config import MEDIA_LIMIT
from tapetum.core.errors import InvalidParameter, MediaTooLarge
from tapetum.core.media import MediaKind
from tapetum.engine.arrange import PromptRun
from tapetum.text.runs import MediaSlot, Run
from tapetum.text.tokenizer import Tokenizer

Content = tuple[str | MediaPart, ...]


def media_of(prompt: ChatInput | TextInput) -> tuple[MediaPart, ...]:
    if isinstance(prompt, TextInput):
        return prompt.media
    parts = (part for message in prompt.messages for part in message.content)
    return tuple(part for part in parts if isinstance(part, MediaPart))


def documents_of(prompt: ChatInput | TextInput) -> tuple[DocumentPart, ...]:
    return tuple(part for part in media_of(prompt) if isinstance(part, DocumentPart))


def check_kinds(media: tuple[MediaPart, ...], taken: Collection[MediaKind]) -> None:
    for kind, what in (("image", "pictures"), ("video", "clips")):
        count = sum(part.kind == kind for part in media)
        if count and kind not in taken:
            raise InvalidParameter(
                f"prompt has {count} {what if count > 1 else what.removesuffix('s')}, "
                f"this model takes no {what}; leave them out or serve a model that does"
            )


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


def check_ids(token_ids: tuple[int, ...], tokenizer: Tokenizer) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InvalidParameter(
                f"prompt holds the token {token_id}, tokens are integers from 0 to {tokenizer.vocab_size - 1}",
                param="prompt",
            )


def bind(runs: list[Run], media: tuple[MediaPart, ...], written: Mapping[MediaKind, str]) -> list[PromptRun]:
    """Give every slot the next media part of its kind; refuse when they do not come out even."""
    waiting: defaultdict[str, deque[MediaPart]] = defaultdict(deque)
    for part in media:
        waiting[part.kind].append(part)
    slots = [run.kind for run in runs if isinstance(run, MediaSlot)]
    for kind, mark in written.items():
        if slots.count(kind) != len(waiting[kind]):
            raise InvalidParameter(
                f"prompt has {mark} {slots.count(kind)} times, and {len(waiting[kind])} {kind} parts came "
                "with it; write it once for each, or send chat messages, where the template writes it",
                param="prompt",
            )
    return [waiting[run.kind].popleft() if isinstance(run, MediaSlot) else run for run in runs]


def with_contents(chat: ChatInput, contents: Mapping[int, Content]) -> ChatInput:
    """The same chat with something else in the place of parts, which are named by their identity."""
    messages = tuple(replace(message, content=_merged(message, contents)) for message in chat.messages)
    return replace(chat, messages=messages)


def _merged(message: Message, contents: Mapping[int, Content]) -> Content:
    """Neighbouring texts become one where something was put between them: many templates take a lone string only."""
    if not any(id(part) in contents for part in message.content):
        return message.content
    pieces: list[str | MediaPart] = []
    for part in message.content:
        for piece in contents.get(id(part), (part,)):
            if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
                pieces[-1] += piece
            else:
                pieces.append(piece)
    return tuple(pieces)
