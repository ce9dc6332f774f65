"""What users of LLM write, as prompts: strings, dicts with pictures, and OpenAI-style messages.

Owns the shapes that are taken and the messages about those that are not. References here are the operator's own:
paths are not confined, and whatever the media layer can open is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tapetum.core.chat import ChatInput, MediaPart, Message, TextInput
from tapetum.core.errors import InvalidParameter
from tapetum.core.media import MediaKind

_PROMPT_KEYS = ("prompt", "images", "videos")
_TEXT_TYPES = ("text", "input_text")


def text_input(prompt: object) -> TextInput:
    """A string, or a dict of `prompt`, `images` and `videos`."""
    if isinstance(prompt, str):
        return TextInput(prompt=prompt)
    if not isinstance(prompt, Mapping):
        raise InvalidParameter(
            f"prompt is a {type(prompt).__name__}, must be a string or a dict with {_listed(_PROMPT_KEYS)}",
            param="prompt",
        )
    if unknown := sorted(map(str, set(prompt) - set(_PROMPT_KEYS))):
        raise InvalidParameter(
            f"prompt has the key {unknown[0]!r}; known are {_listed(_PROMPT_KEYS)}", param="prompt"
        )
    text = prompt.get("prompt")
    if not isinstance(text, str):
        raise InvalidParameter(f"prompt['prompt'] is {text!r}, must be a string", param="prompt")
    images = _listing("images", prompt.get("images"))
    videos = _listing("videos", prompt.get("videos"))
    parts = [_part("image", source) for source in images] + [_part("video", source) for source in videos]
    return TextInput(prompt=text, media=tuple(parts))


def chat_input(messages: object) -> ChatInput:
    """A list of messages: dicts of `role` and `content`, a string or a list of parts."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise InvalidParameter(
            f"messages is a {type(messages).__name__}, must be a list of dicts with role and content",
            param="messages",
        )
    return ChatInput(messages=tuple(_message(message) for message in messages))


def is_conversation(messages: Sequence[object]) -> bool:
    """Whether this is one conversation, its entries being messages, rather than a list of conversations."""
    return not all(isinstance(entry, (list, tuple)) for entry in messages)


def _message(message: object) -> Message:
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(role, str):
        raise InvalidParameter(
            f"message is {_shown(message)}, must be a dict with a string role and a content", param="messages"
        )
    content = message.get("content")
    if isinstance(content, str):
        return Message(role=role, content=(content,))
    if content is None:
        return Message(role=role, content=())
    if not isinstance(content, Sequence):
        raise InvalidParameter(
            f"content of a {role} message is {_shown(content)}, must be a string or a list of parts",
            param="messages",
        )
    return Message(role=role, content=tuple(_content_part(part) for part in content))


def _content_part(part: object) -> str | MediaPart:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidParameter(f"part is {_shown(part)}, must be a dict with a type", param="messages")
    kind = part.get("type")
    if kind in _TEXT_TYPES and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "image" and "image" in part:
        return _part("image", part["image"])
    if kind == "image_url" and "image_url" in part:
        reference = part["image_url"]
        return _part("image", reference.get("url") if isinstance(reference, Mapping) else reference)
    if kind == "video" and "video" in part:
        return _part("video", part["video"])
    raise InvalidParameter(
        f"part of type {kind!r} with keys {_listed(part)} is not known; send "
        '{"type": "text", "text": ...}, {"type": "image", "image": ...}, '
        '{"type": "image_url", "image_url": {"url": ...}} or {"type": "video", "video": [frames]}',
        param="messages",
    )


def _part(kind: MediaKind, source: object) -> MediaPart:
    return MediaPart(kind=kind, source=source, is_trusted=True)


def _listing(name: str, value: object) -> Sequence[object]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise InvalidParameter(
            f"prompt[{name!r}] is a {type(value).__name__}, must be a list; write [it] for one", param=name
        )
    return value


def _listed(names: object) -> str:
    return ", ".join(map(str, names))  # type: ignore[call-overload]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
