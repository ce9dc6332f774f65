"""Connections of clients that do not wait, do not read, do not finish, or send what is no request."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
import uvloop

from tapetum.server import stall, websocket
from tapetum.server.run import uvicorn_config
from tapetum.server.serving import Serving
from tests.cpu import server_kit
from tests.cpu.server_kit import Script, TestServer, chat_body, eventually

LONG = {"ignore_eos": True, "max_tokens": 1500}
SECOND = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
UPGRADE = (
    b"host: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n"
)
HANDSHAKE = b"GET /v1/chat/ws HTTP/1.1\r\n" + UPGRADE + b"\r\n"


@pytest.fixture(scope="module")
def shared() -> Iterator[TestServer]:
    server = TestServer(Script("Hello there"))
    # on the loop of real servers, whose clock and whose reads are other than those of asyncio
    server._thread = threading.Thread(target=lambda: uvloop.run(server._serve()), daemon=True)
    with server:
        yield server


@pytest.fixture
def server(shared: TestServer) -> Iterator[TestServer]:
    """The server, slow enough to be left; it must be at rest and serving after every test."""
    shared.script.step_s = 0.01
    yield shared
    shared.script.step_s = 0.0
    assert eventually(lambda: shared.is_at_rest)
    assert shared.chat().status_code == 200


def connected(server: TestServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def chat_bytes(**fields: object) -> bytes:
    body = json.dumps(chat_body(**fields)).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def rest_of(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("ahead", [SECOND, SECOND * 300, HANDSHAKE])
def test_a_client_that_has_asked_for_more_and_leaves_is_gone(
    server: TestServer, is_streamed: bool, ahead: bytes
) -> None:
    with connected(server) as connection:
        connection.sendall(chat_bytes(**LONG, stream=is_streamed))
        assert eventually(lambda: not server.is_at_rest)
        connection.sendall(ahead)
        time.sleep(0.1)
    assert eventually(lambda: server.is_at_rest, within_s=3)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_does_not_wait_gets_its_first_answer_whole(
    server: TestServer, is_streamed: bool
) -> None:
    with connected(server) as connection:
        connection.sendall(chat_bytes(stream=is_streamed) + SECOND * 3)
        reply = rest_of(connection)
    assert reply.startswith(b"HTTP/1.1 200 ") and reply.count(b"HTTP/1.1") == 1
    assert (b"data: [DONE]\n\n" if is_streamed else b"Hello there") in reply


def test_a_client_that_waits_keeps_its_connection(server: TestServer) -> None:
    with connected(server) as connection:
        for _ in range(3):
            connection.sendall(chat_bytes(max_tokens=1))
            received = b""
            while not re.search(rb'"total_tokens"', received):
                received += connection.recv(65536)
            assert received.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/chat/ws HTTP/1.1\r\n" + UPGRADE + b"content-length: 5\r\n\r\nhello",
        b"GET /v1/chat/ws HTTP/1.1\r\n" + UPGRADE + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /v1/chat/ws HTTP/1.1\r\n" + UPGRADE + b"x: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET /v1/chat/ws HTTP/1.1\r\n" + UPGRADE + b"x: y\r\n" * 300 + b"\r\n",
    ],
)
def test_a_handshake_that_is_none_is_answered(server: TestServer, request_bytes: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(request_bytes)
        assert re.match(rb"HTTP/1\.1 4\d\d ", rest_of(connection))


def test_a_length_of_thousands_of_digits_is_no_failure(server: TestServer) -> None:
    with connected(server) as connection:
        connection.sendall(chat_bytes().replace(b"content-length: ", b"content-length: " + b"0" * 5000))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


@contextlib.contextmanager
def opened(server: TestServer) -> Iterator[socket.socket]:
    with connected(server) as connection:
        connection.sendall(HANDSHAKE)
        assert connection.recv(65536).startswith(b"HTTP/1.1 101 ")
        yield connection


def masked(first: int, payload: bytes) -> bytes:
    return struct.pack("!BB4x", first, 0x80 | len(payload)) + payload


def test_nothing_more_is_read_of_a_client_that_takes_no_pongs(server: TestServer) -> None:
    pings = masked(0x89, b"x" * 125) * 1000
    with opened(server) as connection:
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            for _ in range(500):
                connection.sendall(pings)


@pytest.fixture
def punctual() -> Iterator[None]:
    """Threads and collections as `server.process` sets them for a server; server, client and flood are threads here."""
    turn_s = sys.getswitchinterval()
    sys.setswitchinterval(0.001)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    sys.setswitchinterval(turn_s)


@pytest.mark.usefixtures("punctual")
def test_many_small_frames_leave_others_their_turn(server: TestServer) -> None:
    with opened(server) as connection:

        def flood() -> None:
            with contextlib.suppress(OSError):
                connection.sendall(masked(0x8A, b"") * 1_000_000)

        sender = threading.Thread(target=flood)
        sender.start()
        waits = []
        for _ in range(20):
            started = time.monotonic()
            assert server.client.get("/health").status_code == 200
            waits.append(time.monotonic() - started)
        connection.shutdown(socket.SHUT_RDWR)
        sender.join()
    assert max(waits) < 0.4


def test_a_message_in_too_many_fragments_ends_the_connection(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "_MAX_FRAGMENTS", 10)
    with opened(server) as connection:
        connection.sendall(masked(0x01, b"") + masked(0x00, b"") * 20)
        assert struct.pack("!H", 1009) in rest_of(connection)


def test_messages_behind_one_another_are_all_taken(server: TestServer) -> None:
    """In pieces of any size, with several in one, and pings between them."""
    requests = [json.dumps({"id": number, "request": chat_body(max_tokens=1)}) for number in range(40)]
    data = b"".join(
        struct.pack("!BBH4x", 0x81, 0xFE, len(text) + 200) + text.encode() + b" " * 200 + masked(0x89, b"?")
        for text in requests
    )
    with opened(server) as connection:
        for start in range(0, len(data), 7001):
            connection.sendall(data[start : start + 7001])
        received = b""
        while received.count(b'"done":true') < 40:
            received += connection.recv(65536)
    assert received.count(b"\x8a\x01?") == 40


def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "STALL_S", 0.3)
    script = Script("Hello there")
    script.step_s = 0.01
    with TestServer(script) as server:
        server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, port = server.url.removeprefix("http://").split(":")
            connection.connect((host, int(port)))
            connection.sendall(chat_bytes(**LONG, stream=True, logprobs=True, top_logprobs=20))
            assert eventually(lambda: not server.is_at_rest)
            assert eventually(lambda: server.is_at_rest, within_s=8)


def test_requests_of_a_websocket_whose_client_is_gone_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers no ping, though its connection is there and full."""

    def config(serving: Serving) -> uvicorn.Config:
        made = uvicorn_config(serving)
        made.ws_ping_interval, made.ws_ping_timeout = 0.5, 0.5
        return made

    monkeypatch.setattr(server_kit, "uvicorn_config", config)
    script = Script("Hello there")
    script.step_s = 0.01
    with TestServer(script) as server:
        server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, port = server.url.removeprefix("http://").split(":")
            connection.connect((host, int(port)))
            connection.sendall(HANDSHAKE)
            time.sleep(0.2)
            fields = {**LONG, "logprobs": True, "top_logprobs": 20}
            for number in range(4):
                text = json.dumps({"id": number, "request": chat_body(**fields)}).encode()
                connection.sendall(struct.pack("!BBH4x", 0x81, 0xFE, len(text)) + text)
            assert eventually(lambda: not server.is_at_rest)
            assert eventually(lambda: server.is_at_rest, within_s=5)
