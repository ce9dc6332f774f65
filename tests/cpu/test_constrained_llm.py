"""Grammars, biases and least lengths with the bundled model: kept to, and the same however requests are computed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import jsonschema
import pytest

from tapetum import LLM, SamplingParams
from tapetum.core.errors import InvalidParameter
from tapetum.core.request import Grammar
from tests.mini import VOCAB_SIZE

EXACT = {"dtype": "float32", "threads": 1, "kv_cache_bytes": 32 << 20}
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue", "other"]},
        "count": {"type": "integer", "maximum": 99, "minimum": 0},
        "word": {"type": "string", "maxLength": 6},
    },
    "required": ["colour", "count", "word"],
    "additionalProperties": False,
}
JSON = Grammar(kind="json_schema", source=json.dumps(SCHEMA))
ASKED: Mapping[str, dict[str, object]] = {
    "Hello, who are you?": {"grammar": JSON, "temperature": 0.0},
    "Describe it.": {"grammar": JSON, "temperature": 1.0, "seed": 3},
    "A long question, so long that it is worth to be read in parts, about colours and counts and words.": {
        "grammar": JSON,
        "temperature": 1.5,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "seed": 4,
    },
    "Which number?": {
        "grammar": Grammar(kind="regex", source="[0-9]{3}-[a-z]{2,4}"),
        "seed": 5,
        "temperature": 1.0,
    },
    "Is it?": {"grammar": Grammar(kind="choice", source='["yes", "no", "it depends"]'), "temperature": 0.0},
    "Say something.": {"temperature": 0.0, "max_tokens": 12},
    "Say more.": {"temperature": 0.0, "min_tokens": 14, "max_tokens": 16},
    **{f"Say all of it, {name}.": {"temperature": 0.0, "min_tokens": 60, "max_tokens": 64} for name in "abc"},
}


def answers(llm: LLM, names: list[str]) -> dict[str, tuple[str, str | None, tuple[int, ...]]]:
    chats = [[{"role": "user", "content": name}] for name in names]
    outputs = llm.chat(chats, [SamplingParams(**ASKED[name]) for name in names])  # type: ignore[arg-type]
    found = {name: output.outputs[0] for name, output in zip(names, outputs, strict=True)}
    return {name: (one.text, one.finish_reason, tuple(one.token_ids)) for name, one in found.items()}


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[str, str | None, tuple[int, ...]]]:
    found = {}
    with LLM(**EXACT, enable_prefix_caching=False) as llm:
        for name in ASKED:
            found |= answers(llm, [name])
    return found


def test_every_answer_is_of_the_form_that_was_asked_for(alone) -> None:
    for name, (text, reason, _) in alone.items():
        grammar = ASKED[name].get("grammar")
        if grammar is None:
            continue
        assert reason == "stop", name
        if grammar == JSON:
            jsonschema.validate(json.loads(text), SCHEMA)
    assert re.fullmatch("[0-9]{3}-[a-z]{2,4}", alone["Which number?"][0])
    assert alone["Is it?"][0] in ("yes", "no", "it depends")
    assert len(alone["Say more."][2]) >= 14


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 32},
        # as many at once as there is room for, however slow the machine is, and none quickly over by guesses
        {"kv_cache_bytes": 1 << 20, "max_model_len": 160, "schedule": "throughput", "speculate": "off"},
    ],
    ids=["together", "chunked", "preempted"],
)
def test_answers_are_the_same_however_they_are_computed(alone, options: dict[str, object]) -> None:
    with LLM(**{**EXACT, **options}) as llm:
        assert answers(llm, list(ASKED)) == alone
        assert (llm._engine.stats.num_preemptions > 0) == ("max_model_len" in options)
        assert llm._engine._constraints.num_live == 0


def test_a_bias_moves_the_answer_and_a_bad_one_is_refused() -> None:
    with LLM(**EXACT) as llm:
        (plain,) = llm.generate("One two", SamplingParams(temperature=0.0, max_tokens=3))
        first = plain.outputs[0].token_ids[0]
        (pushed,) = llm.generate(
            "One two", SamplingParams(temperature=0.0, max_tokens=3, logit_bias={first: -100})
        )
        (pulled,) = llm.generate(
            "One two", SamplingParams(temperature=0.0, max_tokens=3, logit_bias={500: 100})
        )
        assert first not in pushed.outputs[0].token_ids
        assert list(pulled.outputs[0].token_ids) == [500] * 3
        with pytest.raises(InvalidParameter, match=f"logit_bias holds {VOCAB_SIZE}"):
            llm.generate("One two", SamplingParams(logit_bias={VOCAB_SIZE: 1}))
        with pytest.raises(InvalidParameter, match="min_tokens is 400, more than max_tokens, which is 96"):
            llm.generate("One two", SamplingParams(min_tokens=400))
