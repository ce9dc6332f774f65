"""Deadlines: who is refused when it comes, who is given up, and what is kept of what was promised."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.errors import DeadlineOutOfReach, DeadlinePassed
from tapetum.core.plan import BatchPlan
from tapetum.core.request import Request
from tapetum.sched.promise import (
    LEAST_MARGIN,
    MOST_MARGIN,
    Load,
    Promises,
    Prospect,
    check_in_time,
    prospect_of,
)
from tests.pure.stage import Stage
from tests.scripted import make_item, make_request

times = st.floats(0, 100)
STEP = (4e-3, 1e-3, 1e-6, 2e-4, 2e-8)
ENCODE = (2e-3, 2e-3, 1e-7)
PATIENCE = 6.0  # a deadline is so many times what a request takes alone


# --- the arithmetic


ENDED = st.lists(
    st.tuples(st.floats(1e-3, 1e3), st.floats(0, 1e3), st.booleans(), st.floats(0, 10)), max_size=20
)


@given(ENDED, times, times, st.integers(0, 100), st.floats(1e-3, 1))
def test_whoever_has_time_enough_is_never_refused(
    ended: list, queue_s: float, own_s: float, num_steps: int, limit_s: float
) -> None:
    """Whatever has happened before: four times the first token, and steps at their limit behind it, are enough."""
    promises = Promises()
    for predicted_s, took_s, is_late, pace_s in ended:
        promises.observe_first(predicted_s, took_s, has_media=False, is_late=is_late)
        promises.observe_rest(1, pace_s)
    prospect = Prospect(
        queue_s=queue_s,
        prefill_s=own_s,
        decode_s=num_steps * limit_s / 2,
        slowest_s=num_steps * limit_s,
        alone_s=own_s + num_steps * limit_s / 4,
        num_steps=num_steps,
    )
    enough_s = MOST_MARGIN * prospect.first_token_s + prospect.slowest_s
    within_s = promises.seconds(prospect, has_media=False)
    assert LEAST_MARGIN * prospect.first_token_s <= within_s <= enough_s * (1 + 1e-9)


@given(times, times, times, st.integers(1, 1000), st.floats(1e-3, 1))
def test_a_prospect_grows_with_what_is_ahead(
    ahead_s: float, more_s: float, own_s: float, num_tokens: int, limit_s: float
) -> None:
    def seconds(ahead: float) -> float:
        load = Load(
            ahead_s=ahead, pending_s=ahead, decode_s=limit_s / 4, limit_s=limit_s, rest_s=limit_s * 3 / 4
        )
        return prospect_of(load, encode_s=0.0, prefill_s=own_s, num_tokens=num_tokens).first_token_s

    assert seconds(ahead_s) >= ahead_s + own_s
    assert seconds(ahead_s + more_s) >= seconds(ahead_s) + more_s * (1 - 1e-9)


def test_the_margin_is_what_nearly_all_have_kept() -> None:
    promises = Promises()
    assert promises.margin(has_media=True) == 1.5, "nobody knows yet"
    assert promises.margin(has_media=False) == 1.0, "text is believed to come as predicted"
    for percent in range(100, 300):
        promises.observe_first(1.0, percent / 100, has_media=False)
    assert promises.margin(has_media=False) == pytest.approx(2.98)
    assert promises.margin(has_media=True) == 1.5, "pictures have their own"
    for _ in range(200):
        promises.observe_first(1.0, 1.0, has_media=False)
    assert promises.margin(has_media=False) == 1.0, "only the last 200 count"
    promises.observe_first(1.0, 2.0, has_media=False, is_late=True)
    promises.observe_first(1.0, 2.0, has_media=False, is_late=True)
    assert promises.margin(has_media=False) == pytest.approx(2.5), "it would have taken longer"


def test_refusals_name_the_times_and_when_to_come_back() -> None:
    prospect = Prospect(queue_s=8.0, prefill_s=2.0, alone_s=2.0, within_s=10.0)
    check_in_time(10.0, prospect)
    with pytest.raises(DeadlineOutOfReach, match=r"about 10.000 s, 8.000 s of .* leaves 4.000 s") as caught:
        check_in_time(4.0, prospect)
    assert caught.value.wait_s == pytest.approx(6.0) and caught.value.param == "timeout_s"
    assert (caught.value.http_status, caught.value.retryable) == (429, True)
    with pytest.raises(DeadlinePassed, match=r"about 2.000 s on an idle engine.*raise timeout_s") as passed:
        check_in_time(1.0, prospect)
    assert not passed.value.retryable, "to come back would not help"


def test_answers_are_expected_to_be_as_long_as_others_were() -> None:
    promises = Promises()
    assert promises.answer_tokens(1, 500) == 1
    for length in range(10, 110):
        promises.observe_length(length)
    assert promises.answer_tokens(1, 500) == 100
    assert promises.answer_tokens(1, 20) == 20
    assert promises.answer_tokens(300, 500) == 300


def test_refusals_by_the_margin_alone_make_it_shrink() -> None:
    promises = Promises()
    for _ in range(3):
        promises.observe_first(1.0, 2.0, has_media=False)
    assert promises.margin(has_media=False) == 2.0
    for _ in range(1000):
        promises.observe_refusal(has_media=False)
    assert promises.margin(has_media=False) == 1.0


# --- in the scheduler


def _stage(**options: object) -> Stage:
    cost = CostModel(STEP, ENCODE)
    return Stage(
        num_blocks=4000,
        feature_tokens=4000,
        cost=cost,
        step_seconds=lambda plan: _seconds(cost, plan),
        **options,
    )  # type: ignore[arg-type]


def _seconds(cost: CostModel, plan: BatchPlan) -> float:
    """What the cost model says of a plan."""
    decodes = [row for row in plan.rows if row.is_decode]
    chunks = [row for row in plan.rows if not row.is_decode]
    shares = [(job.end - job.start, job.item.geometry) for job in plan.encodes]
    return cost.step_seconds(
        len(decodes),
        sum(row.start + 1 for row in decodes),
        sum(row.length for row in chunks),
        sum(chunk_context(row.start, row.length) for row in chunks),
    ) + cost.encode_seconds(
        sum(share * geometry.num_patches for share, geometry in shares),
        sum(share * geometry.squares for share, geometry in shares),
    )


def _request(random: Random, name: str, now: float, patience: float) -> tuple[Request, float]:
    """A request, and how long it would take alone, about."""
    cost = CostModel(STEP, ENCODE)
    num_text, num_output = random.randrange(20, 400), random.randrange(4, 40)
    num_visual = random.randrange(20, 300) if random.random() < 0.4 else 0
    segments = [index % 900 + 10 for index in range(num_text)]
    length = num_text + num_visual
    alone_s = cost.step_seconds(0, 0, length, chunk_context(0, length)) + num_output * cost.step_seconds(
        1, length
    )
    if num_visual:
        item = make_item(name, num_visual)
        alone_s += cost.encode_seconds(item.geometry.num_patches, item.geometry.squares)
        segments.insert(5, item)
    request = make_request(
        name,
        segments,
        max_tokens=num_output,
        tenant=name,  # so that no prefix is shared
        arrival_s=now,
        deadline_s=now + patience * alone_s,
    )
    return request, alone_s


def _serve(
    load: float, seed: int, num_requests: int, patience: float = PATIENCE, **options: object
) -> tuple[Stage, dict[str, Request], int]:
    """Requests that arrive at `load` times what the engine could do one after the other."""
    random, stage = (
        Random(seed),
        _stage(max_queue_len=100_000, speculate="off", itl_target_ms=20.0, **options),
    )
    accepted: dict[str, Request] = {}
    num_refused, arrival_s = 0, 0.0
    for index in range(num_requests):
        request, alone_s = _request(random, f"r{index}", arrival_s, patience)
        while stage.scheduler.has_work and stage.now < arrival_s:
            stage.step()
        stage.now = max(stage.now, arrival_s)
        try:
            stage.add(request)
            accepted[request.request_id] = request
        except (DeadlineOutOfReach, DeadlinePassed):
            num_refused += 1
        arrival_s += random.expovariate(load / alone_s)
    stage.drain(100_000)
    stage.assert_clean()
    return stage, accepted, num_refused


@pytest.mark.parametrize("schedule", ["balanced", "interactive"])
def test_of_three_times_too_many_nearly_all_that_are_taken_end_in_time(schedule: str) -> None:
    stage, accepted, num_refused = _serve(3.0, 1, 500, schedule=schedule)
    late = {name for name, event in stage.ends.items() if event.finish_reason == "error"}
    assert set(stage.ends) == set(accepted)
    assert len(late) <= 0.01 * len(accepted)
    assert num_refused > 100, "it was not too much"
    allowed_s = [
        request.deadline_s - request.arrival_s for name, request in accepted.items() if name not in late
    ]
    assert sum(allowed_s) / PATIENCE > 0.8 * stage.now, "as much as it could do one after the other, nearly"


def test_hardly_any_is_refused_while_there_is_time() -> None:
    stage, _, num_refused = _serve(0.5, 3, 300, patience=10.0)
    assert num_refused <= 3
    assert sum(event.finish_reason == "error" for event in stage.ends.values()) <= 3


# --- of requests that were taken


def test_who_can_no_longer_end_in_time_is_given_up_before_it_takes_more() -> None:
    """Its picture would not be encoded in time: it ends before the next slice of it, and leaves nothing behind."""
    stage = _stage(schedule="throughput")
    stage.add(make_request("late", [1, make_item("y", 200)], max_tokens=2, deadline_s=5.0))
    stage.now = 4.0
    stage.step()
    assert stage.now < 5.0
    assert stage.reasons() == {"late": "error"}
    assert isinstance(stage.ends["late"].error, DeadlinePassed)
    assert "needs" in stage.ends["late"].error.message
    stage.drain()
    assert not stage.executor.feature_keys
    stage.assert_clean()


@pytest.mark.parametrize("stage_of_life", ["queue", "encode", "prefill", "decode"])
@pytest.mark.parametrize("end", ["abort", "deadline"])
def test_who_leaves_frees_all_it_held_at_every_stage(stage_of_life: str, end: str) -> None:
    """Blocks, features, pins and its part in an encode that somebody else waits for too."""
    stage = _stage(max_num_seqs=2, max_num_batched_tokens=64)
    picture, text = make_item("shared", 250), [index % 900 + 10 for index in range(300)]
    before = {"queue": 2, "encode": 1, "prefill": 1, "decode": 1}[stage_of_life]
    for index in range(before):
        stage.add(make_request(f"o{index}", [1, picture, 2], max_tokens=3))
    deadline_s = stage.now + 20.0 if end == "deadline" else None
    stage.add(make_request("x", [*text, picture, 3], max_tokens=50, deadline_s=deadline_s))
    progress = stage.scheduler._roster.find("x")
    reached = {
        "queue": lambda: True,
        "encode": lambda: progress.num_pinned and not stage.executor.feature_keys,
        "prefill": lambda: stage.executor.feature_keys and progress.state.num_computed_tokens > 300,
        "decode": lambda: progress.is_decoding,
    }[stage_of_life]
    while not reached():
        stage.step()
        assert "x" not in stage.ends
    if end == "abort":
        stage.tell([stage.scheduler.abort("x", stage.now)])
    else:
        stage.now = max(stage.now, 20.0)
        stage.step()
    assert stage.reasons()["x"] == ("abort" if end == "abort" else "error")
    stage.drain()
    assert [stage.reasons()[f"o{index}"] for index in range(before)] == ["length"] * before
    assert stage.executor.encoded[picture.key] == 1
    stage.assert_clean()


def test_a_prompt_that_is_cached_is_not_refused_for_its_length() -> None:
    stage = _stage()
    text = [index % 900 + 10 for index in range(900)]
    stage.add(make_request("first", text, max_tokens=1))
    stage.drain()
    stage.add(make_request("again", text, max_tokens=1, arrival_s=stage.now, deadline_s=stage.now + 0.05))
    stage.drain()
    assert stage.reasons()["again"] == "length"
    with pytest.raises(DeadlinePassed):
        stage.add(make_request("other", text, max_tokens=1, tenant="other", deadline_s=stage.now + 0.05))
    stage.assert_clean()


def test_the_queue_of_others_is_what_a_deadline_is_measured_by() -> None:
    """A class that goes before others waits only for its own; text does not wait for the encodes of pictures."""
    stage = _stage(max_num_seqs=4)
    for index in range(8):
        name = f"p{index}"
        stage.add(make_request(name, [1, make_item(name, 300)], max_tokens=1, priority=1))
    with pytest.raises(DeadlineOutOfReach):
        stage.add(make_request("late", [1, make_item("z", 300)], max_tokens=1, deadline_s=6.0, priority=1))
    stage.add(make_request("before", [1, make_item("z", 300)], max_tokens=1, deadline_s=6.0))
    stage.add(make_request("text", [1, 2, 3], max_tokens=1, deadline_s=6.0, priority=1))
    assert stage.scheduler.prospect(1, now=stage.now, encode_s=1.0, prefill_s=0.1).queue_s > 15
    assert stage.scheduler.prospect(1, now=stage.now, encode_s=0.0, prefill_s=0.1).queue_s < 1


@pytest.mark.parametrize("schedule", ["balanced", "interactive", "throughput"])
def test_text_is_not_told_to_wait_for_the_prefills_of_pictures(schedule: str) -> None:
    """They are due later than it, so it goes on before them, and is promised that."""
    stage = _stage(schedule=schedule, itl_target_ms=20.0, max_num_seqs=8)
    stage.add(make_request("stream", [1, 2, 3], max_tokens=200, priority=-1))
    stage.step()
    text = range(10, 310)
    for name in ("p0", "p1", "p2", "p3"):
        stage.add(make_request(name, [*text, make_item(name, 300), *text], max_tokens=1))
    for _ in range(3):
        stage.step()
    assert len(stage.scheduler._roster.prefills()) == 4
    prospect = stage.scheduler.prospect(0, now=stage.now, encode_s=0.0, prefill_s=0.01)
    assert prospect.first_token_s < 0.2
    assert stage.scheduler.prospect(0, now=stage.now, encode_s=1.0, prefill_s=0.01).queue_s > 5.0
    came_s = stage.now
    stage.add(make_request("text", range(10, 40), max_tokens=1, arrival_s=came_s))
    for _ in range(10):
        if "text" not in stage.ends:
            stage.step()
    assert stage.firsts["text"].tokens and stage.now - came_s < 0.3
    assert not stage.ends.keys() & {"p0", "p1", "p2", "p3"}
    stage.drain(2000)
    stage.assert_clean()


def test_of_the_step_in_flight_counts_what_is_left_of_it() -> None:
    stage = _stage()
    stage.add(make_request("long", range(900), max_tokens=2))
    assert stage.scheduler.prospect(0, now=stage.now, encode_s=0.0, prefill_s=0.1).queue_s > 0.1, "it waits"
    plan = stage.scheduler.schedule(stage.now)
    seconds = _seconds(CostModel(STEP, ENCODE), plan)
    queues = [
        stage.scheduler.prospect(-9, now=stage.now + share * seconds, encode_s=0.0, prefill_s=0.1).queue_s
        for share in (0.25, 0.75)
    ]
    assert queues[0] - queues[1] == pytest.approx(seconds / 2)
    stage.finish_step(plan)
    stage.drain()
