"""What a client may say of reuse, and what it is told of a picture that was linked to another place."""

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

LINKED = {"reason": "position_independent", "requested": None, "rung": None}
REUSE = {"position_independent": True}


class Fitting(Script):
    """Every link fits."""

    def execute(self, plan: BatchPlan) -> StepResult:
        return replace(super().execute(plan), links={link.request_id: 0.0 for link in plan.links})


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with TestServer(Fitting(), link_tokens=4) as server:
        yield server
        assert eventually(lambda: server.is_at_rest)


def image_url(seed: int) -> str:
    small = np.random.default_rng(seed).integers(0, 256, (3, 3, 3)).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((224, 224), Image.Resampling.BICUBIC).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def chat(seed: int, before: str = "", **fields: object) -> dict[str, object]:
    """A picture after a message that says `before`, if that says anything."""
    shown = {"type": "image_url", "image_url": {"url": image_url(seed)}}
    turns = [{"role": "system", "content": before}] if before else []
    turns.append({"role": "user", "content": [shown, {"type": "text", "text": "Why?"}]})
    return {"messages": turns, **fields}


def tell(
    server: TestServer, body: dict[str, object], route: str = "/v1/chat/completions"
) -> dict[str, object]:
    response = server.client.post(route, json=body)
    assert response.status_code == 200, response.text
    return response.json()["tapetum"]


def test_a_linked_picture_is_told_and_only_where_it_was_wished(server: TestServer) -> None:
    assert tell(server, chat(1))["degradations"] == []
    assert tell(server, chat(1, "Look here.", reuse={"position_independent": False}))["degradations"] == []
    told = tell(server, chat(1, "And there.", reuse=REUSE))
    assert told["degradations"] == [LINKED]
    (medium,) = told["media"]
    assert medium["degraded"] == LINKED and medium["cache"] == "device"
    metrics = server.client.get("/metrics").text
    lines = [line for line in metrics.splitlines() if "linked" in line or "position_independent" in line]
    values = {line.split("{")[0]: line.split()[-1] for line in lines if not line.startswith("#")}
    assert values["tapetum:picture_links_total"] == values["tapetum:degradations_total"] == "1.0"
    assert float(values["tapetum:picture_linked_tokens_total"]) > 16


def test_a_stream_tells_it_at_its_end(server: TestServer) -> None:
    tell(server, chat(2))
    text = server.client.post("/v1/chat/completions", json=chat(2, "See.", stream=True, reuse=REUSE)).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    first, last = (chunk["tapetum"] for chunk in chunks if "tapetum" in chunk)
    assert "degradations" not in first and last["degradations"] == [LINKED]


def test_the_other_routes_take_it_too(server: TestServer) -> None:
    tell(server, chat(3, "Somewhere else."))
    short = {"image_url": image_url(3), "prompt": "What is it?", "reuse": REUSE}
    assert tell(server, short, "/v1/vlm")["degradations"] == [LINKED]
    turns = [
        {"role": "system", "content": "Long before it, there was something to say."},
        {"role": "user", "content": [{"type": "input_image", "image_url": image_url(3)}]},
    ]
    body = {"input": turns, "reuse": REUSE}
    assert tell(server, body, "/v1/responses")["degradations"] == [LINKED]


def test_another_salt_links_nothing(server: TestServer) -> None:
    tell(server, chat(4, cache_salt="one"))
    assert tell(server, chat(4, "See.", cache_salt="two", reuse=REUSE))["degradations"] == []


@pytest.mark.parametrize(
    "reuse",
    [{"position_independant": True}, {"position_independent": "yes"}, {"position_independent": 1}, True],
)
def test_a_wish_that_nobody_knows_is_refused(server: TestServer, reuse: object) -> None:
    response = server.client.post("/v1/chat/completions", json=chat(5, reuse=reuse))
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("reuse")
