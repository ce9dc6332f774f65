"""Grammars through the engine loop, without a model: one answer however it is scheduled, typed ends, no remains."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from concurrent.futures import wait
from dataclasses import replace
from zlib import crc32

import jsonschema
import pytest

from tapetum.core.errors import DeadlinePassed, EngineError, InvalidParameter
from tapetum.core.plan import BatchPlan, StepResult
from tapetum.core.request import Grammar, Request, SamplingParams
from tapetum.engine import constraints as constraints_module
from tapetum.engine.engine import Engine
from tapetum.engine.output import Delta
from tapetum.text.grammar import Constraint
from tests.cpu.engine_kit import (
    EOS,
    Clock,
    Listener,
    SpeakingExecutor,
    assert_at_rest,
    close_engines,
    engine_with,
    files,
    request_for,
    run_to_end,
    spoken,
)

pytestmark = pytest.mark.usefixtures(close_engines.__name__)
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 999},
        "tag": {"enum": ["red", "größe", "a b"]},
        "on": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["id", "tag", "on"],
    "additionalProperties": False,
}
JSON = Grammar(kind="json_schema", source=json.dumps(SCHEMA))
YES = Grammar(kind="choice", source='["yes", "yes please", "no"]')


class ObedientExecutor(SpeakingExecutor):
    """Says, where a row has a mask, one of its tokens: by the request and the position alone."""

    def __init__(self, text: str = "Hello") -> None:
        super().__init__(lambda _: spoken(text), Clock())
        self._masks: dict[str, bytes] = {}

    def execute(self, plan: BatchPlan) -> StepResult:
        self._masks = dict(plan.masks)
        assert self._masks.keys() <= {row.request_id for row in plan.rows if row.has_sample}
        return super().execute(plan)

    def _say(self, request_id: str, position: int) -> int:
        if (mask := self._masks.get(request_id)) is None:
            return super()._say(request_id, position)
        choices = [8 * place + bit for place, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
        index = position - self._prompt_lengths[request_id]
        return choices[crc32(f"{request_id}:{index}".encode()) % len(choices)]


def constrained(
    engine: Engine, request_id: str, grammar: Grammar = JSON, content: object = "Hello", **choices: object
) -> Request:
    """Not tried out beforehand, as what the engine meets need not have been."""
    choices = {"max_tokens": 80, **choices}
    request = request_for(engine, request_id, content, SamplingParams(**choices))  # type: ignore[arg-type]
    return replace(request, sampling=replace(request.sampling, grammar=grammar))


def add_all(engine: Engine, requests: Iterable[Request]) -> None:
    for request in requests:
        engine.add(request)


NAMES = [f"r{number}" for number in range(6)]


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[int, ...]]:
    answers = {}
    for name in NAMES:
        engine = engine_with(ObedientExecutor())
        engine.add(constrained(engine, name))
        (delta,) = run_to_end(engine).values()
        assert delta.finish_reason == "stop"
        jsonschema.validate(json.loads(delta.text), SCHEMA)
        answers[name] = tuple(token.token_id for token in delta.tokens)
    return answers


@pytest.mark.parametrize(
    ("num_blocks", "schedule"),
    [(256, {}), (256, {"max_num_batched_tokens": 24}), (12, {}), (12, {"max_num_batched_tokens": 24})],
    ids=["together", "chunked", "preempted", "both"],
)
def test_answers_do_not_depend_on_how_they_are_scheduled(
    alone, num_blocks: int, schedule: dict[str, int]
) -> None:
    executor = ObedientExecutor()
    engine = engine_with(executor, num_blocks=num_blocks, **schedule)
    add_all(engine, [constrained(engine, name) for name in NAMES])
    engine.add(request_for(engine, "free", "And you?"))
    listener = Listener()
    listener.hear(engine.take_news())
    wait([future for _, future in engine._constraints._compiling])  # so that all of them begin together
    whole = run_to_end(engine, listener)
    assert {name: tuple(token.token_id for token in whole[name].tokens) for name in NAMES} == alone
    assert whole["free"].text == "Hello"
    assert (engine.stats.num_preemptions > 0) == (num_blocks == 12)
    assert engine._constraints.num_live == 0
    assert_at_rest(engine, executor)


def test_a_step_without_grammars_carries_no_masks() -> None:
    executor = ObedientExecutor()
    engine = engine_with(executor)
    engine.add(constrained(engine, "a", YES))
    run_to_end(engine)
    num_plans = len(executor.plans)
    engine.add(request_for(engine, "b", "And you?"))
    run_to_end(engine)
    assert any(plan.masks for plan in executor.plans[:num_plans])
    assert not any(plan.masks for plan in executor.plans[num_plans:])


class Reciting(ObedientExecutor):
    """Says the text, whatever the masks are."""

    def _say(self, request_id: str, position: int) -> int:
        return SpeakingExecutor._say(self, request_id, position)


def recite(text: str, grammar: Grammar, **choices: object):
    executor = Reciting(text)
    engine = engine_with(executor)
    engine.add(constrained(engine, "a", grammar, **choices))
    delta = run_to_end(engine)["a"]
    assert engine._constraints.num_live == 0
    assert_at_rest(engine, executor)
    return delta


def test_an_answer_that_nothing_can_follow_ends_at_once_and_without_an_end_token() -> None:
    delta = recite("no", YES)
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("no", "stop", None)
    assert [token.token_id for token in delta.tokens] == list(spoken("no"))


def test_an_answer_that_could_go_on_ends_with_an_end_token() -> None:
    delta = recite("yes", YES)
    assert (delta.text, delta.finish_reason) == ("yes", "stop")
    assert delta.tokens[-1].token_id == EOS


@pytest.mark.parametrize("choices", [{"ignore_eos": True}, {"min_tokens": 70}])
def test_a_grammar_that_is_over_outranks_wishes_for_more(choices: dict[str, object]) -> None:
    delta = recite("yes please", YES, **choices)
    assert (delta.text, delta.finish_reason) == ("yes please", "stop")


def test_an_answer_that_is_cut_says_so_and_one_that_just_fits_does_not() -> None:
    num_tokens = len(spoken("yes please"))
    cut = recite("yes please", YES, max_tokens=num_tokens - 1)
    assert cut.finish_reason == "length" and "yes please".startswith(cut.text) and cut.text != "yes please"
    whole = recite("yes please", YES, max_tokens=num_tokens)
    assert (whole.text, whole.finish_reason) == ("yes please", "stop")


def test_stop_strings_and_stop_tokens_still_end_an_answer() -> None:
    assert recite("yes please", YES, stop="pl").text == "yes "
    comma = spoken(",")[0]
    delta = recite('{"id":7,"tag":"red"', JSON, stop_token_ids=[comma])
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ('{"id":7', "stop", comma)


def test_a_token_against_the_grammar_ends_its_request_alone() -> None:
    executor = Reciting("yes sir")
    engine = engine_with(executor)
    add_all(engine, [constrained(engine, "a", YES), request_for(engine, "free", "And you?")])
    whole = run_to_end(engine)
    assert whole["a"].finish_reason == "error" and isinstance(whole["a"].error, EngineError)
    assert whole["a"].text in "yes " and whole["free"].text == "yes sir"
    assert engine._constraints.num_live == 0
    assert_at_rest(engine, executor)


@pytest.mark.parametrize("is_late", [False, True])
def test_parts_of_a_failing_step_run_with_their_masks(alone, is_late: bool) -> None:
    executor = ObedientExecutor()
    engine = engine_with(executor)
    faults = executor.late_faults if is_late else executor.faults
    faults["sick"] = RuntimeError("out of memory")
    add_all(engine, [constrained(engine, name) for name in [*NAMES[:3], "sick"]])
    whole = run_to_end(engine)
    assert isinstance(whole["sick"].error, EngineError)
    for name in NAMES[:3]:
        assert tuple(token.token_id for token in whole[name].tokens) == alone[name]
    assert engine._constraints.num_live == 0


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(kind="regex", source="(", param="guided_regex"),
        Grammar(kind="json_schema", source='{"not": {}}'),
    ],
)
def test_a_bad_grammar_that_reaches_the_engine_ends_its_request_alone(grammar: Grammar) -> None:
    executor = ObedientExecutor()
    engine = engine_with(executor)
    add_all(engine, [constrained(engine, "bad", grammar), constrained(engine, "good", YES)])
    whole = run_to_end(engine)
    assert whole["good"].finish_reason == "stop"
    assert whole["bad"].finish_reason == "error" and isinstance(whole["bad"].error, InvalidParameter)
    assert whole["bad"].error.param == grammar.param
    assert_at_rest(engine, executor)


def test_a_bad_grammar_is_refused_before_a_request_is_made_of_it() -> None:
    engine = engine_with(ObedientExecutor())
    sampling = SamplingParams(grammar=Grammar(kind="regex", source="(", param="guided_regex"))
    with pytest.raises(InvalidParameter, match="unclosed group") as caught:
        request_for(engine, "a", "Hello", sampling)
    assert caught.value.param == "guided_regex"


@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids"])
def test_tokens_that_the_vocabulary_lacks_are_refused(name: str) -> None:
    engine = engine_with(ObedientExecutor())
    size = files().tokenizer.vocab_size
    for token_id in (-1, size):
        value = {token_id: 1.0} if name == "logit_bias" else [token_id]
        with pytest.raises(InvalidParameter, match=f"from 0 to {size - 1}") as caught:
            request_for(engine, "a", "Hello", SamplingParams(**{name: value}))
        assert caught.value.param == name
    assert request_for(engine, "a", "Hello", SamplingParams(logit_bias={size - 1: 1.0})).sampling.logit_bias


def test_an_abort_leaves_nothing_behind_whenever_it_comes(alone) -> None:
    for num_steps in range(0, 12, 2):
        executor = ObedientExecutor()
        engine, listener = engine_with(executor), Listener()
        add_all(engine, [constrained(engine, NAMES[0]), constrained(engine, NAMES[1])])
        for _ in range(num_steps):
            listener.hear(engine.step())
        engine.abort(NAMES[0])
        whole = run_to_end(engine, listener)
        assert whole[NAMES[0]].finish_reason == "abort"
        assert tuple(token.token_id for token in whole[NAMES[1]].tokens) == alone[NAMES[1]]
        assert engine._constraints.num_live == 0
        assert_at_rest(engine, executor)


class Gate:
    """Holds grammars up until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.num_compiled = 0
        monkeypatch.setattr(constraints_module, "Constraint", self._compile)

    def _compile(self, *given: object) -> Constraint:
        assert self.is_open.wait(10)
        self.num_compiled += 1
        return Constraint(*given)  # type: ignore[arg-type]


