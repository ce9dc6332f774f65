"""Streams of the server without an engine: they say they live, end well, and leave nothing behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from tapetum.core.errors import Overloaded, TapetumError
from tapetum.server.events import events
from tapetum.server.stream import EventStream

Stage = Callable[[dict], Awaitable[None]]


def run_stream(
    events: AsyncGenerator[bytes, None],
    *,
    ping_s: float,
    leaves_after_s: float = 10.0,
    send: Stage | None = None,
) -> list[bytes]:
    """Drive the response as a server would; returns the bodies that it sent."""
    bodies: list[bytes] = []

    async def receive() -> dict:
        await asyncio.sleep(leaves_after_s)
        return {"type": "http.disconnect"}

    async def keep(message: dict) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])
        else:
            headers = dict(message["headers"])
            assert headers[b"content-type"].startswith(b"text/event-stream")
            assert b"content-length" not in headers

    async def respond() -> None:
        try:
            await EventStream(events, ping_s=ping_s)({"type": "http"}, receive, send or keep)
        finally:
            assert events.ag_frame is None, "the generator is closed when the response has ended"

    asyncio.run(respond())
    return bodies


def test_a_silent_stream_pings_and_a_busy_one_does_not() -> None:
    async def events(gap_s: float, count: int) -> AsyncGenerator[bytes, None]:
        for index in range(count):
            yield b"data: %d\n\n" % index
            await asyncio.sleep(gap_s)

    silent = run_stream(events(0.25, 2), ping_s=0.1)
    assert silent.count(b": ping\n\n") >= 2
    assert [body for body in silent if body != b": ping\n\n"] == [b"data: 0\n\n", b"data: 1\n\n", b""]
    busy = run_stream(events(0.01, 20), ping_s=0.1)
    assert b": ping\n\n" not in busy


def test_a_ping_comes_so_long_after_the_last_event() -> None:
    """Not when a clock that began with the stream next strikes."""
    times: list[tuple[float, bytes]] = []

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: 0\n\n"
        await asyncio.sleep(0.05)
        yield b"data: 1\n\n"
        await asyncio.sleep(0.65)

    async def note(message: dict) -> None:
        times.append((asyncio.get_running_loop().time(), message.get("body", b"start")))

    run_stream(events(), ping_s=0.4, send=note)
    bodies = [body for _, body in times]
    assert bodies == [b"start", b"data: 0\n\n", b"data: 1\n\n", b": ping\n\n", b""]
    assert 0.39 < times[3][0] - times[2][0] < 0.6


def test_a_stream_that_never_waits_leaves_others_their_turn() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def events() -> AsyncGenerator[bytes, None]:
        task = asyncio.ensure_future(other())
        for _ in range(50):
            time.sleep(0.001)
            yield b"data: 0\n\n"
        task.cancel()

    assert len(run_stream(events(), ping_s=10)) == 51
    assert turns > 10


def test_a_client_that_leaves_closes_the_generator_at_once() -> None:
    closed: list[float] = []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 0\n\n"
            await asyncio.sleep(60)
        finally:
            closed.append(asyncio.get_running_loop().time())

    assert run_stream(events(), ping_s=5, leaves_after_s=0.05) == [b"data: 0\n\n"]
    assert len(closed) == 1


def test_a_connection_that_breaks_closes_the_generator() -> None:
    closed: list[bool] = []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"data: 0\n\n"
        finally:
            closed.append(True)

    async def broken(message: dict) -> None:
        raise OSError("connection reset")

    with pytest.raises(OSError, match="reset"):
        run_stream(events(), ping_s=5, send=broken)
    assert closed == [True]


def run_events(*chunks: object) -> tuple[list[bytes], bool]:
    """The events of chunks that end with an error where the last of them is one; whether the chunks were closed."""
    closed: list[bool] = []

    async def said() -> AsyncGenerator[object, None]:
        try:
            for chunk in chunks:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            closed.append(True)

    async def read() -> list[bytes]:
        return [event async for event in events(said())]

    return asyncio.run(read()), closed == [True]


def test_chunks_are_events_and_done_is_the_last() -> None:
    assert run_events({"a": 1}, {"b": "\n"}) == (
        [b'data: {"a":1}\n\n', b'data: {"b":"\\n"}\n\n', b"data: [DONE]\n\n"],
        True,
    )


def test_an_error_within_a_stream_is_an_event() -> None:
    told, is_closed = run_events({"a": 1}, Overloaded("the queue is full"))
    assert is_closed
    assert told[1].startswith(b'data: {"error":{"message":"the queue is full"')
    assert told[2:] == [b"data: [DONE]\n\n"]
    told, _ = run_events({"a": 1}, ValueError("secret"))
    assert b"secret" not in told[1]
    assert b'"code":"engine_error"' in told[1]


async def test_events_that_are_closed_close_their_chunks() -> None:
    closed: list[bool] = []

    async def said() -> AsyncGenerator[object, None]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    told = events(said())
    assert await anext(told) == b"data: 1\n\n"
    await told.aclose()
    assert closed == [True]


def test_errors_have_one_tree() -> None:
    from tapetum.server import errors

    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TapetumError)
    ]
    codes = [kind.code for kind in kinds if kind.__module__ == errors.__name__]
    assert {"body_too_large", "invalid_api_key", "model_not_found", "unsupported_parameter"} <= set(codes)
    assert len(set(codes)) == len(codes)  # a program can tell them apart
