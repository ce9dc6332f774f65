"""Official clients with a real server whose answers are scripted: what they read is what the script says."""

from __future__ import annotations

import asyncio
import json
import socket
from base64 import b64encode
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tapetum.assets import SAMPLES_DIR
from tapetum.core.config import ServerConfig
from tests.cpu.server_kit import Script, TestServer, eventually, files

ANSWER = "Total: 12.50 €"
ASK = [{"role": "user", "content": "What is the total?"}]
PICTURE = f"data:image/png;base64,{b64encode((SAMPLES_DIR / 'ok-01-text.png').read_bytes()).decode()}"
LOOK = [
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": PICTURE}},
            {"type": "text", "text": "What is it?"},
        ],
    }
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place now",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place"],
        },
    },
}
ARGUMENTS = {"place": "Zürich, ZH", "days": 2}
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {json.dumps(ARGUMENTS, ensure_ascii=False)}}}\n</tool_call>'


@pytest.fixture(scope="module")
def served() -> Iterator[TestServer]:
    with TestServer(Script(ANSWER)) as server:
        yield server


@pytest.fixture
def server(served: TestServer) -> Iterator[TestServer]:
    served.script.answer = ANSWER
    served.script.seen.clear()
    yield served
    assert eventually(lambda: served.is_at_rest), "every request has ended"


@pytest.fixture
def client(server: TestServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def num_tokens(text: str) -> int:
    return len(files().tokenizer.encode_plain(text)) + 1  # and the end


def prompt_of(server: TestServer, index: int = -1) -> str:
    return files().tokenizer.decode(server.script.seen[index].prompt.token_ids, skip_special=False)


def test_a_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="default", messages=ASK)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == num_tokens(ANSWER)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    chunks = list(
        client.chat.completions.create(
            model="default", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
    )
    *chunks, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert {chunk.id for chunk in (*chunks, last)} == {last.id}
    assert (last.choices, last.usage) == (
        [],
        answer.usage.model_copy(update={"prompt_tokens_details": last.usage.prompt_tokens_details}),
    )


def test_the_helper_for_streams_joins_what_came(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="default", messages=ASK) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(pieces) == ANSWER == final.choices[0].message.content
    assert len(pieces) > 1


def test_a_stream_that_is_closed_early_ends_its_request(server: TestServer, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="default", messages=ASK, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
    )
    with stream:
        assert next(iter(stream)).object == "chat.completion.chunk"
    assert eventually(lambda: server.is_at_rest, within_s=2)


def test_raw_responses_carry_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="default", messages=ASK, extra_headers={"X-Request-Id": "mine"}
    )
    assert raw.status_code == 200
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-request-id"] == "mine"
    assert raw.parse().choices[0].message.content == ANSWER
    assert raw.parse()._request_id == "mine"


