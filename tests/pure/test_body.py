"""Bodies that are too large or too slow, on a connection that is played."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message, Receive, Scope, Send

from tapetum.server.body import LimitBody
from tapetum.server.errors import BodyTimeout, BodyTooLarge


def http(length: str | None = None) -> Scope:
    headers = [] if length is None else [(b"content-length", length.encode())]
    return {"type": "http", "headers": headers}


async def _send(message: Message) -> None:
    raise AssertionError("nothing is sent from here")


async def body_of(pieces: Receive, scope: Scope, *, max_bytes: int = 100, grace_s: float = 5.0) -> bytes:
    """What an application reads through the limits."""
    read: list[bytes] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "http.request":
            read.append(message["body"])
            if not message["more_body"]:
                return

    await LimitBody(application, max_bytes, grace_s=grace_s)(scope, pieces, _send)
    return b"".join(read)


def sent(*bodies: bytes, gap_s: float = 0.0) -> Callable[[], Awaitable[Message]]:
    rest = list(bodies)

    async def receive() -> Message:
        await asyncio.sleep(gap_s)
        if not rest:
            await asyncio.Event().wait()
        piece = rest.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(rest)}

    return receive


async def test_a_body_within_the_limits_comes_through() -> None:
    assert await body_of(sent(b"x" * 60, b"y" * 40), http("100")) == b"x" * 60 + b"y" * 40
    assert await body_of(sent(b""), http()) == b""


async def test_a_body_that_says_it_is_too_large_is_not_read() -> None:
    with pytest.raises(BodyTooLarge, match=r"101 bytes .* limit 100"):
        await body_of(_must_not_be_read, http("101"))


async def _must_not_be_read() -> Message:
    raise AssertionError("this body is refused by what it says of itself")


@pytest.mark.parametrize("length", [None, "5", "many", "-1"])
async def test_a_body_that_is_too_large_without_saying_so_is_refused_as_it_comes(length: str | None) -> None:
    with pytest.raises(BodyTooLarge):
        await body_of(sent(*[b"x" * 40] * 9), http(length))


async def test_a_body_may_be_slow_but_not_without_end() -> None:
    assert await body_of(sent(b"a", b"b", b"c", gap_s=0.05), http(), grace_s=1.0) == b"abc"
    with pytest.raises(BodyTimeout, match="of the body came in"):
        await body_of(sent(*[b"x"] * 100, gap_s=0.05), http(), grace_s=0.2)


async def test_what_has_come_buys_time_for_the_rest() -> None:
    pieces = [b"x" * 4096] * 5  # each of them a quarter of a second more
    assert len(await body_of(sent(*pieces, gap_s=0.15), http(), max_bytes=10**6, grace_s=0.3)) == 5 * 4096


async def test_once_the_body_has_come_a_client_may_wait_as_long_as_it_likes() -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.wait_for(receive(), 0.5)

    with pytest.raises(TimeoutError):  # of the application, not of the body
        await LimitBody(application, 100, grace_s=0.05)(http(), sent(b"done"), _send)


async def test_a_client_that_leaves_is_told_to_the_application() -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    assert await body_of(receive, http("50")) == b""


async def test_frames_of_a_websocket_are_no_body() -> None:
    seen: list[Receive] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(receive)

    await LimitBody(application, 1)({"type": "websocket"}, _must_not_be_read, _send)
    assert seen == [_must_not_be_read]
