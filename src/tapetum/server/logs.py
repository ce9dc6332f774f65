"""One line in the log for every request, when it is over: who asked, what came of it, where the time went.

Owns the record of a request, which travels in the scope of its connection. Never holds what a client said: no prompts,
no media, no queries of URLs.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tapetum.core.errors import TapetumError
from tapetum.core.request import new_request_id
from tapetum.engine.choices import Choices
from tapetum.server.disclosure import rounded

_log = logging.getLogger("tapetum.requests")
PROBES = frozenset({"/health", "/ready", "/metrics"})  # asked all the time: no lines at the usual level
_RECORD = "tapetum.record"  # where a scope has it
_GONE = 499  # nginx's status for a client that left before it was answered
REQUEST_ID = "x-request-id"
_CLIENT_ID = re.compile(r"[!-~]{1,128}")


@dataclass(slots=True, kw_only=True, eq=False)
class RequestRecord:
    """What is known of a request so far: filled in by those who find out, read once at the end."""

    what: str  # method and path
    client_request_id: str | None = None
    tenant: str = ""
    request_id: str = field(default_factory=new_request_id)
    status: int = _GONE
    error: str | None = None  # the code of what it was refused for
    choices: list[Choices] = field(default_factory=list)  # one per prompt
    started_s: float = field(default_factory=time.perf_counter)

    def watch(self, *choices: Choices) -> None:
        """These answer the request: it has the engine's name of the first, and their tokens and times are told."""
        self.choices += choices
        self.request_id = self.choices[0].generation.request_id


def record_of(scope: Scope) -> RequestRecord:
    record: RequestRecord = scope[_RECORD]
    return record


class LogRequests:
    """Opens the record of each request and writes its line; says the request's id in the headers of the answer.

    `count` hears the code of every refusal, which is an error before anything was asked of the engine.
    """

    def __init__(self, app: ASGIApp, count: Callable[[str], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        record = RequestRecord(
            what=f"{scope.get('method', 'WebSocket')} {scope['path'][:200]}",
            client_request_id=given if _CLIENT_ID.fullmatch(given) else None,
        )
        scope[_RECORD] = record

        async def send_named(message: Message) -> None:
            if message["type"].endswith("http.response.start"):
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                if record.client_request_id is not None:
                    headers[REQUEST_ID] = record.client_request_id
                else:
                    headers.setdefault(REQUEST_ID, record.request_id)
            elif message["type"] == "websocket.accept":
                record.status = 101
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        finally:
            _close(record, self._count, is_probe=scope["path"] in PROBES)


@contextmanager
def frame_record(scope: Scope, count: Callable[[str], None]) -> Iterator[RequestRecord]:
    """The record of one of the requests of a connection; an error is noted and passes through."""
    whole = record_of(scope)
    record = RequestRecord(what=whole.what, client_request_id=whole.client_request_id, tenant=whole.tenant)
    try:
        yield record
        record.status = 200
    except TapetumError as error:
        record.status, record.error = error.http_status, error.code
        raise
    except Exception:
        record.status = 500
        raise
    finally:
        _close(record, count)


def _close(record: RequestRecord, count: Callable[[str], None], *, is_probe: bool = False) -> None:
    if record.error is not None and not record.choices and not is_probe:
        count(record.error)
    level = logging.DEBUG if is_probe else logging.INFO
    if _log.isEnabledFor(level):
        _log.log(level, "%s %d", record.what, record.status, extra={"fields": _fields(record)})


def _fields(record: RequestRecord) -> dict[str, object]:
    return {
        "request_id": record.request_id,
        "client_request_id": record.client_request_id,
        "tenant": record.tenant,
        "status": record.status,
        "error": record.error,
        "total_s": round(time.perf_counter() - record.started_s, 6),
        **_answer(record.choices),
    }


def _answer(choices: list[Choices]) -> dict[str, object]:
    """Tokens of all prompts together; the times of the one that waited longest for its first token."""
    if not choices:
        return {}
    generations = [one.generation for one in choices]
    slowest = max((generation.timing for generation in generations), key=lambda timing: timing.ttft_s)
    reasons = {reason or "abort" for one in choices for reason in one.finish_reasons}
    return {
        "prompt_tokens": sum(len(one.prompt.token_ids) for one in generations),
        "completion_tokens": sum(one.num_tokens for one in choices),
        "visual_tokens": sum(span.num_tokens for one in generations for span in one.prompt.spans),
        "cached_tokens": sum(one.num_cached_tokens for one in generations),
        "finish_reason": ",".join(sorted(reasons)),
        **dataclasses.asdict(rounded(slowest)),
    }
