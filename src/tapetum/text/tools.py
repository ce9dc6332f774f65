"""The functions that a client offers, and which of them an answer may call.

Owns the records and their checks. Does not own how a model is told of them (template), the grammar that holds an
answer to them (tool_grammar) or how calls are read from an answer (tool_calls).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tapetum.core.checks import shown
from tapetum.core.errors import InvalidParameter

ToolStyle = Literal["hermes", "llama3_json", "mistral"]  # how a family of models writes its calls

MAX_TOOLS = 128
MAX_JSON_CHARS = 2**18  # of all tools of a request, of the arguments of a call, of a schema
MAX_DEPTH = 64  # of lists and objects in one another
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool:
    """One function. `parameters` is the JSON schema of its arguments, which are an object."""

    name: str
    description: str | None = None
    parameters: Mapping[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})
    # a schema that cannot be kept to the letter is refused, not kept to as far as possible
    strict: bool = False

    def as_data(self) -> dict[str, object]:
        """In the form of OpenAI's API, which is what chat templates read and `ChatInput.tools` holds."""
        told = {} if self.description is None else {"description": self.description}
        return {"type": "function", "function": {"name": self.name, **told, "parameters": self.parameters}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Whether an answer calls tools: not at all, as it likes, at least one, or exactly the one of that `name`."""

    mode: Literal["none", "auto", "required", "named"]
    name: str | None = None


def read_tools(given: object, param: str = "tools") -> tuple[Tool, ...]:
    """The tools of a request: a list of `{"type": "function", "function": {...}}`, or None.

    Raises InvalidParameter for what is no such list, for two tools of one name, and beyond the limits above.
    """
    if given is None:
        return ()
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InvalidParameter(f"{param} is {shown(given)}, must be a list of tools", param=param)
    if len(given) > MAX_TOOLS:
        raise InvalidParameter(f"{param} has {len(given)} tools, limit {MAX_TOOLS}; send fewer", param=param)
    json_text(list(given), param)
    tools = tuple(_read_tool(entry, f"{param}[{index}]") for index, entry in enumerate(given))
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise InvalidParameter(f"{param} names {name!r} twice; give each tool its own name", param=param)
    return tools


def read_tool_choice(given: object, tools: Sequence[Tool]) -> ToolChoice:
    """`"none"`, `"auto"`, `"required"` or `{"type": "function", "function": {"name": ...}}`; None is auto, or none
    without tools. Raises InvalidParameter, also where a call is asked for that no tool can answer.
    """
    if given is None:
        return ToolChoice(mode="auto" if tools else "none")
    if given == "none" or (given == "auto" and not tools):
        return ToolChoice(mode="none")
    if given == "auto":
        return ToolChoice(mode="auto")
    if given == "required":
        if not tools:
            raise InvalidParameter(
                "tool_choice is 'required', but tools is empty; send tools or leave it out",
                param="tool_choice",
            )
        return ToolChoice(mode="required")
    name = _chosen_name(given)
    if name not in [tool.name for tool in tools]:
        raise InvalidParameter(
            f"tool_choice names {shown(name)}, tools has "
            f"{', '.join(tool.name for tool in tools) or 'none'}; name one of them",
            param="tool_choice",
        )
    return ToolChoice(mode="named", name=name)


def read_arguments(text: str, param: str) -> dict[str, object]:
    """The arguments of a call in an earlier turn, as templates want them: parsed. No text is no arguments."""
    if len(text) > MAX_JSON_CHARS:
        raise _too_long(param, len(text))
    try:
        value = json.loads(text, parse_constant=_refuse_constant) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(f"{param} is {shown(text)}, no JSON: {error}", param=param) from error
    if not isinstance(value, dict):
        raise InvalidParameter(f"{param} is {shown(text)}, must be the JSON text of an object", param=param)
    check_size(value, param)
    return value


def json_text(value: object, param: str) -> str:
    """`value` as JSON; raises InvalidParameter where it cannot be written within the limits."""
    check_size(value, param)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=dict)
    except (TypeError, ValueError) as error:
        raise InvalidParameter(f"{param} is no JSON: {error}", param=param) from error
    if len(text) > MAX_JSON_CHARS:
        raise _too_long(param, len(text))
    return text


def check_size(value: object, param: str) -> None:
    """Raises InvalidParameter for what is nested too deeply, or surely too long as JSON.

    Level by level, so that no depth can exhaust the stack, and no further than the limit: a client may send any size.
    """
    level, num_chars = [value], 0
    for _ in range(MAX_DEPTH + 1):
        num_chars += sum(map(_least_chars, level))
        if num_chars > MAX_JSON_CHARS:
            raise _too_long(param, num_chars)
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return
    raise InvalidParameter(f"{param} is nested more than {MAX_DEPTH} deep; flatten it", param=param)


def _read_tool(entry: object, place: str) -> Tool:
    if not isinstance(entry, Mapping) or entry.get("type", "function") != "function":
        raise InvalidParameter(
            f"{place} is {shown(entry)}, must be {{'type': 'function', 'function': {{...}}}}", param=place
        )
    function = entry.get("function")
    if not isinstance(function, Mapping):
        raise InvalidParameter(
            f"{place}.function is {shown(function)}, must be an object with a name", param=f"{place}.function"
        )
    name, description, strict = function.get("name"), function.get("description"), function.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidParameter(
            f"{place}.function.name is {shown(name)}, must be 1 to 64 letters, digits, _ or -",
            param=f"{place}.function.name",
        )
    if not isinstance(description, str | None) or not isinstance(strict, bool | None):
        raise InvalidParameter(
            f"{place}.function has a description {shown(description)} and strict {shown(strict)}, must be a string "
            "and true or false",
            param=f"{place}.function",
        )
    parameters = _read_parameters(function.get("parameters"), f"{place}.function.parameters")
    return Tool(name=name, description=description, parameters=parameters, strict=bool(strict))


def _read_parameters(given: object, place: str) -> Mapping[str, object]:
    if given is None or given == {}:
        return {"type": "object", "properties": {}}
    if not isinstance(given, Mapping) or given.get("type", "object") != "object":
        raise InvalidParameter(
            f"{place} is {shown(given)}, must be the JSON schema of an object", param=place
        )
    return given if "type" in given else {"type": "object", **given}


def _chosen_name(given: object) -> str:
    function = given.get("function", given) if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidParameter(
            f"tool_choice is {shown(given)}, must be 'none', 'auto', 'required' or "
            "{'type': 'function', 'function': {'name': ...}}",
            param="tool_choice",
        )
    return name


def _inner(value: object) -> Sequence[object]:
    if isinstance(value, Mapping):
        return (*value, *value.values())
    return value if isinstance(value, (list, tuple)) else ()


def _least_chars(value: object) -> int:
    return len(value) if isinstance(value, (str, list, tuple, Mapping)) else 1


def _too_long(param: str, num_chars: int) -> InvalidParameter:
    return InvalidParameter(
        f"{param} has {num_chars} characters or more as JSON, limit {MAX_JSON_CHARS}; shorten it", param=param
    )


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")
