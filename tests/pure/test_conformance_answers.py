"""Relations about answers hold of what is right and fail on what is wrong: statuses, times, texts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conformance.observation import Unmet
from tests.conformance.reply import Reply
from tests.pure.conformance_kit import (
    LOGITS,
    USAGE,
    Example,
    MadeUpServer,
    answer,
    failure,
    problem,
    seen,
    stream,
    with_,
)

NEAR = {token: value + 4e-4 for token, value in LOGITS.items()}
FAR = {token: value + 5e-3 for token, value in LOGITS.items()}
SWAPPED = {"red": -0.1, "blue": -2.5, "the": -3.9}
JSON_ASKED = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "schema": {"type": "object", "required": ["k"], "properties": {"k": {"type": "integer"}}}
        },
    }
}


ROUTES = (
    {"route": "/404", "status": 404, "body": b"no"},
    {"route": "/web", "status": 200, "body": b"<html></html>"},
    {"route": "/none", "status": 204, "body": b""},
)


def fetching(path: str, message: str) -> Reply:
    """The error of a request for a remote picture."""
    part = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:9{path}"}}
    return replace(failure(message=message), asked={"messages": [{"role": "user", "content": [part]}]})


EXAMPLES = [
    Example(
        {"every_status": "r", "in": [400]},
        [seen(r=[failure(), failure()])],
        [seen(r=[failure(), answer()]), seen(r=failure(None)), seen()],
    ),
    Example({"status_of": "r", "in": [200]}, [seen(r=answer())], [seen(r=failure()), seen(q=answer())]),
    Example({"no_status_of": ["r", 500]}, [seen(r=failure(400))], [seen(r=[answer(), failure(500)]), seen()]),
    Example(
        {"one_status_in": ["r", [400, 409]]},
        [seen(r=[answer(), failure(409)])],
        [seen(r=[failure(), failure(409)]), seen(r=answer())],
    ),
    Example(
        {"same_status_of_every": "r"},
        [seen(r=[failure(), failure()])],
        [seen(r=[failure(), failure(422)]), seen(r=[failure(None)] * 2)],
    ),
    Example(
        {"status_or_refused": ["r", [200, 503]]},
        [seen(r=[answer(), failure(503), failure(None, "refused", is_refused=True)])],
        [seen(r=failure(500)), seen(r=failure(None, "reset in the middle"))],
    ),
    Example(
        {"status_within_s": ["h", 503, 5]},
        [with_(seen(h=[answer(began_s=9), failure(503, seconds=13)]), signals=[10.0])],
        [
            with_(seen(h=[answer(), failure(503, seconds=16)]), signals=[10.0]),
            with_(seen(h=[answer(began_s=11)]), signals=[10.0]),
            with_(seen(h=[failure(503, seconds=9)]), signals=[10.0]),
            seen(h=failure(503)),
        ],
    ),
    Example(
        {"max_seconds_of": "r", "s": 2},
        [seen(r=answer(seconds=2))],
        [seen(r=[answer(), answer(seconds=2.1)]), seen()],
    ),
    Example(
        {"max_seconds_each": 2},
        [seen(r=answer(), q=answer())],
        [seen(r=answer(), q=answer(seconds=3)), seen()],
    ),
    Example(
        {"p95_ms_of": "h", "ms": 200},
        [seen(h=[answer(seconds=0.2)] * 95 + [answer(seconds=9)] * 5)],
        [
            seen(h=[answer(seconds=0.1)] * 94 + [answer(seconds=0.3)] * 6),
            seen(h=[failure(None)] * 20),
            seen(),
        ],
    ),
    Example(
        {"max_gap_ms_of": "s", "alone": "alone", "times_of_alone": 3, "or_ms": 50},
        [
            seen(
                s=stream("a", "b", "c", times=[5, 5.2, 5.5]),
                alone=stream("a", "b", "c", times=[1, 1.1, 1.2]),
            ),
            seen(
                s=stream("a", "b", "c", times=[5, 5.04, 5.05]),
                alone=stream("a", "b", "c", times=[1, 1.001, 1.002]),
            ),
        ],
        [
            seen(
                s=stream("a", "b", "c", times=[5, 5.1, 5.5]),
                alone=stream("a", "b", "c", times=[1, 1.1, 1.2]),
            ),
            seen(s=stream("a", times=[5]), alone=stream("a", "b", "c")),
            seen(s=answer(), alone=stream("a", "b", "c")),
            seen(s=stream("a", "b", "c")),
        ],
    ),
    Example(
        {"equal": ["a.logits", "b.logits"]},
        [seen(a=answer(), b=answer(logits=NEAR))],
        [
            seen(a=answer(), b=answer(logits=FAR)),
            seen(a=answer(), b=answer(logits=SWAPPED)),
            seen(a=answer(logits=None), b=answer(logits=None)),
        ],
    ),
    Example(
        {"differ": ["a.logits", "b.logits"]},
        [seen(a=answer(), b=answer(logits=FAR))],
        [seen(a=answer(), b=answer(logits=NEAR)), seen(a=answer(), b=failure())],
    ),
    Example(
        {"greater": ["a.usage.prompt_tokens", "b.usage.prompt_tokens"]},
        [seen(a=answer(usage={"prompt_tokens": 9}), b=answer(usage={"prompt_tokens": 8}))],
        [seen(a=answer(), b=answer()), seen(a=answer(), b=stream("x"))],
    ),
    Example(
        {"every_equal": "r.text"},
        [seen(r=[answer("a"), answer("a")])],
        [seen(r=[answer("a"), answer("b")]), seen(r=[answer("a"), failure()])],
    ),
    Example(
        {"not_all_equal": "r.text"},
        [seen(r=[answer("a"), answer("b")])],
        [seen(r=[answer("a"), answer("a")])],
    ),
    Example(
        {"pairwise_equal": [["a.text", "b.text"], ["c.text", "d.text"]]},
        [seen(a=answer("x"), b=answer("y"), c=answer("x"), d=answer("y"))],
        [seen(a=answer("x"), b=answer("y"), c=answer("y"), d=answer("x"))],
    ),
    Example(
        {"pairwise_equal_text": ["r", "solo"]},
        [seen(r=[answer("a"), answer("b")], solo=[answer("a"), answer("b")])],
        [
            seen(r=[answer("a"), answer("b")], solo=[answer("b"), answer("a")]),
            seen(r=[answer("a")], solo=[answer("a")] * 2),
            seen(r=failure(), solo=failure()),
        ],
    ),
    Example(
        {"pairwise_equal_logits": ["r", "solo"]},
        [seen(r=[answer()], solo=[answer(logits=NEAR)])],
        [
            seen(r=[answer()], solo=[answer(logits=FAR)]),
            seen(r=answer(logits=None), solo=answer(logits=None)),
        ],
    ),
    Example(
        {"repeats_equal": "r"},
        [seen(r=[answer("a", asked={"q": 1}), answer("b", asked={"q": 2}), answer("a", asked={"q": 1})])],
        [
            seen(r=[answer("a", asked={"q": 1}), answer("b", asked={"q": 1})]),
            seen(r=[answer("a", asked={"q": 1}), answer("b", asked={"q": 2})]),
        ],
    ),
    Example(
        {"sample_equal_to_cold": ["r", 2]},
        [seen(r=[answer()] * 3)],
        [seen(r=[answer("blue")] * 3), seen(r=[failure()] * 3)],
        MadeUpServer(answers=[answer(logits=NEAR)]),
        MadeUpServer(answers=[answer()]),
    ),
    Example(
        {"same_output_as_case": ["r", "C00"]},
        [seen(r=answer())],
        [seen(r=answer("blue")), seen(r=answer(usage={**USAGE, "prompt_tokens": 41})), seen(r=failure())],
    ),
    Example(
        {"text_never_contains": ["r", "<|im_end|>"]},
        [seen(r=answer("red"))],
        [seen(r=[answer(), answer("red<|im_end|>")]), seen(r=failure())],
    ),
    Example(
        {"log_never_contains": ["data:image", "secret"]},
        [with_(seen(), log="3 + 4 tokens")],
        [with_(seen(), log="got data:image/png"), with_(seen(), log="a secret")],
    ),
    Example(
        {"same_text_of_every": "r.error"},
        [seen(r=[failure(), failure()])],
        [seen(r=[failure(), failure(message="no such file")]), seen(r=[failure(), answer()])],
    ),
    Example(
        {"finish_reason_of": "r", "is": "length"},
        [seen(r=answer(finish_reason="length"))],
        [seen(r=[answer(finish_reason="length"), answer()]), seen(r=failure())],
    ),
    Example(
        {"every_json_schema_valid": "r"},
        [seen(r=answer('{"k": 1}', asked=JSON_ASKED))],
        [
            seen(r=answer('{"k": "1"}', asked=JSON_ASKED)),
            seen(r=answer("red", asked=JSON_ASKED)),
            seen(r=answer('{"k": 1}')),
        ],
    ),
    Example(
        {"no_traceback_in": "r"},
        [seen(r=failure(message="the picture is broken; server_error"))],
        [
            seen(r=failure(500, "Traceback (most recent call last)")),
            seen(r=failure(500, "ValueError: x")),
            seen(r=failure(500, "engine.py failed")),
            seen(),
        ],
    ),
    Example(
        {"every_error_is_json": "r"},
        [seen(r=[failure(), answer()])],
        [seen(r=Reply(status=500, body=b"oops")), seen(r=Reply(status=400, body=b'{"error": "no"}'))],
    ),
    Example(
        {"error_names_remote_status": "r"},
        [
            with_(
                seen(
                    r=[
                        fetching("/404", "it answered 404"),
                        fetching("/web", "this is html"),
                        fetching("/none", "0 bytes came"),
                    ]
                ),
                routes=ROUTES,
            )
        ],
        [
            with_(seen(r=fetching("/404", "it did not work")), routes=ROUTES),
            with_(seen(r=fetching("/web", "it did not work")), routes=ROUTES),
            with_(seen(r=fetching("/none", "it did not work")), routes=ROUTES),
            with_(seen(r=fetching("/elsewhere", "it answered 404")), routes=ROUTES),
        ],
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: next(iter(example.check)))
def test_a_relation_holds_of_what_is_right_and_of_nothing_else(example: Example) -> None:
    example.prove()


def test_a_cold_sample_is_asked_of_empty_caches() -> None:
    server = MadeUpServer(answers=[answer()])
    assert problem({"sample_equal_to_cold": ["r", 2]}, seen(r=[answer()] * 5), server) is None
    assert server.num_resets == 2


def test_paths_that_lead_nowhere_are_no_values() -> None:
    found = seen(r=answer())
    for path in ("r.usage.no_tokens", "r.nothing", "q.text", "r.tapetum.media.0"):
        with pytest.raises(Unmet, match=path.split(".")[0]):
            found.value(path)
    assert found.value("r.usage.prompt_tokens") == 40
    assert found.value("r.choices.0.finish_reason") == "stop"
