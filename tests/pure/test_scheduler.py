"""The scheduler's rules, one at a time, under a device that checks every plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tapetum.core.config import GIB, USUAL_CONTEXTS, CacheConfig, EngineConfig
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.errors import (
    DeadlinePassed,
    EngineError,
    InvalidParameter,
    MediaTooLarge,
    Overloaded,
    PromptTooLong,
)
from tapetum.core.plan import SampledToken, StepResult
from tapetum.core.request import SamplingParams
from tapetum.sched import build_scheduler
from tests.pure.stage import SIZE, Stage, make_facts
from tests.scripted import RESOLVED, ScriptedExecutor, hashed_token, make_item, make_request


def _text(request_id: str, length: int = 6, **options):
    """A request of text that shares no block with another one."""
    base = sum(request_id.encode()) * 100
    return make_request(request_id, range(base, base + length), **options)


def _expected(request_id: str, prompt: int, count: int) -> list[int]:
    return [hashed_token(request_id, prompt + index) for index in range(count)]


def test_one_request_from_prompt_to_last_token() -> None:
    stage = Stage()
    stage.add(_text("a", 6, max_tokens=3))
    rows = [stage.step().rows for _ in range(3)]
    assert [(row.start, row.length, row.has_sample) for (row,) in rows] == [
        (0, 6, True),
        (6, 1, True),
        (7, 1, True),
    ]
    assert stage.tokens["a"] == _expected("a", 6, 3)
    assert stage.reasons() == {"a": "length"}
    assert stage.step().released == ("a",)
    stage.assert_clean()


def test_requests_are_sent_once_and_released_once() -> None:
    stage = Stage(max_num_batched_tokens=4)
    stage.add(_text("a", 9, max_tokens=2))
    stage.drain()
    assert [len(plan.admitted) for plan in stage.plans] == [1, 0, 0, 0, 0]
    assert [plan.released for plan in stage.plans] == [(), (), (), (), ("a",)]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (RESOLVED, "stop"),
        (SamplingParams(ignore_eos=True).resolved(RESOLVED), "length"),
        (SamplingParams(ignore_eos=True, stop_token_ids=(5,)).resolved(RESOLVED), "stop"),
    ],
)
def test_stop_tokens(sampling: SamplingParams, expected: str) -> None:
    """An end of sequence can be ignored, the client's own stop tokens cannot. The token that ends is told."""
    stage = Stage(executor=ScriptedExecutor(4, script=lambda _, position: 5 if position == 8 else 1))
    stage.add(_text("a", 6, max_tokens=5, stop_token_ids=[5], sampling=sampling))
    stage.drain()
    assert stage.reasons() == {"a": expected}
    assert stage.tokens["a"] == ([1, 1, 5] if expected == "stop" else [1, 1, 5, 1, 1])


def test_a_stop_token_at_the_limit_is_a_stop() -> None:
    stage = Stage(executor=ScriptedExecutor(4, script=lambda *_: 5))
    stage.add(_text("a", max_tokens=1, stop_token_ids=[5]))
    stage.drain()
    assert stage.reasons() == {"a": "stop"}


def test_running_decodes_come_first_in_every_step() -> None:
    stage = Stage(max_num_batched_tokens=6)
    stage.add(_text("a", max_tokens=12), _text("b", 3, max_tokens=12))
    stage.step()
    stage.step()
    stage.add(_text("long", 20))
    while len(stage.tokens["a"]) < 12:
        plan = stage.step()
        assert [row.request_id for row in plan.rows][:2] == ["a", "b"]
        assert sum(row.length for row in plan.rows) <= 6
    stage.drain()
    assert stage.tokens["long"] == _expected("long", 20, 4)


def test_rows_and_tokens_of_a_step_are_bounded() -> None:
    stage = Stage(max_num_seqs=3, max_num_batched_tokens=7)
    stage.add(*(_text(name, 5, max_tokens=6) for name in "abcdefg"))
    stage.drain()
    assert max(len(plan.rows) for plan in stage.plans) == 3
    assert max(sum(row.length for row in plan.rows) for plan in stage.plans) == 7
    assert set(stage.reasons().values()) == {"length"}