def test_others_go_on_while_a_grammar_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    executor = ObedientExecutor()
    engine, listener = engine_with(executor), Listener()
    add_all(engine, [constrained(engine, "a", YES), request_for(engine, "free")])
    while listener.running or not listener.whole:
        listener.hear(engine.step())
    assert listener.whole["free"].text == "Hello"
    assert "a" not in listener.whole and engine.has_work
    assert engine.step() == {}
    gate.is_open.set()
    assert run_to_end(engine, listener)["a"].finish_reason == "stop"
    assert_at_rest(engine, executor)


def test_a_request_whose_grammar_is_being_compiled_can_be_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    executor = ObedientExecutor()
    engine, listener = engine_with(executor), Listener()
    add_all(engine, [constrained(engine, name, YES) for name in "abc"])
    listener.hear(engine.step())
    engine.abort("b")
    listener.hear(engine.step())
    assert {name: delta.finish_reason for name, delta in listener.whole.items()} == {"b": "abort"}
    listener.hear(engine.abort_all())
    assert {name: delta.finish_reason for name, delta in listener.whole.items()} == dict.fromkeys(
        "abc", "abort"
    )
    gate.is_open.set()
    assert not engine.has_work
    assert_at_rest(engine, executor)


def test_a_request_whose_grammar_is_being_compiled_ends_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch)
    executor = ObedientExecutor()
    engine, listener = engine_with(executor), Listener()
    late = {"a": 0.5, "b": 1.5, "c": None}
    for name, timeout_s in late.items():
        request = constrained(engine, name, YES)
        engine.add(replace(request, deadline_s=None if timeout_s is None else engine.clock() + timeout_s))
    for now in (100.4, 100.6, 101.6):
        executor.clock.now = now
        listener.hear(engine.step())
        assert set(listener.whole) == {
            name for name, left_s in late.items() if left_s and 100 + left_s <= now
        }
    gate.is_open.set()
    whole = run_to_end(engine, listener)
    assert isinstance(whole["a"].error, DeadlinePassed) and "deadline was after 0.500 s" in str(
        whole["a"].error
    )
    assert isinstance(whole["b"].error, DeadlinePassed)
    assert whole["c"].finish_reason == "stop"
    assert gate.num_compiled == 2, "the first had begun, the second had not"
    assert_at_rest(engine, executor)


