"""Chunks of an answer as server-sent events.

Owns how a stream ends: an error after the first event becomes an event, and `[DONE]` is the last in any case.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tapetum.core.errors import EngineError, TapetumError
from tapetum.server.errors import error_body
from tapetum.server.stream import DONE, as_event

_log = logging.getLogger(__name__)


async def events(chunks: AsyncGenerator[object, None]) -> AsyncGenerator[bytes, None]:
    """Closing it closes the chunks."""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield as_event(chunk)
    except TapetumError as error:
        yield as_event(error_body(error))
    except Exception:  # the status line is out: the client can only learn of it from the stream
        _log.exception("an answer broke off")
        yield as_event(error_body(EngineError("the server failed; its log says more")))
    yield DONE