def test_prefix_is_reused_and_told() -> None:
    stage = Stage()
    picture = make_item("p", 10)
    stage.add(make_request("a", [1, picture, 2, 3]))
    stage.drain()
    stage.add(make_request("b", [1, picture, 2, 4, 5]))
    plan = stage.step()
    assert [(row.start, row.length) for row in plan.rows] == [(12, 2)]
    assert not plan.encodes and stage.executor.encoded == {picture.key: 1}
    stage.drain()
    first, second = stage.ends["a"].stats, stage.ends["b"].stats
    assert (first.num_cached_tokens, first.media_sources) == (0, ("miss",))
    assert (second.num_cached_tokens, second.media_sources) == (12, ("prefix",))
    stats = stage.scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (13 + 14, 12)


def test_a_picture_partly_in_the_cached_prefix_needs_its_features() -> None:
    """10 of its 14 tokens end in a block that is not full; the features were evicted since."""
    stage = Stage(feature_tokens=14)
    picture, other = make_item("p", 14), make_item("q", 14)
    stage.add(make_request("a", [1, 2, picture, 3]))
    stage.drain()
    stage.add(make_request("b", [9, other, 3]))
    stage.drain()
    stage.add(make_request("c", [1, 2, picture]))
    plan = stage.step()
    assert plan.rows[0].start == 12 and [job.item for job in plan.encodes] == [picture]
    assert plan.dropped_features == (other.key,)
    assert stage.firsts["c"].stats.media_sources == ("miss",)


def test_a_picture_told_as_prefix_is_told_as_miss_when_it_was_encoded_for_a_later_place() -> None:
    stage = Stage(feature_tokens=8)
    picture = make_item("p", 8)
    stage.add(make_request("a", [picture, 3]))
    stage.drain()
    stage.add(make_request("b", [make_item("q", 8), 3]))
    stage.drain()
    stage.add(make_request("c", [picture, 4, picture, 5]))
    stage.drain()
    assert stage.ends["c"].stats.num_cached_tokens == 8
    assert stage.ends["c"].stats.media_sources == ("miss", "miss")


def test_without_prefix_caching_nothing_is_found() -> None:
    stage = Stage(is_caching=False)
    for name in "ab":
        stage.add(make_request(name, range(12), max_tokens=1))
        assert stage.step().rows[0].start == 0
    assert stage.scheduler.stats().num_cached_blocks == 0


def test_resident_features_are_reused_at_another_place() -> None:
    stage = Stage()
    picture = make_item("p", 6)
    stage.add(make_request("a", [1, picture, 2]))
    stage.drain()
    stage.add(make_request("b", [5, 6, 7, picture, 2, picture]))
    stage.drain()
    assert stage.executor.encoded == {picture.key: 1}
    assert stage.ends["b"].stats.media_sources == ("device", "device")


def test_equal_pictures_are_encoded_once() -> None:
    stage = Stage()
    picture = make_item("p", 6)
    stage.add(*(make_request(f"r{index}", [index, picture, 2]) for index in range(8)))
    stage.drain()
    assert stage.executor.encoded == {picture.key: 1}
    sources = sorted(end.stats.media_sources for end in stage.ends.values())
    assert sources == [("device",)] * 7 + [("miss",)]


def test_a_failed_encode_ends_all_who_wait_for_it_and_no_one_else() -> None:
    stage = Stage()
    bad, good = make_item("bad", 6), make_item("good", 6)
    stage.executor.fail_features[bad.key] = EngineError("cannot encode")
    stage.add(
        make_request("a", [1, bad, 2]),
        make_request("b", [3, good, bad]),
        make_request("c", [4, good]),
        _text("d"),
    )
    stage.drain()
    assert stage.reasons() == {"a": "error", "b": "error", "c": "length", "d": "length"}
    assert str(stage.ends["a"].error) == str(stage.ends["b"].error) == "cannot encode"
    stage.assert_clean()
    stage.add(make_request("again", [1, bad, 2]))
    stage.drain()
    assert stage.reasons()["again"] == "length"
    assert stage.executor.feature_keys == {bad.key, good.key}


