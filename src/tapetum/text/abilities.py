"""What a chat template can do by itself, read off its text: which words it knows, not what it writes with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jinja2 import meta, nodes

from tapetum.text.tools import ToolStyle

# What the content of a turn may be: one string, a list of texts and media, or either.
Content = Literal["string", "parts", "either"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateAbilities:
    """`has_tools`: it tells the model of tools; where it does not, they are written for it (tool_prompt).

    `has_tool_calls`: it writes down the calls of earlier turns. `tool_style`: how the model writes its calls.
    `has_reasoning`: the model may think in `<think>` before it speaks. `content`: what it reads of a turn; parts are
    lost on one that does not look through them, and a string on one that does nothing else.
    """

    has_tools: bool
    has_tool_calls: bool
    tool_style: ToolStyle
    has_reasoning: bool
    content: Content


def abilities_of(tree: nodes.Template) -> TemplateAbilities:
    texts = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    texts += [node.data for node in tree.find_all(nodes.TemplateData)]
    has_tool_calls = "tool_calls" in texts or any(
        node.attr == "tool_calls" for node in tree.find_all(nodes.Getattr)
    )
    has_tools = "tools" in meta.find_undeclared_variables(tree)
    return TemplateAbilities(
        has_tools=has_tools,
        has_tool_calls=has_tool_calls,
        tool_style=_style("\n".join(texts)) if has_tools or has_tool_calls else "hermes",
        has_reasoning=any("<think>" in text or "</think>" in text for text in texts),
        content=_content(tree),
    )


def _content(tree: nodes.Template) -> Content:
    """By whether it looks through the content of a turn or at one piece of it, and asks what is a string."""
    looked_at = [loop.iter for loop in tree.find_all(nodes.For)]
    looked_at += [item.node for item in tree.find_all(nodes.Getitem) if _is_number(item.arg)]
    if not any(map(_is_content, looked_at)):
        return "string"
    asks = any(test.name == "string" for test in tree.find_all(nodes.Test))
    return "either" if asks else "parts"


def _is_number(index: nodes.Node) -> bool:
    return isinstance(index, nodes.Const) and isinstance(index.value, int)


def _is_content(looked_through: nodes.Node) -> bool:
    while isinstance(looked_through, nodes.Filter) and looked_through.node is not None:
        looked_through = looked_through.node
    if isinstance(looked_through, nodes.Getitem):
        return isinstance(looked_through.arg, nodes.Const) and looked_through.arg.value == "content"
    name = getattr(looked_through, "attr", getattr(looked_through, "name", None))
    return name == "content"


def _style(text: str) -> ToolStyle:
    """By what only one style writes; a template that shows none is taken for the most common one."""
    if "[TOOL_CALLS]" in text:
        return "mistral"
    if "<tool_call>" not in text and ("<|python_tag|>" in text or '"parameters": ' in text):
        return "llama3_json"
    return "hermes"
