"""Encodes and prefills beside each other: who gets how much, in which order, together with whom, and how soon."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.config import ScheduleConfig
from tapetum.core.cost import CostModel
from tapetum.core.plan import BatchPlan, EncodeJob
from tapetum.sched.budget import kv_watermark, limit_beside_decodes
from tapetum.sched.due import due_of
from tapetum.sched.hold import Batch, Hold
from tapetum.sched.pace import Pace
from tapetum.sched.shares import Shares
from tests.pure.stage import SIZE, Stage
from tests.scripted import ScriptedExecutor, make_item, make_request

# Seconds of a step, a token of prefill, the start of an encode, a patch: everything else is free.
BASE_S, TOKEN_S, START_S, PATCH_S = 0.010, 2.5e-4, 1e-3, 1e-4


def _cost() -> CostModel:
    return CostModel((BASE_S, 0.0, 0.0, TOKEN_S, 0.0), (START_S, PATCH_S, 0.0))


def _encode_s(plan: BatchPlan) -> float:
    patches = sum(job.share * job.item.geometry.num_patches for job in plan.encodes)
    return PATCH_S * patches + START_S * bool(plan.encodes)


def _prefill_s(plan: BatchPlan) -> float:
    return TOKEN_S * sum(row.length for row in plan.rows if not row.is_decode)


def _room(*, is_atomic: bool = False, **options: object) -> Stage:
    """On which a stream goes on for ever."""
    room = Stage(
        num_blocks=4000,
        max_model_len=8000,
        feature_tokens=24000,
        cost=_cost(),
        executor=ScriptedExecutor(SIZE),
        step_seconds=lambda plan: BASE_S * bool(plan.rows) + _encode_s(plan) + _prefill_s(plan),
        **options,
    )
    room.add(make_request("stream", [1, 2, 3], max_tokens=5000, priority=-9))
    room.step()
    return room


def _come(room: Stage, name: str, segments: object, **options: object) -> None:
    room.add(make_request(name, segments, max_tokens=1, arrival_s=room.now, **options))


def _whole(room: Stage, *names: str) -> None:
    while not room.ends.keys() >= set(names):
        room.step()


@pytest.mark.parametrize("is_atomic", [False, True])
def test_encodes_and_prefills_get_equal_seconds_over_many_steps(is_atomic: bool) -> None:
    """Also where prefills come in parts of 38 ms that must not be cut, which is nearly all that decodes leave."""
    room = _room()
    clips = [make_item(f"clip{index}", 150) for index in range(48)]
    for clip in clips:  # their features are there
        _come(room, clip.key.hex(), [1, clip])
    _whole(room, *(clip.key.hex() for clip in clips))
    parts = (
        [part for index, clip in enumerate(clips) for part in (index + 500, clip)]
        if is_atomic
        else range(7300)
    )
    _come(room, "long", parts, is_atomic=is_atomic)
    _come(room, "large", [1, make_item("large", 6000), 2])
    plans = [room.step() for _ in range(80)][2:]
    encode_s, prefill_s = sum(map(_encode_s, plans)), sum(map(_prefill_s, plans))
    assert encode_s == pytest.approx(prefill_s, abs=0.11)  # of 3 s together, 38 ms at a time
    assert encode_s + prefill_s > 0.95 * 0.04 * len(plans)


def test_what_one_side_does_not_want_the_other_gets() -> None:
    room = _room()
    _come(room, "large", [1, make_item("large", 2000), 2])
    room.step()
    assert [_encode_s(room.step()) for _ in range(5)] == pytest.approx([0.04] * 5, rel=0.01)
    _come(room, "text", range(100, 120))
    plan = room.step()
    assert _prefill_s(plan) == pytest.approx(20 * TOKEN_S) and _encode_s(plan) == pytest.approx(
        0.035, rel=0.01
    )
    assert room.scheduler.stats().budgets.owed_s == 0


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 0.1), st.floats(0, 0.1), st.booleans(), st.booleans()), max_size=40
    ),
    even_s=st.floats(0, 0.1),
)
def test_debts_are_bounded_and_vanish_when_a_side_is_content(
    steps: list[tuple[float, float, bool, bool]], even_s: float
) -> None:
    """Of four steps; prefills in a hurry borrow a second of encodes, and no more until that is given back."""
    shares = Shares()
    for encode_s, prefill_s, is_contended, is_urgent in steps:
        before_s = shares.owed_s
        shares.settle(encode_s, prefill_s, is_contended=is_contended, step_s=0.05, is_urgent=is_urgent)
        most_s = 1.0 if is_urgent else max(4 * 0.05, before_s)
        assert -4 * 0.05 <= shares.owed_s <= most_s if is_contended else shares.owed_s == 0
        assert 0 <= shares.of_encodes(even_s, 2 * even_s) <= 2 * even_s
        borrowed = shares.of_encodes(even_s, 2 * even_s, is_urgent=True)
        assert borrowed == (0 if shares.owed_s < 1 else 2 * even_s)


def test_a_prefill_in_a_hurry_borrows_the_time_of_encodes_up_to_a_second() -> None:
    shares, steps = Shares(), 0
    while shares.of_encodes(0.02, 0.04, is_urgent=True) == 0:
        shares.settle(0.0, 0.04, is_contended=True, step_s=0.05, is_urgent=True)
        steps += 1
    assert steps == pytest.approx(1.0 / 0.02, abs=1)
    assert shares.of_encodes(0.02, 0.04) == 0.04


def test_the_next_picture_is_encoded_while_the_one_before_it_is_prefilled() -> None:
    room = _room()
    _come(room, "both", [1, make_item("one", 800), 2, make_item("two", 800), 3])
    overlaps = 0
    while "both" not in room.ends:
        plan = room.step()
        overlaps += bool(
            _prefill_s(plan) > TOKEN_S and plan.encodes and plan.encodes[-1].item.key[:3] == b"two"
        )
    assert overlaps > 5
    assert room.now < 1.1 * (2 * 800 * (4 * PATCH_S + TOKEN_S)) / 0.8


def test_pictures_ahead_stay_within_the_encoder_budget() -> None:
    """One further at most than fits it, so that a request with many does not fill the memory."""
    room = _room(encoder_budget_tokens=100)
    _come(room, "many", [*range(2000), *(make_item(f"p{index}", 40) for index in range(10))])
    for _ in range(8):
        room.step()
    assert sum(room.executor.encoded.values()) == 3


def test_small_pictures_of_several_requests_are_encoded_together() -> None:
    room = _room()
    for name in "abcd":
        _come(room, name, [*range(100, 140), make_item(name, 20), 2])
    room.step()
    jobs = [job for job in room.plans[-1].encodes if job.is_whole]
    assert len(jobs) >= 2 and len({job.item.key for job in jobs}) == len(jobs)
    _whole(room, *"abcd")
    assert sum(bool(plan.encodes) for plan in room.plans) <= 2
    assert all(count == 1 for count in room.executor.encoded.values())


def test_the_picture_that_is_due_first_is_encoded_first() -> None:
    room = _room()
    for name, size in (("a", 5000), ("b", 3000), ("c", 2000)):
        _come(room, name, [1, make_item(name, size), 2])
    while not room.executor.encoded[make_item("a", 5000).key]:
        room.step()
    assert "".join(key[:1].decode() for key in room.executor.encoded if key[:1] in b"abc") == "cba"
    assert all(len({job.item.key for job in plan.encodes}) < 3 for plan in room.plans)


def test_a_request_is_due_by_its_size_and_class_or_by_its_deadline() -> None:
    due = {
        name: due_of(make_request(name, [1], arrival_s=5.0, **options), alone_s)
        for name, alone_s, options in (
            ("small", 0.1, {}),
            ("large", 2.0, {}),
            ("better", 2.0, {"priority": -1}),
            ("hurried", 2.0, {"deadline_s": 8.0}),
            ("patient", 2.0, {"deadline_s": 80.0}),
        )
    }
    assert due == {"small": 6.0, "large": 13.0, "better": 3.0, "hurried": 8.0, "patient": 13.0}


def test_a_picture_that_fits_no_step_passes_a_larger_one_and_only_in_time() -> None:
    room = _room()
    _come(room, "large", [1, make_item("large", 4000), 2])  # 1.6 s alone, due after about 10
    room.step()
    waits = []
    for index in range(40):
        name = f"medium{index}"
        came_s = room.now
        _come(room, name, [1, make_item(name, 400), 2])  # 0.16 s alone
        _whole(room, name)
        waits.append(room.now - came_s)
        if "large" in room.ends:
            break
    assert waits[0] < 0.5 and max(waits) < 3
    assert 3 < room.now < 16


def test_many_small_pictures_leave_half_to_one_that_is_due_before_them() -> None:
    room = _room()
    _come(room, "large", [1, make_item("large", 2000), 2], deadline_s=room.now + 4)
    for index in range(1, 400):
        _come(room, f"small{index}", [1, make_item(f"small{index}", 20), 2], priority=1)
        room.step()
        if room.executor.encoded[make_item("large", 2000).key]:
            break
    assert room.now < 2.3  # 0.8 s alone, of each 50 ms half of 40


def _gpu_like() -> CostModel:
    return CostModel((5e-3, 0, 0, 0, 0), (20e-3, 1e-6, 0))


def _batch(num_items: int, due_s: float = 100.0) -> Batch:
    batch = Batch()
    for index in range(num_items):
        batch.add(EncodeJob(item=make_item(str(index), 64)), due_s)
    return batch


def test_an_encode_is_held_only_while_that_pays() -> None:
    hold = Hold(_gpu_like())
    for index in range(10):
        hold.came(index * 2e-3)
    assert hold.update(_batch(1), 0.020)
    assert not hold.update(_batch(1), 0.0221)  # nobody came in the time in which one should have
    assert not hold.update(_batch(12), 0.030)  # too many would wait
    assert not hold.update(_batch(0), 0.030)
    assert not hold.update(_batch(1, due_s=0.04), 0.030)  # it would be late


def test_where_an_encode_starts_cheaply_nothing_is_ever_held() -> None:
    hold = Hold(_cost())
    for index in range(1000):
        hold.came(index * 1e-3)
        assert not hold.update(_batch(1 + index % 5), index * 1e-3)


@pytest.mark.parametrize("is_dear", [False, True])
def test_a_step_holds_pictures_where_starting_is_dear(is_dear: bool) -> None:
    room = _room()
    if is_dear:
        room = Stage(num_blocks=4000, max_model_len=8000, feature_tokens=16000, cost=_gpu_like())
        room.add(make_request("stream", [1, 2, 3], max_tokens=5000))
        room.step()
    for index in range(6):
        _come(room, f"before{index}", [1, make_item(f"before{index}", 4), 2])
        room.step()
        room.now = 1.0 + 0.002 * index
    _come(room, "last", [*range(50), make_item("last", 4), 2])
    plan = room.step()
    assert any(row.request_id == "stream" for row in plan.rows)
    room.drain(max_steps=6000)
    assert room.reasons()["last"] == "length"


def test_late_tokens_cut_the_limit_and_tokens_on_time_give_it_back() -> None:
    pace, now = Pace(ScheduleConfig()), 0.0
    factors = []
    for step in range(400):
        limit = pace.limit(0.01)
        pace.planned(step, limit, 0.01)
        now += (3.0 if step < 100 else 0.9) * limit
        pace.ended(step, now)
        factors.append(pace.factor)
    assert factors[98] == 0.5 and factors[-1] == 1.0
    assert all(later > earlier for earlier, later in pairwise(factors[104:160:8]))


def test_a_hiccup_is_no_reason_to_slow_down() -> None:
    pace, now = Pace(ScheduleConfig()), 0.0
    for step in range(100):
        pace.planned(step, 0.05, 0.01)
        now += 1.0 if step % 8 == 0 else 0.05
        pace.ended(step, now)
    assert pace.factor == 1.0


def test_steps_that_no_budget_can_help_are_not_looked_at() -> None:
    pace, now = Pace(ScheduleConfig()), 0.0
    for step in range(100):
        pace.planned(step, 0.08, 0.07)
        now += 0.1
        pace.ended(step, now)
    assert pace.factor == 1.0


@given(
    targets=st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)),
    decodes_s=st.floats(1e-4, 1.0),
    schedule=st.sampled_from(["balanced", "interactive"]),
)
def test_a_longer_target_never_means_a_smaller_budget(
    targets: tuple[float, float], decodes_s: float, schedule: str
) -> None:
    limits = [
        limit_beside_decodes(ScheduleConfig(itl_target_ms=target, schedule=schedule), decodes_s)
        for target in sorted(targets)
    ]
    assert limits[0] <= limits[1]
    chunks = [_cost().max_chunk(limit, 1, 1, 0) for limit in limits]
    assert chunks[0] <= chunks[1]


def test_late_steps_shorten_chunks_and_metrics_tell() -> None:
    room = _room()
    room._step_seconds = lambda plan: 0.1  # whatever is planned
    _come(room, "long", range(6000))
    for _ in range(17):
        room.step()
    budgets = room.scheduler.stats().budgets
    assert budgets.pace == 0.5 and budgets.step_s == pytest.approx(0.025)
    assert budgets.chunk_tokens == pytest.approx(60, abs=1) and budgets.watermark_blocks == 40


def test_admission_leaves_the_watermark_free_but_never_stops_the_only_one() -> None:
    assert kv_watermark(0, 1000) == 0 and kv_watermark(3, 1000) == 10 and kv_watermark(30, 1000) == 30
    stage = Stage(num_blocks=200)
    stage.add(make_request("all", range(799), max_tokens=1))
    assert len(stage.step().rows) == 1
    stage.drain()
    stage.add(make_request("one", range(2000, 2640), max_tokens=2), make_request("two", range(5000, 5156)))
    stage.step()
    assert stage.scheduler.num_waiting == 1  # 160 blocks and 39 would leave 1 of 2


def test_interactive_streams_hardly_feel_a_picture_that_encodes_and_others_start_soon() -> None:
    room = _room(schedule="interactive")
    _come(room, "large", [1, make_item("large", 2000), 2])
    for step in range(60):
        before_s = room.now
        if step == 20:
            _come(room, "text", range(100, 150))
        room.step()
        assert room.now - before_s <= 1.4 * BASE_S + SIZE * TOKEN_S + 1e-6
        assert step < 30 or "text" in room.ends
