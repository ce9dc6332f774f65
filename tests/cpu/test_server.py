"""The chat API over true HTTP: whole answers, streams, the official client, departures."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator

import httpx2
import openai
import pytest

from tapetum.assets import SAMPLES_DIR
from tapetum.core.plan import SampledToken
from tapetum.core.request import Prompt, Request, SamplingParams
from tapetum.engine.choices import Choices
from tapetum.engine.documents import Spent
from tapetum.engine.generation import Generation
from tapetum.engine.output import Delta
from tapetum.server.chat.reply import Reply
from tapetum.server.chat.schema import ChatMessage, ChatRequest
from tapetum.server.chat.voice import Voice
from tests.cpu.server_kit import Script, TestServer, chat_body, eventually, files
from tests.mini import EOS

ANSWER = "Total: 12.50 €\nTax: 2.00 🙂 done"
PICTURE = SAMPLES_DIR / "ok-03-receipt.jpg"
DATA_URL = "data:image/jpeg;base64," + base64.b64encode(PICTURE.read_bytes()).decode()


@pytest.fixture(scope="module")
def shared() -> Iterator[TestServer]:
    with TestServer(Script()) as server:
        yield server


@pytest.fixture
def server(shared: TestServer) -> TestServer:
    shared.script.answer = ANSWER
    shared.script.step_s = 0.0
    shared.script.fail_at = None
    shared.script.seen.clear()
    return shared


@pytest.fixture
def client(server: TestServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def stream(server: TestServer, **fields: object) -> list[dict]:
    """The events of a streamed answer; the last one, [DONE], is checked and dropped."""
    response = server.chat(stream=True, **fields)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [event for event in response.text.split("\n\n") if event]
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def picture_content(*parts: object) -> list[dict]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is the total?"}]}]


IMAGE = {"type": "image_url", "image_url": {"url": DATA_URL}}


def test_a_whole_answer_has_the_shape_of_openai_and_says_what_was_seen(server: TestServer) -> None:
    answer = server.chat(messages=picture_content(IMAGE)).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"] == f"chatcmpl-{answer['tapetum']['request_id']}"
    assert answer["model"] == "tapetum-mini"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": ANSWER}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    (request,) = server.script.seen
    num_tokens = len(files().tokenizer.encode_plain(ANSWER)) + 1  # with the end of sequence
    (span,) = request.prompt.spans
    assert answer["usage"] == {
        "prompt_tokens": request.num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": request.num_prompt_tokens + num_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "visual_tokens": span.end - span.start},
    }
    geometry = span.item.geometry
    assert answer["tapetum"]["media"] == [
        {
            "type": "image",
            "original": list(geometry.original),
            "used": list(geometry.used),
            "frames": None,
            "visual_tokens": geometry.num_tokens,
            "cache": "miss",
            "processor": "exact",
            "degraded": None,
        }
    ]
    assert set(answer["tapetum"]) == {"request_id", "media", "timing", "degradations", "pages"}
    times = ("fetch_s", "decode_s", "queue_s", "encode_s", "prefill_s", "decode_tokens_s", "ttft_s")
    assert tuple(answer["tapetum"]["timing"]) == times
    assert answer["tapetum"]["timing"]["ttft_s"] > 0


def test_cached_tokens_and_the_source_of_a_picture_are_told(server: TestServer) -> None:
    fields = {"messages": picture_content(IMAGE), "cache_salt": "told"}
    first, second = (server.chat(**fields).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    assert second["tapetum"]["media"][0]["cache"] in ("device", "prefix")


def test_a_stream_opens_with_what_will_be_seen_and_closes_with_the_times(server: TestServer) -> None:
    first, *texts, last = stream(server, messages=picture_content(IMAGE))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert set(first["tapetum"]) == {"request_id", "media", "queue"}
    assert first["tapetum"]["media"][0]["visual_tokens"] > 0
    assert first["tapetum"]["queue"] == {"waiting": 0}
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in texts) == ANSWER
    assert len(texts) > 5  # it does stream
    assert all(event["choices"][0]["finish_reason"] is None for event in (first, *texts))
    assert all("tapetum" not in event and "usage" not in event for event in texts)
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert last["tapetum"]["timing"]["ttft_s"] > 0
    assert last["tapetum"]["media"][0]["cache"] in ("miss", "device", "prefix")
    assert len({event["id"] for event in (first, *texts, last)}) == 1
    assert {event["object"] for event in (first, *texts, last)} == {"chat.completion.chunk"}


def test_a_stream_says_how_many_wait_for_their_turn() -> None:
    script = Script()
    script.step_s = 0.01
    body = chat_body(stream=True, ignore_eos=True, max_tokens=1500)
    openings, lines = [], []
    with TestServer(script, max_num_seqs=1) as server, contextlib.ExitStack() as stack:
        for _ in range(4):
            stream = server.client.stream("POST", "/v1/chat/completions", json=body)
            lines.append(stack.enter_context(stream).iter_lines())  # one that is let go closes its stream
            openings.append(json.loads(next(lines[-1]).removeprefix("data: ")))
            assert eventually(lambda: server.engine.backlog.num_waiting == len(openings) - 1)
    assert [opening["tapetum"]["queue"]["waiting"] for opening in openings] == [0, 0, 1, 2]


def test_usage_comes_in_a_chunk_of_its_own_where_asked_for(server: TestServer) -> None:
    whole = server.chat().json()["usage"]
    *events, last = stream(server, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"] | {"prompt_tokens_details": None} == whole | {"prompt_tokens_details": None}
    assert all("usage" not in event for event in events)
    assert all("usage" not in event for event in stream(server))


def test_the_official_client_reads_answers_and_streams(server: TestServer, client: openai.OpenAI) -> None:
    messages = picture_content(IMAGE)
    answer = client.chat.completions.create(model="default", messages=messages, temperature=0)
    assert answer.choices[0].message.content == ANSWER
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.tapetum["media"][0]["type"] == "image"
    chunks = list(
        client.chat.completions.create(
            model="tapetum-mini", messages=messages, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert [model.id for model in client.models.list()] == ["tapetum-mini"]


def test_the_official_client_reads_logprobs(server: TestServer, client: openai.OpenAI) -> None:
    fields = {"model": "default", "messages": picture_content(), "logprobs": True, "top_logprobs": 2}
    answer = client.chat.completions.create(**fields)
    content = answer.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in content[:-1]).decode() == ANSWER
    assert content[-1].token == "<|im_end|>"
    assert all(token.logprob == -0.5 for token in content)
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [("!", -1.0), ('"', -2.0)]
    chunks = list(client.chat.completions.create(stream=True, **fields))
    streamed = [
        token
        for chunk in chunks
        if chunk.choices and chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert [token.bytes for token in streamed] == [token.bytes for token in content]


def test_logprobs_without_alternatives(server: TestServer) -> None:
    choice = server.chat(logprobs=True).json()["choices"][0]
    assert choice["logprobs"]["content"][0]["top_logprobs"] == []
    assert server.script.seen[0].sampling.logprobs == 0


def test_token_ids_come_where_asked_for(server: TestServer) -> None:
    spoken = [*files().tokenizer.encode_plain(ANSWER), EOS]
    answer = server.chat(return_token_ids=True).json()
    assert answer["choices"][0]["token_ids"] == spoken
    assert tuple(answer["prompt_token_ids"]) == server.script.seen[0].prompt.token_ids
    first, *events = stream(server, return_token_ids=True)
    assert first["prompt_token_ids"] == answer["prompt_token_ids"]
    assert [token for event in events for token in event["choices"][0].get("token_ids", [])] == spoken
    assert not any("prompt_token_ids" in event for event in events)


def test_every_choice_of_the_client_reaches_the_engine(server: TestServer) -> None:
    fields = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.75,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "seed": 11,
        "max_tokens": 40,
        "ignore_eos": True,
    }
    response = server.chat(
        **fields, stop="zebra", stop_token_ids=[5], priority="background", timeout_s=60, cache_salt="salt"
    )
    assert response.status_code == 200
    (request,) = server.script.seen
    assert {name: getattr(request.sampling, name) for name in fields} == fields
    assert request.sampling.stop == ("zebra",)
    assert request.stop_token_ids == {5}
    assert (request.priority, request.tenant) == (2, "salt")
    assert request.deadline_s is not None
    assert response.json()["choices"][0]["finish_reason"] == "length"
    assert response.json()["usage"]["completion_tokens"] == 40


def test_the_newer_name_of_max_tokens_wins(server: TestServer) -> None:
    answer = server.chat(max_tokens=9, max_completion_tokens=3, priority=-5).json()
    assert answer["usage"]["completion_tokens"] == 3
    assert server.script.seen[0].priority == -5


def test_stop_strings_end_the_answer_exactly(server: TestServer) -> None:
    choice = server.chat(stop=["50 €"]).json()["choices"][0]
    assert choice["message"]["content"] == "Total: 12."
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "50 €")
    events = stream(server, stop=["50 €"])
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "Total: 12."
    assert events[-1]["choices"][0]["stop_reason"] == "50 €"


def test_pictures_keep_their_order_before_the_words(server: TestServer) -> None:
    """The template of the bundled model puts the pictures of a message first."""
    parts = [{"type": "text", "text": "one"}, IMAGE, {"type": "text", "text": "two"}, IMAGE]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert server.chat(messages=messages).status_code == 200
    (request,) = server.script.seen
    text = files().tokenizer.decode(request.prompt.token_ids, skip_special=False)
    assert text.replace("<|image_pad|>", "").split("<|im_start|>")[1:3] == [
        "system\nBe brief.<|im_end|>\n",
        "user\n<|vision_start|><|vision_end|><|vision_start|><|vision_end|>onetwo<|im_end|>\n",
    ]


def test_a_clip_is_a_list_of_frames(server: TestServer) -> None:
    clip = {"type": "video", "video": [DATA_URL, {"url": DATA_URL}], "fps": 2.0}
    answer = server.chat(messages=picture_content(clip)).json()
    assert answer["tapetum"]["media"][0]["type"] == "video"
    assert answer["tapetum"]["media"][0]["frames"] == 2


def test_options_of_the_request_and_of_a_part_bound_the_size(server: TestServer) -> None:
    small = {"min_pixels": 28 * 28, "max_pixels": 84 * 84}
    by_request = server.chat(messages=picture_content(IMAGE), mm_processor_kwargs=small).json()
    by_part = server.chat(messages=picture_content({**IMAGE, **small})).json()
    used = by_request["tapetum"]["media"][0]["used"]
    assert used[0] * used[1] <= 84 * 84
    assert by_part["tapetum"]["media"][0]["used"] == used


def test_template_arguments_reach_the_template(server: TestServer) -> None:
    assert server.chat(add_generation_prompt=False).status_code == 200
    text = files().tokenizer.decode(server.script.seen[0].prompt.token_ids, skip_special=False)
    assert text.endswith("What is the total?<|im_end|>\n")


def test_a_client_that_leaves_a_stream_frees_everything(server: TestServer) -> None:
    server.script.step_s = 0.01
    body = chat_body(stream=True, ignore_eos=True, max_tokens=1500)
    with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        assert [next(lines) for _ in range(6)]
        assert not server.is_at_rest
    assert eventually(lambda: server.is_at_rest, within_s=5)
    assert server.chat(max_tokens=2).status_code == 200


def test_a_client_that_leaves_while_it_waits_frees_everything(server: TestServer) -> None:
    server.script.step_s = 0.01
    with pytest.raises(httpx2.ReadTimeout):
        server.client.post(
            "/v1/chat/completions", json=chat_body(ignore_eos=True, max_tokens=1500), timeout=0.3
        )
    assert eventually(lambda: server.is_at_rest, within_s=5)
    assert len(server.script.seen) == 1
    assert server.chat(max_tokens=2).status_code == 200


def test_a_reader_that_stops_reading_stops_nobody_else(server: TestServer) -> None:
    body = chat_body(stream=True, ignore_eos=True, max_tokens=2000, logprobs=True, top_logprobs=20)
    with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        next(response.iter_lines())
        for _ in range(3):
            assert server.chat(max_tokens=5).status_code == 200
    assert eventually(lambda: server.is_at_rest)


def generation_of(cancel: Callable[[str], None], kind: type[Generation] = Generation) -> Generation:
    prompt = Prompt(token_ids=(1, 2), spans=(), position_ids=None, position_delta=0)
    request = Request(
        request_id="a", prompt=prompt, sampling=SamplingParams(), max_tokens=9, stop_token_ids=frozenset()
    )
    return kind(request, prepared_s=0.0, tokenizer=files().tokenizer, cancel=cancel, spent=Spent())


def reply_of(generation: Generation) -> Reply:
    async def fork(index: int) -> Generation:
        raise AssertionError("one answer was asked for")

    asked = ChatRequest(messages=[ChatMessage(role="user", content="x")])
    choices = Choices(generation, 1, fork)
    return Reply(choices, [Voice()], asked, model="m", tokenizer=files().tokenizer)


async def test_a_stream_closed_between_two_chunks_cancels_its_request() -> None:
    cancelled: list[str] = []
    generation = generation_of(cancelled.append)
    generation.put(Delta(text="some"))
    chunks = reply_of(generation).chunks()
    assert (await anext(chunks)).choices[0].delta.role == "assistant"
    assert (await anext(chunks)).choices[0].delta.content == "some"
    assert not cancelled
    await chunks.aclose()
    assert set(cancelled) == {"a"}


async def test_a_long_answer_is_joined_in_linear_time() -> None:
    """60,000 deltas, unread or read one by one; copying all that came before each would take minutes."""
    count = 60_000
    deltas = [Delta(text="a ", tokens=(SampledToken(token_id=5),)) for _ in range(count)]
    ending = Delta(finish_reason="stop")

    class Stepwise(Generation):
        async def _read(self) -> Delta:
            return next(news)

    news = iter([*deltas, ending])
    started_s = time.process_time()
    slow = generation_of(print)
    for delta in (*deltas, ending):
        slow.put(delta)
    for generation in (slow, generation_of(print, Stepwise)):
        answer = await reply_of(generation).whole()
        assert answer.choices[0].message.content == "a " * count
        assert answer.usage.completion_tokens == count
    assert time.process_time() - started_s < 5


def test_many_clients_at_once_get_their_own_answers(server: TestServer) -> None:
    server.script.step_s = 0.002
    lengths = [3 + index for index in range(12)]
    texts: dict[int, str] = {}

    def ask(length: int) -> None:
        events = stream(server, max_tokens=length, return_token_ids=True)
        texts[length] = "".join(event["choices"][0]["delta"].get("content", "") for event in events)

    threads = [threading.Thread(target=ask, args=(length,)) for length in lengths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    spoken = files().tokenizer.encode_plain(ANSWER)
    assert texts == {length: files().tokenizer.decode(spoken[:length]) for length in lengths}
    assert eventually(lambda: server.is_at_rest)
