"""Tiles that were encoded before are not encoded again, and the features are those of a full encode to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from tapetum.core.plan import BatchPlan, EncodeJob
from tapetum.models.encoding import Encoding
from tapetum.models.tiled import TiledTower
from tapetum.ops.table import torch_table
from tests.cpu.parts_kit import Desk, Pixels, edited, noise, numbers
from tests.families.table import FAMILIES


@dataclass(frozen=True)
class Case:
    family: str
    tile: int  # pixels
    grid: tuple[int, int]  # columns, rows of tiles of a picture that is not scaled
    is_overview_first: bool = False

    @property
    def size(self) -> tuple[int, int]:
        return self.grid[0] * self.tile, self.grid[1] * self.tile

    @property
    def count(self) -> int:
        return self.grid[0] * self.grid[1] + 1

    @property
    def overview(self) -> int:
        return 0 if self.is_overview_first else self.count - 1

    def tile_at(self, column: int, row: int) -> int:
        return self.is_overview_first + row * self.grid[0] + column


CASES = {
    case.family: case
    for case in (
        Case("internvl", 56, (3, 4)),
        Case("internvl_chat", 56, (2, 3)),
        Case("smolvlm", 61, (2, 3)),
        Case("llava_next", 28, (1, 3), is_overview_first=True),
        Case("llava_onevision", 24, (1, 2), is_overview_first=True),
    )
}
CLIPS = ("internvl", "smolvlm", "llava_onevision")


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Desk]:
    """By family, each made when it is asked for."""

    class Made(dict[str, Desk]):
        def __missing__(self, name: str) -> Desk:
            path = FAMILIES[name].write(tmp_path_factory.mktemp(name), 0)
            self[name] = Desk(path)
            return self[name]

    return Made()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def desk(case: Case, desks: dict[str, Desk]) -> Iterator[Desk]:
    yield desks[case.family]
    desks[case.family].forget()


@pytest.fixture(autouse=True)
def tower(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tiles each call of the executor has put through the tower."""
    seen: list[int] = []
    pack = TiledTower.pack

    def counted(self, patches, geometries, counts):
        seen.append(sum(counts))
        return pack(self, patches, geometries, counts)

    monkeypatch.setattr(TiledTower, "pack", counted)
    return seen


def screenshot(case: Case, seed: int = 0, extra_rows: int = 0) -> Pixels:
    return noise(seed, case.size[0], case.size[1] + extra_rows * case.tile)


def test_an_edit_encodes_its_tile_and_the_overview(case: Case, desk: Desk, tower: list[int]) -> None:
    first = desk.item(screenshot(case))
    assert len(first.parts) == first.geometry.grid_thw[0] == case.count
    assert not desk.encode(first).known
    second = desk.item(edited(screenshot(case), case.tile - 9, case.size[1] - 9))
    job = desk.encode(second)
    changed = {case.tile_at(0, case.grid[1] - 1), case.overview}
    # one bit of one pixel may be lost where the overview is scaled down
    assert changed - {case.overview} <= set(numbers(job)) <= changed
    assert tower == [case.count, len(numbers(job))]
    assert job.num_patches == len(numbers(job)) * first.geometry.segments[0]
    assert desk.is_exact(first, second)


def test_a_screenshot_scrolled_by_a_tile_encodes_one_row(case: Case, desk: Desk, tower: list[int]) -> None:
    page = screenshot(case, extra_rows=1)
    before, after = desk.item(page[: -case.tile]), desk.item(page[case.tile :])
    desk.encode(before)
    job = desk.encode(after)
    last_row = {case.tile_at(column, case.grid[1] - 1) for column in range(case.grid[0])}
    assert set(numbers(job)) == last_row | {case.overview}
    assert tower == [case.count, case.grid[0] + 1]
    assert desk.is_exact(before, after)


@pytest.mark.parametrize("cuts", [(0.3, 0.6), (0.01, 0.5, 0.99)])
def test_slices_of_what_is_left(case: Case, desk: Desk, cuts: tuple[float, ...]) -> None:
    page = screenshot(case, extra_rows=1)
    before, after = desk.item(page[: -case.tile]), desk.item(page[case.tile :])
    desk.encode(before, cuts)
    assert desk.encode(after, cuts).known
    assert desk.is_exact(before, after)


def test_items_of_one_step_take_tiles_of_different_pictures(case: Case, desk: Desk) -> None:
    """In one packed batch, one of them with nothing left to encode but its overview, one with nothing known."""
    one, two = screenshot(case, 1), screenshot(case, 2)
    first, second = desk.item(one), desk.item(two)
    desk.encode(first)
    desk.encode(second)
    middle = case.size[1] // case.tile // 2 * case.tile
    mixed = desk.item(np.concatenate((one[:middle], two[middle:])))
    fresh = desk.item(screenshot(case, 3))
    jobs = [desk.begin(item) for item in (mixed, fresh)]
    assert numbers(jobs[0]) == [case.overview] and not jobs[1].known
    assert {part.media_key for part in jobs[0].known} == {first.key, second.key}
    desk.run(*jobs)
    assert desk.is_exact(first, second, mixed, fresh)