def test_a_failed_row_ends_its_request_alone() -> None:
    stage = Stage()
    stage.executor.fail_requests["a"] = EngineError("not a number")
    stage.add(_text("a"), _text("b"))
    stage.drain()
    assert stage.reasons() == {"a": "error", "b": "length"}
    assert stage.ends["a"].error.message == "not a number" and stage.ends["b"].error is None
    stage.assert_clean()


def test_encodes_of_a_step_stay_within_the_budget_and_a_large_one_runs_alone() -> None:
    stage = Stage(encoder_budget_tokens=10)
    sizes = {"a": 4, "b": 5, "c": 6, "d": 25, "e": 3}
    stage.add(*(make_request(name, [1, make_item(name, size), 2]) for name, size in sizes.items()))
    stage.drain()
    steps = [[job.item.geometry.num_tokens for job in plan.encodes] for plan in stage.plans if plan.encodes]
    assert sorted(size for step in steps for size in step) == sorted(sizes.values())
    assert all(sum(step) <= 10 or step == [25] for step in steps)
    assert [4, 5] in steps


@pytest.mark.parametrize(
    ("chunk", "rows"),
    [
        (7, [(0, 7, 1), (7, 14, 1), (14, 20, 0)]),  # ends inside both pictures
        (15, [(0, 11, 1), (11, 20, 1)]),  # the second picture has to wait for the next step
        (100, [(0, 11, 1), (11, 20, 1)]),
    ],
)
def test_a_chunk_may_end_inside_a_picture_but_not_run_into_one_without_features(
    chunk: int, rows: list
) -> None:
    stage = Stage(encoder_budget_tokens=8, max_num_batched_tokens=chunk)
    first, second = make_item("first", 8), make_item("second", 8)
    stage.add(make_request("a", [1, 2, first, 3, second, 4], max_tokens=1))
    stage.drain()
    assert [(row.start, row.end, len(plan.encodes)) for plan in stage.plans for row in plan.rows] == rows


def test_features_are_pinned_until_the_span_is_passed_and_stay_cached() -> None:
    """A picture half computed keeps its features while another request wants the memory."""
    stage = Stage(feature_tokens=8, max_num_batched_tokens=8)
    stage.add(
        make_request("a", [1, 2, 3, 4, make_item("p", 8), 5]), make_request("b", [make_item("q", 8), 6])
    )
    assert [(row.request_id, row.end) for row in stage.step().rows] == [("a", 8)]
    plan = stage.step()
    assert [(row.request_id, row.end) for row in plan.rows] == [("a", 13)]
    assert not plan.dropped_features and stage.scheduler.stats().feature_bytes == 80
    plan = stage.step()
    assert plan.dropped_features == (make_item("p", 8).key,) and len(plan.encodes) == 1
    stage.drain()
    assert stage.reasons() == {"a": "length", "b": "length"}


def test_preemption_takes_the_last_in_rank_and_keeps_its_output() -> None:
    stage = Stage(num_blocks=7)
    stage.add(*(_text(name, 8, max_tokens=12) for name in "abc"))
    stage.drain()
    stats = {name: end.stats for name, end in stage.ends.items()}
    assert stats["a"].num_preemptions == 0 and stats["b"].num_preemptions > 0
    assert stage.tokens == {name: _expected(name, 8, 12) for name in "abc"}
    assert stage.executor.computed["b"] > 8 + 11  # some tokens of it twice
    assert stats["b"].num_cached_tokens == 0  # what it found again of its own does not count
    assert stage.scheduler.stats().num_preemptions == sum(stat.num_preemptions for stat in stats.values())
    stage.assert_clean()


def test_admission_leaves_a_block_to_each_who_runs() -> None:
    """3 blocks are free when the second could start; it would have to give them back four steps later."""
    stage = Stage(num_blocks=5)
    stage.add(_text("a", 8, max_tokens=5), _text("b", 12, max_tokens=5))
    stage.drain()
    assert stage.scheduler.stats().num_preemptions == 0
    assert stage.reasons() == {"a": "length", "b": "length"}


