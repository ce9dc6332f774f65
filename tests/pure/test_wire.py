"""Requests and streams of the server without an engine: parsing never fails in surprising ways, streams end well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapetum.core.chat import MediaPart
from tapetum.core.errors import RequestError, TapetumError
from tapetum.server.chat.translate import chat_input_of, sampling_of
from tapetum.server.chat.sampling import priority_number
from tapetum.server.chat.schema import ChatRequest, parse_chat
from tapetum.server.stream import EventStream

FIELDS = (*ChatRequest.__struct_fields__, "zebra")
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from([*FIELDS, "type", "text", "url", "role", "content"]), inner, max_size=4
        ),
    ),
    max_leaves=3,
)
PART = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image_url", "image", "video", "audio"])},
        optional={"text": st.text(max_size=4), "image_url": JSON, "image": JSON, "video": JSON},
    ),
    JSON,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.text(max_size=4), "content": st.one_of(st.text(), st.lists(PART, max_size=3), JSON)}
)


@settings(max_examples=80)  # drawing such bodies is slow
@given(
    st.fixed_dictionaries(
        {"messages": st.one_of(st.lists(MESSAGE, max_size=3), JSON)}, optional={name: JSON for name in FIELDS if name != "messages"}
    )
)
def test_any_json_is_a_request_or_a_request_error(body: dict[str, object]) -> None:
    try:
        request = parse_chat(json.dumps(body).encode())
        chat = chat_input_of(request)
        sampling_of(request)
        priority_number(request.priority)
    except RequestError as error:
        assert error.message
        return
    assert len(chat.messages) == len(body["messages"])


@given(st.binary(max_size=40))
def test_any_bytes_are_a_request_error(body: bytes) -> None:
    with pytest.raises(RequestError):
        parse_chat(body)


@pytest.mark.parametrize("name", ["zebra", "chat_template_kwargs", "tools"])
def test_a_body_nested_too_deeply_is_a_request_error(name: str) -> None:
    deep = '{"a": ' * 50_000 + "1" + "}" * 50_000
    with pytest.raises(RequestError, match="nested too deeply"):
        parse_chat(f'{{"messages": [{{"role": "user", "content": "x"}}], "{name}": {deep}}}'.encode())


def test_a_request_without_media_options_is_never_trusted() -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "image", "image": "/etc/passwd"}]}]}
    (message,) = chat_input_of(parse_chat(json.dumps(body).encode())).messages
    (part,) = message.content
    assert isinstance(part, MediaPart)
    assert (part.source, part.is_trusted, dict(part.options)) == ("/etc/passwd", False, {})


@pytest.mark.parametrize(
    ("name", "number"), [("interactive", -1), ("standard", 0), ("economy", 1), ("background", 2), (7, 7)]
)
def test_priority_classes_are_numbers(name: str | int, number: int) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "priority": name}
    assert priority_number(parse_chat(json.dumps(body).encode()).priority) == number


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

    asyncio.run(EventStream(events, ping_s=ping_s)({"type": "http"}, receive, send or keep))
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


def test_errors_have_one_tree() -> None:
    from tapetum.server import errors

    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TapetumError)
    ]
    codes = [kind.code for kind in kinds if kind.__module__ == errors.__name__]
    assert sorted(codes) == ["body_too_large", "invalid_api_key", "model_not_found", "unsupported_parameter"]
