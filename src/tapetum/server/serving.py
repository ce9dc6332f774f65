"""What every route shares: the engine, who asks, which model, the body, and a client that may leave.

Owns the order of things around an answer: read within the limit, name the tenant, submit while the client is there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from tapetum.core.config import ServerConfig
from tapetum.engine.service import AsyncEngine
from tapetum.server.errors import BodyTooLarge, ModelNotFound
from tapetum.server.stream import as_json, until_gone

MAX_BODY_BYTES = 256 * 1024**2
ANY_MODEL = "default"  # a name that always answers
TENANT = "tapetum.tenant"  # where the scope of a connection says whose key it came with
T = TypeVar("T")


class Serving:
    """One engine as the routes see it."""

    def __init__(self, engine: AsyncEngine, config: ServerConfig) -> None:
        self.engine = engine
        self.config = config
        self.created = int(time.time())

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
    tenant = str(scope.get(TENANT, ""))
    return f"{len(tenant)}:{tenant}{salt or ''}" if tenant else salt or ""


async def read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge(
                f"the body has more than {MAX_BODY_BYTES} bytes, the limit; send smaller pictures"
            )
    return bytes(body)


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
