"""Chat answers over true HTTP: several choices, calls, formats, ids; and the stream is the whole, whatever is asked."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cpu.server_kit import Script, TestServer, chat_body, eventually, files

ANSWER = "Total: 12.50 €\nTax: 2.00 🙂 done"
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"item": "té"}}\n</tool_call>'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "The price of an item",
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string"}},
                "required": ["item"],
            },
        },
    }
]


@pytest.fixture(scope="module")
def shared() -> Iterator[TestServer]:
    with TestServer(Script()) as server:
        yield server


@pytest.fixture
def server(shared: TestServer) -> Iterator[TestServer]:
    shared.script.answer = ANSWER
    shared.script.step_s = 0.0
    shared.script.fail_at = None
    shared.script.seen.clear()
    yield shared
    assert eventually(lambda: shared.is_at_rest)


@pytest.fixture
def client(server: TestServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def chunks_of(text: str) -> list[dict]:
    events = [event for event in text.split("\n\n") if event]
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def joined(chunks: list[dict]) -> dict[int, dict]:
    """As a client joins a stream: one answer per index."""
    answers: dict[int, dict] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            index, delta = choice["index"], choice["delta"]
            if "role" in delta:
                assert index not in answers
                answers[index] = {"text": "", "calls": [], "logprobs": [], "token_ids": [], "end": None}
            answer = answers[index]
            assert answer["end"] is None, "nothing comes after the end of a choice"
            answer["text"] += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    answer["calls"].append({"name": call["function"]["name"], "arguments": ""})
                answer["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            answer["logprobs"] += (choice["logprobs"] or {"content": []})["content"]
            answer["token_ids"] += choice.get("token_ids", [])
            if choice["finish_reason"]:
                answer["end"] = (choice["finish_reason"], choice["stop_reason"])
    return answers


def whole(answer: dict) -> dict[int, dict]:
    """A plain answer in the same form."""
    return {
        choice["index"]: {
            "text": choice["message"]["content"] or "",
            "calls": [call["function"] for call in choice["message"].get("tool_calls", ())],
            "logprobs": (choice["logprobs"] or {"content": []})["content"],
            "token_ids": choice.get("token_ids", []),
            "end": (choice["finish_reason"], choice["stop_reason"]),
        }
        for choice in answer["choices"]
    }


# ---- several choices


def test_several_choices_are_told_apart_and_counted_together(server: TestServer) -> None:
    alone = server.chat(seed=3).json()
    answer = server.chat(n=3, seed=3).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {ANSWER}
    assert answer["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 3 * alone["usage"]["completion_tokens"]
    assert [request.sampling.seed for request in server.script.seen] == [3, 3, 4, 5]


def test_a_stream_of_several_choices_tells_what_is_told_once_first_and_last(server: TestServer) -> None:
    server.script.step_s = 0.002
    chunks = chunks_of(server.chat(n=3, stream=True, stream_options={"include_usage": True}).text)
    *chunks, last, usage = chunks
    assert {index: answer["text"] for index, answer in joined([*chunks, last]).items()} == dict.fromkeys(
        range(3), ANSWER
    )
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == (
        [],
        3 * (len(files().tokenizer.encode_plain(ANSWER)) + 1),
    )
    told = [chunk for chunk in (*chunks, last) if "tapetum" in chunk]
    assert [set(chunk["tapetum"]) >= {"queue"} for chunk in told] == [True, False]
    assert told == [chunks[0], last]
    assert last["choices"][0]["finish_reason"] == "stop"
    indices = [chunk["choices"][0]["index"] for chunk in chunks]
    assert indices != sorted(indices), "the choices come side by side"


def test_a_failure_of_one_choice_is_told_and_ends_all(server: TestServer) -> None:
    server.script.fail_at = 2
    whole = server.chat(n=2)
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "engine_error")
    events = [event for event in server.chat(n=2, stream=True).text.split("\n\n") if event]
    assert "engine_error" in events[-2]
    assert events[-1] == "data: [DONE]"


@pytest.mark.parametrize("count", [1, 4])
def test_a_client_that_leaves_frees_all_choices(server: TestServer, count: int) -> None:
    server.script.step_s = 0.01
    body = chat_body(stream=True, ignore_eos=True, max_tokens=1000, n=count)
    with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        assert [next(lines) for _ in range(4 * count)]
        assert eventually(lambda: len(server.script.requests) == count)
    assert eventually(lambda: server.is_at_rest, within_s=5)


# ---- calls


def test_calls_come_as_openai_writes_them(server: TestServer, client: openai.OpenAI) -> None:
    server.script.answer = f"Let me see. {CALL}{CALL}"
    messages = [{"role": "user", "content": "How much is tea?"}]
    answer = client.chat.completions.create(model="default", messages=messages, tools=TOOLS, max_tokens=300)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert [call.type for call in choice.message.tool_calls] == ["function", "function"]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    for call in choice.message.tool_calls:
        assert re.fullmatch(r"call_[0-9a-f]{24}", call.id)
        assert (call.function.name, json.loads(call.function.arguments)) == ("look_up", {"item": "té"})
    turns = [
        *messages,
        choice.message,
        {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "12"},
    ]
    assert client.chat.completions.create(model="default", messages=turns, tools=TOOLS).choices


def test_streamed_calls_are_read_by_the_official_client(server: TestServer, client: openai.OpenAI) -> None:
    server.script.answer = CALL
    with client.chat.completions.stream(
        model="default", messages=[{"role": "user", "content": "x"}], tools=TOOLS, max_tokens=300
    ) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("look_up", {"item": "té"})
    assert answer.choices[0].finish_reason == "tool_calls"
    assert not answer.choices[0].message.content


def test_without_tools_or_with_none_to_call_the_text_is_left_alone(server: TestServer) -> None:
    server.script.answer = CALL
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = server.chat(**fields, max_tokens=300).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")
        assert "tool_calls" not in choice["message"]


def test_one_call_at_a_time_where_asked_for(server: TestServer) -> None:
    server.script.answer = CALL + CALL
    answer = server.chat(tools=TOOLS, parallel_tool_calls=False, max_tokens=300)
    assert len(whole(answer.json())[0]["calls"]) == 1


def test_tools_and_a_format_at_once_are_refused(server: TestServer) -> None:
    response = server.chat(tools=TOOLS, response_format={"type": "json_object"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    server.script.answer = "{}"
    fields = {"tools": TOOLS, "tool_choice": "none", "response_format": {"type": "json_object"}}
    assert server.chat(**fields).status_code == 200


# ---- formats


def test_the_format_of_an_answer_reaches_the_engine(server: TestServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    named = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    server.script.answer = '{"a": 1}'
    assert server.chat(response_format=named).status_code == 200
    assert server.script.seen[-1].sampling.grammar.kind == "json_schema"
    assert json.loads(server.script.seen[-1].sampling.grammar.source) == schema


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": "("},
        {"guided_grammar": "no grammar"},
        {"guided_json": {"type": "zebra"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/nowhere"}}}},
    ],
)
def test_a_format_that_nothing_can_fit_is_refused_before_the_stream(server: TestServer, fields: dict) -> None:
    for is_streamed in (False, True):
        response = server.chat(stream=is_streamed, **fields)
        assert response.status_code == 400
        assert response.json()["error"]["message"]


# ---- ids


def test_the_id_a_client_gave_comes_back_and_is_never_the_engines(server: TestServer) -> None:
    server.script.step_s = 0.005
    answers = []

    def ask() -> None:
        headers = {"X-Request-Id": "same"}
        body = chat_body(request_id="same", stream=True)
        answers.append(server.client.post("/v1/chat/completions", json=body, headers=headers))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [answer.headers["x-request-id"] for answer in answers] == ["same"] * 3
    assert [joined(chunks_of(answer.text))[0]["text"] for answer in answers] == [ANSWER] * 3
    assert {chunk["id"] for answer in answers for chunk in chunks_of(answer.text)} == {"chatcmpl-same"}
    assert len({request.request_id for request in server.script.seen}) == 3
    assert "same" not in {request.request_id for request in server.script.seen}


def test_without_an_id_of_the_client_the_engines_is_told(server: TestServer) -> None:
    for is_streamed in (False, True):
        answer = server.chat(stream=is_streamed)
        assert answer.headers["x-request-id"] == server.script.seen[-1].request_id


def test_a_refusal_echoes_the_id_too_and_one_that_is_none_is_left_out(server: TestServer) -> None:
    def echoed(value: str) -> str | None:
        headers = {"X-Request-Id": value}
        response = server.client.post("/v1/chat/completions", json={}, headers=headers)
        assert response.status_code == 400
        return response.headers.get("x-request-id")

    assert echoed("mine/1") == "mine/1"
    assert echoed("a b") != "a b"
    assert echoed("a" * 129) != "a" * 129


# ---- properties

WANTED = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 30),
        "stop": st.lists(st.sampled_from(["Tax", "12", "50 €", "🙂", "zebra", "\n"]), min_size=1, max_size=3),
        "stop_token_ids": st.lists(st.sampled_from(files().tokenizer.encode_plain(ANSWER)), max_size=2),
        "logprobs": st.just(True),
        "return_token_ids": st.just(True),
        "ignore_eos": st.booleans(),
        "tools": st.just(TOOLS),
        "seed": st.integers(0, 9),
    },
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(WANTED, st.sampled_from([ANSWER, CALL, f"{ANSWER} {CALL}", "a <tool", "é" * 9]))
def test_the_stream_is_the_whole_whatever_is_asked(server: TestServer, fields: dict, answer: str) -> None:
    server.script.answer = answer
    fields = {"max_tokens": 300} | fields
    plain = server.chat(**fields)
    assert plain.status_code == 200
    streamed = server.chat(stream=True, stream_options={"include_usage": True}, **fields)
    *chunks, last = chunks_of(streamed.text)
    assert joined(chunks) == whole(plain.json())
    assert last["usage"]["completion_tokens"] == plain.json()["usage"]["completion_tokens"]
    assert last["usage"]["prompt_tokens"] == plain.json()["usage"]["prompt_tokens"]
    assert [index for index, chunk in enumerate(chunks) if "tapetum" in chunk] == [0, len(chunks) - 1]


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 99), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)
FIELDS = (
    "temperature",
    "n",
    "tools",
    "tool_choice",
    "response_format",
    "logit_bias",
    "stop",
    "stream",
    "seed",
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.one_of(
        JSON, st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3).map(lambda more: chat_body(**more))
    )
)
def test_no_json_is_a_fault_of_the_server(server: TestServer, body: object) -> None:
    response = server.client.post("/v1/chat/completions", json=body)
    assert response.status_code in (200, 400, 404)
    if response.status_code != 200:
        assert response.json()["error"]["message"]
