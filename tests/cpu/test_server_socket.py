"""Chat over a WebSocket: many requests on one connection, each with an end of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from socket import SHUT_RDWR

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tapetum.core.config import ServerConfig
from tapetum.server import socket as chat_socket
from tests.cpu.server_kit import Script, TestServer, chat_body, eventually

ANSWER = "Total: 12.50 €\nTax: 2.00 🙂 done"
LONG = {"ignore_eos": True, "max_tokens": 1500}


@pytest.fixture(scope="module")
def shared() -> Iterator[TestServer]:
    with TestServer(Script()) as server:
        yield server


@pytest.fixture
def server(shared: TestServer) -> Iterator[TestServer]:
    """The server, which must be at rest and serving after every test."""
    script = shared.script
    script.answer, script.step_s, script.fail_at = ANSWER, 0.0, None
    script.seen.clear()
    yield shared
    script.step_s, script.fail_at = 0.0, None
    assert eventually(lambda: shared.is_at_rest)
    assert shared.chat().json()["choices"][0]["message"]["content"] == ANSWER


@pytest.fixture
def socket(server: TestServer) -> Iterator[ClientConnection]:
    with opened(server) as socket:
        yield socket


def opened(server: TestServer, **options: object) -> ClientConnection:
    url = server.url.replace("http", "ws") + "/v1/chat/ws"
    return connect(url, close_timeout=2, proxy=None, max_size=None, **options)


def ask(socket: ClientConnection, name: str | int, **fields: object) -> None:
    socket.send(json.dumps({"id": name, "request": chat_body(**fields)}))


def frame(socket: ClientConnection) -> dict:
    return json.loads(socket.recv(timeout=20))


def ended(
    socket: ClientConnection, *names: str | int, order: list[dict] | None = None
) -> dict[str | int, list[dict]]:
    """The frames of these requests, up to the end of each; `order` gets them as they come."""
    frames: dict[str | int, list[dict]] = {name: [] for name in names}
    while any(not frames[name] or "chunk" in frames[name][-1] for name in names):
        got = frame(socket)
        assert not frames[got["id"]] or "chunk" in frames[got["id"]][-1], "a frame after the end"
        frames[got["id"]].append(got)
        if order is not None:
            order.append(got)
    return frames


def text_of(frames: list[dict]) -> str:
    chunks = [frame["chunk"] for frame in frames if "chunk" in frame]
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


def without_times(chunk: dict) -> dict:
    """A chunk without what differs from one request to the next."""
    return {name: value for name, value in chunk.items() if name not in ("id", "created", "tapetum", "usage")}


def test_the_chunks_are_those_of_the_stream(server: TestServer, socket: ClientConnection) -> None:
    fields = {"stream_options": {"include_usage": True}}
    ask(socket, "a", **fields)
    *chunks, done = ended(socket, "a")["a"]
    assert done == {"id": "a", "done": True}
    assert all(set(chunk) == {"id", "chunk"} for chunk in chunks)
    lines = server.chat(stream=True, **fields).text.split("\n\n")[:-2]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert text_of(chunks) == ANSWER
    for first, second in ((chunks[0]["chunk"], events[0]), (chunks[-1]["chunk"], events[-1])):
        assert without_times(first) == without_times(second)
        assert set(first) == set(second)
    assert chunks[0]["chunk"]["tapetum"]["queue"] == {"waiting": 0}
    assert chunks[-1]["chunk"]["usage"]["completion_tokens"] == events[-1]["usage"]["completion_tokens"]


def test_many_requests_run_side_by_side(server: TestServer, socket: ClientConnection) -> None:
    server.script.step_s = 0.05  # the first is at work until all have come
    names = [*range(10), *map(str, range(10))]  # a number and its digits are two names
    for length, name in enumerate(names, start=3):
        ask(socket, name, max_tokens=length, ignore_eos=True)
    frames = ended(socket, *names, order=(order := []))
    assert all(got[-1] == {"id": name, "done": True} for name, got in frames.items())
    lengths = [len(text_of(frames[name])) for name in names]
    assert lengths == sorted(lengths)
    first_ends = min(index for index, got in enumerate(order) if "done" in got)
    assert {got["id"] for got in order[:first_ends]} >= set(names[1:])


def test_an_id_may_be_used_again_once_its_request_has_ended(socket: ClientConnection) -> None:
    for _ in range(5):
        ask(socket, "a", max_tokens=2)
        assert ended(socket, "a")["a"][-1] == {"id": "a", "done": True}


def test_cancelling_ends_one_request_within_a_step(server: TestServer, socket: ClientConnection) -> None:
    server.script.step_s = 0.01
    ask(socket, "a", **LONG)
    ask(socket, "b", max_tokens=40, ignore_eos=True)
    while frame(socket)["id"] != "a":
        pass
    socket.send(json.dumps({"id": "a", "cancel": True}))
    frames = ended(socket, "a", "b")
    assert frames["a"][-1] == {"id": "a", "done": True}
    assert len(frames["a"]) < 40
    assert frames["b"][-1] == {"id": "b", "done": True}
    assert frames["b"][-2]["chunk"]["choices"][0]["finish_reason"] == "length"
    assert server.is_at_rest or eventually(lambda: server.is_at_rest, within_s=1)


def test_cancelling_what_has_ended_changes_nothing(socket: ClientConnection) -> None:
    socket.send(json.dumps({"id": "never", "cancel": True}))
    ask(socket, "a", max_tokens=2)
    ended(socket, "a")
    socket.send(json.dumps({"id": "a", "cancel": True}))
    ask(socket, "b", max_tokens=2)
    assert ended(socket, "b")["b"][-1] == {"id": "b", "done": True}


def test_a_connection_that_closes_ends_all_its_requests(server: TestServer) -> None:
    server.script.step_s = 0.01
    with opened(server) as socket:
        for name in "abc":
            ask(socket, name, **LONG)
        assert [frame(socket) for _ in range(9)]
        assert not server.is_at_rest
    assert eventually(lambda: server.is_at_rest, within_s=5)


def test_a_client_that_vanishes_ends_all_its_requests(server: TestServer) -> None:
    server.script.step_s = 0.01
    with opened(server) as socket:
        ask(socket, "a", **LONG)
        assert frame(socket)["id"] == "a"
        socket.socket.shutdown(SHUT_RDWR)
        assert eventually(lambda: server.is_at_rest, within_s=5)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_parameter"),
        ({"n": 0}, "n", "invalid_parameter"),
        ({"temperature": -1}, "temperature", "invalid_parameter"),
        ({"model": "another"}, "model", "model_not_found"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, None, "context_length_exceeded"),
    ],
)
def test_a_request_that_is_refused_ends_with_its_error(
    socket: ClientConnection, fields: dict, param: str | None, code: str
) -> None:
    ask(socket, "a", **fields)
    (got,) = ended(socket, "a")["a"]
    assert set(got) == {"id", "error"}
    assert (got["error"]["param"], got["error"]["code"]) == (param, code)
    assert set(got["error"]) == {"message", "type", "param", "code"}


def test_an_answer_that_breaks_off_ends_with_its_error(server: TestServer, socket: ClientConnection) -> None:
    server.script.fail_at = 3
    ask(socket, "a")
    *chunks, last = ended(socket, "a")["a"]
    assert chunks
    assert last["error"]["code"] == "engine_error"


@pytest.mark.parametrize(
    "message",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        '{"id": "a"}',
        '{"id": "a", "request": null, "cancel": "yes"}',
        '{"id": 1.5, "cancel": true}',
        '{"id": null, "request": {}}',
        json.dumps({"id": "x" * 300, "cancel": True}),
        '{"request": {"messages": []}}',
        b"\xff\xfe",
        b"",
        "[" * 5000,
    ],
)
def test_a_frame_that_is_none_is_told_without_an_id(socket: ClientConnection, message: str | bytes) -> None:
    socket.send(message)
    got = frame(socket)
    assert set(got) == {"id", "error"}
    assert got["id"] is None
    assert got["error"]["type"] == "invalid_request_error"
    ask(socket, "a", max_tokens=2)
    assert ended(socket, "a")["a"][-1] == {"id": "a", "done": True}


def test_a_frame_may_be_bytes(socket: ClientConnection) -> None:
    socket.send(json.dumps({"id": "a", "request": chat_body(max_tokens=2)}).encode())
    assert ended(socket, "a")["a"][-1] == {"id": "a", "done": True}


def test_an_id_in_use_is_refused_and_its_request_goes_on(
    server: TestServer, socket: ClientConnection
) -> None:
    server.script.step_s = 0.01
    ask(socket, "a", max_tokens=30, ignore_eos=True)
    assert frame(socket)["id"] == "a"
    ask(socket, "a")
    errors, frames = [], []
    while not frames or "chunk" in frames[-1]:
        got = frame(socket)
        (frames if got["id"] == "a" else errors).append(got)
    assert frames[-1] == {"id": "a", "done": True}
    (error,) = errors
    assert (error["id"], error["error"]["param"]) == (None, "id")
    assert len(server.script.seen) == 1


def test_a_connection_has_only_so_many_requests(
    server: TestServer, socket: ClientConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_socket, "MAX_IN_FLIGHT", 2)
    server.script.step_s = 0.01
    for name in "ab":
        ask(socket, name, max_tokens=20, ignore_eos=True)
    ask(socket, "c")
    while (got := frame(socket))["id"] is not None:
        assert got["id"] in ("a", "b")
    assert (got["error"]["code"], got["error"]["param"]) == ("overloaded", "id")
    ended(socket, "a", "b")
    ask(socket, "c")
    assert ended(socket, "c")["c"][-1] == {"id": "c", "done": True}


def test_a_client_that_does_not_read_holds_up_nobody_and_piles_nothing_up(server: TestServer) -> None:
    names, num_tokens = range(8), 1500
    with opened(server, max_queue=1) as socket:
        for name in names:
            ask(socket, name, ignore_eos=True, max_tokens=num_tokens, logprobs=True, top_logprobs=20)
        assert eventually(lambda: len(server.script.seen) == len(names))
        assert eventually(lambda: server.is_at_rest, within_s=20)  # the engine is done; its news wait, joined
        assert server.chat(max_tokens=5).status_code == 200
        frames = ended(socket, *names)
    assert all(got[-1] == {"id": name, "done": True} for name, got in frames.items())
    assert sum(map(len, frames.values())) < len(names) * num_tokens / 2  # what nobody read was joined


def test_the_subprotocol_is_confirmed_where_it_is_offered(server: TestServer) -> None:
    with opened(server, subprotocols=["tapetum", "some-key"]) as socket:
        assert socket.subprotocol == "tapetum"
        ask(socket, "a", max_tokens=2)
        assert ended(socket, "a")["a"][-1] == {"id": "a", "done": True}
    with opened(server) as socket:
        assert socket.subprotocol is None


def test_a_message_beyond_the_limit_closes_the_connection_only() -> None:
    with TestServer(Script(), ServerConfig(max_body_bytes=1 << 20)) as server:
        with opened(server) as socket, pytest.raises(ConnectionClosed):
            ask(socket, "a", messages=[{"role": "user", "content": "x" * (2 << 20)}])
            frame(socket)
        assert server.chat(max_tokens=2).status_code == 200


def test_a_key_comes_in_a_header_or_as_a_further_subprotocol() -> None:
    with TestServer(Script(), ServerConfig(api_keys=("secret", "other"))) as server:
        for options in (
            {"additional_headers": {"Authorization": "Bearer secret"}},
            {"subprotocols": ["tapetum", "secret"]},
        ):
            with opened(server, **options) as socket:
                ask(socket, "a", max_tokens=2)
                assert ended(socket, "a")["a"][-1] == {"id": "a", "done": True}
        refused = (["tapetum", "wrong"], ["secret", "tapetum"], ["other", "secret"])
        for options in ({}, *({"subprotocols": names} for names in refused)):
            with pytest.raises(InvalidStatus) as caught, opened(server, **options):
                pass
            assert caught.value.response.status_code == 401
            assert json.loads(caught.value.response.body)["error"]["code"] == "invalid_api_key"
        with opened(server, subprotocols=["tapetum", "other"]) as socket:
            ask(socket, "a", max_tokens=2)
            ended(socket, "a")
        first, second, third = (request.tenant for request in server.script.seen)
        assert first == second != third
