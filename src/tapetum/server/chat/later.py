"""The reply to a chat request whose documents are read whole before it is answered, which may take minutes.

Owns the time until it is there: the client has the head of its stream once the engine has taken the first of the
requests that this takes, and a stream that has begun says that it lives. What goes wrong later is an event of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tapetum.core.errors import TapetumError
from tapetum.server.chat.ask import ask_chat
from tapetum.server.chat.reply import Reply
from tapetum.server.chat.translate import ChatQuestion
from tapetum.server.chat.wire import ChatAnswer
from tapetum.server.logs import RequestRecord
from tapetum.server.serving import Serving
from tapetum.server.stream import PING


class LaterReply:
    """Speaks as a `Reply` does. `request_id`: what the client calls the request, else what the engine will."""

    def __init__(self, request_id: str, asking: asyncio.Task[Reply], record: RequestRecord) -> None:
        self.request_id = request_id
        self._asking = asking
        self._record = record

    async def chunks(self) -> AsyncGenerator[ChatAnswer, None]:
        """Those of the reply; raises TapetumError where it does not come to one."""
        try:
            reply = await self._asking
        except TapetumError as error:
            self._record.error = error.code
            raise
        self._record.watch(reply.choices)
        async with aclosing(reply.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    async def stream(self, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """A sign of life, then `events`, which are made of `chunks`. Closing it ends what is under way."""
        try:
            yield PING
            async with aclosing(events):
                async for event in events:
                    yield event
        finally:
            self._asking.cancel()
            (outcome,) = await asyncio.gather(self._asking, return_exceptions=True)
            if isinstance(outcome, Reply):
                outcome.choices.cancel()  # nobody may have begun to read it


async def begin_chat(
    serving: Serving, question: ChatQuestion, *, tenant: str, record: RequestRecord
) -> LaterReply:
    """As `ask_chat`, for a request with documents that are read whole. What keeps the first part of them from being
    read is raised from here, as a TapetumError."""
    taken = asyncio.get_running_loop().create_future()

    def begin(request_id: str) -> None:
        if not taken.done():
            taken.set_result(request_id)

    asking = asyncio.ensure_future(ask_chat(serving, question, tenant=tenant, on_reading=begin))
    try:
        await asyncio.wait((asking, taken), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
    except BaseException:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        raise
    record.request_id = taken.result()
    return LaterReply(question.asked.request_id or record.request_id, asking, record)
