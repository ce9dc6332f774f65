"""One picture, one question, one text."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import httpx2
import pytest

from tapetum.assets import SAMPLES_DIR
from tests.cpu.server_kit import Script, TestServer, chat_body, eventually

ANSWER = "Total: 12.50 €"
PICTURE = SAMPLES_DIR / "ok-03-receipt.jpg"
DATA_URL = "data:image/jpeg;base64," + base64.b64encode(PICTURE.read_bytes()).decode()


@pytest.fixture(scope="module")
def shared() -> Iterator[TestServer]:
    with TestServer(Script(ANSWER)) as server:
        yield server


@pytest.fixture
def server(shared: TestServer) -> Iterator[TestServer]:
    shared.script.step_s = 0.0
    shared.script.seen.clear()
    yield shared
    shared.script.step_s = 0.0
    assert eventually(lambda: shared.is_at_rest)


def look(server: TestServer, **fields: object) -> httpx2.Response:
    return server.client.post(
        "/v1/vlm", json={"image_url": DATA_URL, "prompt": "What is the total?", **fields}
    )


def test_an_answer_is_text_usage_and_what_was_seen(server: TestServer) -> None:
    answer = look(server).json()
    assert set(answer) == {"text", "usage", "tapetum"}
    assert answer["text"] == ANSWER
    (media,) = answer["tapetum"]["media"]
    assert media["visual_tokens"] == answer["usage"]["prompt_tokens_details"]["visual_tokens"] > 0
    assert "timing" in answer["tapetum"]


def test_the_model_sees_what_it_sees_in_a_chat(server: TestServer) -> None:
    parts = [{"type": "image_url", "image_url": DATA_URL}, {"type": "text", "text": "What is the total?"}]
    look(server)
    server.chat(**chat_body(messages=[{"role": "user", "content": parts}]))
    short, chat = server.script.seen
    assert short.prompt.token_ids == chat.prompt.token_ids
    assert [span.key for span in short.prompt.spans] == [span.key for span in chat.prompt.spans]


def test_the_length_of_the_answer_and_how_it_is_chosen(server: TestServer) -> None:
    answer = look(server, max_tokens=3, temperature=0.5, seed=7, model="default").json()
    assert answer["usage"]["completion_tokens"] == 3
    (request,) = server.script.seen
    assert (request.sampling.temperature, request.sampling.seed) == (0.5, 7)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"image_url": None}, 400, "image_url"),
        ({"prompt": None}, 400, "prompt"),
        ({"image_url": {"url": DATA_URL}}, 400, "image_url"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"max_tokens": -1}, 400, "max_tokens"),
        ({"stream": True}, 400, "stream"),
        ({"n": 2}, 400, "n"),
        ({"model": "another"}, 404, "model"),
        ({"image_url": "data:image/png;base64,AAAA"}, 400, None),
        ({"image_url": "file:///etc/passwd"}, 400, None),
        ({"image_url": ""}, 400, None),
    ],
)
def test_what_cannot_be_served_is_refused(
    server: TestServer, fields: dict, status: int, param: str | None
) -> None:
    response = look(server, **fields)
    assert response.status_code == status
    assert response.json()["error"]["message"]
    assert param is None or response.json()["error"]["param"] == param
    assert not server.script.seen


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"image_url": "\xff"}'])
def test_a_body_that_is_no_request_is_refused(server: TestServer, body: bytes) -> None:
    response = server.client.post("/v1/vlm", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_a_client_that_leaves_frees_everything(server: TestServer) -> None:
    server.script.step_s = 0.01
    body = {"image_url": DATA_URL, "prompt": "x", "ignore_eos": True, "max_tokens": 1000}
    with pytest.raises(httpx2.ReadTimeout):
        server.client.post("/v1/vlm", json=body, timeout=0.4)
    assert server.script.seen
    assert eventually(lambda: server.is_at_rest, within_s=5)
