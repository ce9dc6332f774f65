"""From a checked chat request to its reply: what HTTP and WebSocket have in common."""

from __future__ import annotations

from tapetum.server.chat.reply import Reply
from tapetum.server.chat.sampling import priority_number
from tapetum.server.chat.schema import ChatRequest
from tapetum.server.chat.translate import chat_input_of, sampling_of
from tapetum.server.serving import Serving


async def ask_chat(serving: Serving, asked: ChatRequest, *, tenant: str) -> Reply:
    """Hand the request to the engine. Everything that can be refused is refused from here, as a TapetumError.

    The engine names its request itself: the id a client gave may be in use, and only comes back to it.
    """
    model = serving.model_name(asked.model)
    engine = serving.engine
    num_waiting = engine.num_waiting
    generation = await engine.submit(
        chat_input_of(asked),
        sampling_of(asked),
        priority=priority_number(asked.priority),
        timeout_s=asked.timeout_s,
        tenant=tenant,
    )
    return Reply(
        engine.choices(generation, asked.num_choices),
        asked,
        model=model,
        tokenizer=engine.tokenizer,
        num_waiting=num_waiting,
    )
