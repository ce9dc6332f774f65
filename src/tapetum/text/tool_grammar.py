"""The grammar that holds an answer to the tools it may call, in llguidance's form of Lark.

Owns what must be written where. What a schema may say, and whether it can be kept to, is llguidance's to know.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tapetum.core.request import Grammar
from tapetum.text.reasoning import Thinking
from tapetum.text.schemas import bounded
from tapetum.text.tool_calls import FORMS
from tapetum.text.tools import Tool, ToolChoice, ToolStyle

# A lazy rule ends as soon as it can: whoever writes the marker has begun a call, and cannot take it for text.
_RULES = """\
open[lazy]: TEXT "<tool_call>"
thought[lazy]: TEXT "</think>"
think[lazy]: "<think>" TEXT "</think>"
TEXT: /(.|\\n)*/
WHITE: /[ \\t\\n]{0,8}/
"""
_BEFORE_CALLS = {"never": "", "perhaps": "(think WHITE)? ", "open": "thought WHITE "}
# As json.dumps writes it, which is what models have read; free white space is where small models get lost.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def tool_grammar(
    tools: Sequence[Tool],
    choice: ToolChoice,
    *,
    parallel: bool = True,
    style: ToolStyle = "hermes",
    thinking: Thinking = "never",
) -> Grammar | None:
    """None where any text will do.

    A named tool is called once, `required` calls one tool or, if `parallel`, several. With `auto`, a call that is
    begun is a valid one; in styles other than Hermes its beginning is a special token, which a grammar over text
    would forbid, so there any text will do. Parts of a schema that cannot be kept to are passed over, unless the
    tool is strict.
    """
    if not tools or choice.mode == "none" or (choice.mode == "auto" and style != "hermes"):
        return None
    callable_tools = [tool for tool in tools if choice.name in (None, tool.name)]
    is_several = parallel and choice.mode != "named"
    if choice.mode == "auto":
        start = _free(is_several, thinking)
    else:
        start = _BEFORE_CALLS[thinking] + _forced(is_several, style)
    rules = [f"start: {start}", *_call_rules(callable_tools, style)]
    return Grammar(kind="tools", source="%llguidance {}\n" + "\n".join(rules) + "\n" + _RULES, param="tools")


def _free(is_several: bool, thinking: Thinking) -> str:
    """Text in which calls may come; what is thought first may say anything."""
    answer = "(open body)* TEXT" if is_several else "TEXT | open body"
    return f"TEXT | thought ({answer})" if thinking == "open" else answer


def _forced(is_several: bool, style: ToolStyle) -> str:
    if style == "hermes":
        return 'call ("\\n" call)*' if is_several else "call"
    if style == "llama3_json":
        return 'call ("; " call)*' if is_several else "call"
    return '"[" call (", " call)* "]"' if is_several else '"[" call "]"'


def _call_rules(tools: Sequence[Tool], style: ToolStyle) -> list[str]:
    """`call` is a call with the marker, if the style writes it as text, `body` what comes behind it."""
    before, after = ("\n", "\n</tool_call>") if style == "hermes" else ("", "")
    begin, end = before + '{"name": "', "}" + after
    middle = f'", "{FORMS[style].arguments_key}": '
    return [
        'call: "<tool_call>" body' if style == "hermes" else "call: body",
        f"body: {_quoted(begin)} ({' | '.join(f'tool_{index}' for index in range(len(tools)))}) {_quoted(end)}",
        *(
            f"tool_{index}: {_quoted(tool.name + middle)} %json {json.dumps(_schema(tool), ensure_ascii=False)}"
            for index, tool in enumerate(tools)
        ),
    ]


def _schema(tool: Tool) -> dict[str, object]:
    return {
        **bounded(tool.parameters, is_lenient=not tool.strict),
        "x-guidance": {**_SPACING, "lenient": not tool.strict},
    }


def _quoted(text: str) -> str:
    return json.dumps(text)
