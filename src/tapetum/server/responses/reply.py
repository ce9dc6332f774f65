"""A response: the chunks of a chat answer, retold as the events of /v1/responses.

Owns the life of the response object, from created to its end, and the numbers of its events. The whole response is
the one its last event carries, so both ways tell the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from msgspec import UNSET
from msgspec.structs import replace

from tapetum.core.errors import EngineError, TapetumError
from tapetum.server import disclosure
from tapetum.server.chat.later import LaterReply
from tapetum.server.chat.reply import Reply
from tapetum.server.chat.wire import AnswerMessage, ChatAnswer, Choice
from tapetum.server.errors import error_body
from tapetum.server.responses.output import Output
from tapetum.server.responses.schema import ResponsesRequest, TextConfig
from tapetum.server.responses.wire import (
    Event,
    Failure,
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    Response,
    Usage,
)
from tapetum.server.stream import as_json

_log = logging.getLogger(__name__)


class ResponsesReply:
    """Reads the reply to the chat request that a request amounts to."""

    def __init__(self, reply: Reply | LaterReply, asked: ResponsesRequest) -> None:
        self._reply = reply
        self._asked = asked
        self._output = Output(reply.request_id)
        self._response = _begun(reply.request_id, asked)
        self._number = 0  # of the next event
        self._num_tokens = 0  # read so far
        self._num_thought = 0  # of those, until the model first spoke or called
        self._has_thought = False
        self._has_spoken = False
        self._finish_reason: str | None = None

    async def whole(self) -> Response:
        """The response once it is complete; raises TapetumError where it cannot be."""
        async with aclosing(self._events()) as events:
            async for _ in events:
                pass
        return self._response

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events. An answer that breaks off ends with `error` and `response.failed`."""
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    yield _framed(event)
        except TapetumError as error:
            for event in self._failed(error):
                yield _framed(event)
        except Exception:  # the status line is out: the client can only learn of it from the stream
            _log.exception("a response broke off")
            for event in self._failed(EngineError("the server failed; its log says more")):
                yield _framed(event)

    async def _events(self) -> AsyncGenerator[Event, None]:
        async with aclosing(self._reply.chunks()) as chunks:
            async for chunk in chunks:
                for event in self._told(chunk):
                    yield self._numbered(event)

    def _told(self, chunk: ChatAnswer) -> Iterator[Event]:
        """The events of one chunk; the first one opens the response, the one with the usage ends it."""
        if self._number == 0:
            self._response = replace(self._response, model=chunk.model, created_at=chunk.created)
            first = replace(self._response, tapetum=chunk.tapetum)
            yield Event(type="response.created", response=first)
            yield Event(type="response.in_progress", response=self._response)
        elif chunk.usage is not UNSET:
            yield from self._ended(chunk.usage)
        for choice in chunk.choices:
            if choice.delta is not UNSET:
                self._count(choice)
                yield from self._output.read(choice.delta)
            if choice.finish_reason is not None:
                self._finish_reason = choice.finish_reason
                self._response = replace(self._response, tapetum=chunk.tapetum)

    def _ended(self, usage: disclosure.Usage) -> Iterator[Event]:
        is_cut = self._finish_reason == "length"
        yield from self._output.end("incomplete" if is_cut else "completed")
        self._response = replace(
            self._response,
            status="incomplete" if is_cut else "completed",
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
            completed_at=None if is_cut else int(time.time()),
            output=self._output.items,
            usage=self._usage(usage),
        )
        yield Event(type=f"response.{self._response.status}", response=self._response)

    def _failed(self, error: TapetumError) -> Iterator[Event]:
        told = error_body(error).error
        yield self._numbered(Event(type="error", message=told.message, code=told.code, param=told.param))
        failed = replace(
            self._response,
            status="failed",
            error=Failure(message=told.message),
            output=self._output.items,
        )
        yield self._numbered(Event(type="response.failed", response=failed))

    def _usage(self, usage: disclosure.Usage) -> Usage:
        details = usage.prompt_tokens_details
        return Usage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputDetails(
                cached_tokens=details.cached_tokens, visual_tokens=details.visual_tokens
            ),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputDetails(reasoning_tokens=self._num_thought),
            total_tokens=usage.total_tokens,
        )

    def _count(self, choice: Choice) -> None:
        """Tokens are of the reasoning until the first that speaks or calls."""
        self._num_tokens += len(choice.token_ids or ())
        delta = choice.delta or AnswerMessage()
        self._has_thought = self._has_thought or bool(delta.reasoning_content)
        if not self._has_spoken:
            self._num_thought = self._num_tokens if self._has_thought else 0
            self._has_spoken = bool(delta.content or delta.tool_calls)

    def _numbered(self, event: Event) -> Event:
        self._number += 1
        return replace(event, sequence_number=self._number - 1)


def _begun(request_id: str, asked: ResponsesRequest) -> Response:
    return Response(
        id=f"resp_{request_id}",
        created_at=int(time.time()),
        model=asked.model or "",
        status="in_progress",
        output=(),
        instructions=asked.instructions,
        max_output_tokens=asked.max_output_tokens,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        temperature=asked.temperature,
        top_p=asked.top_p,
        text=asked.text or TextConfig(),
        tool_choice=asked.tool_choice or "auto",
        tools=asked.tools or (),
        metadata=asked.metadata or {},
        user=asked.user,
    )


def _framed(event: Event) -> bytes:
    return b"event: " + event.type.encode() + b"\ndata: " + as_json(event) + b"\n\n"
