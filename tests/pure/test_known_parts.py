"""Tiles that are there: what the scheduler plans, predicts and keeps for encodes that leave them out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapetum.cache.visual import VisualCache
from tapetum.core.errors import EngineError
from tapetum.core.media import MediaItem, Part
from tapetum.core.plan import EncodeJob
from tests.pure.stage import BYTES_PER_TOKEN, SIZE, Stage
from tests.pure.test_scheduler_slices import PATCH_S, SQUARE_S, Room
from tests.scripted import ScriptedExecutor, make_item, make_request

TOKENS, PATCHES = 5, 20  # of a tile
NEWLINE = 1  # tokens of an item that are no tile's


def tiled(tiles: str, *, tokens: int = TOKENS) -> MediaItem:
    """A picture named by its tiles, a letter each; "-" is one whose features cannot be told apart."""
    count = tokens * len(tiles) + NEWLINE
    item = make_item(tiles, count, segments=(4 * tokens,) * len(tiles))
    grid = (len(tiles), 1, 4 * tokens)
    parts = (
        Part(key=tile.encode(), runs=((place * tokens, (place + 1) * tokens),) if tile != "-" else ())
        for place, tile in enumerate(tiles)
    )
    return replace(item, geometry=replace(item.geometry, grid_thw=grid), parts=tuple(parts))


def cache(tokens: int, *, has_parts: bool = True) -> VisualCache:
    return VisualCache(tokens * BYTES_PER_TOKEN, BYTES_PER_TOKEN, has_parts=has_parts)


def encode(visual: VisualCache, *tiles: str) -> None:
    for name in tiles:
        visual.begin(tiled(name))
        visual.complete(visual.key_of(tiled(name)))


def sources(job: EncodeJob) -> dict[int, str]:
    return {part.number: part.media_key.rstrip(b"\0").decode() for part in job.known}


def test_parts_are_taken_from_few_and_from_itself() -> None:
    visual = cache(200)
    encode(visual, "abc", "bcd", "ef")
    assert sources(visual.job_of(tiled("dcba"))) == {0: "bcd", 1: "bcd", 2: "bcd", 3: "abc"}
    assert sources(visual.job_of(tiled("xaxx"))) == {1: "abc", 2: "xaxx", 3: "xaxx"}
    assert sources(visual.job_of(tiled("-xy-"))) == {}
    job = visual.job_of(tiled("axbx"))
    assert (job.num_patches, job.squares) == (PATCHES, PATCHES**2)
    assert job.num_tokens == TOKENS + NEWLINE
    assert job.known[0].runs == ((0, 5),) and job.known[2].runs == ((5, 10),)


def test_a_model_whose_tiles_are_not_exact_shares_none() -> None:
    visual = cache(200, has_parts=False)
    encode(visual, "ab")
    assert visual.job_of(tiled("abb")).known == () and visual.begin(tiled("abb")).known == ()


def test_others_are_evicted_before_what_lends() -> None:
    """Though it is the one that was used least recently."""
    visual = cache(11 * 3)
    encode(visual, "ab", "cd", "ef")
    job = visual.begin(tiled("ax"))
    assert sources(job) == {0: "ab"}
    assert visual.take_dropped() == (tiled("cd").key,)
    assert not visual.has_room(tiled("ghij")), "what lends is not to be had"
    visual.complete(visual.key_of(tiled("ax")))
    assert visual.has_room(tiled("ghij"))


def test_what_lends_gives_way_where_there_is_no_other_room() -> None:
    visual = cache(12)
    encode(visual, "ab")
    assert visual.has_room(tiled("ax"))
    job = visual.begin(tiled("ax"))
    assert job.known == () and visual.take_dropped() == (tiled("ab").key,)
    visual.complete(visual.key_of(tiled("ax")))
    assert sources(visual.job_of(tiled("xb"))) == {0: "ax"}, "the parts of what went are gone"


@pytest.mark.parametrize("ends", [True, False])
def test_a_lender_that_fails_and_comes_again_is_another(ends: bool) -> None:
    visual = cache(100)
    encode(visual, "ab")
    lender, borrower = visual.key_of(tiled("ab")), visual.key_of(tiled("ax"))
    visual.begin(tiled("ax"))
    visual.fail(lender)
    encode(visual, "ab")
    visual.begin(tiled("ay"))
    if ends:
        visual.complete(borrower)
    else:
        visual.fail(borrower)
    visual.clear()
    assert visual.state(lender) == "resident", "the second encode needs it still"
    visual.fail(visual.key_of(tiled("ay")))
    visual.clear()
    assert visual.num_bytes == visual.num_parts == 0


@given(
    names=st.lists(st.text("abcdef", min_size=1, max_size=6), max_size=30),
    steps=st.lists(st.integers(0, 3), max_size=30),
)
def test_accounts_beside_a_naive_model(names: list[str], steps: list[int]) -> None:
    """Whatever begins, ends, fails and is cleared, a part is known only while resident features have it."""
    visual, under_way, lent = cache(70), {}, {}
    for name, step in zip(names, steps, strict=False):
        item = tiled(name)
        if visual.needs_encode(item) and visual.has_room(item):
            resident = set(visual.resident_keys)
            job = visual.begin(item)
            known = {part.media_key for part in job.known}
            assert known - {item.key} <= set(visual.resident_keys) <= resident
            under_way[name], lent[name] = job, known - {item.key}
            for part in job.known:
                owner = part.media_key.rstrip(b"\0").decode()
                assert owner[part.runs[0][0] // TOKENS] == name[part.number]
        if step == 0:
            visual.clear()
        assert set().union(*lent.values()) <= set(visual.resident_keys), "what lends stays"
        if under_way and step > 1:
            done = next(iter(under_way))
            del under_way[done], lent[done]
            key = visual.key_of(tiled(done))
            visual.complete(key) if step == 2 else visual.fail(key)
        there = {letter for media_key in visual.resident_keys for letter in media_key.rstrip(b"\0").decode()}
        assert visual.num_parts == len(there)
    for name in under_way:
        visual.fail(visual.key_of(tiled(name)))
    visual.clear()
    assert visual.num_bytes == visual.num_parts == 0


def test_predictions_and_budgets_count_what_is_missing() -> None:
    """A screenshot of twelve tiles takes many slices beside a stream, one with a changed tile a part of a step."""
    tokens = 64
    room = Room(has_parts=True)
    room.come("talker", [1, 2, 3], max_tokens=3000, priority=-9)
    room.step()
    first, second = tiled("abcdefghijkl", tokens=tokens), tiled("abcdefghijkX", tokens=tokens)
    tile_s = PATCH_S * 4 * tokens + SQUARE_S * (4 * tokens) ** 2
    room.come("first", [1, first, 2], max_tokens=1)
    room.wait("first")
    slices = [job for plan in room.plans for job in plan.encodes]
    assert len(slices) > 5 and not any(job.known for job in slices)
    room.come("second", [1, second, 2], max_tokens=1)
    plan = room.step()
    (job,) = plan.encodes
    assert job.is_whole and [part.number for part in job.known] == list(range(11))
    assert room.cost.encode_seconds(job.num_patches, job.squares) == pytest.approx(tile_s, rel=0.1)
    room.wait("second")
    assert room.executor.encoded == {first.key: 1, second.key: 1}


def test_a_budget_of_visual_tokens_holds_many_that_changed_a_little() -> None:
    stage = Stage(feature_tokens=400, has_parts=True, encoder_budget_tokens=30)
    stage.add(make_request("first", [1, tiled("abcdef"), 2], max_tokens=1))
    stage.drain()
    names = [f"abcde{letter}" for letter in "uvwxyz"]
    stage.add(*(make_request(name, [1, tiled(name), 2], max_tokens=1) for name in names))
    plan = stage.step()
    assert len(plan.encodes) == 30 // (TOKENS + NEWLINE), "a whole one would fill more than a step"
    stage.drain()
    stage.assert_clean()
    assert set(stage.reasons().values()) == {"length"}


@given(
    data=st.data(),
    pictures=st.lists(st.text("abcd", min_size=1, max_size=5), min_size=1, max_size=12),
    quantum=st.sampled_from((0.0, 0.3)),
)
def test_requests_come_and_go_and_nothing_leaks(
    data: st.DataObject, pictures: list[str], quantum: float
) -> None:
    """The device refuses a plan that takes parts from what is not there."""
    executor = ScriptedExecutor(SIZE, quantum=quantum)
    stage = Stage(num_blocks=60, feature_tokens=45, has_parts=True, executor=executor)
    for number, name in enumerate(pictures):
        stage.add(make_request(str(number), [number, tiled(name), 2], max_tokens=2))
        if data.draw(st.booleans(), "step"):
            stage.step()
        if data.draw(st.integers(0, 4), "abort") == 0:
            victim = str(data.draw(st.integers(0, number), "victim"))
            if event := stage.scheduler.abort(victim, stage.now):
                stage.tell([event])
        if data.draw(st.integers(0, 5), "fail") == 0:
            stage.executor.fail_features[tiled(name).key] = EngineError("broken")
            stage.step()
            stage.executor.fail_features.clear()
    stage.drain()
    stage.step()
    stage.assert_clean()
    assert len(stage.ends) == len(pictures)
    assert all(
        not entry.num_loans and not entry.lenders for entry in stage.scheduler.visual._entries.values()
    )
    stage.scheduler.reset_caches()
    assert stage.scheduler.visual.num_bytes == stage.scheduler.visual.num_parts == 0


def test_a_reset_reaches_what_the_executor_keeps_of_windows() -> None:
    """Once, and again where the plan that told it broke off."""
    stage = Stage(has_parts=True)
    assert not stage.step().drops_windows
    stage.scheduler.reset_caches()
    plan = stage.scheduler.schedule(stage.now)
    assert plan.drops_windows and not plan.is_empty
    stage.tell(stage.scheduler.abandon(plan, EngineError("broken"), stage.now))
    assert [stage.step().drops_windows for _ in range(2)] == [True, False]