def test_a_grammar_that_nobody_waits_for_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    engine, listener = engine_with(ObedientExecutor()), Listener()
    add_all(engine, [constrained(engine, name, YES) for name in "abcd"])
    listener.hear(engine.step())
    for name in "bc":
        engine.abort(name)
        engine.abort(name)
    listener.hear(engine.step())
    gate.is_open.set()
    whole = run_to_end(engine, listener)
    assert {name: delta.finish_reason for name, delta in whole.items()} == {
        "a": "stop",
        "b": "abort",
        "c": "abort",
        "d": "stop",
    }
    assert gate.num_compiled == 2


def test_a_loop_with_nothing_but_grammars_looks_away_and_one_with_work_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch)
    waits: list[float] = []
    monkeypatch.setattr(constraints_module, "wait", lambda _, timeout_s: waits.append(timeout_s))
    engine, listener = engine_with(ObedientExecutor()), Listener()
    add_all(engine, [constrained(engine, "a", YES), request_for(engine, "free")])
    while listener.running or not listener.whole:
        listener.hear(engine.step())
        assert not waits or not listener.running
    engine.step()  # the device forgets what has ended
    waits.clear()
    for _ in range(3):
        assert engine.has_work and engine.step() == {}
    assert len(waits) == 3 and 0.005 <= min(waits) <= max(waits) <= 0.05
    gate.is_open.set()
    assert run_to_end(engine, listener)["a"].finish_reason == "stop"


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), SystemExit()])
def test_a_step_that_is_broken_off_leaves_no_constraint_behind(fault: BaseException) -> None:
    executor = ObedientExecutor()
    engine, listener = engine_with(executor), Listener()
    add_all(engine, [constrained(engine, name) for name in "ab"])
    while not all(listener.whole.get(name, Delta()).tokens for name in "ab"):
        listener.hear(engine.step())
    assert engine._constraints.num_live == 2
    executor.faults["a"] = fault
    with pytest.raises(type(fault)):
        engine.step()
    assert engine._constraints.num_live == 0


def test_a_compiler_that_fails_is_an_error_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> Constraint:
        raise OSError("no memory for it")

    monkeypatch.setattr(constraints_module, "Constraint", fail)
    engine = engine_with(ObedientExecutor())
    engine.add(constrained(engine, "a", YES))
    error = run_to_end(engine)["a"].error
    assert isinstance(error, EngineError) and "no memory for it" in error.message


def test_stop_strings_wait_for_the_least_number_of_tokens() -> None:
    text = "one two one two"
    for min_tokens, wanted in [(0, ""), (len(spoken("one two")), "one two ")]:
        executor = Reciting(text)
        engine = engine_with(executor)
        engine.add(request_for(engine, "a", "Hello", SamplingParams(stop="one", min_tokens=min_tokens)))
        delta = run_to_end(engine)["a"]
        assert (delta.text, delta.finish_reason, delta.stop_reason) == (wanted, "stop", "one")
