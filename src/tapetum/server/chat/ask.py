"""From a checked chat request to its reply: what HTTP and WebSocket have in common."""

from __future__ import annotations

import uuid
from dataclasses import replace

from tapetum.core.errors import InvalidParameter
from tapetum.core.request import SamplingParams
from tapetum.engine.generation import Generation
from tapetum.server.chat.reply import Reply
from tapetum.server.chat.sampling import priority_number
from tapetum.server.chat.schema import ChatRequest
from tapetum.server.chat.tools import ToolUse
from tapetum.server.chat.translate import chat_input_of, sampling_of, use_of
from tapetum.server.chat.voice import Voice
from tapetum.server.serving import Serving
from tapetum.text.reasoning import ReasoningStream, opens_reasoning
from tapetum.text.tool_calls import ToolCallStream
from tapetum.text.tool_grammar import tool_grammar
from tapetum.text.tools import ToolStyle

_TAIL = 16  # tokens of the prompt's end that show whether it opens the reasoning


async def ask_chat(serving: Serving, asked: ChatRequest, *, tenant: str) -> Reply:
    """Hand the request to the engine. Everything that can be refused is refused from here, as a TapetumError.

    The engine names its request itself: the id a client gave may be in use, and only comes back to it.
    """
    model = serving.model_name(asked.model)
    engine = serving.engine
    num_waiting = engine.num_waiting
    use = use_of(asked)
    generation = await engine.submit(
        chat_input_of(asked),
        _sampling(asked, use),
        priority=priority_number(asked.priority),
        timeout_s=asked.timeout_s,
        tenant=tenant,
    )
    return Reply(
        engine.choices(generation, asked.num_choices),
        [_voice(use) for _ in range(asked.num_choices)],
        asked,
        model=model,
        tokenizer=engine.tokenizer,
        num_waiting=num_waiting,
    )


def _sampling(asked: ChatRequest, use: ToolUse) -> SamplingParams:
    """With the grammar of the tools, if any."""
    sampling = sampling_of(asked)
    if not use.tools:
        return sampling
    if sampling.grammar is not None:
        raise InvalidParameter(
            "tools and a format of the answer are both asked for; leave one of them out or set tool_choice to none",
            param="tools",
        )
    return replace(sampling, grammar=tool_grammar(use.tools, use.choice, parallel=use.is_parallel))


def _voice(use: ToolUse) -> Voice:
    calls = ToolCallStream(names=[tool.name for tool in use.tools], new_id=_new_id) if use.tools else None
    return Voice(calls=calls, max_calls=None if use.is_parallel else 1)


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
