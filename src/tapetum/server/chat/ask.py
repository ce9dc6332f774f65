"""From a checked chat request to its reply: what HTTP and WebSocket have in common."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

from tapetum.core.errors import InvalidParameter
from tapetum.core.request import Grammar
from tapetum.engine.documents import OnReading
from tapetum.server.chat.reply import Reply
from tapetum.server.chat.sampling import priority_number
from tapetum.server.chat.tools import ToolUse
from tapetum.server.chat.translate import ChatQuestion
from tapetum.server.chat.voice import Voice
from tapetum.server.serving import Serving
from tapetum.text.reasoning import ReasoningStream, Thinking
from tapetum.text.tool_calls import ToolCallStream
from tapetum.text.tool_grammar import tool_grammar
from tapetum.text.tools import ToolStyle


async def ask_chat(
    serving: Serving, question: ChatQuestion, *, tenant: str, on_reading: OnReading | None = None
) -> Reply:
    """Hand the request to the engine. Everything that can be refused is refused from here, as a TapetumError."""
    asked, sampling, use = question.asked, question.sampling, question.use
    model = serving.model_name(asked.model)
    engine = serving.engine
    template = engine.files.template
    num_waiting = engine.num_waiting
    style = template.abilities.tool_style
    # An answer that is held to a format from its first token has no room for thoughts.
    thinking = template.thinking(question.chat) if sampling.grammar is None else "never"
    generation = await engine.submit(
        question.chat,
        replace(sampling, grammar=_with_tools(sampling.grammar, use, style, thinking)),
        priority=priority_number(asked.priority),
        timeout_s=asked.timeout_s,
        on_vision_timeout=asked.on_vision_timeout or "reject",
        tenant=tenant,
        on_reading=on_reading,
    )
    return Reply(
        engine.choices(generation),
        [_voice(use, style, thinking) for _ in range(asked.num_choices)],
        asked,
        model=model,
        tokenizer=engine.tokenizer,
        num_waiting=num_waiting,
    )


def _with_tools(
    grammar: Grammar | None, use: ToolUse, style: ToolStyle, thinking: Thinking
) -> Grammar | None:
    """The grammar of the answer: of its format or of the calls in it."""
    if not use.tools:
        return grammar
    if grammar is not None:
        raise InvalidParameter(
            f"tools and {grammar.param} both say what the answer looks like; leave one of them out or set "
            "tool_choice to none",
            param="tools",
        )
    return tool_grammar(use.tools, use.choice, parallel=use.is_parallel, style=style, thinking=thinking)


def _voice(use: ToolUse, style: ToolStyle, thinking: Thinking) -> Voice:
    reasoning = None if thinking == "never" else ReasoningStream(is_open=thinking == "open")
    if not use.tools:
        return Voice(reasoning)
    calls = ToolCallStream(style, names=[tool.name for tool in use.tools], new_id=_NEW_ID[style])
    return Voice(reasoning, calls, max_calls=None if use.is_parallel else 1)


_NEW_ID: dict[ToolStyle, Callable[[], str]] = {
    "hermes": lambda: f"call_{uuid.uuid4().hex[:24]}",
    "llama3_json": lambda: f"call_{uuid.uuid4().hex[:24]}",
    "mistral": lambda: uuid.uuid4().hex[:9],  # its templates take no other length
}
