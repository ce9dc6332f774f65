"""Biases, minimum lengths and grammars of a request: what is taken, and what is refused with which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tapetum.core.errors import InvalidParameter
from tapetum.core.request import MAX_BIASED_TOKENS, MAX_STOP_TOKENS, Grammar, SamplingParams


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("logit_bias", {1: 100.5}, "token 1 is 100.5"),
        ("logit_bias", {1: -101}, "token 1 is -101"),
        ("logit_bias", {1: float("nan")}, "token 1 is nan"),
        ("logit_bias", {1: True}, "token 1 is True"),
        ("logit_bias", {1: "2"}, "token 1 is '2'"),
        ("logit_bias", {"1": 2.0}, "token ids"),
        ("logit_bias", {True: 2.0}, "token ids"),
        ("logit_bias", [(1, 2.0)], "must be a mapping"),
        ("logit_bias", dict.fromkeys(range(MAX_BIASED_TOKENS + 1), 1.0), "1025 tokens, limit 1024"),
        ("stop_token_ids", [1] * (MAX_STOP_TOKENS + 1), "1025 tokens, limit 1024"),
        ("min_tokens", -1, "min_tokens is -1"),
        ("min_tokens", 1.0, "must be an integer"),
        ("min_tokens", True, "must be an integer"),
        ("grammar", "[a-z]+", "must be a Grammar"),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, value: object, said: str) -> None:
    with pytest.raises(InvalidParameter, match=said.replace("[", r"\[")) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert caught.value.param == name


def test_the_limits_themselves_are_taken_and_none_is_unset() -> None:
    bias = dict.fromkeys(range(MAX_BIASED_TOKENS), -100) | {3: 100}
    assert SamplingParams(logit_bias=bias).logit_bias == {**bias, 3: 100.0}
    unset = SamplingParams(logit_bias=None, min_tokens=None, grammar=None)  # type: ignore[arg-type]
    assert unset == SamplingParams()


def test_a_bias_is_the_requests_own() -> None:
    given = {1: 1.0}
    sampling = SamplingParams(logit_bias=given)
    given[2] = 2.0
    assert sampling.logit_bias == {1: 1.0}


def test_no_more_tokens_are_called_for_than_are_allowed() -> None:
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    with pytest.raises(InvalidParameter, match="min_tokens is 6, more than max_tokens, which is 5") as caught:
        SamplingParams(min_tokens=6, max_tokens=5)
    assert caught.value.param == "min_tokens"
    with pytest.raises(InvalidParameter, match="min_tokens"):  # the limit may be settled later
        replace(SamplingParams(min_tokens=6), max_tokens=5)


def test_defaults_of_a_model_leave_biases_lengths_and_grammars_alone() -> None:
    asked = SamplingParams(logit_bias={1: 2.0}, min_tokens=3, grammar=Grammar(kind="json_object"))
    resolved = asked.resolved(SamplingParams(temperature=0.5))
    assert (resolved.logit_bias, resolved.min_tokens, resolved.grammar) == ({1: 2.0}, 3, asked.grammar)
    assert resolved.temperature == 0.5


@pytest.mark.parametrize("values", [{"kind": "xml"}, {"kind": "regex", "source": None}, {"kind": None}])
def test_a_grammar_is_text_of_a_known_kind(values: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter, match="json_object, json_schema, regex, choice, lark"):
        Grammar(**values)  # type: ignore[arg-type]
