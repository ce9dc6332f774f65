"""What users of LLM write, as prompts: strings, dicts with pictures, and OpenAI-style messages.

Owns the shapes that are taken and the messages about those that are not. What a part says besides its type and source
are options of its processing; the media layer refuses those it does not know. References here are the operator's own:
paths are not confined, and whatever the media layer can open is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath
from typing import Any, cast

from tapetum.core.chat import ChatInput, DocumentPart, MediaPart, Message, TextInput
from tapetum.core.checks import shown
from tapetum.core.errors import InvalidParameter
from tapetum.core.media import MediaKind, Reuse

_PROMPT_KEYS = ("prompt", "images", "videos", "mm_processor_kwargs", "reuse")
_DOCUMENT_FIELDS = ("mode", "max_pages", "pages", "page_text")
_TEXT_TYPES = ("text", "input_text")
_MEDIA_TYPES: dict[str, MediaKind] = {
    "image": "image",
    "image_url": "image",
    "video": "video",
    "video_url": "video",
}


def text_input(prompt: object) -> TextInput:
    """A string, or a dict of `prompt`, `images`, `videos`, `mm_processor_kwargs`, the options of all its media, and
    `reuse`."""
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
        raise InvalidParameter(f"prompt['prompt'] is {shown(text)}, must be a string", param="prompt")
    images = _listing("images", prompt.get("images"))
    videos = _listing("videos", prompt.get("videos"))
    options = prompt.get("mm_processor_kwargs")
    if options is not None and not isinstance(options, Mapping):
        raise InvalidParameter(
            f"mm_processor_kwargs is {shown(options)}, must be a dict such as {{'max_pixels': 50176}}",
            param="mm_processor_kwargs",
        )
    parts = [_part("image", source, options or {}) for source in images]
    parts += [_part("video", source, options or {}) for source in videos]
    return TextInput(prompt=text, media=tuple(parts), reuse=reuse_of(prompt.get("reuse")))


def reuse_of(given: object) -> Reuse:
    """What is to be reused though it is lossy: a dict of `near_duplicate` and `position_independent`, true or false."""
    wishes = {} if given is None else given
    known = [field.name for field in fields(Reuse)]
    if not isinstance(wishes, Mapping) or not all(
        name in known and isinstance(value, bool) for name, value in wishes.items()
    ):
        raise InvalidParameter(
            f"reuse is {shown(given)}, must be a dict of {_listed(known)}, each true or false", param="reuse"
        )
    return Reuse(**wishes)


def chat_input(messages: object, reuse: object = None) -> ChatInput:
    """A list of messages: dicts of `role` and `content`, a string or a list of parts."""
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise InvalidParameter(
            f"messages is a {type(messages).__name__}, must be a list of dicts with role and content",
            param="messages",
        )
    return ChatInput(messages=tuple(_message(message) for message in messages), reuse=reuse_of(reuse))


def is_conversation(messages: Sequence[object]) -> bool:
    """Whether this is one conversation, its entries being messages, rather than a list of conversations."""
    return not all(isinstance(entry, (list, tuple)) for entry in messages)


def _message(message: object) -> Message:
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(role, str):
        raise InvalidParameter(
            f"message is {shown(message)}, must be a dict with a string role and a content", param="messages"
        )
    content = message.get("content")
    if isinstance(content, str):
        return Message(role=role, content=(content,))
    if content is None:
        return Message(role=role, content=())
    if not isinstance(content, Sequence):
        raise InvalidParameter(
            f"content of a {role} message is {shown(content)}, must be a string or a list of parts",
            param="messages",
        )
    return Message(role=role, content=tuple(_content_part(part) for part in content))


def _content_part(part: object) -> str | MediaPart:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidParameter(f"part is {shown(part)}, must be a dict with a type", param="messages")
    kind = part.get("type")
    if kind in _TEXT_TYPES and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(kind, str) and kind in _MEDIA_TYPES and kind in part:
        return _media_part(kind, part)
    if kind == "file" and "file" in part:
        return _document_part(part)
    raise InvalidParameter(
        f"part of type {kind!r} with keys {_listed(part)} is not known; send "
        '{"type": "text", "text": ...}, {"type": "image", "image": ...}, '
        '{"type": "image_url", "image_url": {"url": ...}}, {"type": "video", "video": file or [frames]} or '
        '{"type": "file", "file": PDF document}',
        param="messages",
    )


def _media_part(name: str, part: Mapping[str, object]) -> MediaPart:
    source = part[name]
    options = {key: value for key, value in part.items() if key not in ("type", name)}
    if name in ("image_url", "video_url") and isinstance(source, Mapping):
        inner = {key: value for key, value in source.items() if key != "url"}
        source, options = source.get("url"), inner | options
    return _part(_MEDIA_TYPES[name], source, options)


def _document_part(part: Mapping[str, object]) -> DocumentPart:
    """Besides what OpenAI's part of that type has, the file itself: bytes, a path, a URL or an open file."""
    own = {name: value for name, value in part.items() if name in _DOCUMENT_FIELDS and value is not None}
    options = {name: part[name] for name in part if name not in ("type", "file", *_DOCUMENT_FIELDS)}
    source, name = part["file"], None
    if isinstance(source, Mapping):
        name = source.get("filename")
        source = source.get("file_data") or source.get("file_url")
    if isinstance(source, PurePath):
        name = source.name
    if isinstance(own.get("pages"), (list, tuple, range)):
        own["pages"] = tuple(cast("Sequence[object]", own["pages"]))
    return DocumentPart(
        source=source,
        name=name if isinstance(name, str) else None,
        options=options,
        is_trusted=True,
        **cast("dict[str, Any]", own),
    )


def _part(kind: MediaKind, source: object, options: Mapping[str, object]) -> MediaPart:
    return MediaPart(kind=kind, source=source, options=options, is_trusted=True)


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
