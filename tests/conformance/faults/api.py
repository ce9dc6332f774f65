"""The interface: lengths, streams, usage, choices, neighbours, sampling fields that are none."""

from __future__ import annotations

import json

from tests.conformance.faults.form import ALIVE, BAD, Catalogue
from tests.conformance.faults.pictures import enc, noise, scene, url
from tests.conformance.faults.requests import DROP, Q, ask, chat, img, text

MANY_IMAGES = 64  # so many large pictures never fit into the context
CASES = Catalogue("api")
case = CASES.case


@case(
    "R39a",
    "engine-death",
    f"{MANY_IMAGES} large pictures: longer than the context",
    {
        "status": [*BAD, 413],
        "error_contains_any": ["context", "length", "token", "limit", "at most"],
        **ALIVE,
    },
)
def _():
    u = url(enc(scene(1024, 1024), "JPEG", quality=70), "image/jpeg")
    return chat([img(u) for _ in range(MANY_IMAGES)] + [text("Count them.")])


@case(
    "R39c",
    "engine-death",
    "the picture alone fills the context but for some words",
    {"checks": [{"every_status": "r", "in": [200, *BAD]}, {"no_status_of": ["r", 500]}], **ALIVE},
)
def _():
    return {
        "scenario": "context-edge",
        "config": {"context": "tokens of C00 plus 8"},
        "steps": [
            {"do": "post", "body": ask(scene(112, 84), max_tokens=DROP), "save": "r"},
            {"do": "post", "body": ask(scene(112, 84), max_tokens=64), "save": "r"},
        ],
    }


EMOJI = (
    "Repeat exactly and nothing else: \U0001f469\u200d\U0001f680 \U0001f1e7\U0001f1f7 "
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u4f60\u597d d\u030c \U0001f336"
)


@case(
    "R41a",
    "silent-wrong",
    "many-byte characters in a stream",
    {
        "checks": [
            {"no_char_in_any_chunk": ["s", "\ufffd"]},
            {"equal": ["s.text", "n.text"]},
            {"every_chunk_valid_utf8": "s"},
        ]
    },
)
def _():
    b = chat([img(scene(56, 56)), text(EMOJI)], max_tokens=64)
    return {
        "scenario": "utf8-stream",
        "steps": [
            {"do": "post", "body": b, "save": "n"},
            {"do": "post", "body": {**b, "stream": True}, "save": "s"},
        ],
    }


@case(
    "R42a",
    "silent-wrong",
    "usage with a picture: stream and plain agree",
    {
        "checks": [
            {"equal": ["n.usage.prompt_tokens", "s.usage.prompt_tokens"]},
            {"equal": ["n.usage.completion_tokens", "s.usage.completion_tokens"]},
            {"greater": ["n.usage.prompt_tokens", "t.usage.prompt_tokens"]},
            {"last_chunk": "s", "choices": 0, "has": "usage"},
            {"usage_chunks_without_option": ["p", 0]},
        ]
    },
)
def _():
    b = ask(scene(224, 168))
    return {
        "scenario": "usage",
        "steps": [
            {"do": "post", "body": b, "save": "n"},
            {
                "do": "post",
                "body": {**b, "stream": True, "stream_options": {"include_usage": True}},
                "save": "s",
            },
            {"do": "post", "body": {**b, "stream": True}, "save": "p"},
            {"do": "post", "body": chat([text(Q)]), "save": "t"},
        ],
    }


@case(
    "R43a",
    "silent-wrong",
    "three choices for one picture",
    {"status": 200, "choices": 3, "same_prompt_tokens_as": "C00"},
)
def _():
    return ask(scene(112, 84), n=3, temperature=1.0, seed=7)


@case("R43b", "resource", "no choice at all, streamed", {"status": BAD, "max_seconds": 3, **ALIVE})
def _():
    return ask(scene(56, 56), n=0, stream=True)


@case(
    "R44a",
    "silent-wrong",
    "greedy answer alone and among seven neighbours",
    {"checks": [{"equal": ["alone.text", "mixed.text"]}, {"every_equal": "again.text"}]},
)
def _():
    b = ask(scene(168, 112), max_tokens=48)
    near = [ask(noise(56 + 28 * i, 84, i), max_tokens=32) for i in range(6)] + [
        chat("Count to twenty.", max_tokens=64)
    ]
    return {
        "scenario": "batch-invariance",
        "steps": [
            {"do": "post", "body": b, "save": "alone"},
            {
                "do": "parallel",
                "steps": [{"do": "post", "body": b, "save": "mixed"}]
                + [{"do": "post", "body": x, "save": "near"} for x in near],
            },
            {"do": "parallel", "steps": [{"do": "post", "body": b, "save": "again"} for _ in range(8)]},
        ],
    }


for _cid, _kw, _t in (
    ("R45a", {"repetition_penalty": 1.3}, "repetition penalty"),
    ("R45b", {"presence_penalty": 1.5, "frequency_penalty": 1.0}, "presence and frequency penalty"),
    ("R45d", {"logprobs": True, "top_logprobs": 20}, "logprobs of the answer"),
):

    @case(
        _cid,
        "engine-death",
        f"{_t}, with a picture in the prompt",
        {"any_of": [{"status": 200}, {"status": BAD}], **ALIVE},
    )
    def _(kw=_kw):
        return ask(scene(112, 84), **kw)


def _raw_number(key: str, lit: str) -> bytes:
    b = ask(scene(28, 28))
    b[key] = "@@"
    return json.dumps(b).replace('"@@"', lit).encode()


@case(
    "R46a",
    "engine-death",
    "numbers that are none: NaN, Infinity, negatives, words",
    {"checks": [{"every_status": "r", "in": BAD}, {"max_seconds_each": 5}], **ALIVE},
)
def _():
    bad = [
        ("temperature", "NaN"),
        ("temperature", "Infinity"),
        ("temperature", "-1"),
        ("temperature", '"hot"'),
        ("temperature", "1e400"),
        ("top_p", "NaN"),
        ("top_p", "0"),
        ("top_p", "7"),
        ("max_tokens", "-5"),
        ("max_tokens", "2.5"),
        ("n", '"3"'),
        ("seed", '"x"'),
        ("stop", "5"),
        ("presence_penalty", "NaN"),
    ]
    return {
        "scenario": "bad-numbers",
        "steps": [
            {
                "do": "post_raw",
                "path": "/v1/chat/completions",
                "headers": {"Content-Type": "application/json"},
                "body": _raw_number(k, v),
                "save": "r",
                "note": f"{k}={v}",
            }
            for k, v in bad
        ],
    }
