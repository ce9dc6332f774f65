"""Windows of Qwen2.5-VL that were encoded before skip the layers before the first global one, to the last bit alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tapetum.core.cost import CostModel
from tapetum.core.plan import BatchPlan, EncodeJob, StepResult
from tapetum.engine.profile import observe
from tapetum.models.encoding import Encoding
from tapetum.models.qwen_vl.windows import Windows
from tapetum.runtime.memory import Room
from tapetum.runtime.windows import WindowCache
from tests.checkpoints import write_checkpoint
from tests.cpu.parts_kit import Desk, Pixels, edited, noise

SIDE = 112  # pixels of a window
WIDTH, HEIGHT = 3 * SIDE, 2 * SIDE + 56  # six whole windows and three that are cut off
COUNT = 9
STATE = 64 * 64 * 4  # bytes of a whole window's state


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("windows"), "qwen2_5_vl", max_pixels=200_000)


@pytest.fixture(scope="module")
def shared(directory: Path) -> Desk:
    return Desk(directory)


@pytest.fixture
def desk(shared: Desk) -> Iterator[Desk]:
    if not shared.executor.facts.has_exact_parts:
        pytest.skip("no native kernels")
    yield shared
    shared.executor.execute(BatchPlan(step=1, drops_windows=True))
    shared.forget()
    assert shared.executor.window_bytes == 0


@pytest.fixture(autouse=True)
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many windows have come through the first layers, call by call."""
    seen: list[int] = []
    keep = Windows.keep

    def counted(self, x, run, start, end):
        seen.append(end - start)
        return keep(self, x, run, start, end)

    monkeypatch.setattr(Windows, "keep", counted)
    return seen


def picture(seed: int = 0, width: int = WIDTH, height: int = HEIGHT) -> Pixels:
    return noise(seed, width, height)


def test_a_change_computes_its_window(desk: Desk, computed: list[int]) -> None:
    first = desk.item(picture())
    second = desk.item(edited(picture(), SIDE + 5, SIDE + 5))
    assert len(first.parts) == COUNT == len({part.key for part in first.parts})
    desk.encode(first)
    desk.encode(second)
    assert (sum(computed), computed[-1]) == (COUNT + 1, 1)
    assert desk.is_exact(first, second)
    assert desk.executor.window_bytes == 7 * STATE + 3 * STATE // 2


def test_a_picture_whose_features_are_gone_has_all_of_them(desk: Desk, computed: list[int]) -> None:
    item = desk.item(picture())
    desk.encode(item)
    desk.visual.fail(desk.visual.key_of(item))
    desk.drop()
    desk.encode(item)
    assert sum(computed) == COUNT and desk.is_exact(item)


@pytest.mark.parametrize("cuts", [(0.1, 0.2, 0.3), (0.02, 0.4, 0.97), tuple(np.linspace(0, 1, 20))])
def test_slices(desk: Desk, computed: list[int], cuts: tuple[float, ...]) -> None:
    first = desk.item(picture())
    changed = edited(edited(picture(), 1, 1), 2 * SIDE + 5, HEIGHT - 1)
    second = desk.item(changed)
    desk.encode(first, cuts)
    desk.encode(second, cuts)
    assert sum(computed) == COUNT + 2 and desk.is_exact(first, second)


def test_another_place_or_grid_is_another_window(desk: Desk, computed: list[int]) -> None:
    """A picture moved by a window, one that is taller, and the same tile of pixels everywhere."""
    page = picture(height=HEIGHT + SIDE)
    tile = np.tile(noise(5, SIDE, SIDE), (2, 3, 1))
    items = [desk.item(pixels) for pixels in (page[:HEIGHT], page[SIDE:], page, tile)]
    for item in items:
        desk.encode(item)
    assert sum(computed) == sum(len(item.parts) for item in items)
    assert desk.is_exact(*items)


def test_tenants_share_no_window(desk: Desk, computed: list[int]) -> None:
    for tenant in "tu":
        desk.encode(desk.item(picture(), tenant=tenant))
    assert sum(computed) == 2 * COUNT


@pytest.mark.parametrize(("x", "y"), [(0, 0), (SIDE - 1, SIDE - 1), (WIDTH - 1, HEIGHT - 1)])
def test_one_pixel_by_one_is_another_window(desk: Desk, computed: list[int], x: int, y: int) -> None:
    desk.encode(desk.item(picture()))
    other = desk.item(edited(picture(), x, y))
    desk.encode(other)
    assert sum(computed) == COUNT + 1 and desk.is_exact(other)


def test_items_of_one_batch(desk: Desk, computed: list[int]) -> None:
    """One that is known in part, one that is new, one of another shape; the first two are in part the same."""
    known = desk.item(picture())
    desk.encode(known)
    fresh = picture(1)
    mixed = picture()
    mixed[:SIDE] = fresh[:SIDE]
    items = [desk.item(mixed), desk.item(fresh), desk.item(picture(2, SIDE, 3 * SIDE))]
    computed.clear()
    desk.run(*(desk.begin(item) for item in items))
    assert sum(computed) == COUNT + 3, "what two of them have is computed once"
    assert desk.is_exact(known, *items)


