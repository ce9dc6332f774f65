"""`/v1/chat/ws`: chat over one WebSocket, many requests in flight at once.

Owns the frames and the requests of a connection. Each request is a task that waits for its turn to send, so a client
that reads slowly holds up its own answers and nothing else: what the engine says meanwhile is joined. A connection
that closes ends all its requests. Every request that was taken ends with one frame, `done` or `error`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from tapetum.core.errors import EngineError, InvalidParameter, Overloaded, TapetumError
from tapetum.server.auth import SUBPROTOCOL
from tapetum.server.chat.ask import ask_chat
from tapetum.server.chat.translate import parse_question
from tapetum.server.chat.wire import ChatAnswer
from tapetum.server.errors import ErrorDetail, error_body, let_go
from tapetum.server.parse import parsed
from tapetum.server.serving import Serving, parse_as, tenant_of
from tapetum.server.stream import as_json

_log = logging.getLogger(__name__)
MAX_IN_FLIGHT = 128  # requests of one connection
Id = Annotated[str, Meta(max_length=256)] | int


class ClientFrame(Struct, frozen=True, kw_only=True):
    """A chat request under an id the client chose, or the wish to end the one of that id."""

    id: Id
    request: Raw | UnsetType = UNSET
    cancel: bool = False


class ServerFrame(Struct, frozen=True, kw_only=True):
    """One of chunk, error and done. Without an id it speaks of a frame that has none."""

    id: Id | None
    chunk: ChatAnswer | UnsetType = UNSET
    error: ErrorDetail | UnsetType = UNSET
    done: Literal[True] | UnsetType = UNSET


_parse = partial(parsed, msgspec.json.Decoder(ClientFrame))


def routes(serving: Serving) -> list[WebSocketRoute]:
    async def connect(websocket: WebSocket) -> None:
        has_protocol = SUBPROTOCOL in websocket.scope.get("subprotocols", ())
        await websocket.accept(subprotocol=SUBPROTOCOL if has_protocol else None)
        await _Connection(serving, websocket).serve()

    return [WebSocketRoute("/v1/chat/ws", connect)]


class _Connection:
    """`_sayings` say the chunks of a request and may be cancelled; `_answers` see each to its end."""

    def __init__(self, serving: Serving, websocket: WebSocket) -> None:
        self._serving = serving
        self._websocket = websocket
        self._sayings: dict[Id, asyncio.Task[ServerFrame]] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()  # of whoever sends a frame

    async def serve(self) -> None:
        """Until the client closes the connection or is gone."""
        try:
            while (message := await self._websocket.receive())["type"] == "websocket.receive":
                await self._take(message.get("text") or message.get("bytes") or "")
        except WebSocketDisconnect:
            pass
        finally:
            tasks = (*self._sayings.values(), *self._answers)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, message: str | bytes) -> None:
        try:
            body = message.encode() if isinstance(message, str) else message
            self._act(await parse_as([body], _parse))
        except TapetumError as error:
            await self._send(ServerFrame(id=None, error=error_body(error).error))

    def _act(self, frame: ClientFrame) -> None:
        if frame.cancel:
            if frame.id in self._sayings:  # else its end is on the way already
                self._sayings[frame.id].cancel()
            return
        if isinstance(frame.request, UnsetType):
            raise InvalidParameter(
                "the frame has neither request nor cancel; send one of them", param="request"
            )
        if frame.id in self._sayings:
            raise InvalidParameter(f"id {frame.id!r} is of a request that runs; choose another", param="id")
        if len(self._sayings) >= MAX_IN_FLIGHT:
            raise Overloaded(
                f"{MAX_IN_FLIGHT} requests run on this connection, the limit; wait for one of them to end",
                param="id",
            )
        saying = asyncio.ensure_future(self._say(frame.id, bytes(frame.request)))
        self._sayings[frame.id] = saying
        answer = asyncio.ensure_future(self._answer(frame.id, saying))
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)

    async def _answer(self, name: Id, saying: asyncio.Task[ServerFrame]) -> None:
        """See a request to its end, and keep its id until the client has been told."""
        try:
            await asyncio.wait((saying,))
            await self._send(ServerFrame(id=name, done=True) if saying.cancelled() else saying.result())
        except WebSocketDisconnect:
            pass
        finally:
            del self._sayings[name]

    async def _say(self, name: Id, body: bytes) -> ServerFrame:
        """Send the chunks of an answer; the frame that ends it is returned."""
        try:
            with self._serving.frame(self._websocket.scope) as record:
                question = await parse_as([body], parse_question)
                tenant = tenant_of(self._websocket.scope, question.asked.cache_salt)
                reply = await ask_chat(self._serving, question, tenant=tenant)
                record.watch(reply.choices)
                async with aclosing(reply.chunks()) as chunks:
                    async for chunk in chunks:
                        await self._send(ServerFrame(id=name, chunk=chunk))
            return ServerFrame(id=name, done=True)
        except TapetumError as error:
            let_go(error)
            return ServerFrame(id=name, error=error_body(error).error)
        except WebSocketDisconnect:
            raise
        except Exception:
            _log.exception("a request of a WebSocket failed")
            failure = EngineError("the server failed; its log says more")
            return ServerFrame(id=name, error=error_body(failure).error)

    async def _send(self, frame: ServerFrame) -> None:
        async with self._turn:
            if self._websocket.application_state is not WebSocketState.CONNECTED:
                raise WebSocketDisconnect(1006)  # somebody else has found that out
            await self._websocket.send_text(as_json(frame).decode())
