"""The completions API over true HTTP: prompts in four shapes, choices in order, the legacy log-probabilities."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx2
import openai
import pytest

from tapetum.core.plan import SampledToken
from tapetum.server.completions.logprobs import TokenLog
from tests.cpu.server_kit import Script, TestServer, eventually, files
from tests.mini import EOS, VOCAB_SIZE

ANSWER = "Total: 12.50 €\nTax: 2.00 🙂 done"
PROMPT = "The total is"
IMAGE_PAD = next(token for token, kind in files().tokenizer.slots.items() if kind == "image")


def spoken(text: str) -> list[int]:
    return list(files().tokenizer.encode_plain(text))


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
    script.step_s, script.fail_at = 0.0, None
    assert eventually(lambda: shared.is_at_rest)
    assert complete(shared).json()["choices"][0]["text"] == ANSWER


@pytest.fixture
def client(server: TestServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def complete(server: TestServer, **fields: object) -> httpx2.Response:
    body = {"prompt": PROMPT, "max_tokens": 100, **fields}
    return server.client.post("/v1/completions", json=body)


def stream(server: TestServer, **fields: object) -> list[dict]:
    response = complete(server, stream=True, **fields)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [event for event in response.text.split("\n\n") if event]
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def texts(events: list[dict]) -> dict[int, str]:
    joined: dict[int, str] = {}
    for event in events:
        for choice in event["choices"]:
            joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
    return joined


def refused(server: TestServer, *, param: str | None, **fields: object) -> str:
    response = complete(server, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    return response.json()["error"]["message"]


def test_a_whole_answer_has_the_shape_of_openai_and_tells_what_it_used(server: TestServer) -> None:
    answer = complete(server).json()
    assert answer["object"] == "text_completion"
    assert answer["id"] == f"cmpl-{answer['tapetum']['request_id']}"
    assert answer["model"] == "tapetum-mini"
    assert answer["choices"] == [
        {"index": 0, "text": ANSWER, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    num_prompt, num_answer = len(spoken(PROMPT)), len(spoken(ANSWER)) + 1
    assert answer["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_answer,
        "total_tokens": num_prompt + num_answer,
        "prompt_tokens_details": {"cached_tokens": 0, "visual_tokens": 0},
    }
    assert set(answer["tapetum"]) == {"request_id", "media", "timing", "degradations", "pages"}
    assert server.script.seen[0].prompt.token_ids == tuple(spoken(PROMPT))


def test_sixteen_tokens_unless_asked_for_more(server: TestServer) -> None:
    answer = complete(server, max_tokens=None, ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("one", [spoken("one")]),
        (["one", "two words"], [spoken("one"), spoken("two words")]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        (["one", [5]], [spoken("one"), [5]]),
        ("<|im_start|>user\nhi<|im_end|>", [[EOS - 1, *spoken("user\nhi"), EOS]]),
    ],
)
def test_a_prompt_has_one_of_four_shapes(server: TestServer, prompt: object, expected: list) -> None:
    answer = complete(server, prompt=prompt).json()
    seen = {tuple(request.prompt.token_ids) for request in server.script.seen}
    assert seen == set(map(tuple, expected))
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))


def test_every_prompt_has_its_choices_in_order(server: TestServer) -> None:
    answer = complete(server, prompt=["one", "two"], n=3, echo=True, seed=4).json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert [choice["text"] for choice in answer["choices"]] == ["one" + ANSWER] * 3 + ["two" + ANSWER] * 3
    seeds = {(request.prompt.token_ids, request.sampling.seed) for request in server.script.seen}
    assert seeds == {(tuple(spoken(word)), seed) for word in ("one", "two") for seed in (4, 5, 6)}
    num_answer = len(spoken(ANSWER)) + 1
    assert answer["usage"]["completion_tokens"] == 6 * num_answer
    assert answer["usage"]["prompt_tokens"] == len(spoken("one")) + len(spoken("two"))


@pytest.mark.parametrize("fields", [{}, {"prompt": ["one", "two"], "n": 2, "echo": True}, {"stop": ["50 €"]}])
def test_a_stream_says_what_the_whole_answer_says(server: TestServer, fields: dict) -> None:
    whole = complete(server, **fields).json()
    server.script.step_s = 0.01  # tokens that come while an event is sent would go out as one
    *events, last = stream(server, stream_options={"include_usage": True}, **fields)
    assert texts(events) == {choice["index"]: choice["text"] for choice in whole["choices"]}
    endings = [choice for event in events for choice in event["choices"] if choice["finish_reason"]]
    for choice in whole["choices"]:
        (ending,) = [ending for ending in endings if ending["index"] == choice["index"]]
        assert (ending["finish_reason"], ending["stop_reason"]) == (
            choice["finish_reason"],
            choice["stop_reason"],
        )
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert all("usage" not in event for event in events)
    assert set(events[0]["tapetum"]) == {"request_id", "media", "queue"}
    assert "timing" in events[-1]["tapetum"]
    assert all("tapetum" not in event for event in events[1:-1])
    assert len(events) > 5  # it does stream


def test_echo_repeats_the_prompt_as_text(server: TestServer) -> None:
    assert (
        complete(server, prompt=spoken("one two"), echo=True).json()["choices"][0]["text"]
        == "one two" + ANSWER
    )
    first, *_ = stream(server, echo=True)
    assert first["choices"][0]["text"] == PROMPT


def test_log_probabilities_are_four_lists_side_by_side(server: TestServer) -> None:
    choice = complete(server, logprobs=2).json()["choices"][0]
    logprobs = choice["logprobs"]
    tokens = spoken(ANSWER)
    assert {len(entries) for entries in logprobs.values()} == {len(tokens) + 1}
    assert logprobs["token_logprobs"] == [-0.5] * (len(tokens) + 1)
    assert logprobs["tokens"][-1] == "<|im_end|>"
    assert logprobs["top_logprobs"][0] == {"!": -1.0, '"': -2.0, logprobs["tokens"][0]: -0.5}
    assert logprobs["text_offset"][-1] == len(ANSWER)
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or token == "<|im_end|>" or ANSWER.startswith(token, offset)
    streamed: dict[str, list] = {name: [] for name in logprobs}
    for event in stream(server, logprobs=2):
        for name, entries in (event["choices"][0]["logprobs"] or {}).items():
            streamed[name] += entries
    assert streamed == logprobs


def test_tokens_of_half_a_character_have_names_of_their_own() -> None:
    tokens = [SampledToken(token_id=token_id, logprob=-1.0) for token_id in spoken("a🙂b")]
    log = TokenLog(files().tokenizer, ()).read(tokens)
    halves = [name for name in log.tokens if name.startswith("bytes:")]
    raw = b"".join(
        bytes.fromhex(name.removeprefix("bytes:").replace("\\x", "")) if name in halves else name.encode()
        for name in log.tokens
    )
    assert raw.decode() == "a🙂b"
    assert halves
    assert log.text_offset[-1] == len("a🙂")


def test_token_ids_come_where_asked_for(server: TestServer) -> None:
    (choice,) = complete(server, return_token_ids=True).json()["choices"]
    assert choice["token_ids"] == [*spoken(ANSWER), EOS]
    assert choice["prompt_token_ids"] == spoken(PROMPT)
    first, *events = stream(server, return_token_ids=True)
    assert first["choices"][0]["prompt_token_ids"] == spoken(PROMPT)
    assert [token for event in events for token in event["choices"][0]["token_ids"]] == [*spoken(ANSWER), EOS]


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
        "min_tokens": 3,
        "ignore_eos": True,
    }
    response = complete(
        server,
        **fields,
        logit_bias={"5": 1.5},
        logprobs=3,
        priority="background",
        timeout_s=60,
        cache_salt="salt",
    )
    assert response.status_code == 200
    (request,) = server.script.seen
    assert {name: getattr(request.sampling, name) for name in fields} == fields
    assert (dict(request.sampling.logit_bias), request.sampling.logprobs) == ({5: 1.5}, 3)
    assert (request.priority, request.tenant) == (2, "salt")
    assert request.deadline_s is not None


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object"),
        ({"guided_regex": '[{]"a": 1[}]'}, "regex"),
        ({"structured_outputs": {"choice": ["no", '{"a": 1}']}}, "choice"),
    ],
)
def test_an_answer_keeps_to_what_is_asked_of_its_form(server: TestServer, fields: dict, kind: str) -> None:
    server.script.answer = '{"a": 1}'
    choice = complete(server, **fields).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ('{"a": 1}', "stop")
    assert server.script.seen[0].sampling.grammar.kind == kind
    server.script.answer = ANSWER


def test_the_official_client_reads_answers_and_streams(server: TestServer, client: openai.OpenAI) -> None:
    fields = {"model": "default", "prompt": ["one", "two"], "max_tokens": 100, "logprobs": 1}
    answer = client.completions.create(**fields)
    assert [choice.text for choice in answer.choices] == [ANSWER] * 2
    assert answer.choices[0].logprobs.token_logprobs[0] == -0.5
    chunks = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert texts([chunk.to_dict() for chunk in chunks]) == {0: ANSWER, 1: ANSWER}
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"suffix": "end"}, "suffix", "not supported"),
        ({"best_of": 3}, "best_of", "n, which is 1"),
        ({"n": 3, "best_of": 2}, "best_of", "n, which is 3"),
        ({"echo": True, "logprobs": 1}, "echo", "leave one of them out"),
        ({"logprobs": 21}, "logprobs", "20"),
        ({"logprobs": True}, "logprobs", "int"),
        ({"n": 0}, "n", "1"),
        ({"max_tokens": 0}, "max_tokens", "1 to"),
        ({"prompt": ""}, "prompt", "0 tokens"),
        ({"prompt": []}, "prompt", "empty list"),
        ({"prompt": [[]]}, "prompt", "0 tokens"),
        ({"prompt": {"text": "x"}}, "prompt", "str"),
        ({"prompt": ["one", 5]}, "prompt[1]", "is a int"),
        ({"prompt": [5, "one"]}, "prompt", "integers only"),
        ({"prompt": [5, True]}, "prompt", "integers only"),
        ({"prompt": [[5, 1.5]]}, "prompt[0]", "integers only"),
        ({"prompt": [5, -1]}, "prompt", "holds the token -1"),
        ({"prompt": [VOCAB_SIZE]}, "prompt", f"holds the token {VOCAB_SIZE}"),
        ({"prompt": [2**70]}, "prompt", "token"),
        ({"prompt": [5] * 2048}, "prompt", "2048 tokens, limit 2047"),
        ({"prompt": ["x"] * 1025}, "prompt", "limit 1024"),
        ({"prompt": ["x"] * 17, "n": 128}, "n", "2176 answers, limit 2048"),
        ({"prompt": "look <|image_pad|>"}, "prompt", "1 times, and 0 image"),
        ({"prompt": [5, IMAGE_PAD]}, "prompt", "1 times, and 0 image"),
        ({"prompt_logprobs": 1}, "prompt_logprobs", "not supported"),
        ({"stop": [""]}, "stop", "none of them empty"),
        ({"model": None, "prompt": None}, "prompt", "str"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    server: TestServer, fields: dict, param: str, words: str
) -> None:
    assert words in refused(server, param=param, **fields)
    assert words in refused(server, param=param, **fields, stream=True)
    assert not server.script.seen


def test_values_that_ask_for_nothing_are_welcome(server: TestServer) -> None:
    neutral = {"suffix": "", "best_of": 2, "n": 2, "user": "me", "zebra": 1, "echo": False, "logprobs": None}
    assert complete(server, **neutral).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}'])
def test_a_body_that_is_no_request_is_refused(server: TestServer, body: bytes) -> None:
    response = server.client.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_one_refused_prompt_of_many_runs_none(server: TestServer) -> None:
    server.script.step_s = 0.005
    assert "holds the token" in refused(
        server, param="prompt", prompt=[[5]] * 20 + [[5000]], max_tokens=1500, ignore_eos=True
    )
    assert eventually(lambda: server.is_at_rest, within_s=5)


def test_an_error_in_the_middle_ends_all_choices(server: TestServer) -> None:
    server.script.fail_at = 3
    response = complete(server, prompt=["one", "two"])
    assert response.status_code == 500
    *_, error = stream(server, prompt=["one", "two"])
    assert error["error"]["code"] == "engine_error"


def test_a_client_that_leaves_frees_everything(server: TestServer) -> None:
    server.script.step_s = 0.01
    body = {"prompt": ["one", "two"], "n": 2, "stream": True, "ignore_eos": True, "max_tokens": 1500}
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        assert [next(lines) for _ in range(12)]
        assert not server.is_at_rest
    assert eventually(lambda: server.is_at_rest, within_s=5)
    with pytest.raises(httpx2.ReadTimeout):
        server.client.post("/v1/completions", json={**body, "stream": False}, timeout=0.3)
    assert eventually(lambda: server.is_at_rest, within_s=5)


async def test_many_prompts_at_once_by_the_asynchronous_client(server: TestServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        answers = await asyncio.gather(
            *(
                client.completions.create(model="default", prompt=[f"p{index}"] * 4, max_tokens=100)
                for index in range(6)
            )
        )
    assert all([choice.text for choice in answer.choices] == [ANSWER] * 4 for answer in answers)
