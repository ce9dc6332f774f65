"""The public faults of messages and of the interface, each as one request to a server whose tokens are scripted.

What depends on the model's own words is left to the runner of the cases; statuses, errors, and what the prompt holds
are checked here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
import pytest

from tests.conformance.faults import api, messages, requests
from tests.conformance.public_faults import BY_ID
from tests.cpu.server_kit import Script, TestServer, eventually

SINGLE = [
    case
    for case in (*requests.CASES, *messages.CASES, *api.CASES)
    if "scenario" not in case.build()
    and case.id != "R39a"  # its pictures are for the runner: they take seconds
]


@pytest.fixture(scope="module")
def shared() -> Iterator[TestServer]:
    with TestServer(Script("Red, green, blue, and something else that takes a few more words.")) as server:
        yield server


@pytest.fixture
def server(shared: TestServer) -> Iterator[TestServer]:
    shared.script.seen.clear()
    yield shared
    assert eventually(lambda: shared.is_at_rest)
    assert post(shared, "C00").status_code == 200


def post(server: TestServer, case_id: str) -> httpx2.Response:
    return server.client.post("/v1/chat/completions", json=BY_ID[case_id].build())


def num_prompt_tokens(server: TestServer, case_id: str) -> int:
    return post(server, case_id).json()["usage"]["prompt_tokens"]


def fits(server: TestServer, response: httpx2.Response, expect: dict) -> list[str]:
    """What of the expectations does not hold, as far as this server can tell."""
    wanted = expect.get("status")
    if wanted is not None and response.status_code not in (wanted if isinstance(wanted, list) else [wanted]):
        return [f"status {response.status_code}: {response.text[:200]}"]
    if response.status_code != 200:
        text = response.json()["error"]["message"].lower()
        words = expect.get("error_contains_any", [""])
        return [] if any(word in text for word in words) else [f"error {text}"]
    body = response.json()
    wrong = []
    num_tokens = body["usage"]["prompt_tokens"]
    if "image_spans" in expect and len(body["tapetum"]["media"]) != expect["image_spans"]:
        wrong.append("image_spans")
    if "choices" in expect and len(body["choices"]) != expect["choices"]:
        wrong.append("choices")
    if "same_prompt_tokens_as" in expect:
        wrong += ["same"] * (num_tokens != num_prompt_tokens(server, expect["same_prompt_tokens_as"]))
    if "prompt_tokens_greater_than" in expect:
        wrong += ["greater"] * (num_tokens <= num_prompt_tokens(server, expect["prompt_tokens_greater_than"]))
    if "prompt_tokens_within" in expect:
        other, distance = expect["prompt_tokens_within"]
        wrong += ["within"] * (abs(num_tokens - num_prompt_tokens(server, other)) > distance)
    return wrong


@pytest.mark.parametrize("case", SINGLE, ids=lambda case: case.id)
def test_a_public_fault_does_not_happen_here(server: TestServer, case: object) -> None:
    response = post(server, case.id)
    ways = case.expect.get("any_of", [case.expect])
    outcomes = [fits(server, response, {**case.expect, **way}) for way in ways]
    assert [] in outcomes, outcomes


@pytest.mark.parametrize("step", BY_ID["R46a"].build()["steps"], ids=lambda step: step["note"])
def test_a_number_that_is_none_is_a_400(server: TestServer, step: dict) -> None:
    response = server.client.post(step["path"], content=step["body"], headers=step["headers"])
    assert response.status_code == 400
    assert len(response.json()["error"]["message"]) < 300


def test_usage_is_the_same_streamed_or_not(server: TestServer) -> None:
    plain, with_usage, without, words = (step["body"] for step in BY_ID["R42a"].build()["steps"])
    usage = server.client.post("/v1/chat/completions", json=plain).json()["usage"]
    events = streamed(server, with_usage)
    assert events[-1]["choices"] == []
    for name in ("prompt_tokens", "completion_tokens"):
        assert events[-1]["usage"][name] == usage[name]
    assert not any("usage" in event for event in streamed(server, without))
    bare = server.client.post("/v1/chat/completions", json=words).json()["usage"]
    assert usage["prompt_tokens"] > bare["prompt_tokens"]


def streamed(server: TestServer, body: dict) -> list[dict]:
    response = server.client.post("/v1/chat/completions", json=body)
    events = [event.removeprefix("data: ") for event in response.text.split("\n\n") if event]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]
