"""What every route shares: the engine, who asks, which model, whether there is room, the body, a client that may leave.

Owns the order of things around an answer: admit, read the body, name the tenant, submit while the client is there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from tapetum.core.config import ServerConfig
from tapetum.core.errors import MediaError, Overloaded, TapetumError
from tapetum.core.tenant import salted
from tapetum.engine.service import AsyncEngine
from tapetum.server.errors import Draining, ModelNotFound, tell
from tapetum.server.logs import RequestRecord, frame_record, record_of
from tapetum.server.quota import QUOTA
from tapetum.server.stream import as_json, until_gone
from tapetum.server.traffic import Traffic

ANY_MODEL = "default"  # a name that always answers
TENANT = "tapetum.tenant"  # where the scope of a connection says whose key it came with
T = TypeVar("T")
_MAX_RETRY_S = 600.0
_MEDIA_FIELDS = {
    "/v1/responses": "input",
    "/v1/vlm": "image_url",
}  # where pictures come in; elsewhere in messages
_QUICK_BYTES = 64 * 1024  # a larger body may hold so many messages that others would notice


class Serving:
    """One engine as the routes see it."""

    def __init__(self, engine: AsyncEngine, config: ServerConfig) -> None:
        self.engine = engine
        self.config = config
        self.created = int(time.time())
        self.traffic = Traffic()

    @property
    def has_keys(self) -> bool:
        """Whether one needs a key here."""
        return bool(self.config.api_keys or self.config.api_key_file)

    def admit(self, scope: Scope, *, is_answer: bool) -> ExitStack:
        """Take a request in, or raise why not now. Leaving the stack makes its place free again."""
        self.refuse_late()
        limit_s = self.config.max_queue_s
        if is_answer and limit_s is not None and (queue_s := self.engine.backlog_s) > limit_s:
            raise Overloaded(f"the queue is {queue_s:.1f} s long, limit {limit_s:g} s; come back later")
        places = ExitStack()
        quota = scope.get(QUOTA)
        if quota is not None:
            quota.take()
            places.callback(quota.release)
        self.traffic.enter()
        places.callback(self.traffic.leave)
        return places

    def refuse_late(self) -> None:
        """Raises once the server is about to end."""
        if self.traffic.is_draining:
            raise Draining("the server is shutting down; ask another or come back later")

    @contextmanager
    def frame(self, scope: Scope) -> Iterator[RequestRecord]:
        """One of the requests of a WebSocket: admitted, with a line in the log when it is over."""
        with frame_record(scope, self.engine.count_rejection) as record, self.admit(scope, is_answer=True):
            yield record

    def tell(self, scope: Scope, error: TapetumError) -> Response:
        """The response that tells an error, with a time to come back where that can help; notes it for the log."""
        record_of(scope).error = error.code
        if isinstance(error, MediaError) and error.param is None:
            error.param = _MEDIA_FIELDS.get(scope["path"], "messages")
        wait_s = 1.0
        if error.wait_s is not None:
            wait_s = error.wait_s
        elif isinstance(error, Overloaded):
            wait_s = min(self.engine.backlog_s - (self.config.max_queue_s or 0.0), _MAX_RETRY_S)
        return tell(error, wait_s)

    def model_name(self, wanted: str | None) -> str:
        """The name an answer carries; raises ModelNotFound."""
        names = self.engine.model_names
        if wanted is None or wanted == ANY_MODEL:
            return names[0]
        if wanted not in names:
            raise ModelNotFound(
                f"model {wanted!r} is not served here; ask for {' or '.join(names)} or leave it out",
                param="model",
            )
        return wanted


def tenant_of(scope: Scope, salt: str | None) -> str:
    """What separates the caches of one client from those of others: whose key it has, and the salt it sent."""
    return salted(str(scope.get(TENANT, "")), salt or "")


async def read_as(request: Request, parse: Callable[[bytes], T]) -> T:
    """What `parse` makes of the body; how large it may be and how slowly it may come was settled before."""
    return await parse_as([chunk async for chunk in request.stream()], parse)


async def parse_as(chunks: Sequence[bytes], parse: Callable[[bytes], T]) -> T:
    """What `parse` makes of a body. A large one is joined and parsed beside the event loop, which others wait for."""
    if sum(map(len, chunks)) <= _QUICK_BYTES:
        return parse(b"".join(chunks))
    return await asyncio.to_thread(lambda: parse(b"".join(chunks)))


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def json_response(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(as_json(value), status_code=status, headers=headers, media_type="application/json")
