"""The engine loop step by step, without a model: text, stop strings, aborts, faults, accounts."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.errors import DeadlinePassed, EngineError, Overloaded
from tapetum.core.plan import BatchPlan, EncodeJob, Row, StepResult
from tapetum.core.request import SamplingParams
from tapetum.engine.profile import observe
from tests.cpu.engine_kit import (
    EOS,
    Clock,
    Listener,
    SpeakingExecutor,
    assert_at_rest,
    close_engines,
    engine_with,
    files,
    picture,
    request_for,
    run_to_end,
    spoken,
)

pytestmark = pytest.mark.usefixtures(close_engines.__name__)
LONG = "The quick brown fox jumps over 13 lazy dogs, naïve café ☕ 数字 and so on."


def one(text: str, sampling: SamplingParams | None = None, content: object = "Hello"):
    """(engine, executor, listener) after one request has been answered with `text`."""
    executor = SpeakingExecutor(lambda _: spoken(text), Clock())
    engine, listener = engine_with(executor), Listener()
    engine.add(request_for(engine, "a", content, sampling))
    run_to_end(engine, listener)
    return engine, executor, listener


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=4))
def test_joined_deltas_are_the_decoded_answer(texts):
    executor = SpeakingExecutor(lambda name: spoken(texts[int(name)]), Clock())
    engine, listener = engine_with(executor), Listener()
    for index in range(len(texts)):
        engine.add(request_for(engine, str(index), f"Question {index}"))
    whole = run_to_end(engine, listener)
    for index, text in enumerate(texts):
        ids = spoken(text)
        delta = whole[str(index)]
        assert [token.token_id for token in delta.tokens] == [*ids, EOS]
        assert delta.text == files().tokenizer.decode(ids)
        assert delta.finish_reason == "stop"
        assert delta.stop_reason is None
    assert_at_rest(engine, executor)


def test_text_comes_with_its_token_and_the_first_delta_is_the_acceptance():
    _, _, listener = one("one two three")
    pieces = listener.pieces["a"]
    assert [len(piece.tokens) for piece in pieces[:2]] == [1, 1]  # accepted and prefilled in one step
    assert len([piece for piece in pieces if piece.text]) >= 3


def test_a_request_that_must_wait_is_accepted_with_an_empty_delta():
    executor = SpeakingExecutor(lambda _: spoken("x"), Clock())
    engine = engine_with(executor, max_num_seqs=1)
    engine.add(request_for(engine, "first"))
    engine.add(request_for(engine, "second"))
    news = engine.step()
    assert news["second"].tokens == ()
    assert news["second"].finish_reason is None


@pytest.mark.parametrize("stop", ["lazy", " 13 ", "☕", "s, na", "The"])
def test_stop_string_cuts_the_text_and_frees_at_once(stop):
    executor = SpeakingExecutor(lambda _: spoken(LONG), Clock())
    engine, listener = engine_with(executor), Listener()
    engine.add(request_for(engine, "a", "Hi", SamplingParams(stop=[stop, "never"])))
    while "a" not in listener.whole or listener.running:
        listener.hear(engine.step())
    delta = listener.whole["a"]
    assert delta.text == LONG[: LONG.index(stop)]
    assert (delta.finish_reason, delta.stop_reason) == ("stop", stop)
    ids = [token.token_id for token in delta.tokens]
    assert stop in files().tokenizer.decode(ids)
    assert stop not in files().tokenizer.decode(ids[:-1])
    assert engine.stats.num_held_blocks == 0
    run_to_end(engine)
    assert_at_rest(engine, executor)


def test_a_stop_string_that_the_last_allowed_token_completes_is_a_stop():
    ids = spoken("alpha beta")
    _, _, listener = one("alpha beta gamma", SamplingParams(stop="beta", max_tokens=len(ids)))
    assert listener.whole["a"].finish_reason == "stop"
    assert listener.whole["a"].stop_reason == "beta"
    assert listener.whole["a"].text == "alpha "


def test_max_tokens_ends_with_length_and_gives_back_held_text():
    ids = spoken("alpha be")
    _, _, listener = one("alpha beta", SamplingParams(stop="beta", max_tokens=len(ids)))
    assert listener.whole["a"].finish_reason == "length"
    assert listener.whole["a"].text == files().tokenizer.decode(spoken("alpha beta")[: len(ids)])


def test_stop_token_of_the_client_is_named_and_adds_no_text():
    ids = spoken("red, green")
    _, _, listener = one("red, green", SamplingParams(stop_token_ids=[ids[2]]))
    delta = listener.whole["a"]
    assert (delta.finish_reason, delta.stop_reason) == ("stop", ids[2])
    assert [token.token_id for token in delta.tokens] == list(ids[:3])
    assert delta.text == files().tokenizer.decode(ids[:2])


def test_ignore_eos_goes_on_to_the_limit():
    _, _, listener = one("yes", SamplingParams(ignore_eos=True, max_tokens=20))
    assert len(listener.whole["a"].tokens) == 20
    assert listener.whole["a"].finish_reason == "length"


def test_many_requests_on_few_blocks_each_end_once_with_their_own_text():
    texts = {f"r{index}": f"{index} " + LONG * (1 + index % 2) for index in range(12)}
    executor = SpeakingExecutor(lambda name: spoken(texts[name]), Clock())
    engine, listener = engine_with(executor, num_blocks=40, max_num_batched_tokens=64), Listener()
    for index, name in enumerate(texts):
        content = ("Look: ", picture(index % 3), f" {index}")
        engine.add(request_for(engine, name, content, SamplingParams(max_tokens=300), priority=index % 2))
    whole = run_to_end(engine, listener)
    assert {name: delta.text for name, delta in whole.items()} == texts
    assert engine.stats.num_preemptions > 0, "the pool was meant to be too small"
    assert_at_rest(engine, executor)


def test_abort_at_every_step_leaks_nothing_and_leaves_the_neighbour_alone():
    at = 0
    while True:
        executor = SpeakingExecutor(lambda _: spoken("some words to say"), Clock())
        engine, listener = engine_with(executor, max_num_batched_tokens=8), Listener()
        for name in ("victim", "neighbour"):
            engine.add(request_for(engine, name, (f"{name}: ", picture(1), " what?")))
        for _ in range(at):
            listener.hear(engine.step())
        is_over = "victim" in listener.whole and "victim" not in listener.running
        engine.abort("victim")
        listener.hear(engine.step())
        assert "victim" not in listener.running
        assert "victim" not in executor.request_ids
        run_to_end(engine, listener)
        assert listener.whole["victim"].finish_reason == ("stop" if is_over else "abort")
        assert listener.whole["neighbour"].text == "some words to say"
        assert_at_rest(engine, executor)
        if is_over:
            break
        at += 1
    assert at > 5


def test_abort_of_nobody_is_nothing():
    executor = SpeakingExecutor(lambda _: spoken("x"), Clock())
    engine = engine_with(executor)
    engine.abort("nobody")
    assert engine.step() == {}


def test_abort_all_ends_every_request_also_those_not_yet_taken():
    executor = SpeakingExecutor(lambda _: spoken(LONG), Clock())
    engine, listener = engine_with(executor, max_num_seqs=1), Listener()
    for name in ("running", "waiting"):
        engine.add(request_for(engine, name))
    listener.hear(engine.step())
    engine.add(request_for(engine, "in the inbox"))
    listener.hear(engine.abort_all())
    assert {delta.finish_reason for delta in listener.whole.values()} == {"abort"}
    assert len(listener.whole) == 3
    run_to_end(engine, listener)
    assert_at_rest(engine, executor)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("step", [1, 3])
def test_a_failing_row_ends_its_request_alone(is_late, step):
    executor = SpeakingExecutor(lambda _: spoken("some words to say"), Clock())
    engine, listener = engine_with(executor), Listener()
    for name in ("good", "guilty", "fine"):
        engine.add(request_for(engine, name, (f"{name} ", picture(len(name)))))
    for _ in range(step):
        listener.hear(engine.step())
    (executor.late_faults if is_late else executor.faults)["guilty"] = RuntimeError("bad tile")
    run_to_end(engine, listener)
    error = listener.whole["guilty"].error
    assert listener.whole["guilty"].finish_reason == "error"
    assert type(error) is EngineError
    assert "guilty" in error.message
    assert "bad tile" in error.message
    assert listener.whole["good"].text == listener.whole["fine"].text == "some words to say"
    assert_at_rest(engine, executor)


def test_a_fault_in_the_first_step_of_all_hits_the_guilty_alone():
    executor = SpeakingExecutor(lambda _: spoken("some words"), Clock())
    engine = engine_with(executor)
    executor.late_faults["guilty"] = RuntimeError("bad tile")
    for name in ("good", "guilty"):
        engine.add(request_for(engine, name))
    whole = run_to_end(engine)
    assert whole["guilty"].finish_reason == "error"
    assert whole["good"].text == "some words"
    assert_at_rest(engine, executor)


def test_a_failing_encode_ends_those_who_need_that_picture():
    executor = SpeakingExecutor(lambda _: spoken("some words"), Clock())
    engine = engine_with(executor)
    requests = {
        "a": request_for(engine, "a", ("1 ", picture(1))),
        "both": request_for(engine, "both", (picture(2), picture(1))),
        "b": request_for(engine, "b", ("2 ", picture(2))),
        "none": request_for(engine, "none"),
    }
    executor.faults[requests["a"].prompt.spans[0].key] = ValueError("broken patch")
    for request in requests.values():
        engine.add(request)
    whole = run_to_end(engine)
    assert {name for name, delta in whole.items() if delta.finish_reason == "error"} == {"a", "both"}
    assert "broken patch" in whole["a"].error.message
    assert whole["b"].text == whole["none"].text == "some words"
    assert_at_rest(engine, executor)


def test_an_executor_that_cannot_forget_ends_the_engine():
    executor = SpeakingExecutor(lambda _: spoken("x"), Clock())
    engine = engine_with(executor)
    executor.forget_fault = RuntimeError("device lost")
    engine.add(request_for(engine, "a"))
    with pytest.raises(RuntimeError, match="device lost"):
        run_to_end(engine)


def test_a_full_queue_refuses_with_a_typed_error():
    executor = SpeakingExecutor(lambda _: spoken("x"), Clock())
    engine = engine_with(executor, max_num_seqs=1, max_queue_len=1)
    for name in ("a", "b", "c"):
        engine.add(request_for(engine, name))
    whole = run_to_end(engine)
    refused = [delta for delta in whole.values() if delta.finish_reason == "error"]
    assert refused
    assert all(type(delta.error) is Overloaded for delta in refused)
    assert whole["a"].text == "x"
    assert_at_rest(engine, executor)


def test_a_deadline_ends_the_request_in_the_middle():
    clock = Clock()
    executor = SpeakingExecutor(lambda _: spoken(LONG), clock)
    engine = engine_with(executor)
    engine.add(request_for(engine, "a", deadline_s=clock.now + 0.055))
    whole = run_to_end(engine)
    assert whole["a"].finish_reason == "error"
    assert type(whole["a"].error) is DeadlinePassed
    assert 0 < len(whole["a"].tokens) < 10
    assert_at_rest(engine, executor)


def test_requests_added_from_many_threads_all_end():
    executor = SpeakingExecutor(lambda name: spoken(f"I am {name}"), Clock())
    engine, listener = engine_with(executor), Listener()
    names = [f"{group}-{number}" for group in range(8) for number in range(5)]

    def add(group: int) -> None:
        for number in range(5):
            engine.add(request_for(engine, f"{group}-{number}", f"Question {number}"))

    threads = [threading.Thread(target=add, args=(group,)) for group in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or engine.has_work:
        listener.hear(engine.step())
    assert {name: delta.text for name, delta in listener.whole.items()} == {
        name: f"I am {name}" for name in names
    }
    assert_at_rest(engine, executor)


def test_observe_reads_a_step_as_the_cost_model_means_it():
    seen: list[tuple[object, ...]] = []

    class Recorder(CostModel):
        def observe_step(self, *values):
            seen.append(("step", *values))

        def observe_encode(self, *values):
            seen.append(("encode", *values))

    item = files_item()
    other = replace(item, key=b"another")
    row = {"request_id": "r", "block_ids": (), "has_sample": True}
    plan = BatchPlan(
        step=1,
        encodes=(EncodeJob(item=item), EncodeJob(item=other, start=0.25, end=0.5)),
        rows=(Row(start=9, length=1, **row), Row(start=20, length=1, **row), Row(start=4, length=6, **row)),
    )
    encoded = {item.key: 1.0, other.key: 0.75}  # the slice went further than planned
    observe(Recorder(), plan, StepResult(step=1, encoded=encoded, encode_s=0.5, forward_s=0.25))
    patches = item.geometry.num_patches
    assert seen == [
        ("encode", 1.5 * patches, 1.5 * patches**2, 0.5),
        ("step", 2, 10 + 21, 6, chunk_context(4, 6), 0.25),
    ]


def test_every_step_teaches_the_cost_model():
    engine, _, _ = one("some words", content=("Look ", picture(1)))
    assert engine.stats.step_error_ratio != 1.0
    assert engine.stats.encode_error_ratio != 1.0


def files_item():
    engine = engine_with(SpeakingExecutor(lambda _: (), Clock()))
    return request_for(engine, "x", (picture(1),)).prompt.spans[0].item


def test_meters_reconcile_with_the_deltas():
    clock = Clock()
    texts = {"a": "some words", "b": "other words of more length", "c": ""}
    executor = SpeakingExecutor(lambda name: spoken(texts[name]), clock)
    engine, listener = engine_with(executor), Listener()
    for name in texts:
        engine.add(request_for(engine, name, (f"{name}", picture(1))))
        listener.hear(engine.step())
    whole = run_to_end(engine, listener)
    metrics = {metric.name: metric.values for metric in engine.metrics(0.0)}
    num_tokens = sum(len(delta.tokens) for delta in whole.values())
    assert metrics["generation_tokens"][""] == num_tokens
    assert metrics["time_to_first_token_seconds"][""].count == 3
    assert metrics["inter_token_latency_seconds"][""].count == num_tokens - 3
    assert metrics["e2e_request_latency_seconds"][""].count == 3
    assert metrics["e2e_request_latency_seconds"][""].total == pytest.approx(
        sum(delta.stats.e2e_s for delta in whole.values())
    )
    assert metrics["request_success"] == {"stop": 3}
    assert metrics["mm_cache_queries"][""] == 3
    assert metrics["mm_cache_hits"] == {"device": 2}
    assert metrics["num_requests_running"][""] == 0


def test_only_encoded_pictures_count_as_time_in_the_encoder():
    """One is encoded, the same one again is found resident, and text alone has none."""
    executor = SpeakingExecutor(lambda _: spoken("some words"), Clock())
    engine = engine_with(executor)
    for name, content in (("miss", ("1 ", picture(1))), ("hit", ("2 ", picture(1))), ("text", "3")):
        engine.add(request_for(engine, name, content))
        run_to_end(engine)
    seconds = {metric.name: metric.values for metric in engine.metrics(0.0)}["vision_encode_seconds"][""]
    assert (seconds.count, seconds.total) == (1, pytest.approx(0.005))


def test_steps_tell_what_they_encoded_and_how_much_of_them_was_visual():
    executor = SpeakingExecutor(lambda _: spoken("some words"), Clock())
    engine = engine_with(executor)
    request = request_for(engine, "a", ("Look: ", picture(1)), SamplingParams(max_tokens=3))
    engine.add(request)
    run_to_end(engine)
    metrics = {metric.name: metric.values[""] for metric in engine.metrics(0.0) if "" in metric.values}
    (span,) = request.prompt.spans
    patches = metrics["encode_batch_patches"]
    assert (patches.count, patches.total) == (1, span.item.geometry.num_patches)
    ratio = metrics["batch_visual_ratio"]
    assert ratio.count == 3, "one prefill and two decodes"
    assert ratio.total == pytest.approx((span.end - span.start) / request.num_prompt_tokens)
    assert metrics["vision_queue_seconds"].count == 1
    assert 0 <= metrics["vision_queue_seconds"].total <= metrics["time_to_first_token_seconds"].total
    assert metrics["media_resize_seconds"].total > 0


@pytest.mark.parametrize("has_encoded", [False, True])
def test_an_interrupt_loses_no_account_of_what_the_executor_holds(has_encoded):
    """Broken off before it has run, or between encode and rows: store and account agree after the next step."""

    class Interrupted(SpeakingExecutor):
        def execute(self, plan):
            if not any(row.request_id == "guilty" for row in plan.rows):
                return super().execute(plan)
            if has_encoded:
                super().execute(replace(plan, rows=()))
            raise KeyboardInterrupt

    executor = Interrupted(lambda _: spoken("some words"), Clock())
    engine = engine_with(executor)
    first = request_for(engine, "first", ("1 ", picture(1)), SamplingParams(max_tokens=1))
    guilty = request_for(engine, "guilty", ("2 ", picture(2)))
    engine.add(first)
    engine.step()
    engine.add(guilty)
    with pytest.raises(KeyboardInterrupt):  # the plan also tells to forget the first
        engine.step()
    assert (guilty.prompt.spans[0].key in executor.feature_keys) == has_encoded
    run_to_end(engine)
    assert executor.feature_keys == {first.prompt.spans[0].key}
    assert_at_rest(engine, executor)
