"""The grammar that holds an answer to the tools it may call."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tapetum.core.request import Grammar
from tapetum.text.tools import Tool, ToolChoice, ToolStyle

_RULES = r"""%llguidance {}
TEXT: /(.|\n)*/
"""
_THINK = r"""think: (/(\s|\n)*/ "<think>")? thought
thought[lazy]: /(.|\n)*<\/think>/
"""


def tool_grammar(
    tools: Sequence[Tool],
    choice: ToolChoice,
    *,
    parallel: bool = True,
    style: ToolStyle = "hermes",
    has_reasoning: bool = False,
) -> Grammar | None:
    """None where any text will do. `has_reasoning`: the model may think before its calls."""
    raise NotImplementedError
