"""Tokens over HTTP: counts that agree with what is asked afterwards."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from PIL import Image

from tapetum.assets import SAMPLES_DIR
from tapetum.core.plan import SampledToken
from tapetum.processing.base import ProcessorOptions
from tapetum.server.chat.candidates import logprobs_of
from tapetum.server.token_names import token_name
from tapetum.text.tokenizer import Tokenizer
from tests.cpu.server_kit import EOS, Script, TestServer, eventually, files

PICTURE = SAMPLES_DIR / "ok-03-receipt.jpg"
DATA_URL = "data:image/jpeg;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
TEXT = "Total: 12.50 €\n🙂 done"


@pytest.fixture(scope="module")
def shared() -> Iterator[TestServer]:
    with TestServer(Script()) as server:
        yield server


@pytest.fixture
def server(shared: TestServer) -> Iterator[TestServer]:
    shared.script.seen.clear()
    yield shared
    assert eventually(lambda: shared.is_at_rest)


def tokenize(server: TestServer, **fields: object) -> httpx2.Response:
    return server.client.post("/tokenize", json=fields)


def test_a_text_is_tokenised_as_a_completion_is(server: TestServer) -> None:
    answer = tokenize(server, prompt=TEXT).json()
    assert server.client.post("/v1/completions", json={"prompt": TEXT}).status_code == 200
    assert tuple(answer["tokens"]) == server.script.seen[0].prompt.token_ids
    assert answer == {
        "count": len(answer["tokens"]),
        "max_model_len": 2048,
        "tokens": answer["tokens"],
        "token_strs": None,
    }


def test_long_texts_leave_threads_to_others(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: go_on.wait(20) and ())
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(tokenize, server, prompt="long") for _ in range(8)]
        assert server.chat(junk="x" * 100_000).status_code == 200, "a body of this size wants a thread"
        assert not any(each.done() for each in asked)
        go_on.set()
        assert all(each.result().json()["count"] == 0 for each in asked)


def test_special_tokens_count_and_none_is_added(server: TestServer) -> None:
    for adds in (True, False):
        answer = tokenize(server, prompt="hi<|im_end|>", add_special_tokens=adds).json()
        assert answer["tokens"] == [*files().tokenizer.encode_plain("hi"), EOS]


def test_names_of_tokens_are_their_texts(server: TestServer) -> None:
    answer = tokenize(server, prompt="one<|im_end|>🙂", return_token_strs=True).json()
    names = answer["token_strs"]
    assert names == [token_name(files().tokenizer, token_id) for token_id in answer["tokens"]]
    assert "".join(name for name in names if not name.startswith("bytes:")) == "one<|im_end|>"
    halves = [name.removeprefix("bytes:").replace("\\x", "") for name in names if name.startswith("bytes:")]
    assert bytes.fromhex("".join(halves)).decode() == "🙂"


@pytest.mark.parametrize("text", [TEXT, "", "a<|im_end|>\x00b", "<|image_pad|>"])
def test_there_and_back(server: TestServer, text: str) -> None:
    tokens = tokenize(server, prompt=text).json()["tokens"]
    response = server.client.post("/detokenize", json={"tokens": tokens})
    assert response.json() == {"prompt": text}


def test_a_text_longer_than_the_context_is_counted(server: TestServer) -> None:
    assert tokenize(server, prompt="word " * 5000).json()["count"] > 2048


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_chat_has_the_tokens_that_are_asked_afterwards(server: TestServer, count: int) -> None:
    image = {"type": "image_url", "image_url": {"url": DATA_URL}}
    content = [{"type": "text", "text": "one"}, *[image] * count, {"type": "text", "text": "two"}]
    chat = {
        "messages": [{"role": "user", "content": content}],
        "mm_processor_kwargs": {"max_pixels": 56 * 84},
    }
    answer = tokenize(server, **chat).json()
    usage = server.chat(**chat).json()["usage"]
    assert tuple(answer["tokens"]) == server.script.seen[0].prompt.token_ids
    assert answer["count"] == usage["prompt_tokens"]


def test_the_fields_of_a_chat_count(server: TestServer) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": False}
    tokens = tokenize(server, **chat).json()["tokens"]
    assert files().tokenizer.decode(tokens, skip_special=False).endswith("hi<|im_end|>\n")


def test_pictures_are_measured_by_their_headers_alone(server: TestServer) -> None:
    out = io.BytesIO()
    Image.new("RGB", (112, 84), "white").save(out, "PNG")
    broken = out.getvalue()[:60]  # all of the header, hardly any of the pixels
    url = "data:image/png;base64," + base64.b64encode(broken).decode()
    chat = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    answer = tokenize(server, **chat).json()
    geometry = files().processor.geometry("image", 112, 84, options=ProcessorOptions())
    assert answer["tokens"].count(files().processor.media_tokens["image"]) == geometry.num_tokens
    assert server.chat(**chat).status_code == 400


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": None, "messages": None}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ("/detokenize", {"tokens": None}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [1, "a"]}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1 << 80]}, "tokens"),
        ("/detokenize", {"tokens": [files().tokenizer.vocab_size]}, "tokens"),
    ],
)
def test_what_makes_no_sense_is_refused(server: TestServer, path: str, fields: dict, param: str) -> None:
    response = server.client.post(path, json=fields)
    assert response.status_code == 400
    assert param in response.json()["error"]["param"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"prompt": "\\ud800", "tokens": "x"}'])
def test_a_body_that_is_no_request_is_refused(server: TestServer, path: str, body: bytes) -> None:
    response = server.client.post(path, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_another_model_is_not_here(server: TestServer, path: str) -> None:
    response = server.client.post(path, json={"prompt": "a", "tokens": [1], "model": "another"})
    assert response.status_code == 404


def test_a_part_of_a_character_is_named_by_its_bytes() -> None:
    tokenizer = files().tokenizer
    first, *_ = tokenizer.encode("€")
    sampled = SampledToken(token_id=first, logprob=-1.0, top_logprobs=((first, -1.0),))
    [entry] = logprobs_of([sampled], tokenizer).content
    assert (entry.token, entry.bytes) == ("bytes:\\xe2", [0xE2])
    assert entry.top_logprobs[0].token == entry.token
