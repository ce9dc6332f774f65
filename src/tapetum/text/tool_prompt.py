"""Tools for templates that know none: the tool list, calls and results as text of ordinary turns.

Owns the form, which is that of Hermes and Qwen2.5, word for word, since that is what models have been taught. What
clients wrote stays text here as everywhere: the turns go through the template like any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tapetum.core.chat import MediaPart, Message
from tapetum.text.tools import read_arguments

_BEFORE_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
_AFTER_TOOLS = """
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
_RESULT_ROLES = ("tool", "function")
_SYSTEM_ROLES = ("system", "developer")


def with_tools_told(
    messages: Sequence[Message], tools: Sequence[Mapping[str, object]]
) -> tuple[Message, ...]:
    """The same turns with the tools at the end of the system turn, which is added where there is none."""
    if not tools:
        return tuple(messages)
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    told = _BEFORE_TOOLS + lines + _AFTER_TOOLS
    first = messages[0]
    if first.role not in _SYSTEM_ROLES:
        return (Message(role="system", content=(told,)), *messages)
    return (replace(first, content=_followed(first.content, told, "\n\n")), *messages[1:])


def with_calls_told(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same turns with calls as text of the assistant, and results, as many as follow each other, as a user's."""
    told: list[Message] = []
    follows_result = False
    for index, message in enumerate(messages):
        is_result = message.role in _RESULT_ROLES
        if is_result and follows_result:
            told.append(_result(message, before=(*told.pop().content, "\n")))
        elif is_result:
            told.append(_result(message))
        elif message.tool_calls:
            told.append(_with_calls(message, f"messages[{index}]"))
        else:
            told.append(message)
        follows_result = is_result
    return tuple(told)


def _result(message: Message, before: tuple[str | MediaPart, ...] = ()) -> Message:
    content = (*before, "<tool_response>\n", *message.content, "\n</tool_response>")
    return Message(role="user", content=_merged(content))


def _with_calls(message: Message, place: str) -> Message:
    calls = [
        {
            "name": call.name,
            "arguments": read_arguments(call.arguments, f"{place}.tool_calls[{index}].function.arguments"),
        }
        for index, call in enumerate(message.tool_calls)
    ]
    lines = [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls]
    return replace(message, content=_followed(message.content, "\n".join(lines), "\n"), tool_calls=())


def _followed(content: tuple[str | MediaPart, ...], text: str, separator: str) -> tuple[str | MediaPart, ...]:
    has_words = any(content)
    return _merged((*content, separator + text if has_words else text))


def _merged(content: Sequence[str | MediaPart]) -> tuple[str | MediaPart, ...]:
    """Neighbouring texts as one: many templates take a lone string only."""
    merged: list[str | MediaPart] = []
    for part in content:
        last = merged[-1] if merged else None
        if isinstance(part, str) and isinstance(last, str):
            merged[-1] = last + part
        else:
            merged.append(part)
    return tuple(merged)
