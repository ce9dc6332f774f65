"""What a client says: messages of text and media, before any template or decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tapetum.core.media import MediaKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MediaPart:
    """A reference to one picture or clip.

    source: bytes of a file, a path, a `data:` or `file:` URL, a PIL picture or a uint8 array [H, W, 3]; for a clip
    a sequence of such, one per frame in order. options: processor options such as min_pixels, max_pixels, fps.
    """

    kind: MediaKind
    source: object
    options: Mapping[str, object] = field(default_factory=dict)
    is_trusted: bool = False  # the operator's own reference (offline use): paths are not confined to a root


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """One turn: strings and media in the order in which the model sees them."""

    role: str
    content: tuple[str | MediaPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChatInput:
    """Messages that go through the model's chat template."""

    messages: tuple[Message, ...]
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextInput:
    """A prompt the caller wrote whole: special tokens in it count, each placeholder takes the next media part."""

    prompt: str
    media: tuple[MediaPart, ...] = ()
