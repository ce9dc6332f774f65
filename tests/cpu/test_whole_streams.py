"""Streams of documents that are read whole: they begin before all is read, and end as any stream does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from websockets.sync.client import connect

from tests.cpu.documents_kit import PAGES, SMALL, part
from tests.cpu.server_kit import Script, TestServer, eventually
from tests.documents import pdf

FILE = pdf(PAGES[:20])
QUESTION = {"type": "text", "text": "List all towns"}


def body(data: bytes = FILE, **fields: object) -> dict[str, object]:
    content = [part(data, mode="map_reduce"), QUESTION]
    return {"messages": [{"role": "user", "content": content}], "stream": True, **SMALL, **fields}


RESPONSE = {
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_file", **part()["file"], "mode": "map_reduce"},
                {"type": "input_text", "text": "List all towns"},
            ],
        }
    ],
    "stream": True,
    **SMALL,
}


@pytest.fixture
def script() -> Script:
    made = Script("Seven boats so far.")
    made.step_s = 0.02
    return made


@pytest.fixture
def server(script: Script) -> Iterator[TestServer]:
    with TestServer(script) as running:
        yield running
        assert eventually(lambda: running.is_at_rest)


def test_a_stream_begins_before_all_is_read(server: TestServer, script: Script) -> None:
    with server.client.stream("POST", "/v1/chat/completions", json=body()) as response:
        assert response.status_code == 200
        assert len(script.seen) < 3
        lines = response.iter_lines()
        assert next(lines) == ": ping"
        assert len(script.seen) < 3
        told = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert len(script.seen) == 4
    assert "".join(one["choices"][0]["delta"].get("content") or "" for one in told) == "Seven boats so far."
    assert told[0]["id"] == f"chatcmpl-{response.headers['x-request-id']}"
    assert response.headers["x-request-id"] == script.seen[-1].request_id


def test_a_response_begins_before_all_is_read(server: TestServer, script: Script) -> None:
    with server.client.stream("POST", "/v1/responses", json=RESPONSE) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        assert next(lines) == ": ping"
        assert len(script.seen) < 3
        told = [line for line in lines if line.startswith("event: ")]
    assert told[0] == "event: response.created"
    assert told[-1] == "event: response.completed"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_what_fails_on_the_way_is_an_event(server: TestServer, script: Script, path: str) -> None:
    script.fail_at = 2
    response = server.client.post(path, json=RESPONSE if path.endswith("responses") else body())
    assert response.status_code == 200
    assert response.text.startswith(": ping\n\n")
    assert "the script fails here" in response.text
    assert ("event: response.failed" if path.endswith("responses") else "data: [DONE]") in response.text
    assert len(script.seen) == 1


def test_what_no_part_can_be_read_of_is_refused(server: TestServer) -> None:
    response = server.client.post("/v1/chat/completions", json=body(FILE[:3000]))
    assert response.status_code == 400
    assert "broken" in response.json()["error"]["message"]


def test_a_window_ends_with_the_client_that_leaves(server: TestServer, script: Script) -> None:
    script.step_s = 0.1
    with server.client.stream("POST", "/v1/chat/completions", json=body()) as response:
        assert next(response.iter_lines()) == ": ping"
    assert eventually(lambda: server.is_at_rest, 3.0)
    num_seen = len(script.seen)
    assert num_seen < 4
    time.sleep(0.3)
    assert len(script.seen) == num_seen, "nothing goes on"


@pytest.mark.parametrize("leaves", ["connection", "request"])
def test_a_window_ends_with_the_frame_that_is_not_wanted(
    server: TestServer, script: Script, leaves: str
) -> None:
    script.step_s = 0.1
    with connect(server.url.replace("http", "ws") + "/v1/chat/ws") as socket:
        socket.send(json.dumps({"id": 1, "request": body()}))
        assert eventually(lambda: bool(script.seen))
        if leaves == "request":
            socket.send(json.dumps({"id": 1, "cancel": True}))
            assert json.loads(socket.recv(5)) == {"id": 1, "done": True}
    assert eventually(lambda: server.is_at_rest, 3.0)
    assert len(script.seen) < 4


def test_a_socket_pings_whoever_waits() -> None:
    """What a connection says of itself while a document is read."""
    with TestServer(Script()) as running:
        config = running._server.config
        assert config.ws_ping_interval
        assert config.ws_ping_timeout
