"""What a client says: messages of text and media, before any template or decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tapetum.core.media import EXACT, MediaKind, Reuse


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MediaPart:
    """A reference to one picture or clip.

    source: bytes of a file, a path, a `data:` or `file:` URL, a PIL picture or a uint8 array [H, W, 3]; for a clip
    a file of a video, or a sequence of pictures, one per frame in order. options: what `ProcessorOptions` knows, such
    as min_pixels, max_pixels, max_visual_tokens, detail, fps.
    """

    kind: MediaKind
    source: object
    options: Mapping[str, object] = field(default_factory=dict)
    is_trusted: bool = False  # the operator's own reference (offline use): paths are not confined to a root


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a function that the model made in an earlier turn."""

    id: str
    name: str
    arguments: str  # JSON text of an object


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Message:
    """One turn: strings and media in the order in which the model sees them."""

    role: str
    content: tuple[str | MediaPart, ...]
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant turn
    tool_call_id: str | None = None  # of a tool turn: which call it answers
    name: str | None = None
    reasoning: str | None = None  # of an assistant turn: what it thought before it spoke


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChatInput:
    """Messages that go through the model's chat template."""

    messages: tuple[Message, ...]
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False  # the answer goes on where the last message ends
    tools: tuple[Mapping[str, object], ...] = ()  # {"type": "function", "function": {...}} as in OpenAI's API
    max_visual_tokens: int | None = None  # of all media together, shared out by their areas
    reuse: Reuse = EXACT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextInput:
    """A prompt the caller wrote whole: special tokens in it count, each placeholder takes the next media part."""

    prompt: str | tuple[int, ...]  # text, or token ids
    media: tuple[MediaPart, ...] = ()
    max_visual_tokens: int | None = None
    reuse: Reuse = EXACT