def test_a_request_preempted_within_a_picture_gets_its_features_again() -> None:
    """They are evicted for a request that comes before it."""
    stage = Stage(num_blocks=8, feature_tokens=12, max_num_batched_tokens=2)
    stage.add(_text("a", 8, max_tokens=12))
    while not stage.tokens["a"]:
        stage.step()
    picture = make_item("p", 12)
    stage.add(make_request("b", [1, 2, 3, picture], max_tokens=2))
    while not stage.scheduler.stats().num_preemptions:
        stage.step()
    assert 3 < stage.executor.computed["b"] < 15 and stage.scheduler.visual.num_pinned == 0
    stage.add(make_request("c", [make_item("q", 8), 9], max_tokens=2, priority=-1))
    stage.drain()
    assert stage.executor.encoded[picture.key] == 2
    assert stage.reasons() == {"a": "length", "b": "length", "c": "length"}
    assert stage.tokens["b"] == _expected("b", 15, 2)


def test_priority_decides_who_is_admitted_and_who_gives_way() -> None:
    stage = Stage(max_num_seqs=1)
    stage.add(_text("low", priority=1), _text("standard"), _text("high", priority=-1))
    stage.drain()
    assert list(stage.ends) == ["high", "standard", "low"]


def test_a_request_that_waits_is_not_starved_by_better_classes() -> None:
    """Two new interactive requests come every step for ever; one of background waits. One runs at a time."""
    stage = Stage(max_num_seqs=1)
    stage.add(_text("background", priority=2, max_tokens=1))
    for index in range(100):
        stage.add(_text(f"i{index}", priority=0, max_tokens=1, arrival_s=stage.now))
        if "background" in stage.ends:
            break
        stage.step()
    # Two classes times AGEING_S = 20 s is the last second at which a newcomer passes.
    assert 20 <= stage.ends["background"].stats.e2e_s <= 22


def test_abort_of_waiting_running_and_in_flight() -> None:
    stage = Stage(max_num_seqs=1)
    stage.add(_text("running"), _text("waiting"))
    stage.step()
    plan = stage.scheduler.schedule(stage.now)
    events = [stage.scheduler.abort(name, stage.now) for name in ("running", "waiting")]
    stage.tell([event for event in events if event])
    stage.finish_step(plan)
    assert stage.reasons() == {"running": "abort", "waiting": "abort"}
    assert len(stage.tokens["running"]) == 1  # the token in flight is dropped
    assert stage.scheduler.abort("running", stage.now) is None
    assert stage.scheduler.abort("unknown", stage.now) is None
    stage.drain()
    stage.assert_clean()


def test_an_id_may_be_used_again_while_its_old_row_is_in_flight() -> None:
    stage = Stage()
    stage.add(_text("a", 6, max_tokens=5))
    stage.step()
    plan = stage.scheduler.schedule(stage.now)
    stage.tell([stage.scheduler.abort("a", stage.now)])
    stage.add(_text("a", 9, max_tokens=2))
    stage.finish_step(plan)
    assert stage.tokens["a"] == []
    stage.drain()
    assert stage.tokens["a"] == _expected("a", 9, 2) and stage.reasons() == {"a": "length"}


def test_abort_while_its_picture_is_in_flight_leaves_features_for_others() -> None:
    stage = Stage()
    picture = make_item("p", 6)
    stage.add(make_request("a", [1, picture]))
    plan = stage.scheduler.schedule(stage.now)
    stage.tell([stage.scheduler.abort("a", stage.now)])
    stage.finish_step(plan)
    stage.add(make_request("b", [2, picture]))
    stage.drain()
    assert stage.executor.encoded == {picture.key: 1}
    assert stage.reasons() == {"a": "abort", "b": "length"}
    stage.assert_clean()


def test_finish_ends_with_stop() -> None:
    stage = Stage()
    stage.add(_text("a", max_tokens=50))
    stage.step()
    stage.tell([stage.scheduler.finish("a", stage.now)])
    stage.drain()
    assert stage.reasons() == {"a": "stop"} and stage.ends["a"].stats.ttft_s == 1.0
    stage.assert_clean()


