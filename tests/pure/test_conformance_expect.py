"""Every key of `expect` holds of what is right and fails on what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from tests.conformance import expect, public_faults
from tests.conformance.observation import Observation
from tests.conformance.reply import Reply
from tests.conformance.trial import Trial
from tests.pure.conformance_kit import (
    LOGITS,
    USAGE,
    MadeUpServer,
    answer,
    failure,
    prompt,
    seen,
    stream,
    with_,
)

SCHEMA = {"type": "object", "required": ["k"]}
ASKED = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
NEAR = {token: value + 5e-4 for token, value in LOGITS.items()}
SIMILAR = {token: value + 0.05 for token, value in LOGITS.items()}
FAR = {token: value + 0.2 for token, value in LOGITS.items()}
OTHERS = {"C00": answer(), "short": answer(usage={**USAGE, "prompt_tokens": 30}), "refused": failure()}


@dataclass(frozen=True)
class Example:
    expect: dict
    right: Sequence[Observation]
    wrong: Sequence[Observation]
    right_server: MadeUpServer | None = None
    wrong_server: MadeUpServer | None = None


def of(reply: Reply) -> Observation:
    return seen(r=reply)


def tokens(number: int) -> Observation:
    return of(answer(usage={**USAGE, "prompt_tokens": number}))


EXAMPLES = [
    Example(
        {"status": 200},
        [of(answer()), of(stream("a"))],
        [of(failure()), of(failure(None)), of(cut()), Observation()],
    )
    for cut in [lambda: replace(stream("a"), chunks=stream("a").chunks[:-1])]
] + [
    Example({"status": [400, 422]}, [of(failure(422))], [of(answer()), of(failure(500))]),
    Example(
        {"any_of": [{"status": 200, "choices": 1}, {"status": [400], "error_contains_any": ["ratio"]}]},
        [of(answer()), of(failure(400, "the Ratio is 200"))],
        [of(failure(400, "no")), of(answer(num_choices=2)), of(failure(413, "ratio"))],
    ),
    Example(
        {"error_contains_any": ["pixel", "size"]},
        [of(failure(message="400 MPixels"))],
        [of(failure()), of(answer("pixel"))],
    ),
    Example({"error_is_json": True}, [of(failure())], [of(Reply(status=400, body=b"no")), of(answer())]),
    Example({"same_prompt_tokens_as": "C00"}, [of(answer())], [tokens(41), of(stream("a")), of(failure())]),
    Example({"same_prompt_tokens_as": "refused"}, [], [of(answer()), of(failure())]),
    Example(
        {"same_output_as": "C00"},
        [of(answer(logits=NEAR))],
        [of(answer("blue")), of(answer(logits=SIMILAR)), of(answer(logits=None)), of(failure())],
    ),
    Example(
        {"similar_output_as": "C00"},
        [of(answer("blue", logits=SIMILAR))],
        [
            of(answer(logits=FAR)),
            of(answer(logits={"red": -0.1, "blue": -2.5, "the": -4.0})),
            of(answer(logits=None)),
        ],
    ),
    Example(
        {"different_output_from": "C00"},
        [of(answer(logits=FAR))],
        [of(answer(logits=NEAR)), of(answer(logits=None)), of(failure())],
    ),
    Example({"different_prompt_tokens_from": "C00"}, [tokens(41)], [of(answer()), of(failure())]),
    Example({"prompt_tokens_greater_than": "short"}, [tokens(31)], [tokens(30), of(failure())]),
    Example({"prompt_tokens_greater_than": 30}, [tokens(31)], [tokens(30)]),
    Example({"prompt_tokens_less_than": "short"}, [tokens(29)], [tokens(30), of(failure())]),
    Example({"prompt_tokens_less_than": 30}, [tokens(29)], [tokens(30)]),
    Example(
        {"prompt_tokens_within": ["short", 5]},
        [tokens(35), tokens(25)],
        [tokens(36), tokens(24), of(failure())],
    ),
    Example(
        {"image_spans": 1},
        [of(answer())],
        [of(answer())],
        MadeUpServer(prompts=[prompt("user", "image", "video", "?")]),
        MadeUpServer(prompts=[prompt("user", "image", "image", "?")]),
    ),
    Example({"choices": 3}, [of(answer(num_choices=3))], [of(answer(num_choices=2)), of(failure())]),
    Example(
        {"json_schema_valid": True},
        [
            of(answer('{"k": 0}', asked=ASKED)),
            of(answer("{}", asked={"response_format": {"type": "json_object"}})),
        ],
        [of(answer("{}", asked=ASKED)), of(answer("k", asked=ASKED)), of(answer('{"k": 0}')), of(failure())],
    ),
    Example({"max_seconds": 5}, [with_(of(answer()), seconds=5.0)], [with_(of(answer()), seconds=5.1)]),
    Example(
        {"rss_growth_mb_max": 100},
        [with_(of(failure()), growth_mb=99.0)],
        [with_(of(failure()), growth_mb=120.0), of(failure())],
    ),
    Example(
        {"reply_and_log_without_base64": True},
        [with_(of(failure(message="A" * 200)), log="A" * 200)],
        [of(failure(message="A" * 201)), with_(of(failure()), log="x" * 30 + " " + "aB3/" * 60)],
    ),
    Example(
        {"server_alive_after": True},
        [of(failure())],
        [of(failure())],
        MadeUpServer(answers=[answer(logits=NEAR)]),
        MadeUpServer(answers=[answer()], is_healthy=False),
    ),
    Example({"server_alive_after": True}, [], [of(failure())], None, MadeUpServer(answers=[answer("blue")])),
    Example({"server_alive_after": True}, [], [of(failure())], None, MadeUpServer(answers=[failure(503)])),
    Example(
        {"same_status_as": "refused"}, [of(failure(400))], [of(failure(422)), of(answer()), of(failure(None))]
    ),
    Example(
        {"checks": [{"every_status": "r", "in": [400]}, {"every_equal": "r.error"}]},
        [seen(r=[failure(), failure()])],
        [seen(r=[failure(), failure(message="other")]), seen(r=[failure(500)])],
    ),
]


def problems(wanted: dict, observation: Observation, server: MadeUpServer | None = None) -> list[str]:
    assert expect.form_problems(wanted) == []
    trial = Trial(observation, server or MadeUpServer(), OTHERS, "C00")
    return asyncio.run(expect.problems_of(trial, wanted))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: next(iter(example.expect)))
def test_an_expectation_holds_of_what_is_right_and_of_nothing_else(example: Example) -> None:
    for observation in example.right:
        assert problems(example.expect, observation, example.right_server) == []
    for observation in example.wrong:
        assert problems(example.expect, observation, example.wrong_server), observation


def test_every_key_of_the_form_is_known_and_has_examples() -> None:
    assert expect.EXPECT.keys() == public_faults.EXPECT_KEYS
    assert {key for example in EXAMPLES for key in example.expect} == public_faults.EXPECT_KEYS


def test_every_error_is_json_unless_the_case_says_otherwise() -> None:
    plain = seen(r=[answer(), Reply(status=502, body=b"<html>")])
    assert "error_is_json" in problems({}, plain)[0]
    assert problems({"error_is_json": False}, plain) == []


def test_all_that_fails_is_told() -> None:
    found = problems({"status": 200, "choices": 2, "max_seconds": 1}, with_(of(failure()), seconds=2.0))
    assert [problem.partition(":")[0] for problem in found] == ["status", "choices", "max_seconds"]


def test_unknown_words_are_told_wherever_they_are() -> None:
    wanted = {"any_of": [{"statos": 1}, {"any_of": [{"checks": [{"every_smile": "r"}]}]}], "max_second": 3}
    assert len(expect.form_problems(wanted)) == 3


def test_the_cases_that_an_expectation_looks_at_are_found() -> None:
    wanted = {
        "same_output_as": "a",
        "different_output_from": "b",
        "prompt_tokens_less_than": "c",
        "prompt_tokens_greater_than": 7,
        "prompt_tokens_within": ["d", 1],
        "any_of": [{"same_status_as": "e"}, {"checks": [{"same_output_as_case": ["r", "f"]}]}],
    }
    assert sorted(expect.named_cases(wanted)) == ["a", "b", "c", "d", "e", "f"]
