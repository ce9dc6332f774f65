"""What the conformance runner sends and reads: streams, broken connections, the media server of a scenario."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import httpx2
import pytest

from tests.conformance.client import Client
from tests.conformance.exposition import Numbers
from tests.conformance.fill import filled
from tests.conformance.logits import Logits
from tests.conformance.observation import Unmet
from tests.conformance.origin import Origin
from tests.conformance.reply import Reply
from tests.pure.conformance_kit import answer, failure, stream

EVENTS = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n: ping\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture
def origin() -> Iterator[Origin]:
    made = Origin()
    yield made
    made.close()


def fetch(url: str) -> httpx2.Response:
    return httpx2.get(url, trust_env=False, timeout=5)


def test_routes_are_served_as_they_are_written(origin: Origin) -> None:
    origin.serve(
        [
            {"route": "/a", "status": 200, "headers": {"Content-Type": "image/png"}, "body": b"png"},
            {"route": "/b", "status": 302, "headers": {"Location": "/a"}, "body": b""},
            {"route": "/c", "status": 204},
        ]
    )
    first = fetch(f"{origin.media}/a?x=%2B")
    assert (first.content, first.headers["content-type"]) == (b"png", "image/png")
    assert [fetch(f"{origin.media}{path}").status_code for path in ("/b", "/c", "/d")] == [302, 204, 404]
    assert origin.visits.queries == ("x=%2B", "", "", "")
    origin.serve([])
    assert origin.visits.queries == ()


def test_a_route_may_hang_or_never_end(origin: Origin) -> None:
    origin.serve(
        [{"route": "/slow", "hang_s": 0.2, "body": b"x"}, {"route": "/endless", "chunk_forever": True}]
    )
    began_s = time.monotonic()
    assert fetch(f"{origin.media}/slow").content == b"x"
    assert time.monotonic() - began_s >= 0.2
    with httpx2.stream("GET", f"{origin.media}/endless", trust_env=False) as response:
        pieces = response.iter_raw()
        assert sum(len(next(pieces)) for _ in range(20)) > 0


def test_whoever_speaks_to_the_canary_is_counted(origin: Origin) -> None:
    origin.serve([])
    for _ in range(2):
        with pytest.raises(httpx2.HTTPError):
            fetch(f"{origin.canary}/x.png")
    assert origin.visits.canary_hits == 2


@contextlib.contextmanager
def answering(*pieces: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """A server that sends these bytes to whoever comes, one by one, and closes."""

    def serve() -> None:
        connection, _ = listener.accept()
        asked = b""
        while not asked.endswith(b"[]}"):  # what is left unread would reset the connection
            asked += connection.recv(65536)
        with connection, contextlib.suppress(OSError):  # the client may leave
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause_s)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def ask(url: str, **limits: float) -> Reply:
    async def speak() -> Reply:
        client = Client(url)
        try:
            return await client.post({"messages": []}, **limits)
        finally:
            await client.close()

    return asyncio.run(speak())


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def test_events_are_read_wherever_the_network_cuts_them() -> None:
    pieces = [HEAD, *(chunked(EVENTS[index : index + 7]) for index in range(0, len(EVENTS), 7)), b"0\r\n\r\n"]
    with answering(*pieces, pause_s=0.001) as url:
        reply = ask(url)
    assert (reply.text, len(reply.chunks), reply.is_whole) == ("a", 2, True)
    assert reply.chunks[0].at_s <= reply.chunks[1].at_s


@pytest.mark.parametrize(
    ("pieces", "status", "is_refused"),
    [
        ((HEAD, chunked(EVENTS[:50])), 200, False),
        ((HEAD, chunked(EVENTS[:50]), b"0\r\n\r\n"), 200, False),
        ((), None, True),
    ],
)
def test_an_answer_that_breaks_off_is_not_whole(
    pieces: tuple[bytes, ...], status: int | None, is_refused: bool
) -> None:
    with answering(*pieces) as url:
        reply = ask(url)
    assert (reply.status, reply.is_refused, reply.is_whole) == (status, is_refused, False)


def test_nobody_there_is_a_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    reply = ask(f"http://127.0.0.1:{port}")
    assert (reply.status, reply.is_refused) == (None, True)
    assert "no answer" in reply.outcome


def test_a_client_may_leave_after_some_chunks_or_some_time() -> None:
    events = [chunked(b'data: {"choices": []}\n\n')] * 50
    with answering(HEAD, *events[:3]) as url:
        assert len(ask(url, abort_after_chunks=2).chunks) == 2
    with answering(HEAD, *events[:10], pause_s=0.05) as url:
        began_s = time.monotonic()
        assert 0 < len(ask(url, abort_after_s=0.15).chunks) < 10
        assert time.monotonic() - began_s < 0.4


def test_a_stream_and_a_whole_answer_read_alike() -> None:
    whole, pieces = answer("red"), stream("re", "d", usage=True)
    assert (whole.text, whole.prompt_tokens, whole.num_choices) == (pieces.text, pieces.prompt_tokens, 1)
    assert failure().error == "the prompt is too long"
    assert stream("a", b'{"error": {"message": "lost"}}').error == "lost"
    assert not stream("a", b'{"error": {"message": "lost"}}').is_whole


@pytest.mark.parametrize(
    ("ours", "theirs", "is_near"),
    [
        ({"a": -1.0, "b": -2.0}, {"a": -1.0005, "b": -2.0}, True),
        ({"a": -1.0, "b": -2.0}, {"a": -1.002, "b": -2.0}, False),
        ({"a": -1.0, "b": -2.0}, {"a": -1.0, "c": -2.0005}, True),
        ({"a": -1.0, "b": -2.0}, {"a": -1.0, "c": -1.5}, False),
        ({"a": -1.0, "b": -2.0}, {"b": -1.0, "a": -2.0}, False),
        ({"a": -1.0}, {"a": -1.0, "b": -1.1}, False),
    ],
)
def test_logits_are_near_only_within_the_tolerance(ours: dict, theirs: dict, is_near: bool) -> None:
    assert Logits(ours).is_near(Logits(theirs)) == is_near
    assert Logits(theirs).is_near(Logits(ours)) == is_near


def test_a_metric_that_is_not_there_is_no_zero() -> None:
    numbers = Numbers('# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name="m"} 2\n')
    assert numbers.gauge("running") == numbers.gauge("num_requests_running") == 2
    for ask_for in (lambda: numbers.gauge("waiting"), lambda: numbers.counter("prompt_tokens")):
        with pytest.raises(Unmet, match="no metric"):
            ask_for()


def test_words_are_filled_wherever_they_are() -> None:
    value = {"a": ["x {M}", ("{M}", 3)], "b": b"{M}"}
    assert filled(value, {"{M}": "m"}) == {"a": ["x m", ("m", 3)], "b": b"{M}"}
