"""What a client is told of a picture that was made smaller under load, on every route."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tapetum.core.plan import BatchPlan, StepResult
from tests.cpu.server_kit import Script, TestServer, eventually

SIZE = (224, 224)


class Slow(Script):
    """Says that it took a millisecond for each patch and each token."""

    def execute(self, plan: BatchPlan) -> StepResult:
        result = super().execute(plan)
        encode_s = 1e-3 * sum(job.share * job.item.geometry.num_patches for job in plan.encodes)
        return replace(result, encode_s=encode_s, forward_s=1e-3 * sum(row.length for row in plan.rows))


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    """One whose target no picture meets."""
    with TestServer(Slow(), quality_ladder_s=0.001) as server:
        yield server
        assert eventually(lambda: server.is_at_rest)


def content(seed: int) -> list[dict[str, object]]:
    small = np.random.default_rng(seed).integers(0, 256, (3, 3, 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize(SIZE, Image.Resampling.BICUBIC).save(out, "PNG")
    url = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]


def chat(seed: int, **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content(seed)}], **fields}


def is_told(media: list[dict[str, object]]) -> bool:
    (medium,) = media
    degraded = medium["degraded"]
    assert degraded == {"reason": "load", "requested": list(SIZE), "rung": "low"}
    assert medium["used"] == [112, 112]
    return True


def test_a_whole_answer_says_so(server: TestServer) -> None:
    answer = server.client.post("/v1/chat/completions", json=chat(1)).json()["tapetum"]
    assert is_told(answer["media"])
    assert answer["degradations"] == [answer["media"][0]["degraded"]]


def test_a_stream_says_so_at_once_and_at_its_end(server: TestServer) -> None:
    text = server.client.post("/v1/chat/completions", json=chat(2, stream=True)).text
    chunks = [
        json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: {")
    ]
    told = [chunk["tapetum"] for chunk in chunks if "tapetum" in chunk]
    assert len(told) == 2 and all(is_told(one["media"]) for one in told)
    assert told[-1]["degradations"] == [told[-1]["media"][0]["degraded"]]


def test_other_routes_say_so(server: TestServer) -> None:
    (image, _) = content(3)
    short = {"image_url": image["image_url"]["url"], "prompt": "What is it?"}
    answer = server.client.post("/v1/vlm", json=short).json()["tapetum"]
    assert is_told(answer["media"]) and answer["degradations"]
    parts = [
        {"type": "input_image", "image_url": content(4)[0]["image_url"]["url"]},
        {"type": "input_text", "text": "What is it?"},
    ]
    body = {"input": [{"role": "user", "content": parts}]}
    answer = server.client.post("/v1/responses", json=body).json()["tapetum"]
    assert is_told(answer["media"]) and answer["degradations"]


def test_an_estimate_says_so_before(server: TestServer) -> None:
    estimate = server.client.post("/v1/estimate", json=chat(5)).json()
    assert is_told(estimate["media"])
    whole = server.client.post(
        "/v1/estimate", json=chat(5, mm_processor_kwargs={"least_rung": "high"})
    ).json()
    assert whole["media"][0]["degraded"] is None
    assert whole["visual_tokens"] > estimate["visual_tokens"]


def test_a_caller_may_refuse_it(server: TestServer) -> None:
    fields = ({"mm_processor_kwargs": {"least_rung": "high"}}, {"max_visual_tokens": 64})
    for seed, field in enumerate(fields, start=6):
        answer = server.client.post("/v1/chat/completions", json=chat(seed, **field)).json()["tapetum"]
        assert answer["media"][0]["degraded"] is None and answer["degradations"] == []
    wrong = server.client.post(
        "/v1/chat/completions", json=chat(8, mm_processor_kwargs={"least_rung": "best"})
    )
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "least_rung"


def test_each_is_counted(server: TestServer) -> None:
    def counted() -> float:
        lines = server.client.get("/metrics").text.splitlines()
        counts = [line for line in lines if line.startswith("tapetum:degradations_total") and "load" in line]
        return float(counts[0].split()[-1])

    before = counted()
    server.client.post("/v1/chat/completions", json=chat(9))
    assert counted() == before + 1