def test_close_ends_everyone() -> None:
    stage = Stage(max_num_seqs=1)
    stage.add(_text("running"), _text("waiting"))
    stage.step()
    stage.tell(stage.scheduler.close(stage.now))
    assert stage.reasons() == {"running": "abort", "waiting": "abort"}
    stage.drain()
    stage.assert_clean()
    stage.add(_text("late"))
    dead = EngineError("gone")
    (event,) = stage.scheduler.close(stage.now, dead)
    assert (event.finish_reason, event.error) == ("error", dead)


def test_deadlines_end_waiting_and_running_requests() -> None:
    stage = Stage(max_num_seqs=1)
    stage.add(
        _text("running", max_tokens=50, deadline_s=3.0), _text("waiting", deadline_s=2.0), _text("next")
    )
    stage.drain()
    assert stage.reasons() == {"running": "error", "waiting": "error", "next": "length"}
    assert isinstance(stage.ends["waiting"].error, DeadlinePassed)
    assert "deadline was after 2.000 s; raise timeout_s" in stage.ends["waiting"].error.message
    assert stage.ends["waiting"].stats.queue_s >= 2.0
    assert len(stage.tokens["running"]) == 3
    stage.assert_clean()


def test_a_deadline_belongs_to_one_use_of_an_id() -> None:
    stage = Stage()
    stage.add(_text("a", deadline_s=5.0))
    stage.tell([stage.scheduler.abort("a", stage.now)])
    stage.add(_text("a", max_tokens=20))
    stage.drain()
    assert stage.reasons() == {"a": "length"}


def test_close_tells_what_was_decided_but_not_yet_told() -> None:
    stage = Stage()
    stage.add(_text("late", deadline_s=1.0), _text("b"))
    stage.scheduler.schedule(2.0)
    events = stage.scheduler.close(2.0)
    assert [(event.request_id, event.finish_reason) for event in events] == [
        ("late", "error"),
        ("b", "abort"),
    ]


def test_a_deadline_that_ends_all_there_is_still_tells() -> None:
    stage = Stage()
    stage.add(_text("a", deadline_s=1.0))
    stage.now = 5.0
    plan = stage.step()
    assert not plan.rows and not plan.is_empty and stage.reasons() == {"a": "error"}


def test_refusals_name_value_limit_and_remedy() -> None:
    stage = Stage(num_blocks=5, max_model_len=30, feature_tokens=8, max_queue_len=2)
    refused = [
        (
            _text("a", 28, max_tokens=3),
            PromptTooLong,
            r"28 tokens.*max_tokens is 3.*31, limit 30; raise --max-model",
        ),
        (_text("a", 18, max_tokens=4), PromptTooLong, r"together 22, limit 21 by the KV memory"),
        (make_request("a", [1, make_item("p", 9)]), MediaTooLarge, r"90 bytes.*limit 80"),
        (make_request("a", []), InvalidParameter, r"0 tokens"),
        (_text("a", max_tokens=0), InvalidParameter, r"max_tokens is 0"),
        (_text("a", deadline_s=0.0), DeadlinePassed, r"deadline"),
    ]
    for request, error, message in refused:
        with pytest.raises(error, match=message):
            stage.scheduler.add(request, 0.0)
    assert not stage.scheduler.has_work
    Stage(max_model_len=30).add(_text("whole", 28, max_tokens=2))
    stage.add(_text("fits", 18, max_tokens=3), _text("b"))  # 21 tokens, the last of which is never computed
    with pytest.raises(Overloaded, match="2 requests wait, limit 2"):
        stage.add(_text("c"))
    stage.drain()
    assert stage.reasons() == {"fits": "length", "b": "length"}


def test_an_id_in_use_is_refused_until_its_request_has_ended() -> None:
    stage = Stage()
    stage.add(_text("a"))
    with pytest.raises(InvalidParameter, match="'a' is in use"):
        stage.scheduler.add(_text("a"), stage.now)
    stage.drain()
    stage.add(_text("a"))
    stage.drain()
    stage.assert_clean()


