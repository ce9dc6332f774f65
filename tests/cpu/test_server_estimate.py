"""What a chat request would cost, against what it then does cost."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

import httpx2
import pytest
from PIL import Image

from tapetum.assets import SAMPLES_DIR
from tapetum.processing.base import ProcessorOptions
from tests.cpu.server_kit import FACTS, Script, TestServer, eventually, files

PICTURE = SAMPLES_DIR / "ok-03-receipt.jpg"
DATA_URL = "data:image/jpeg;base64," + base64.b64encode(PICTURE.read_bytes()).decode()


@pytest.fixture(scope="module")
def shared() -> Iterator[TestServer]:
    with TestServer(Script()) as server:
        yield server


@pytest.fixture
def server(shared: TestServer) -> Iterator[TestServer]:
    shared.script.seen.clear()
    yield shared
    assert eventually(lambda: shared.is_at_rest)


def chat(*urls: str, **fields: object) -> dict[str, object]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [*parts, {"type": "text", "text": "What is the total?"}]
    return {"messages": [{"role": "user", "content": content}], **fields}


def header(width: int, height: int) -> str:
    """A picture of which there is hardly more than its size."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), "white").save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()[:60]).decode()


def estimate(server: TestServer, body: dict[str, object]) -> httpx2.Response:
    return server.client.post("/v1/estimate", json=body)


def test_an_estimate_has_the_fields_of_the_api(server: TestServer) -> None:
    answer = estimate(server, chat(header(112, 84), max_tokens=10)).json()
    assert set(answer) == {
        "prompt_tokens",
        "visual_tokens",
        "media",
        "prefill_s",
        "kv_bytes",
        "admissible",
        "reason",
        "queue_s",
    }
    geometry = files().processor.geometry("image", 112, 84, options=ProcessorOptions())
    (media,) = answer["media"]
    assert media | {"encode_s": 0} == {
        "original": [112, 84],
        "used": list(geometry.used),
        "visual_tokens": geometry.num_tokens,
        "patches": geometry.num_patches,
        "encode_s": 0,
        "cache": "miss",
        "degraded": None,
    }
    assert media["encode_s"] >= 0
    assert (answer["admissible"], answer["reason"]) == (True, None)
    assert answer["kv_bytes"] == (answer["prompt_tokens"] + 9) * FACTS.kv_bytes_per_token
    assert answer["prefill_s"] >= 0
    assert answer["queue_s"] == 0


def test_times_are_told_to_microseconds(server: TestServer) -> None:
    answer = estimate(server, chat(header(112, 84), max_tokens=10)).json()
    for told in (answer["prefill_s"], answer["queue_s"], answer["media"][0]["encode_s"]):
        assert told == round(told, 6)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_estimate_counts_the_tokens_that_are_used_afterwards(server: TestServer, count: int) -> None:
    body = chat(*[DATA_URL] * count, mm_processor_kwargs={"max_pixels": 56 * 84})
    answer = estimate(server, body).json()
    assert not server.script.seen
    usage = server.chat(**body).json()["usage"]
    assert answer["prompt_tokens"] == usage["prompt_tokens"]
    assert answer["visual_tokens"] == usage["prompt_tokens_details"]["visual_tokens"]


def test_nothing_is_decoded_and_nothing_runs(server: TestServer) -> None:
    body = chat(header(112, 84))
    assert estimate(server, body).status_code == 200
    assert server.chat(**body).status_code == 400  # its pixels are not there
    assert not server.script.seen


def test_what_the_engine_has_costs_no_encode(server: TestServer) -> None:
    body = chat(DATA_URL, cache_salt="mine")
    (before,) = estimate(server, body).json()["media"]
    assert server.chat(**body).status_code == 200
    (after,) = estimate(server, body).json()["media"]
    assert (before["cache"], after["cache"], after["encode_s"]) == ("miss", "device", 0)
    (other,) = estimate(server, chat(DATA_URL, cache_salt="other")).json()["media"]
    assert other["cache"] == "miss"  # whose picture it is tells nobody else


@pytest.mark.parametrize(
    "body",
    [
        chat(*[header(560, 560)] * 40),
        chat("data:image/png;base64,AAAA"),
        {"messages": [{"role": "user", "content": "word " * 5000}]},
    ],
)
def test_the_estimate_and_the_request_agree_on_what_is_refused(server: TestServer, body: dict) -> None:
    asked = server.chat(**body)
    told = estimate(server, body)
    assert asked.status_code in (400, 413)
    if told.status_code == 200:
        assert told.json()["admissible"] is False
        assert "limit" in told.json()["reason"]
    else:
        assert told.json() == asked.json()
    assert not server.script.seen


def test_what_can_never_fit_is_an_answer_with_its_reason(server: TestServer) -> None:
    answer = estimate(server, chat(*[header(560, 560)] * 40)).json()
    assert answer["admissible"] is False
    assert str(answer["prompt_tokens"]) in answer["reason"]
    assert answer["prompt_tokens"] > 2048
    assert len(answer["media"]) == 40


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"messages": []}, 400),
        (chat(model="another"), 404),
        (chat(temperature=-1), 400),
        (chat("file:///etc/passwd"), 400),
        (chat("data:image/png;base64,AAAA"), 400),
    ],
)
def test_what_makes_no_sense_is_refused(server: TestServer, body: dict, status: int) -> None:
    response = estimate(server, body)
    assert response.status_code == status
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": "\xff"}'])
def test_a_body_that_is_no_request_is_refused(server: TestServer, body: bytes) -> None:
    response = server.client.post("/v1/estimate", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]
