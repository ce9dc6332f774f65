"""The ladder of picture sizes on a simulated clock: monotone in load, calm under a square wave, fair."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.sched.quality import TENANT_S, QualityLadder, choose, class_weight

TARGET_S = 2.0
QUIET_S = 5.0
WORK_S = (1.0, 0.5, 0.25, 0.0625)  # at the rungs from high to thumbnail
SECONDS = st.floats(0, 20, allow_nan=False)
# (seconds after the one before, wait now, a longer wait, priority, tenant)
LOAD = st.lists(
    st.tuples(st.floats(0, 4), SECONDS, SECONDS, st.integers(-3, 5), st.sampled_from("abc")), max_size=30
)


def rung_of(ladder: QualityLadder, wait_s: float, now: float, priority: int = 0, tenant: str = "") -> int:
    ladder.observe(wait_s, now)
    ladder.charge(tenant, WORK_S[0], now)
    return choose(ladder.allowance(priority, tenant, now), WORK_S)


def test_an_idle_engine_degrades_nothing():
    ladder = QualityLadder(TARGET_S)
    assert all(
        rung_of(ladder, 0.0, now=step, priority=priority) == 0 for step, priority in enumerate(range(-1, 3))
    )


@pytest.mark.parametrize(("wait_s", "rung"), [(0.75, 0), (0.76, 1), (1.125, 1), (1.2, 2), (1.4, 3), (9.0, 3)])
def test_the_largest_rung_that_meets_the_target_is_chosen(wait_s, rung):
    """A standard request counts the wait 4/3 times."""
    assert rung_of(QualityLadder(TARGET_S), wait_s, now=0.0) == rung


@given(LOAD)
def test_more_load_never_means_a_higher_rung(load):
    light, heavy = QualityLadder(TARGET_S, QUIET_S), QualityLadder(TARGET_S, QUIET_S)
    now = 0.0
    for passed, first, second, priority, tenant in load:
        now += passed
        low, high = sorted((first, second))
        assert rung_of(light, low, now, priority, tenant) <= rung_of(heavy, high, now, priority, tenant)


@given(st.lists(st.tuples(st.floats(0, 4), SECONDS), min_size=1, max_size=40))
def test_the_longest_wait_of_the_last_seconds_counts(load):
    """Against a plain list of all waits."""
    ladder, seen, now = QualityLadder(TARGET_S, QUIET_S), [], 0.0
    for passed, wait_s in load:
        now += passed
        ladder.observe(wait_s, now)
        seen.append((now, wait_s))
        longest = max(wait for time, wait in seen if time >= now - QUIET_S)
        assert ladder.allowance(-1, "", now) == pytest.approx(TARGET_S - longest)
    assert ladder.allowance(-1, "", now + QUIET_S + 1) == TARGET_S


def test_asking_changes_nothing():
    ladder = QualityLadder(TARGET_S, QUIET_S)
    ladder.observe(1.9, 0.0)
    assert ladder.allowance(0, "", QUIET_S + 1) == TARGET_S
    assert ladder.allowance(0, "", 0.0) < 0, "the question about later has forgotten nothing"


def test_a_square_wave_does_not_make_it_flap():
    """Load that comes and goes every second: one change down, and one up once it stays away."""
    ladder = QualityLadder(TARGET_S, QUIET_S)
    times = [step / 10 for step in range(400)]
    waits = [1.6 if time < 20 and int(time) % 2 == 0 else 0.0 for time in times]
    rungs = [rung_of(ladder, wait, now) for now, wait in zip(times, waits, strict=True)]
    changes = [
        (now, rung) for now, (before, rung) in zip(times[1:], pairwise(rungs), strict=True) if rung != before
    ]
    assert rungs[0] == 3
    assert [rung for _, rung in changes] == [0]
    assert changes[0][0] == pytest.approx(18.9 + QUIET_S + 0.1)


def test_lower_classes_give_way_first():
    weights = [class_weight(priority) for priority in (-1000, -1, 0, 1, 2, 1000)]
    assert weights == [1.0, 1.0, pytest.approx(4 / 3), 2.0, 4.0, 4.0]
    ladder = QualityLadder(TARGET_S)
    assert [rung_of(ladder, 0.6, now=0.0, priority=priority) for priority in (-1, 0, 1, 2)] == [0, 0, 1, 3]


def test_the_tenant_that_asks_for_more_gives_way_first():
    ladder, now = QualityLadder(TARGET_S), 0.0
    for step in range(100):
        now = step / 10
        ladder.charge("large", 1.0, now)
        if step % 10 == 0:
            ladder.charge("small", 1.0, now)
    ladder.observe(1.0, now)
    assert ladder.allowance(-1, "small", now) == pytest.approx(1.0)
    assert ladder.allowance(-1, "large", now) < 0.25
    assert ladder.allowance(-1, "new", now) == pytest.approx(1.0)
    ladder.charge("small", 1.0, now + 20 * TENANT_S)  # the other has been away for long
    ladder.charge("small", 1.0, now + 22 * TENANT_S)
    ladder.observe(1.0, now + 22 * TENANT_S)
    assert ladder.allowance(-1, "small", now + 22 * TENANT_S) == pytest.approx(1.0)


def test_a_tenant_alone_is_no_heavy_one():
    ladder = QualityLadder(TARGET_S)
    for step in range(1000):
        ladder.charge("only", 5.0, float(step))
    ladder.observe(1.0, 1000.0)
    assert ladder.allowance(-1, "only", 1000.0) == pytest.approx(1.0)


@given(st.floats(-5, 5), st.lists(st.floats(0, 5), max_size=4))
def test_a_choice_is_the_first_that_fits_or_the_cheapest(allowance_s, work_s):
    chosen = choose(allowance_s, iter(work_s))
    if not work_s:
        assert chosen == 0
        return
    fitting = [rung for rung, seconds in enumerate(work_s) if seconds <= allowance_s]
    assert chosen == (fitting[0] if fitting else work_s.index(min(work_s)))


def test_where_a_rung_saves_nothing_the_picture_stays_whole():
    assert choose(-1.0, (1.0, 1.0, 1.0, 1.0)) == 0


def test_no_rung_is_worked_out_that_is_not_needed():
    def works():
        yield 1.0
        raise AssertionError("looked below the rung that fits")

    assert choose(1.0, works()) == 0
