"""What a request brought is forgotten with its answer, without a collection that looks for circles."""

from __future__ import annotations

import gc
import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterator

import pytest
from websockets.sync.client import connect

from tapetum.core.chat import MediaPart
from tapetum.core.errors import TapetumError
from tests.cpu.server_kit import Script, TestServer, chat_body, eventually

COUNT = 8
Body = dict[str, object]


@pytest.fixture
def server() -> Iterator[TestServer]:
    """Nothing looks for circles while it serves."""
    with TestServer(Script("Hello there")) as server:
        server.chat()
        gc.collect()
        gc.disable()
        server.num_before = remains()  # of tests before this one
        yield server
        gc.enable()


def broken() -> str:
    return "data:image/png;base64," + b64encode(os.urandom(50_000)).decode()


def chat() -> Body:
    picture = {"type": "image_url", "image_url": {"url": broken()}}
    return chat_body(messages=[{"role": "user", "content": [picture, {"type": "text", "text": "What?"}]}])


def response() -> Body:
    return {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": broken()}]}]}


REFUSED: dict[str, tuple[str, Callable[[], Body]]] = {
    "chat": ("/v1/chat/completions", chat),
    "stream": ("/v1/chat/completions", lambda: chat() | {"stream": True}),
    "estimate": ("/v1/estimate", chat),
    "tokens": ("/tokenize", chat),
    "response": ("/v1/responses", response),
    "vlm": ("/v1/vlm", lambda: {"prompt": "What?", "image_url": broken()}),
    "completion": ("/v1/completions", lambda: {"prompt": "<|image_pad|>" * 2}),
    "field": ("/v1/chat/completions", lambda: chat() | {"temperature": -1}),
}


def remains() -> int:
    return sum(issubclass(type(found), (TapetumError, MediaPart)) for found in gc.get_objects())


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_remains_of_what_was_refused(server: TestServer, name: str) -> None:
    path, body = REFUSED[name]
    for _ in range(COUNT):
        assert server.client.post(path, json=body()).status_code == 400
    assert eventually(lambda: remains() <= server.num_before + 2, within_s=2), remains()


def test_nothing_remains_of_what_was_refused_over_a_websocket(server: TestServer) -> None:
    with connect(server.url.replace("http", "ws") + "/v1/chat/ws") as websocket:
        for number in range(COUNT):
            websocket.send(json.dumps({"id": number, "request": chat()}))
            assert "error" in json.loads(websocket.recv())
        assert eventually(lambda: remains() <= server.num_before + 2, within_s=2), remains()