def test_stats_say_where_the_time_went() -> None:
    executor = ScriptedExecutor(4, seconds=lambda plan: (0.25 * len(plan.encodes), 0.5))
    stage = Stage(executor=executor, max_num_seqs=1, max_num_batched_tokens=8)
    stage.add(_text("first", max_tokens=3))
    stage.add(make_request("a", [1, 2, make_item("p", 10), 3], max_tokens=3, arrival_s=0.0))
    stage.drain()
    first, last = stage.firsts["a"].stats, stage.ends["a"].stats
    assert (first.queue_s, first.encode_s, first.prefill_s, first.ttft_s) == (3.0, 0.25, 1.0, 5.0)
    assert (last.queue_s, last.encode_s, last.prefill_s, last.ttft_s, last.e2e_s) == (
        3.0,
        0.25,
        1.0,
        5.0,
        7.0,
    )


def test_deadlines_of_ended_requests_are_forgotten() -> None:
    """Half of them ended while one with a far deadline runs on; it still meets its own."""
    stage = Stage(max_num_seqs=1)
    stage.add(_text("long", max_tokens=90, deadline_s=50.0))
    roster = stage.scheduler._roster
    for index in range(300):
        stage.add(_text(f"r{index}", deadline_s=1e6 + index), _text(f"s{index}", deadline_s=1e6 - index))
        stage.tell([stage.scheduler.abort(f"r{index}", stage.now)])
        assert roster.num_deadlines <= 2 * len(roster.live())
    for index in range(300):
        stage.tell([stage.scheduler.abort(f"s{index}", stage.now)])
        assert roster.num_deadlines <= 2 * len(roster.live())
    stage.drain()
    assert stage.reasons()["long"] == "error" and len(stage.tokens["long"]) == 50
    assert roster.num_deadlines == 0


@pytest.mark.parametrize(("tokens", "least"), [(1, 1), (2, 1), (5, 3), (6, 3), (8, 4), (12, 4)])
def test_decodes_never_take_all_tokens_of_a_step(tokens: int, least: int) -> None:
    """Long answers are under way, more come for ever: whoever has been admitted and prefills moves on all the same."""
    stage = Stage(num_blocks=200, max_num_batched_tokens=tokens)
    for index in range(20):
        stage.add(_text(f"r{index}", 14, max_tokens=40))
    while stage.scheduler.has_work:
        before = dict(stage.executor.computed)
        stage.step()
        assert sum(row.length for row in stage.plans[-1].rows) <= tokens
        prefills = [row for row in stage.plans[-1].rows if row.start < 14]
        if prefills:
            first = prefills[0]
            assert first.length >= min(least, 14 - before.get(first.request_id, 0))
        under_way = [name for name, count in before.items() if count < 14]
        assert set(under_way[:1]) <= {row.request_id for row in prefills}
    assert set(stage.reasons().values()) == {"length"}


def test_what_a_plan_that_was_broken_off_told_to_forget_is_told_again() -> None:
    """The plan ends one request, drops one picture and encodes another; it never reaches the executor."""
    stage = Stage(feature_tokens=8)
    stage.add(make_request("a", [1, make_item("p", 8)], max_tokens=1))
    stage.step()
    stage.add(make_request("b", [2, make_item("q", 8)], max_tokens=1))
    plan = stage.scheduler.schedule(stage.now)
    assert (plan.released, plan.dropped_features) == (("a",), (make_item("p", 8).key,))
    stage.tell(stage.scheduler.abandon(plan, EngineError("broken off"), stage.now))
    assert stage.reasons() == {"a": "length", "b": "error"}
    assert stage.scheduler.stats().feature_bytes == 0 and stage.scheduler.has_work
    plan = stage.scheduler.schedule(stage.now)
    assert plan.released == ("a", "b")
    assert plan.dropped_features == (make_item("p", 8).key, make_item("q", 8).key)