def test_one_pixel_by_one_is_another_tile(case: Case, desk: Desk) -> None:
    """In every corner of a tile, each of its own."""
    picture = screenshot(case)
    desk.encode(desk.item(picture))
    last = case.tile - 1
    kept = desk.processor.shape.side * desk.processor.shape.patch_size - 1  # beyond it nothing is seen
    for x, y in ((0, 0), (kept, 0), (0, kept), (kept, kept)):
        job = desk.visual.job_of(desk.item(edited(picture, x, y)))
        assert case.tile_at(0, 0) in numbers(job)
    if kept < last:
        assert case.tile_at(0, 0) not in numbers(desk.visual.job_of(desk.item(edited(picture, last, last))))


def test_tenants_share_no_tile(case: Case, desk: Desk, tower: list[int]) -> None:
    mine = desk.item(screenshot(case))
    desk.encode(mine)
    theirs = desk.item(screenshot(case), tenant="u")
    assert not {part.key for part in mine.parts} & {part.key for part in theirs.parts}
    assert not desk.encode(theirs).known and tower == [case.count] * 2


def test_a_tile_that_a_picture_has_twice_is_encoded_once(case: Case, desk: Desk, tower: list[int]) -> None:
    tile = noise(5, case.tile, case.tile)
    picture = desk.item(np.tile(tile, (case.grid[1], case.grid[0], 1)))
    job = desk.encode(picture)
    assert (
        tower == [len(numbers(job))] and 1 <= tower[0] <= 2
    )  # all tiles are one, the overview may be another
    assert desk.is_exact(picture)


def test_dropped_features_lend_nothing(case: Case, desk: Desk, tower: list[int]) -> None:
    first, second = desk.item(screenshot(case)), desk.item(edited(screenshot(case), 0, 0))
    desk.encode(first)
    desk.forget()
    assert not desk.encode(second).known and tower == [case.count] * 2


def test_a_source_that_the_executor_has_lost_is_computed(case: Case, desk: Desk, tower: list[int]) -> None:
    """The scheduler believes it to be there."""
    first, second = desk.item(screenshot(case)), desk.item(edited(screenshot(case), 0, 0))
    desk.encode(first)
    job = desk.begin(second)
    desk.executor.execute(BatchPlan(step=1, dropped_features=(first.key,)))
    desk.run(job)
    assert job.known and tower == [case.count] * 2
    assert desk.is_exact(second)


def test_what_lends_stays_until_the_encode_has_ended(case: Case, desk: Desk) -> None:
    page = screenshot(case, extra_rows=1)
    before, after = desk.item(page[: -case.tile]), desk.item(page[case.tile :])
    desk.encode(before)
    job = desk.begin(after)
    desk.visual.clear()
    desk.drop()
    assert before.key in desk.executor.feature_keys
    done = desk.run(EncodeJob(item=after, end=0.4, known=job.known))[after.key]
    desk.visual.clear()
    assert desk.visual.take_dropped() == ()
    desk.run(EncodeJob(item=after, start=done, known=job.known))
    assert desk.is_exact(before, after)
    desk.visual.clear()
    assert set(desk.visual.take_dropped()) == {before.key, after.key}
    desk.executor.execute(BatchPlan(step=1, dropped_features=(before.key, after.key)))


