"""Calls that the model made in earlier turns, and what a request says of the calls it may make now.

Owns the shape of earlier calls. What a tool is and how a model writes a call is the text layer's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from tapetum.core.chat import ToolCall
from tapetum.text.tools import Tool, ToolChoice, json_text, read_arguments, read_tool_choice, read_tools


class FunctionCall(Struct, frozen=True, kw_only=True):
    name: str
    arguments: str | dict[str, object] = ""


class CallEntry(Struct, frozen=True, kw_only=True):
    """A call of an earlier turn."""

    function: FunctionCall
    id: str = ""
    type: Literal["function"] = "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What an answer may call. Tools that it shall not call it is not told of."""

    tools: tuple[Tool, ...]
    choice: ToolChoice
    is_parallel: bool  # several calls in one answer


def tool_use_of(tools: object, choice: object, is_parallel: bool | None) -> ToolUse:
    """From the fields of a request; raises InvalidParameter."""
    known = read_tools(tools)
    chosen = read_tool_choice(choice, known)
    return ToolUse(
        tools=() if chosen.mode == "none" else known, choice=chosen, is_parallel=is_parallel is not False
    )


def calls_of(entries: Sequence[CallEntry] | None, place: str) -> tuple[ToolCall, ...]:
    """The calls of an earlier turn; raises InvalidParameter where arguments are no JSON object."""
    return tuple(_call(entry, f"{place}[{index}]") for index, entry in enumerate(entries or ()))


def _call(entry: CallEntry, place: str) -> ToolCall:
    given, param = entry.function.arguments, f"{place}.function.arguments"
    if isinstance(given, str):
        text = given
        read_arguments(text, param)
    else:
        text = json_text(given, param)
    return ToolCall(id=entry.id, name=entry.function.name, arguments=text.strip() or "{}")