async def test_asynchronous_clients_ask_together(server: TestServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        async def streamed() -> str:
            chunks = await client.chat.completions.create(model="default", messages=LOOK, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        async def whole() -> str | None:
            answer = await client.chat.completions.create(model="default", messages=ASK)
            return answer.choices[0].message.content

        answers = await asyncio.gather(*(work() for work in (streamed, whole) * 5))
        assert answers == [ANSWER] * 10


def test_pictures_and_extras(server: TestServer, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="default", messages=LOOK, extra_body={"max_visual_tokens": 20, "cache_salt": "s"}
    )
    assert answer.choices[0].message.content == ANSWER
    (media,) = answer.model_extra["tapetum"]["media"]
    assert media["type"] == "image"
    assert 0 < media["visual_tokens"] <= 20
    assert answer.usage.model_extra is not None
    assert answer.usage.prompt_tokens_details.model_extra["visual_tokens"] == media["visual_tokens"]


def test_several_answers_and_their_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="default", messages=ASK, n=3, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.message.content == ANSWER
        assert choice.logprobs is not None
        content = choice.logprobs.content or []
        assert b"".join(bytes(token.bytes or ()) for token in content[:-1]).decode() == ANSWER
        assert {len(token.top_logprobs) for token in content} == {2}


def test_a_tool_is_called_and_its_result_read(server: TestServer, client: openai.OpenAI) -> None:
    server.script.answer = f"Let me see.\n{CALL}"
    answer = client.chat.completions.create(model="default", messages=ASK, tools=[WEATHER], max_tokens=200)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert call.id
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == ARGUMENTS
    assert (message.content or "").strip() == "Let me see."
    assert "The weather of a place now" in prompt_of(server)

    server.script.answer = ANSWER
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain, 7 degrees"}
    again = client.chat.completions.create(
        model="default", messages=[*ASK, message.model_dump(exclude_none=True), result], tools=[WEATHER]
    )
    assert again.choices[0].message.content == ANSWER
    assert again.choices[0].finish_reason == "stop"
    seen = prompt_of(server)
    assert seen.index("get_weather") < seen.index("Zürich, ZH") < seen.index("rain, 7 degrees")


def test_tool_calls_are_streamed(server: TestServer, client: openai.OpenAI) -> None:
    server.script.answer = f"{CALL}\n{CALL.replace('Zürich', 'Bern')}"
    with client.chat.completions.stream(
        model="default", messages=ASK, tools=[WEATHER], max_tokens=400
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    calls = final.choices[0].message.tool_calls or []
    assert [json.loads(call.function.arguments)["place"] for call in calls] == ["Zürich, ZH", "Bern, ZH"]
    assert len({call.id for call in calls}) == 2
    pieces = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert len(pieces) > 4, "arguments come in pieces, not at the end"
    assert "".join(event.delta for event in events if event.type == "content.delta").strip() == ""


class Receipt(BaseModel):
    store: str
    total: float


def test_structured_answers_become_objects(server: TestServer, client: openai.OpenAI) -> None:
    server.script.answer = '{"store": "Fresh Books", "total": 12.5}'
    wanted = Receipt(store="Fresh Books", total=12.5)
    answer = client.chat.completions.parse(model="default", messages=LOOK, response_format=Receipt)
    assert answer.choices[0].message.parsed == wanted
    (request,) = server.script.seen
    assert request.sampling.grammar is not None, "the answer is held to the schema"
    assert set(json.loads(request.sampling.grammar.source)["properties"]) == {"store", "total"}
    with client.chat.completions.stream(model="default", messages=LOOK, response_format=Receipt) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == wanted


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="default", prompt="The total is")
    assert (answer.object, answer.choices[0].text) == ("text_completion", ANSWER)
    assert answer.choices[0].finish_reason == "stop"
    chunks = client.completions.create(model="default", prompt="The total is", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == ANSWER
    several = client.completions.create(model="default", prompt=["One", "Two"], n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]


def test_responses(server: TestServer, client: openai.OpenAI) -> None:
    answer = client.responses.create(model="default", input="What is the total?", instructions="Be short")
    assert answer.output_text == ANSWER
    assert answer.status == "completed"
    assert answer.usage is not None
    assert answer.usage.output_tokens == num_tokens(ANSWER)
    assert "Be short" in prompt_of(server)
    content = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PICTURE}]
    look: Any = [{"role": "user", "content": content}]
    with client.responses.stream(model="default", input=look) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(pieces) == ANSWER == final.output_text
    assert len(server.script.seen[-1].prompt.spans) == 1


def test_responses_become_objects(server: TestServer, client: openai.OpenAI) -> None:
    server.script.answer = '{"store": "Fresh Books", "total": 12.5}'
    answer = client.responses.parse(model="default", input="Read it", text_format=Receipt)
    assert answer.output_parsed == Receipt(store="Fresh Books", total=12.5)


def test_models(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names == ["tapetum-mini"]
    assert client.models.retrieve("tapetum-mini").id == "tapetum-mini"


def test_faults_are_the_errors_that_the_client_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="default", messages=ASK, temperature=-1)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_parameter")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nobody", messages=ASK, stream=True)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="default", input="x")


def test_a_failure_in_a_stream_is_raised(server: TestServer, client: openai.OpenAI) -> None:
    server.script.fail_at = 2
    try:
        with pytest.raises(openai.APIError, match="the script fails here"):
            list(client.chat.completions.create(model="default", messages=ASK, stream=True))
    finally:
        server.script.fail_at = None


def test_keys() -> None:
    with TestServer(Script(ANSWER), ServerConfig(api_keys=("secret",))) as server:
        answers = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret").chat.completions
        assert answers.create(model="default", messages=ASK).choices[0].message.content == ANSWER
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0).models.list()


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """LiteLLM with its own table of prices; whatever would leave this machine fails."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        assert address[0] == "127.0.0.1", f"a connection to {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    return litellm


def test_litellm(server: TestServer, litellm: ModuleType) -> None:
    where = {"model": "openai/default", "api_base": f"{server.url}/v1", "api_key": "none"}
    answer = litellm.completion(**where, messages=ASK)
    assert answer.choices[0].message.content == ANSWER
    assert answer.usage.completion_tokens == num_tokens(ANSWER)
    chunks = litellm.completion(**where, messages=LOOK, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert len(server.script.seen[-1].prompt.spans) == 1
    server.script.answer = CALL
    called = litellm.completion(**where, messages=ASK, tools=[WEATHER])
    (call,) = called.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", ARGUMENTS)
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**where, messages=ASK, temperature=-1)