def test_features_that_a_broken_step_left_behind_are_dropped() -> None:
    stage = Stage()
    picture = make_item("p", 6)
    stage.add(make_request("a", [1, picture, 2]))
    plan = stage.scheduler.schedule(stage.now)
    stage.executor.execute(plan)
    stage.tell(stage.scheduler.abandon(plan, EngineError("broken off"), stage.now))
    assert stage.executor.feature_keys == {picture.key}
    stage.drain()
    assert stage.executor.feature_keys == frozenset() and stage.executor.request_ids == frozenset()
    stage.add(make_request("again", [1, picture, 2]))
    stage.drain()
    assert stage.reasons() == {"a": "error", "again": "length"}
    stage.assert_clean()


@pytest.mark.parametrize(
    "other", [{"weights_fingerprint": b"new"}, {"encoder_fingerprint": b"new"}, {"dtype": "x"}]
)
def test_other_weights_never_find_the_blocks_of_these(other: dict[str, object]) -> None:
    """Two schedulers as they are built for two models, over one tree."""
    facts = make_facts(32, 1000)
    cost, config = CostModel(), EngineConfig(cache=CacheConfig(block_size=SIZE))
    first, same, second = (
        build_scheduler(config, each, cost) for each in (facts, facts, replace(facts, **other))
    )
    for scheduler in (same, second):
        scheduler._ledger.pool, scheduler._ledger.tree = first._ledger.pool, first._ledger.tree
    found = []
    for scheduler in (first, same, second):
        scheduler.add(_text("a", 13, max_tokens=1), 0.0)
        plan = scheduler.schedule(0.0)
        result = StepResult(step=plan.step, tokens={"a": (SampledToken(token_id=1),)})
        (event,) = scheduler.commit(plan, result, 1.0)
        found.append(event.stats.num_cached_tokens)
    assert found == [0, 12, 0]


def test_the_backlog_is_the_predicted_time_of_what_waits() -> None:
    stage = Stage(max_num_seqs=1)
    item = make_item("a", 9)
    stage.add(*(make_request(name, [1, item, 2], max_tokens=2) for name in "abc"))
    backlog = stage.scheduler.backlog
    assert backlog.num_waiting == 3
    assert backlog.encode_s == pytest.approx(3 * stage.cost.encode_seconds(36, 36 * 36))
    assert backlog.prefill_s == pytest.approx(3 * stage.cost.step_seconds(0, 0, 11, chunk_context(0, 11)))
    stage.step()
    assert stage.scheduler.backlog.num_waiting == 2
    assert stage.scheduler.backlog.seconds == pytest.approx(backlog.seconds * 2 / 3)  # the first one decodes
    stage.drain()
    assert stage.scheduler.backlog.seconds == 0


def test_reset_caches_leaves_only_what_requests_hold() -> None:
    stage = Stage()
    stage.add(make_request("done", [*range(8), make_item("a", 4)], max_tokens=1))
    stage.drain()
    stage.add(make_request("live", [*range(20, 28), make_item("b", 4)], max_tokens=50))
    stage.step()
    assert set(stage.scheduler.media_keys) == {make_item("a", 1).key, make_item("b", 1).key}
    assert stage.scheduler.stats().num_cached_blocks > 0
    stage.scheduler.reset_caches()
    stats = stage.scheduler.stats()
    assert (stats.num_cached_blocks, stats.num_running) == (0, 1)
    stage.step()
    assert make_item("a", 1).key not in stage.executor.feature_keys
    stage.drain()
    assert stage.tokens["live"] == [hashed_token("live", 12 + i) for i in range(50)]


def test_features_of_a_small_model_on_a_cpu_stay_few_unless_a_size_is_given() -> None:
    facts = replace(make_facts(64, 128, 0), feature_bytes_per_token=1024)

    def capacity(device: str = "cpu", **cache: int) -> int:
        config = EngineConfig(cache=CacheConfig(**cache))
        return build_scheduler(config, replace(facts, device=device), CostModel()).visual.capacity_bytes

    assert capacity() == USUAL_CONTEXTS * 128 * 1024
    assert capacity(device="cuda:0") == GIB // 2
    assert capacity(feature_cache_bytes=GIB) == GIB
