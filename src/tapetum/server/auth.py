"""Who may ask: API keys.

Compares digests, so the time an answer takes tells nothing about a key.
"""

from __future__ import annotations

import hashlib
import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from tapetum.server.errors import WrongKey, tell


class RequireKey:
    """Lets only clients with one of the keys at the API; health and metrics stay open for probes."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1") and not self._is_known(scope):
            error = WrongKey("the API key is missing or wrong; send it as `Authorization: Bearer KEY`")
            await tell(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        """In the same time whatever the key: every digest is compared, and in full."""
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, key = given.partition(b" ")
        matches = [hmac.compare_digest(_digest(key.strip()), digest) for digest in self._digests]
        return kind.lower() == b"bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
