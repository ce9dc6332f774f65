"""Requests with many pictures in a memory that holds few of them: nobody waits in a circle, and everybody ends.

Memory for features is as large as the largest picture of all, so that two requests that held pictures out of turn would
block each other for ever.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tapetum.core.cost import CostModel
from tapetum.core.media import MediaItem
from tapetum.core.request import Phase
from tests.pure.stage import SIZE, Stage
from tests.scripted import make_item, make_request

CAPACITY = 12  # visual tokens
SIZES = {"a": 1, "b": 3, "c": 5, "d": 6, "e": 7, "f": 11, "g": 12}
ITEMS = {name: make_item(name, size) for name, size in SIZES.items()}
LONGEST = 6 * (CAPACITY + 2) + 5
COST = CostModel(step=(1e-3, 1e-4, 0.0, 1e-4, 0.0), encode=(1e-3, 1e-3, 1e-5))

pictures = st.lists(st.tuples(st.sampled_from(sorted(ITEMS)), st.integers(0, 2)), min_size=1, max_size=6)
arrivals = st.lists(
    st.tuples(st.integers(0, 6), pictures, st.integers(1, 5), st.sampled_from([-1, 0, 1])),
    min_size=2,
    max_size=12,
)


def segments(number: int, shown: list[tuple[str, int]]) -> list[int | MediaItem]:
    """The pictures in order, each behind so many tokens of text."""
    parts: list[int | MediaItem] = [100 + number]
    for name, gap in shown:
        parts += [20] * gap
        parts.append(ITEMS[name])
    return [*parts, 30]


def assert_in_turn(stage: Stage) -> None:
    """Who holds pictures can go on with them; who does not run holds none."""
    roster, visual = stage.scheduler._roster, stage.scheduler.visual
    for progress in roster.live():
        spans = progress.state.request.prompt.spans
        line = spans[progress.num_passed : progress.num_passed + progress.num_pinned]
        for name in ITEMS:
            key = visual.key_of(ITEMS[name])
            holds = progress.request_id in visual.waiters(key)
            assert holds == any(span.key == ITEMS[name].key for span in line)
        assert progress.state.phase is Phase.RUNNING or not line


@settings(max_examples=150, deadline=None)
@given(
    coming=arrivals,
    more_blocks=st.integers(0, 12),
    itl_target_ms=st.sampled_from([1.0, 5.0, 100.0]),
    schedule=st.sampled_from(["balanced", "interactive", "throughput"]),
    aborted=st.sets(st.integers(0, 11), max_size=3),
    is_caching=st.booleans(),
    is_atomic=st.booleans(),
)
def test_all_end_though_memory_holds_one_picture(
    coming, more_blocks, itl_target_ms, schedule, aborted, is_caching, is_atomic
) -> None:
    stage = Stage(
        num_blocks=-(-LONGEST // SIZE) + more_blocks,
        feature_tokens=CAPACITY,
        is_caching=is_caching,
        cost=COST,
        itl_target_ms=itl_target_ms,
        schedule=schedule,
        max_num_seqs=6,
        max_num_batched_tokens=16,
        encoder_budget_tokens=CAPACITY,
    )
    waiting = list(enumerate(coming))
    for _ in range(3000):
        while waiting and len(stage.plans) >= waiting[0][1][0] * waiting[0][0]:
            number, (_, shown, max_tokens, priority) = waiting.pop(0)
            stage.add(
                make_request(
                    str(number),
                    segments(number, shown),
                    max_tokens=max_tokens,
                    priority=priority,
                    arrival_s=stage.now,
                    is_atomic=is_atomic,
                )
            )
        if len(stage.plans) == 5:
            stage.tell(
                [event for number in aborted if (event := stage.scheduler.abort(str(number), stage.now))]
            )
        if not waiting and not stage.scheduler.has_work:
            break
        stage.step()
        assert_in_turn(stage)
    assert len(stage.ends) == len(coming)
    assert set(stage.reasons().values()) <= {"length", "abort"}
    stage.assert_clean()


def test_two_requests_of_the_same_pictures_in_opposite_order() -> None:
    """The classical circle: each holds what the other one wants next."""
    stage = Stage(
        feature_tokens=CAPACITY, cost=COST, max_num_batched_tokens=8, encoder_budget_tokens=CAPACITY
    )
    stage.add(make_request("there", segments(0, [("g", 1), ("f", 1)] * 3), max_tokens=2))
    stage.add(make_request("back", segments(1, [("f", 1), ("g", 1)] * 3), max_tokens=2))
    stage.drain()
    assert stage.reasons() == {"there": "length", "back": "length"}
    stage.assert_clean()
