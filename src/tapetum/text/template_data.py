"""What a chat template sees of a chat: plain data, in which every word of a client is hidden (guard).

Owns the shape that templates of the Hugging Face hub read: a lone string as a string, unless the template reads parts
alone, media without pixels, the arguments of calls parsed, no keys for what was not said. To a template that reads
strings alone a turn is one, if there are marks for media, each of which stands on a line of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from tapetum.core.chat import MediaPart, Message, ToolCall
from tapetum.core.media import MediaKind
from tapetum.text.abilities import Content
from tapetum.text.guard import Disguise
from tapetum.text.tools import read_arguments

_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function", "ipython", "observation"))
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")  # what templates call it


def message_data(
    message: Message,
    disguise: Disguise,
    place: str,
    *,
    content: Content,
    marks: Mapping[MediaKind, str] | None = None,
) -> dict[str, object]:
    """One turn for a template that reads such `content`. `place` names it in errors."""
    role = message.role if message.role in _ROLES else disguise.hide_text(message.role)
    data: dict[str, object] = {"role": role}
    if content == "string" and marks:
        data["content"] = _string(message, disguise, marks)
    else:
        data["content"] = _parts(message, disguise, is_list=content == "parts")
    if message.tool_calls:
        data["tool_calls"] = [
            _call_data(call, disguise, f"{place}.tool_calls[{index}]")
            for index, call in enumerate(message.tool_calls)
        ]
    for key, value in (("tool_call_id", message.tool_call_id), ("name", message.name)):
        if value is not None:
            data[key] = disguise.hide_text(value)
    if message.reasoning is not None:
        data |= dict.fromkeys(_REASONING_KEYS, disguise.hide_text(message.reasoning))
    return data


def append_text(message: dict[str, object], mark: str) -> str | None:
    """Write `mark` behind the last text of a turn. Its text without it, or None where there is no text."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + mark
        return content
    parts = content if isinstance(content, list) else []
    for part in reversed(parts):
        if "text" in part:
            text = str(part["text"])
            part["text"] = text + mark
            return text
    return None


def _string(message: Message, disguise: Disguise, marks: Mapping[MediaKind, str]) -> str:
    return "".join(
        f"{marks.get(part.kind, '')}\n" if isinstance(part, MediaPart) else disguise.hide_text(part)
        for part in message.content
    )


def _parts(message: Message, disguise: Disguise, *, is_list: bool) -> object:
    """`is_list`: a lone string is a part too."""
    parts = [
        {"type": part.kind}
        if isinstance(part, MediaPart)
        else {"type": "text", "text": disguise.hide_text(part)}
        for part in message.content
    ]
    if not parts:
        return ""
    is_lone = len(parts) == 1 and "text" in parts[0] and not is_list
    return parts[0]["text"] if is_lone else parts


def _call_data(call: ToolCall, disguise: Disguise, place: str) -> dict[str, object]:
    arguments = read_arguments(call.arguments, f"{place}.function.arguments")
    function = {"name": disguise.hide_text(call.name), "arguments": disguise.hide(arguments)}
    return {"id": disguise.hide_text(call.id), "type": "function", "function": function}
