"""A large picture beside others, on a device that takes the time it is predicted to: gaps, waits and bounds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.errors import EngineError
from tapetum.core.plan import BatchPlan
from tests.pure.stage import SIZE, Stage
from tests.scripted import ScriptedExecutor, make_item, make_request

# A step, a token of prefill, a slice, a patch, a pair of patches: about those of a model of 0.15 G parameters.
BASE_S, TOKEN_S, START_S, PATCH_S, SQUARE_S = 0.010, 2.5e-4, 1e-3, 1e-4, 7e-8
LARGE = 2304  # visual tokens of a picture of 9,216 patches
LARGE_S = PATCH_S * 4 * LARGE + SQUARE_S * (4 * LARGE) ** 2  # 6.9 s


def _cost() -> CostModel:
    cost = CostModel()
    for size in range(1, 60):
        cost.observe_step(size % 5, 100 * size, 0, 0.0, BASE_S)
        cost.observe_step(size % 3, 40 * size, size, chunk_context(7 * size, size), BASE_S + TOKEN_S * size)
        patches = 40 * size
        cost.observe_encode(patches, patches**2, START_S + PATCH_S * patches + SQUARE_S * patches**2)
    return cost


def _encode_s(plan: BatchPlan) -> float:
    works = [(job.share, job.item.geometry) for job in plan.encodes]
    seconds = sum(share * (PATCH_S * item.num_patches + SQUARE_S * item.squares) for share, item in works)
    return seconds + START_S * bool(works)


def _seconds(plan: BatchPlan) -> float:
    chunk = sum(row.length for row in plan.rows if row.length > 1)
    return BASE_S * bool(plan.rows) + TOKEN_S * chunk + _encode_s(plan)


class Room(Stage):
    """Notes when each request came, spoke first, and how long its longest silence after that was."""

    def __init__(self, *, quantum: float = 0.0, **options: object) -> None:
        super().__init__(
            num_blocks=4000,
            max_model_len=8000,
            feature_tokens=8000,
            cost=_cost(),
            executor=ScriptedExecutor(SIZE, quantum=quantum),
            step_seconds=_seconds,
            **options,
        )
        self.spoke: dict[str, list[float]] = {}

    def finish_step(self, plan: BatchPlan) -> None:
        before = {name: len(tokens) for name, tokens in self.tokens.items()}
        super().finish_step(plan)
        for name, tokens in self.tokens.items():
            if len(tokens) > before[name]:
                self.spoke.setdefault(name, []).append(self.now)

    def come(self, name: str, segments: object, *, max_tokens: int = 4, priority: int = 0) -> None:
        self.add(make_request(name, segments, max_tokens=max_tokens, priority=priority, arrival_s=self.now))
        self.arrivals = {**getattr(self, "arrivals", {}), name: self.now}

    def wait(self, *names: str) -> None:
        while not self.ends.keys() >= set(names):
            self.step()

    def ttft(self, name: str) -> float:
        return self.spoke[name][0] - self.arrivals[name]

    def longest_gap(self, name: str) -> float:
        return max(later - earlier for earlier, later in pairwise(self.spoke[name]))


def _text(index: int, length: int = 53) -> range:
    return range(10_000 + 100 * index, 10_000 + 100 * index + length)


def _talking(**options: object) -> Room:
    room = Room(**options)
    room.come("talker", [1, 2, 3], max_tokens=3000, priority=-9)
    room.step()
    return room


@pytest.mark.parametrize("quantum", [0.0, 0.01])
def test_streams_and_text_go_on_while_two_large_pictures_encode(quantum: float) -> None:
    """W4: a request of text a second, two pictures of 7 s one after the other."""
    room, texts = _talking(quantum=quantum), []
    for picture in ("one", "two"):
        room.come(picture, [1, make_item(picture, LARGE), 2], max_tokens=1)
        while picture not in room.ends:
            if not texts or room.now - room.arrivals[texts[-1]] > 1:
                texts.append(f"text {len(texts)}")
                room.come(texts[-1], _text(len(texts)), max_tokens=64)
            room.step()
    room.wait(*texts)
    limit = 0.055 + quantum * LARGE_S
    assert max(room.longest_gap(name) for name in ("talker", *texts)) < limit
    assert len(texts) > 10 and max(map(room.ttft, texts)) < 0.2 + quantum * LARGE_S
    assert max(map(room.ttft, ("one", "two"))) < 1.5 * LARGE_S  # of each 50 ms the encoder gets about 40


@pytest.mark.parametrize("target_ms", [50.0, 11.0, 1.0])
def test_an_encode_ends_within_its_bound_whatever_the_target(target_ms: float) -> None:
    """Beside a stream whose steps leave 40, 1 or no ms of slack."""
    room = _talking(itl_target_ms=target_ms)
    room.come("picture", [1, make_item("large", 400), 2], max_tokens=1)
    alone = PATCH_S * 1600 + SQUARE_S * 1600**2
    begin, steps, done = room.now, 0, 0.0
    while done < 1:
        plan = room.step()
        assert _seconds(plan) <= max(target_ms / 1e3, 1.15 * BASE_S) + START_S + SIZE * TOKEN_S
        steps += 1
        done = max((job.end for job in plan.encodes), default=done)
    assert steps > 1 and room.now - begin <= 1.05 * 11 * (alone + steps * START_S)
    room.wait("picture")


def test_without_decodes_slices_are_longer_and_text_is_let_in_between_them() -> None:
    room = Room()
    room.come("picture", [1, make_item("large", LARGE), 2], max_tokens=1)
    shares = [room.step().encodes[0].share for _ in range(10)]
    assert [share * LARGE_S for share in shares] == pytest.approx([0.1 - START_S] * 10, rel=0.05)
    room.come("text", _text(1), max_tokens=1)
    room.wait("text")
    assert room.ttft("text") < 0.15
    room.wait("picture")
    assert room.ttft("picture") < 1.15 * LARGE_S + TOKEN_S * LARGE


def test_throughput_takes_longer_slices_and_knows_no_target() -> None:
    room = _talking(schedule="throughput")
    room.come("picture", [1, make_item("large", LARGE), 2], max_tokens=1)
    plans = [room.step() for _ in range(5)]
    assert [_encode_s(plan) for plan in plans] == pytest.approx([0.5] * 5, rel=0.05)
    assert all(plan.rows for plan in plans)


def test_pictures_in_line_are_encoded_one_after_the_other() -> None:
    room = _talking()
    for name in "abc":
        room.come(name, [1, make_item(name, 500), 2], max_tokens=1)
    room.wait(*"abc")
    order = [job.item.key[:1].decode() for plan in room.plans for job in plan.encodes]
    assert order == sorted(order) and set(order) == set("abc")
    assert sum(job.share for plan in room.plans for job in plan.encodes) == pytest.approx(3)


def test_a_long_prefill_and_an_encode_share_the_time_that_decodes_leave() -> None:
    room = _talking()
    room.come("picture", [1, make_item("large", LARGE), 2], max_tokens=1)
    room.step()
    room.come("long", _text(0, 4000), max_tokens=1)
    plans = [room.step() for _ in range(10)]
    assert [_encode_s(plan) for plan in plans] == pytest.approx([0.02] * 10, rel=0.2)
    assert [_seconds(plan) for plan in plans] == pytest.approx([0.05] * 10, rel=0.1)


def test_a_small_picture_passes_a_large_one() -> None:
    room = _talking()
    room.come("large", [1, make_item("large", LARGE), 2], max_tokens=1)
    room.step()
    room.come("small", [1, make_item("small", 20), 2], max_tokens=1)
    room.wait("small")
    assert room.ttft("small") < 0.15 and "large" not in room.ends


def test_tokens_before_a_picture_are_computed_while_it_encodes_and_those_behind_wait() -> None:
    room = Room()
    room.come("both", [*_text(0, 50), make_item("large", LARGE), *_text(1, 50)], max_tokens=1)
    plan = room.step()
    assert [(row.start, row.end) for row in plan.rows] == [(0, 50)]
    while plan.encodes and plan.encodes[0].end < 1:
        plan = room.step()
        assert not plan.rows or plan.encodes[0].end == 1
    room.wait("both")


def test_an_encode_ends_with_the_last_who_wants_it() -> None:
    room = _talking()
    picture = make_item("large", LARGE)
    room.come("first", [1, picture, 2])
    room.come("second", [3, picture, 4])
    room.step()
    room.scheduler.abort("first", room.now)
    assert room.step().encodes and room.executor.encode_keys == {picture.key}
    room.scheduler.abort("second", room.now)
    plan = room.step()
    assert plan.dropped_features == (picture.key,) and not plan.encodes
    assert not room.executor.encode_keys and room.scheduler.stats().feature_bytes == 0
    room.come("again", [1, picture, 2], max_tokens=1)
    assert room.step().encodes[0].start == 0
    room.wait("again")
    room.scheduler.abort("talker", room.now)
    room.drain()
    room.assert_clean()


def test_an_abort_while_a_slice_is_in_flight_drops_it_with_the_next_step() -> None:
    room = Room()
    picture = make_item("large", LARGE)
    room.come("only", [1, picture, 2])
    plan = room.scheduler.schedule(room.now)
    room.scheduler.abort("only", room.now)
    room.finish_step(plan)
    assert room.scheduler.has_work
    assert room.step().dropped_features == (picture.key,)
    room.assert_clean()


def test_a_slice_that_fails_ends_all_who_wait_and_the_next_picture_begins() -> None:
    room = _talking()
    bad, good = make_item("bad", LARGE), make_item("good", LARGE)
    for name, picture in (("a", bad), ("b", bad), ("c", good)):
        room.come(name, [ord(name), picture, 2], max_tokens=1)
    room.step()
    room.executor.fail_features[bad.key] = EngineError("cannot encode")
    room.step()
    assert room.reasons() == {"a": "error", "b": "error"}
    plan = room.step()
    assert bad.key in plan.dropped_features and plan.encodes[0].item is good
    room.wait("c")
    assert room.reasons()["c"] == "length"


def test_a_plan_broken_off_ends_the_encode_in_it() -> None:
    room = Room()
    picture = make_item("large", LARGE)
    room.come("a", [1, picture, 2], max_tokens=1)
    room.step()
    plan = room.scheduler.schedule(room.now)
    room.tell(room.scheduler.abandon(plan, EngineError("broken off"), room.now))
    assert room.reasons() == {"a": "error"}
    assert room.step().dropped_features == (picture.key,)
    room.assert_clean()


def test_a_preempted_request_finds_its_picture_further_on() -> None:
    """Blocks run out while it encodes: the slices go on, and what they give is there when the request comes back."""
    room = Room(max_num_seqs=4)
    room.come("stream", [1, 2, 3], max_tokens=60, priority=-9)
    room.step()
    room.come("picture", [*_text(0, 40), make_item("large", 500), 2], max_tokens=1)
    room.step()
    roster = room.scheduler._roster
    roster.preempt(roster.find("picture"))
    starts = [room.step().encodes[0].start for _ in range(3)]
    assert starts == sorted(starts) and starts[0] > 0
    room.wait("picture")
    assert room.executor.encoded == {make_item("large", 500).key: 1}
    assert room.firsts["picture"].stats.num_preemptions == 1
    room.wait("stream")
    room.drain()
    room.assert_clean()


def test_times_of_an_encode_are_told_over_all_its_slices() -> None:
    executor = ScriptedExecutor(SIZE, seconds=lambda plan: (_encode_s(plan), 0.0))
    room = Stage(feature_tokens=4000, num_blocks=1000, max_model_len=3000, cost=_cost(), executor=executor)
    room.now = 3.0
    room.add(make_request("a", [1, make_item("large", LARGE), 2], max_tokens=1, arrival_s=1.0))
    room.drain()
    stats = room.ends["a"].stats
    assert stats.encode_s == pytest.approx(LARGE_S, rel=0.1)
    assert stats.vision_queue_s == pytest.approx(2.9, abs=0.05)  # the first slice ends with the first step
