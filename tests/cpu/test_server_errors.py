"""What goes wrong over HTTP: every fault is one JSON object with the right status, and the server goes on serving."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator

import httpx2
import openai
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from tapetum.core.config import ServerConfig
from tapetum.engine.service import AsyncEngine
from tapetum.server.app import build_app
from tests.cpu.server_kit import Script, TestServer, chat_body, eventually


def png(width: int, height: int) -> str:
    out = io.BytesIO()
    Image.new("RGB", (width, height), "white").save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def with_part(part: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, part]}]}


def with_picture(url: str) -> dict[str, object]:
    return with_part({"type": "image_url", "image_url": {"url": url}})


@pytest.fixture(scope="module")
def shared() -> Iterator[TestServer]:
    with TestServer(Script("Hello there")) as server:
        yield server


@pytest.fixture
def server(shared: TestServer) -> Iterator[TestServer]:
    """The server, which must be at rest and serving after every test."""
    yield shared
    shared.script.fail_at, shared.script.step_s = None, 0.0
    assert eventually(lambda: shared.is_at_rest)
    assert shared.chat().json()["choices"][0]["message"]["content"] == "Hello there"


def check_error(body: object, *, param: str | None, code: str, kind: str = "invalid_request_error") -> str:
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"], error["type"]) == (param, code, kind)
    assert error["message"]
    return error["message"]


UNSERVED = {
    "best_of": 2,
    "chat_template": "{{ 1 }}",
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "length_penalty": 2,
    "prompt_logprobs": 1,
}


@pytest.mark.parametrize("name", UNSERVED)
def test_a_field_that_is_not_served_is_refused_by_name(server: TestServer, name: str) -> None:
    response = server.chat(**{name: UNSERVED[name]})
    assert response.status_code == 400
    assert name in check_error(response.json(), param=name, code="unsupported_parameter")


def test_values_that_ask_for_nothing_and_unknown_fields_are_welcome(server: TestServer) -> None:
    neutral = {
        "n": 1,
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "logit_bias": {},
        "parallel_tool_calls": True,
        "service_tier": "auto",
        "store": False,
        "verbosity": "medium",
    }
    nulls = {
        "audio": None,
        "seed": None,
        "max_tokens": None,
        "stream": None,
        "stream_options": None,
    }
    unknown = {
        "user": "me",
        "metadata": {"a": "b"},
        "zebra": 1,
        "stop": "",
    }
    assert server.chat(**neutral, **nulls, **unknown).status_code == 200


BAD_FIELDS = [
    ({"timeout_s": 86_401}, "timeout_s", ["86400"]),
    ({"max_tokens": "ten"}, "max_tokens", ["int"]),
    ({"max_tokens": 0}, "max_tokens", ["0", "1"]),
    ({"max_tokens": -3}, "max_tokens", ["-3"]),
    ({"max_tokens": 5000}, "max_tokens", ["5000", "2048"]),
    ({"max_tokens": 10**30}, "max_tokens", []),
    ({"max_tokens": True}, "max_tokens", ["bool"]),
    ({"temperature": -1}, "temperature", ["-1", "0 to 100"]),
    ({"temperature": "hot"}, "temperature", ["float"]),
    ({"top_p": 0}, "top_p", ["0"]),
    ({"top_p": 1.5}, "top_p", ["1.5"]),
    ({"top_k": 1.5}, "top_k", []),
    ({"seed": "x"}, "seed", []),
    ({"stop": ["a"] * 17}, "stop", ["17", "16"]),
    ({"stop": [""]}, "stop", ["empty"]),
    ({"stop": [1]}, "stop[0]", []),
    ({"stop_token_ids": [99999]}, "stop_token_ids", ["99999"]),
    ({"top_logprobs": 3}, "top_logprobs", ["logprobs"]),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", ["20"]),
    ({"logprobs": 3}, "logprobs", []),
    ({"priority": "urgent"}, "priority", ["'urgent'", "interactive or standard or -1000 to 1000"]),
    ({"priority": 10**9}, "priority", ["1000000000", "-1000 to 1000"]),
    ({"n": 500}, "n", ["n is 500, allowed are 1 to 128"]),
    ({"on_vision_timeout": "degrade"}, "on_vision_timeout", ["'degrade'", "reject or text_only"]),
    ({"timeout_s": -5}, "timeout_s", ["timeout_s is -5", "above 0 to 86400"]),
    ({"timeout_s": 1e300}, "timeout_s", ["86400"]),
    ({"timeout_s": 0}, "timeout_s", ["timeout_s is 0", "above 0 to 86400"]),
    ({"response_format": {"type": "xml"}}, "response_format.type", ["'xml'", "text or json_object"]),
    ({"max_tokens": 2**40}, "max_tokens", ["1 to 2147483647"]),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", ["messages"]),
    ({"messages": []}, "messages", []),
    ({"messages": "hi"}, "messages", []),
    ({"messages": [{"content": "x"}]}, "messages[0]", ["role"]),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", []),
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        "messages[0].content[0].type",
        ["image_url"],
    ),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0]", ["type"]),
    (with_part({"type": "video", "video": []}), "messages[0].content[1].video", []),
    (
        with_part({"type": "image", "image": png(56, 56), "max_visual_token": 5}),
        "messages[0].content[1].max_visual_token",
        ["did you mean max_visual_tokens?"],
    ),
    (
        with_part({"type": "image_url", "image_url": {"url": png(56, 56), "zebra": 5}}),
        "messages[0].content[1].image_url.zebra",
        ["url, detail"],
    ),
    ({"media_io_kwargs": {"imag": {}}}, "media_io_kwargs.imag", ["did you mean image?"]),
    ({"mm_processor_kwargs": {"zebra": 1}, **with_picture(png(56, 56))}, "zebra", ["min_pixels"]),
    ({"mm_processor_kwargs": {"max_pixels": "big"}, **with_picture(png(56, 56))}, "max_pixels", ["big"]),
]


@pytest.mark.parametrize(("fields", "param", "words"), BAD_FIELDS, ids=lambda value: str(value)[:40])
def test_a_bad_field_is_named_with_its_value_and_limit(
    server: TestServer, fields: dict[str, object], param: str, words: list[str]
) -> None:
    response = server.chat(**fields)
    assert response.status_code == 400
    error = response.json()["error"]
    message = check_error(response.json(), param=param, code=error["code"])
    assert all(word in message for word in words), message
    streamed = server.chat(**fields, stream=True)  # nothing has streamed yet: the same plain error
    assert (streamed.status_code, streamed.json()) == (400, response.json())


BAD_PICTURES = [
    ("data:image/png;base64,AAAA", 400, "invalid_media"),
    ("data:image/png;base64,@@@@", 400, "invalid_media"),
    ("data:image/png;base64", 400, "invalid_media"),
    (png(1, 400), 400, "invalid_media"),
    ("http://127.0.0.1:1/x.png", 400, "media_forbidden"),
    ("file:///etc/passwd", 400, "media_forbidden"),
    ("/etc/passwd", 400, "media_forbidden"),
    ("ftp://host/x.png", 400, "media_forbidden"),
]


@pytest.mark.parametrize(("url", "status", "code"), BAD_PICTURES, ids=lambda value: str(value)[:30])
def test_a_picture_that_cannot_be_used_is_refused_and_holds_nothing(
    server: TestServer, url: str, status: int, code: str
) -> None:
    blocks = server.engine.stats.num_free_blocks + server.engine.stats.num_cached_blocks
    for is_streamed in (False, True):
        response = server.chat(**with_picture(url), stream=is_streamed)
        assert response.status_code == status
        check_error(response.json(), param="messages", code=code)
    stats = server.engine.stats
    assert stats.num_free_blocks + stats.num_cached_blocks == blocks


def test_a_picture_that_cannot_be_used_is_told_by_the_field_that_it_came_in(server: TestServer) -> None:
    url = "data:image/png;base64,AAAA"
    content = [{"type": "input_image", "image_url": url}]
    asked = {"input": [{"role": "user", "content": content}]}
    for path, body, param in (
        ("/v1/responses", asked, "input"),
        ("/v1/vlm", {"image_url": url, "prompt": "x"}, "image_url"),
        ("/v1/estimate", with_picture(url), "messages"),
    ):
        reply = server.client.post(path, json=body)
        assert reply.status_code == 400
        check_error(reply.json(), param=param, code="invalid_media")


def test_a_prompt_that_never_fits_says_the_numbers(server: TestServer) -> None:
    response = server.chat(messages=[{"role": "user", "content": "word " * 3000}])
    assert response.status_code == 400
    message = check_error(
        response.json(), param=response.json()["error"]["param"], code="context_length_exceeded"
    )
    assert "2047" in message or "2048" in message


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"nonsense", b'{"messages": "\xff"}', b'{"messages": [{"role": "\\ud800"}]}', b"5"],
)
def test_a_body_that_is_no_request_is_refused(server: TestServer, body: bytes) -> None:
    response = server.client.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_body_beyond_the_limit_is_refused() -> None:
    with TestServer(Script("Hi"), ServerConfig(max_body_bytes=10_000)) as server:
        response = server.chat(messages=[{"role": "user", "content": "x" * 20_000}])
        assert response.status_code == 413
        assert "10000" in check_error(response.json(), param=None, code="body_too_large")
        assert server.chat().status_code == 200


def test_an_unknown_model_or_route_or_method_is_told(server: TestServer) -> None:
    response = server.chat(model="gpt-9")
    assert response.status_code == 404
    assert "tapetum-mini" in check_error(response.json(), param="model", code="model_not_found")
    missing = server.client.get("/v1/zebras")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert "/docs" in missing.json()["error"]["message"]
    slashed = server.client.post("/v1/chat/completions/", json=chat_body())
    assert (slashed.status_code, slashed.json()["error"]["code"]) == (404, "not_found")
    wrong = server.client.get("/v1/chat/completions")
    assert (wrong.status_code, set(wrong.json())) == (405, {"error"})


def test_the_official_client_raises_its_own_errors(server: TestServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        ask = client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as raised:
            ask(model="default", messages=[{"role": "user", "content": "x"}], n=0)
        assert (raised.value.param, raised.value.code) == ("n", "invalid_parameter")
        with pytest.raises(openai.NotFoundError):
            ask(model="gpt-9", messages=[{"role": "user", "content": "x"}])
        server.script.fail_at, server.script.step_s = 1, 0.05
        with pytest.raises(openai.APIError, match="script fails"):
            list(ask(model="default", messages=[{"role": "user", "content": "x"}], stream=True))


def test_a_failure_before_the_answer_is_an_error_and_within_it_an_event(server: TestServer) -> None:
    server.script.fail_at, server.script.step_s = 1, 0.05
    whole = server.chat()
    assert whole.status_code == 500
    check_error(whole.json(), param=None, code="engine_error", kind="server_error")
    streamed = server.chat(stream=True)
    events = [event.removeprefix("data: ") for event in streamed.text.split("\n\n") if event]
    assert streamed.status_code == 200
    assert json.loads(events[0])["choices"][0]["delta"]["role"] == "assistant"
    check_error(json.loads(events[-2]), param=None, code="engine_error", kind="server_error")
    assert events[-1] == "[DONE]"


def test_keys_guard_the_api_but_not_the_probes() -> None:
    with TestServer(Script("Hi"), ServerConfig(api_keys=("first", "sécond"))) as server:

        def status(authorization: bytes | None) -> int:
            headers = [] if authorization is None else [(b"authorization", authorization)]
            return server.client.post("/v1/chat/completions", json=chat_body(), headers=headers).status_code

        wrong = (None, b"", b"Bearer", b"Bearer firs", b"Bearer first2", b"Basic first", b"first")
        assert [status(value) for value in wrong] == [401] * len(wrong)
        assert status(b"Bearer first") == 200
        assert status(b"bearer " + "sécond".encode()) == 200
        refusal = server.client.get("/v1/models")
        assert refusal.headers["www-authenticate"] == "Bearer"
        check_error(refusal.json(), param=None, code="invalid_api_key", kind="authentication_error")
        assert server.client.get("/health").status_code == 200
        assert server.client.get("/metrics").status_code == 200


def test_a_dead_engine_fails_its_clients_and_health() -> None:
    with TestServer(Script("Hi")) as server:
        assert server.client.get("/health").json()["status"] == "ok"
        server.script.death = SystemExit("the machine is on fire")
        response = server.chat()
        assert response.status_code == 503
        check_error(response.json(), param=None, code="engine_dead", kind="server_error")
        assert response.headers["retry-after"] == "1"
        assert eventually(lambda: server.client.get("/health").status_code == 503)
        assert server.chat().status_code == 503


async def test_before_the_model_is_loaded_health_and_chat_say_come_back() -> None:
    engine = AsyncEngine()  # never started
    transport = httpx2.ASGITransport(build_app(engine, ServerConfig()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        for response in (
            await client.get("/health"),
            await client.get("/v1/models"),
            await client.get("/metrics"),
            await client.post("/v1/chat/completions", json=chat_body()),
        ):
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            check_error(response.json(), param=None, code="capacity", kind="server_error")
    await engine.stop()


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_that_the_server_cuts_off_is_an_error(server: TestServer, is_streamed: bool) -> None:
    server.script.step_s = 0.005
    server.script.seen.clear()
    replies: list[httpx2.Response] = []
    fields = {"stream": is_streamed, "ignore_eos": True, "max_tokens": 1500}
    asking = threading.Thread(target=lambda: replies.append(server.chat(**fields)))
    asking.start()
    assert eventually(lambda: bool(server.script.seen))
    server.engine.abort(server.script.seen[0].request_id)  # as the shutdown does
    asking.join(10)
    server.script.step_s = 0.0
    (reply,) = replies
    body = reply.text.split("\n\n")[-3].removeprefix("data: ") if is_streamed else reply.text
    assert reply.status_code == (200 if is_streamed else 503)
    check_error(json.loads(body), param=None, code="capacity", kind="server_error")


def test_metrics_are_read_from_the_engine() -> None:
    with TestServer(Script("Hello there")) as server:
        picture = with_picture(png(84, 84))
        answers = [server.chat(**picture).json() for _ in range(2)]
        server.chat(max_tokens=1)
        server.chat(**with_picture("data:,"))
        response = server.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    samples = {
        (
            sample.name.removeprefix("tapetum:"),
            *sorted(value for key, value in sample.labels.items() if key != "model_name"),
        ): sample.value
        for family in families.values()
        for sample in family.samples
    }
    named = [sample.labels["model_name"] for family in families.values() for sample in family.samples]
    assert set(named) == {"tapetum-mini"}
    assert samples["request_success_total", "stop"] == 2
    assert samples["request_success_total", "length"] == 1
    usage = [answer["usage"] for answer in answers]
    assert samples["generation_tokens_total",] == sum(each["completion_tokens"] for each in usage) + 1
    assert samples["prompt_tokens_total",] > sum(each["prompt_tokens"] for each in usage)
    assert samples["mm_cache_queries_total",] == 2
    assert samples["prefix_cache_hits_total",] == usage[1]["prompt_tokens_details"]["cached_tokens"] > 0
    assert samples["rejections_total", "invalid_media"] == 1
    facts = server.engine.facts
    num_blocks = sum(value for name, value in samples.items() if name[0] == "kv_blocks")
    assert (
        samples["tier_bytes", "device", "kv"] == num_blocks * facts.block_size * facts.kv_bytes_per_token > 0
    )
    visual_tokens = usage[0]["prompt_tokens_details"]["visual_tokens"]
    assert samples["tier_bytes", "device", "features"] == visual_tokens * facts.feature_bytes_per_token
    assert samples["tier_evictions_total", "device", "kv"] == 0
    assert samples["num_requests_running",] == samples["num_requests_waiting",] == 0
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
        assert families[f"tapetum:{name}"].type == "histogram"
        assert samples[f"{name}_count",] == samples[f"{name}_bucket", "+Inf"] == 3
        assert samples[f"{name}_sum",] > 0
    for name in (
        "kv_cache_usage_perc",
        "num_preemptions_total",
        "prefix_cache_queries_total",
        "engine_heartbeat_seconds",
    ):
        assert (name,) in samples
    assert {"tapetum:mm_cache_hits", "tapetum:vision_encode_seconds", "tapetum:kv_blocks"} <= set(families)


def test_what_a_client_sent_comes_back_only_in_part() -> None:
    with TestServer(Script("Hi")) as server:
        long = "x" * 1_000_000
        picture = with_picture(png(28, 28))
        for reply in (server.chat(model=long), server.chat(mm_processor_kwargs={long: 1}, **picture)):
            assert reply.status_code in (400, 404)
            assert len(reply.content) < 3000


def test_one_model_is_found_by_its_name() -> None:
    with TestServer(Script("Hi")) as server:
        listed = server.client.get("/v1/models").json()["data"]
        assert server.client.get(f"/v1/models/{listed[0]['id']}").json() == listed[0]
        assert server.client.get("/v1/models/gpt-4").status_code == 404


def test_a_deadline_that_has_passed_is_the_clients() -> None:
    with TestServer(Script("Hi")) as server:
        reply = server.chat(timeout_s=1e-6)
        assert reply.status_code == 408
        check_error(reply.json(), param="timeout_s", code="timeout", kind="invalid_request_error")


def test_a_refusal_leaves_a_line_without_what_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "tapetum.requests"), TestServer(Script("Hi")) as server:
        server.chat(model="secret words")
    assert "POST /v1/chat/completions 404" in caplog.text
    assert caplog.records[-1].fields["error"] == "model_not_found"
    assert "secret words" not in caplog.text