def test_a_slice_that_breaks_frees_what_it_had_borrowed(
    case: Case, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = screenshot(case, extra_rows=1)
    before, after = desk.item(page[: -case.tile]), desk.item(page[case.tile :])
    desk.encode(before)
    job = desk.begin(after)
    done = desk.run(EncodeJob(item=after, end=0.4, known=job.known))[after.key]
    with monkeypatch.context() as patch:
        patch.setattr(Encoding, "advance", lambda self, share: (_ for _ in ()).throw(RuntimeError("broken")))
        desk.run(EncodeJob(item=after, start=done, known=job.known))
    assert not desk.executor.encode_keys and desk.executor.feature_keys == {before.key}
    assert desk.encode(after).known == job.known
    assert desk.is_exact(before, after)


@pytest.mark.parametrize("family", CLIPS)
def test_a_frame_that_a_clip_repeats_is_encoded_once(
    family: str, desks: dict[str, Desk], tower: list[int]
) -> None:
    desk, tile = desks[family], CASES[family].tile
    one, two, three = (noise(seed, tile, tile) for seed in (1, 2, 3))
    first = desk.item(one, two, one, one)
    assert numbers(desk.encode(first)) == [0, 1]
    later = desk.item(two, one, three)
    assert numbers(desk.encode(later)) == [2]
    assert tower == [2, 1] and desk.is_exact(first, later)
    desk.forget()


def test_pictures_and_frames_share_tiles(desks: dict[str, Desk], tower: list[int]) -> None:
    desk, tile = desks["internvl"], CASES["internvl"].tile
    frame = noise(1, tile, tile)
    picture, clip = desk.item(frame), desk.item(noise(2, tile, tile), frame)
    desk.encode(picture)
    assert numbers(desk.encode(clip)) == [0]
    short = desk.item(frame, kind="video")
    job = desk.encode(short, (0.5,))
    assert (numbers(job), job.num_patches, job.num_tokens) == ([], 0, 0), "all of it is there"
    assert tower == [1, 1, 0] and desk.is_exact(picture, clip, short)
    desk.forget()


def test_an_averaged_frame_is_no_picture(desks: dict[str, Desk]) -> None:
    """LLaVA-OneVision keeps a quarter of the tokens of a frame."""
    desk, frame = desks["llava_onevision"], noise(1, 24, 24)
    picture, clip = desk.item(frame), desk.item(frame, kind="video")
    desk.encode(picture)
    assert not desk.encode(clip).known and desk.is_exact(picture, clip)
    desk.forget()


@pytest.mark.parametrize("size", [(28, 50), (20, 84), (56, 40), (70, 84)])
def test_tiles_at_the_edge_of_a_field(size: tuple[int, int], desks: dict[str, Desk]) -> None:
    """Black bars and what is cut off: the same picture edited, and others whose tiles show other parts."""
    desk = desks["llava_next"]
    picture = noise(7, *size)
    items = [desk.item(picture), desk.item(edited(picture, 0, 0)), desk.item(np.roll(picture, 28, 0))]
    items += [desk.item(picture[: size[1] - 3]), desk.item(picture[:, : size[0] - 5])]
    items = list({item.key: item for item in items}.values())
    for item in items:
        desk.encode(item)
    assert desk.is_exact(*items)
    desk.forget()


def test_a_field_that_is_averaged_takes_nothing_but_its_overview(desks: dict[str, Desk]) -> None:
    desk = desks["llava_onevision"]
    picture = noise(7, 72, 72)
    first, second = desk.item(picture), desk.item(edited(picture, 71 - 8, 71 - 8))
    desk.encode(first)
    assert len(numbers(desk.encode(second))) >= 9 and desk.is_exact(first, second)
    desk.forget()


def test_reuse_in_bfloat16(tmp_path: Path, tower: list[int]) -> None:
    case = CASES["internvl"]
    desk = Desk(FAMILIES["internvl"].write(tmp_path, 0), dtype="bfloat16")
    if not desk.executor.facts.has_exact_parts:
        pytest.skip("this processor has no native bfloat16")
    page = screenshot(case, extra_rows=1)
    before, after = desk.item(page[: -case.tile]), desk.item(page[case.tile :])
    desk.encode(before)
    desk.encode(after, (0.5,))
    assert tower == [13, 4] and desk.is_exact(before, after)


def test_memory_pressure_evicts_the_source_and_the_encode_is_whole(tmp_path: Path, tower: list[int]) -> None:
    """Room for one picture: the one before gives way, so nothing of it can be taken."""
    case = CASES["internvl"]
    path = FAMILIES["internvl"].write(tmp_path, 0)
    tokens = Desk(path).item(screenshot(case)).geometry.num_tokens
    desk = Desk(path, feature_cache_bytes=tokens * 64 * 4 * 3 // 2)
    first, second = desk.item(screenshot(case)), desk.item(edited(screenshot(case), 0, 0))
    desk.encode(first)
    assert not desk.encode(second).known
    assert desk.executor.feature_keys == {second.key} and desk.visual.num_evictions == 1
    assert tower == [13, 13] and desk.is_exact(second)
    assert torch.isfinite(desk.executor.features_of(second.key)).all()


@pytest.mark.parametrize("family", ["internvl", "qwen2_5_vl"])
def test_nothing_is_left_out_where_rows_may_depend_on_each_other(
    family: str, tmp_path: Path, tower: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of torch make no promise of it."""
    monkeypatch.setattr("tapetum.runtime.executor.choose_table", torch_table)
    desk, picture = Desk(FAMILIES[family].write(tmp_path, 0)), noise(0, 168, 224)
    facts = desk.executor.facts
    assert (facts.has_exact_parts, facts.window_cache_bytes) == (False, 0)
    items = [desk.item(picture), desk.item(edited(picture, 0, 0))]
    assert not any(desk.encode(item).known for item in items)
    assert tower == [13, 13] * (family == "internvl")