def test_what_stands_still_in_a_clip_is_computed_once(desk: Desk, computed: list[int]) -> None:
    """Two frames are a step; of the second and the third one window has changed."""
    frames = [picture(height=2 * SIDE, width=2 * SIDE)] * 6
    frames[2] = frames[3] = edited(frames[0], 0, 0)
    frames[5] = edited(frames[0], SIDE, SIDE)
    clip, still = desk.item(*frames), desk.item(frames[0])
    assert len(clip.parts) == 12
    desk.encode(clip, (0.3, 0.31, 0.8))
    assert sum(computed) == 4 + 1 + 1 and desk.is_exact(clip)
    desk.encode(still)
    assert sum(computed) == 10, "a picture has other patches"
    assert desk.is_exact(still)


def test_a_small_cache_keeps_what_was_used_last(directory: Path, computed: list[int]) -> None:
    desk = Desk(directory, window_cache_bytes=4 * STATE)
    items = [desk.item(edited(picture(), place * SIDE, 0)) for place in range(3)]
    for item in items:
        desk.encode(item)
        assert desk.executor.window_bytes <= 4 * STATE
    assert COUNT < sum(computed) < 3 * COUNT and desk.is_exact(*items)


def test_no_cache_keeps_nothing(directory: Path, computed: list[int]) -> None:
    desk = Desk(directory, window_cache_bytes=0)
    for place in range(2):
        desk.encode(desk.item(edited(picture(), place * SIDE, 0)))
    assert not computed and desk.executor.window_bytes == 0
    assert desk.executor.facts.window_cache_bytes == 0


def test_an_encode_that_breaks_leaves_whole_windows_only(
    desk: Desk, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it breaks off, what was kept until then is right."""
    item, run_some = desk.item(picture()), Encoding._run_some
    for calls in range(0, 40, 3):
        left = iter(range(calls))

        def broken(self, work, left=left):
            if next(left, None) is None:
                raise RuntimeError("broken")
            run_some(self, work)

        with monkeypatch.context() as patch:
            patch.setattr(Encoding, "_run_some", broken)
            desk.run(desk.begin(item))
        if item.key in desk.executor.feature_keys:
            break
    else:
        desk.encode(item)
    assert sum(computed) == COUNT and desk.is_exact(item)


def test_the_share_that_is_spared_is_told_and_nobody_pays_for_it(desk: Desk) -> None:
    known, cost = desk.item(picture()), CostModel()
    desk.encode(known)
    desk.visual.fail(desk.visual.key_of(known))
    desk.drop()
    job = desk.begin(known)
    plan = BatchPlan(step=1, encodes=(job,))
    result = desk.executor.execute(plan)
    desk.visual.complete(desk.visual.key_of(known))
    share = result.spared[known.key]
    assert 0.1 < share < 0.5, "one of three layers"
    seen: list[float] = []
    cost.observe_encode = lambda patches, squares, seconds: seen.append(patches)  # type: ignore[method-assign]
    observe(cost, plan, replace(result, encode_s=1.0))
    assert seen == [pytest.approx((1 - share) * known.geometry.num_patches)]


def test_a_new_picture_spares_nothing(desk: Desk) -> None:
    item = desk.item(picture())
    result: StepResult = desk.executor.execute(BatchPlan(step=1, encodes=(EncodeJob(item=item),)))
    assert result.spared == {item.key: 0.0}
    desk.executor.execute(BatchPlan(step=1, dropped_features=(item.key,)))


def test_reuse_in_bfloat16(directory: Path, computed: list[int]) -> None:
    desk = Desk(directory, dtype="bfloat16")
    if not desk.executor.facts.has_exact_parts:
        pytest.skip("this processor has no native bfloat16")
    items = [desk.item(picture()), desk.item(edited(picture(), 0, 0))]
    for item in items:
        desk.encode(item, (0.3,))
    assert sum(computed) == COUNT + 1 and desk.is_exact(*items)


def test_the_bytes_of_the_cache_are_its_states() -> None:
    cache = WindowCache(100)
    for name in b"abc":
        cache.put(bytes([name]), torch.zeros(10, dtype=torch.float32))
    assert (len(cache), cache.num_bytes) == (2, 80)
    assert cache.get(b"a") is None and cache.get(b"b") is not None
    cache.put(b"d", torch.zeros(5, dtype=torch.float32))
    cache.put(b"e", torch.zeros(1000, dtype=torch.float32))  # larger than all
    assert [cache.get(bytes([name])) is not None for name in b"bcde"] == [True, True, True, False]
    cache.put(b"b", torch.zeros(2, dtype=torch.float32))  # is there
    assert cache.num_bytes == 100
    cache.clear()
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_the_cache_has_its_place_in_the_room_of_keys_and_values() -> None:
    room = Room(free_bytes=1000, step_bytes=100, feature_bytes=200, usual_limit=900, window_bytes=50)
    assert room.kv_bytes == room.usual_bytes == 650
    assert str(room).endswith("features 200 B, windows 50 B")
