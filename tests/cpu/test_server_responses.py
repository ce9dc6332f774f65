"""The Responses API, by the official client and by its own typed records as the oracle of every event."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Iterator

import httpx2
import openai
import pydantic
import pytest
from msgspec import UNSET, UnsetType
from openai.types.responses import Response, ResponseStreamEvent

from tapetum.assets import SAMPLES_DIR
from tapetum.server.chat.wire import AnswerMessage, ChatAnswer, Choice
from tapetum.server.disclosure import PromptDetails, Usage
from tapetum.server.responses.reply import ResponsesReply
from tapetum.server.responses.schema import ResponsesRequest
from tests.cpu.server_kit import Script, TestServer, eventually, files

ANSWER = "Total: 12.50 €\nTax: 2.00 🙂 done"
PICTURE = SAMPLES_DIR / "ok-03-receipt.jpg"
DATA_URL = "data:image/jpeg;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
IMAGE = {"type": "input_image", "image_url": DATA_URL, "detail": "auto"}
EVENT = pydantic.TypeAdapter(ResponseStreamEvent)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 22}}\n</tool_call>'
TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def shared() -> Iterator[TestServer]:
    with TestServer(Script()) as server:
        yield server


@pytest.fixture
def server(shared: TestServer) -> Iterator[TestServer]:
    """The server, which must be at rest and serving after every test."""
    script = shared.script
    script.answer, script.step_s, script.fail_at = ANSWER, 0.0, None
    script.seen.clear()
    yield shared
    script.answer, script.step_s, script.fail_at = ANSWER, 0.0, None
    assert eventually(lambda: shared.is_at_rest)
    assert shared.chat().json()["choices"][0]["message"]["content"] == ANSWER


@pytest.fixture
def client(server: TestServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def post(server: TestServer, **fields: object) -> httpx2.Response:
    return server.client.post("/v1/responses", json={"input": "What is the total?", **fields})


def respond(server: TestServer, **fields: object) -> dict:
    response = post(server, **fields)
    assert response.status_code == 200, response.text
    Response.model_validate(response.json())
    return response.json()


def stream(server: TestServer, **fields: object) -> list[dict]:
    """The events, each of which the official records take as they are."""
    response = post(server, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in response.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        EVENT.validate_python(events[-1])
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def shown(server: TestServer) -> str:
    """The prompt that the engine got last."""
    return files().tokenizer.decode(server.script.seen[-1].prompt.token_ids, skip_special=False)


def text_of(response: dict) -> str:
    (message,) = [item for item in response["output"] if item["type"] == "message"]
    return message["content"][0]["text"]


def test_a_response_has_the_shape_of_openai_and_tells_what_it_saw(server: TestServer) -> None:
    content = [IMAGE, {"type": "input_text", "text": "What is the total?"}]
    answer = respond(server, input=[{"role": "user", "content": content}], metadata={"a": "b"}, user="me")
    request_id = answer["tapetum"]["request_id"]
    assert (answer["id"], answer["object"], answer["status"]) == (
        f"resp_{request_id}",
        "response",
        "completed",
    )
    assert answer["model"] == "tapetum-mini"
    assert answer["output"] == [
        {
            "type": "message",
            "id": f"msg_{request_id}_0",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": ANSWER, "annotations": [], "logprobs": []}],
        }
    ]
    (request,) = server.script.seen
    (span,) = request.prompt.spans
    num_answer = len(files().tokenizer.encode_plain(ANSWER)) + 1
    assert answer["usage"] == {
        "input_tokens": request.num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": 0,
            "visual_tokens": span.end - span.start,
            "cache_write_tokens": 0,
        },
        "output_tokens": num_answer,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": request.num_prompt_tokens + num_answer,
    }
    assert answer["tapetum"]["media"][0]["visual_tokens"] == span.end - span.start
    assert answer["tapetum"]["timing"]["ttft_s"] > 0
    assert (answer["metadata"], answer["user"]) == ({"a": "b"}, "me")
    assert (answer["store"], answer["background"], answer["truncation"]) == (False, False, "disabled")
    assert answer["text"] == {"format": {"type": "text"}, "verbosity": None}
    assert answer["error"] is answer["incomplete_details"] is answer["previous_response_id"] is None
    assert answer["completed_at"] >= answer["created_at"]


def test_the_events_of_a_message_come_in_their_order(server: TestServer) -> None:
    events = stream(server)
    names = [event["type"] for event in events]
    num_deltas = names.count("response.output_text.delta")
    assert num_deltas > 5  # it does stream
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * num_deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event["delta"] for event in events if "delta" in event) == ANSWER
    assert len({event["item_id"] for event in events if "item_id" in event}) == 1
    created, final = events[0]["response"], events[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert set(created["tapetum"]) == {"request_id", "media", "queue"}
    assert "timing" in final["tapetum"]
    assert events[-2]["item"] == final["output"][0]


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        (ANSWER, {}),
        (ANSWER, {"max_output_tokens": 4}),
        (CALL, {"tools": [TOOL]}),
        (CALL + "\n" + CALL, {"tools": [TOOL], "max_output_tokens": 300}),
        (CALL, {"tools": [TOOL], "max_output_tokens": 12}),
        ("", {}),
    ],
)
def test_the_last_event_carries_the_whole_response(server: TestServer, answer: str, fields: dict) -> None:
    server.script.answer = answer
    whole = respond(server, **fields)
    *_, last = stream(server, **fields)
    assert last["type"] == f"response.{whole['status']}"
    assert without_names(last["response"]) == without_names(whole)


def without_names(response: dict) -> dict:
    """A response without what differs from one request to the next."""
    varying = ("id", "created_at", "completed_at", "tapetum", "usage")
    kept = {name: value for name, value in response.items() if name not in varying}
    items = [
        {name: value for name, value in item.items() if name not in ("id", "call_id")}
        for item in kept.pop("output")
    ]
    return {**kept, "output": items, "output_tokens": response["usage"]["output_tokens"]}


def test_an_answer_cut_by_its_length_is_incomplete(server: TestServer) -> None:
    answer = respond(server, max_output_tokens=4)
    assert (answer["status"], answer["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert answer["output"][0]["status"] == "incomplete"
    assert answer["usage"]["output_tokens"] == 4
    assert answer["max_output_tokens"] == 4
    assert answer["completed_at"] is None


def test_an_answer_without_words_is_a_message_without_words(server: TestServer) -> None:
    server.script.answer = ""
    assert text_of(respond(server)) == ""
    assert [event["type"] for event in stream(server)][2:-1] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]


def test_calls_are_items_of_their_own(server: TestServer) -> None:
    server.script.answer = "I add.\n" + CALL + "\n" + CALL
    events = stream(server, tools=[TOOL], max_output_tokens=300)
    final = events[-1]["response"]
    message, first, second = final["output"]
    assert message["content"][0]["text"].strip() == "I add."
    for call in (first, second):
        assert (call["type"], call["name"], call["status"]) == ("function_call", "add", "completed")
        assert json.loads(call["arguments"]) == {"a": 1, "b": 22}
    assert first["call_id"] != second["call_id"]
    assert final["tools"] == [TOOL]
    of_first = [event for event in events if event.get("item_id") == first["id"]]
    names = [event["type"] for event in of_first]
    assert set(names[:-1]) == {"response.function_call_arguments.delta"}
    assert names[-1] == "response.function_call_arguments.done"
    assert (
        "".join(event["delta"] for event in of_first[:-1]) == of_first[-1]["arguments"] == first["arguments"]
    )
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2]
    assert added[1]["item"]["arguments"] == ""
    assert added[1]["item"]["call_id"] == first["call_id"]


def test_a_conversation_is_the_chat_it_amounts_to(server: TestServer) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "one"}, IMAGE]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "two", "annotations": []}],
        },
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "three"},
        {"type": "message", "role": "user", "content": "four"},
    ]
    respond(server, input=items, instructions="Be brief.", tools=[TOOL])
    as_items = shown(server)
    chat = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": DATA_URL}],
        },
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "two"}],
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "three"},
        {"role": "user", "content": "four"},
    ]
    function = {name: TOOL[name] for name in ("name", "description", "parameters", "strict")}
    assert server.chat(messages=chat, tools=[{"type": "function", "function": function}]).status_code == 200
    assert as_items == shown(server)
    first, second = server.script.seen
    assert [span.key for span in first.prompt.spans] == [span.key for span in second.prompt.spans]


def test_a_tool_may_answer_with_a_picture(server: TestServer) -> None:
    items = [
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [IMAGE]},
    ]
    answer = respond(server, input=items, tools=[TOOL])
    assert len(answer["tapetum"]["media"]) == 1


def test_every_choice_of_the_client_reaches_the_engine(server: TestServer) -> None:
    fields = {"temperature": 0.5, "top_p": 0.75, "top_k": 7, "seed": 11, "ignore_eos": True}
    answer = respond(server, **fields, max_output_tokens=40, cache_salt="salt", priority="background")
    (request,) = server.script.seen
    assert {name: getattr(request.sampling, name) for name in fields} == fields
    assert (request.max_tokens, request.tenant, request.priority) == (40, "salt", 2)
    assert (answer["temperature"], answer["top_p"]) == (0.5, 0.75)


def test_an_answer_keeps_to_the_format_of_its_text(server: TestServer) -> None:
    server.script.answer = '{"a": 1}'
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    answer = respond(server, text=text)
    (request,) = server.script.seen
    assert request.sampling.grammar.kind == "json_schema"
    assert json.loads(request.sampling.grammar.source) == schema
    assert text_of(answer) == '{"a": 1}'
    assert answer["text"]["format"] == text["format"] | {"description": None}
    respond(server, text={"format": {"type": "json_object"}})
    assert server.script.seen[-1].sampling.grammar.kind == "json_object"


def test_the_official_client_creates_and_streams(server: TestServer, client: openai.OpenAI) -> None:
    items = [{"role": "user", "content": [IMAGE, {"type": "input_text", "text": "What is the total?"}]}]
    answer = client.responses.create(model="default", input=items, instructions="Be brief.")
    assert answer.output_text == ANSWER
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.tapetum["media"][0]["type"] == "image"
    events = list(client.responses.create(model="default", input=items, stream=True))
    assert events[-1].response.output_text == ANSWER
    with client.responses.stream(model="default", input=items) as helper:
        deltas = [event for event in helper if event.type == "response.output_text.delta"]
        assert deltas[-1].snapshot == ANSWER
        assert helper.get_final_response().output_text == ANSWER


def test_the_official_client_parses_structured_answers(server: TestServer, client: openai.OpenAI) -> None:
    class Sum(pydantic.BaseModel):
        a: int
        b: int

    server.script.answer = '{"a": 1, "b": 22}'
    answer = client.responses.parse(model="default", input="add", text_format=Sum)
    assert answer.output_parsed == Sum(a=1, b=22)
    with client.responses.stream(model="default", input="add", text_format=Sum) as helper:
        assert helper.get_final_response().output_parsed == Sum(a=1, b=22)
    server.script.answer = CALL
    with client.responses.stream(model="default", input="add", tools=[TOOL]) as helper:
        (call,) = helper.get_final_response().output
    assert (call.type, call.parsed_arguments) == ("function_call", {"a": 1, "b": 22})


async def test_the_asynchronous_client_answers_a_call(server: TestServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        server.script.answer = CALL
        asked = [{"role": "user", "content": "add"}]
        first = await client.responses.create(model="default", input=asked, tools=[TOOL])
        server.script.answer = "23"
        (call,) = first.output
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "23"}
        conversation = [*asked, *(item.to_dict() for item in first.output), output]
        second = await client.responses.create(model="default", input=conversation, tools=[TOOL])
    assert second.output_text == "23"
    assert "23" in shown(server)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"n": 2}, "n"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "mcp", "server_label": "x"}]}, "tools[1].type"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].file_data"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
            "input[0].arguments",
        ),
        ({"temperature": -1}, "temperature"),
        ({"max_output_tokens": 0}, "max_tokens"),
        ({"metadata": {"a": 5}}, "metadata[...]"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(server: TestServer, fields: dict, param: str) -> None:
    for is_stream in (False, True):
        response = post(server, stream=is_stream, **fields)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["message"]
        assert error["param"].removesuffix("[...]") == param.removesuffix("[...]")
    assert not server.script.seen


def test_values_that_ask_for_nothing_are_welcome(server: TestServer) -> None:
    respond(
        server,
        store=True,
        truncation="auto",
        background=False,
        include=[],
        reasoning={"effort": None},
        text={"format": {"type": "text"}, "verbosity": "medium"},
        service_tier="auto",
        previous_response_id=None,
        prompt_cache_key="x",
        safety_identifier="x",
        max_tool_calls=3,
        zebra=1,
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"input": "\xff"}',
        b'{"input": "\\ud800"}',
        b'{"input": [{"role": "user", "content": "\xff"}]}',
        b'{"input": [' + b"[" * 5000,
        b'{"input": [{"role": "user", "content": "x", "deep": ' + b"[" * 3000 + b"]" * 3000 + b"}]}",
    ],
)
def test_a_body_that_is_no_request_is_refused(server: TestServer, body: bytes) -> None:
    response = server.client.post("/v1/responses", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_an_answer_that_breaks_off_fails(server: TestServer, client: openai.OpenAI) -> None:
    server.script.fail_at = 3
    assert post(server).status_code == 500
    events = stream(server)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["code"] == "engine_error"
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    last = list(client.responses.create(model="default", input="x", stream=True))[-1]
    assert (last.type, last.response.status) == ("response.failed", "failed")


def test_a_client_that_leaves_frees_everything(server: TestServer) -> None:
    server.script.step_s = 0.01
    body = {"input": "x", "stream": True, "ignore_eos": True, "max_output_tokens": 1500}
    with server.client.stream("POST", "/v1/responses", json=body) as response:
        lines = response.iter_lines()
        assert [next(lines) for _ in range(20)]
        assert not server.is_at_rest
    assert eventually(lambda: server.is_at_rest, within_s=5)
    with pytest.raises(httpx2.ReadTimeout):
        server.client.post("/v1/responses", json={**body, "stream": False}, timeout=0.3)
    assert eventually(lambda: server.is_at_rest, within_s=5)


def chunk(
    tokens: int = 0, *, content: str | UnsetType = UNSET, thought: str | UnsetType = UNSET, **rest: object
):
    delta = AnswerMessage(content=content, reasoning_content=thought)
    choice = Choice(delta=delta, token_ids=[7] * tokens, finish_reason=rest.pop("finish_reason", None))
    return ChatAnswer(
        id="chatcmpl-a", object="chat.completion.chunk", created=1, model="m", choices=[choice], **rest
    )


class Thinker:
    """The reply of a model that reasons."""

    request_id = "a"

    async def chunks(self) -> AsyncGenerator[ChatAnswer, None]:
        yield chunk(content="")
        for piece in ("I ", "see."):
            yield chunk(2, thought=piece)
        yield chunk(1)  # the end of the reasoning is no text
        yield chunk(1, content="Yes")
        yield chunk(3, content=".", finish_reason="stop")
        details = PromptDetails(cached_tokens=1, visual_tokens=2)
        usage = Usage(prompt_tokens=4, completion_tokens=9, total_tokens=13, prompt_tokens_details=details)
        yield chunk(usage=usage)


async def test_reasoning_is_an_item_before_the_message() -> None:
    reply = ResponsesReply(Thinker(), ResponsesRequest(input="x"))
    blocks = [block.decode().rstrip().split("\n")[1] async for block in reply.stream()]
    events = [json.loads(block.removeprefix("data: ")) for block in blocks]
    for event in events:
        EVENT.validate_python(event)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    reasoning, message = events[-1]["response"]["output"]
    assert (reasoning["type"], reasoning["summary"]) == ("reasoning", [])
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "I see."}]
    assert message["content"][0]["text"] == "Yes."
    usage = events[-1]["response"]["usage"]
    assert (
        usage["output_tokens_details"]["reasoning_tokens"] == 6
    )  # up to the one that brought the first word
    assert usage["output_tokens"] == 9
