"""The worker pool: results, single flight, cache, deadlines, cancellation, and nothing left behind."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from tapetum.core.chat import MediaPart
from tapetum.core.checks import RANGES
from tapetum.core.config import MediaConfig
from tapetum.core.errors import (
    CapacityError,
    EngineError,
    InvalidParameter,
    MediaError,
    MediaForbidden,
    MediaTimeout,
    MediaTooLarge,
)
from tapetum.core.media import MediaItem
from tapetum.media.ingest import Ingest
from tapetum.media.keys import media_key
from tapetum.processing.options import ProcessorOptions
from tests.processors import make_processor
from tests.pure.clips import encoded

PROCESSOR = make_processor("qwen2_5_vl")


class Gate:
    """A processor that counts its work and can be held shut between frames."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.opened.set()
        self.entered = threading.Semaphore(0)
        self.num_started = self.num_frames = 0
        self.error: Exception | None = None

    @property
    def parameters(self):
        return PROCESSOR.parameters

    @property
    def sampling(self):
        return PROCESSOR.sampling

    def least_pixels(self, *args):
        return PROCESSOR.least_pixels(*args)

    def geometry(self, *args, **options):
        return PROCESSOR.geometry(*args, **options)

    def parts(self, geometry):
        return PROCESSOR.parts(geometry)

    def patches(self, frames, geometry):
        self.num_started += 1
        return PROCESSOR.patches(self._gated(frames), geometry)

    def _gated(self, frames):
        for frame in frames:
            self.entered.release()
            assert self.opened.wait(10)
            self.num_frames += 1
            if self.error is not None:
                raise self.error
            yield frame


def png(seed: int = 0, size: tuple[int, int] = (64, 48)) -> bytes:
    out = BytesIO()
    rng = np.random.default_rng(seed)
    Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def image(source: object, **options: object) -> MediaPart:
    return MediaPart(kind="image", source=source, options=options)


def clip(*frames: object, **options: object) -> MediaPart:
    return MediaPart(kind="video", source=list(frames), options=options)


@contextmanager
def running(
    processor: object = PROCESSOR, workers: int = 2, cache_bytes: int = 10**7, **config
) -> Iterator[Ingest]:
    ingest = Ingest(processor, MediaConfig(**config), workers=workers, cache_bytes=cache_bytes)
    try:
        yield ingest
        settle(ingest)
        assert (ingest.num_open, ingest.num_flights) == (0, 0)
        assert ingest.cached_bytes <= cache_bytes
    finally:
        if isinstance(processor, Gate):
            processor.opened.set()
        ingest.close()
    assert (ingest.num_open, ingest.num_flights, ingest.cached_bytes) == (0, 0, 0)


def submit(ingest: Ingest, part: MediaPart, tenant: str = "t") -> Future[MediaItem]:
    """The decode of a part that has been read."""
    return ingest.decode(ingest.plan(part, tenant=tenant).result(5))


def settle(ingest: Ingest) -> None:
    """A future wakes its waiters a moment before its own books are closed."""
    until = time.monotonic() + 2
    while (ingest.num_open or ingest.num_flights) and time.monotonic() < until:
        time.sleep(0.001)


def expected(source: bytes, tenant: str = "t", **options: object) -> tuple[bytes, np.ndarray]:
    picture = Image.open(BytesIO(source)).convert("RGB")
    geometry = PROCESSOR.geometry("image", *picture.size, options=ProcessorOptions(**options))
    patches = PROCESSOR.patches([picture], geometry)
    return media_key(patches, geometry, parameters=PROCESSOR.parameters, tenant=tenant), patches


# --- results


def test_a_picture():
    with running() as ingest:
        item = ingest.load(image(png(), max_pixels=4000), tenant="t")
        key, patches = expected(png(), max_pixels=4000)
        assert item.key == key
        assert np.array_equal(item.patches, patches)
        assert item.geometry.original == (64, 48)
        assert item.fetch_s > 0 and item.decode_s > 0


def test_fast_pixels_are_nearly_the_same_and_have_keys_of_their_own():
    y, x = np.mgrid[:600, :800]
    smooth = np.stack([x // 4, y // 3, (x + y) // 6], axis=-1).astype(np.uint8)
    out = BytesIO()
    Image.fromarray(smooth).save(out, "JPEG", quality=90)
    small = {"max_pixels": 300 * 300}
    with running() as exact, running(mm_processor="fast") as fast:
        plans = [
            ingest.plan(image(out.getvalue(), **small), tenant="t").result(5) for ingest in (exact, fast)
        ]
        one, other = (
            ingest.decode(plan).result(5) for ingest, plan in zip((exact, fast), plans, strict=True)
        )
        assert plans[0].alias != plans[1].alias
        assert (one.processor, other.processor) == ("exact", "fast")
        assert one.geometry == other.geometry and one.key != other.key
        levels = np.abs(np.asarray(one.patches).astype(int) - np.asarray(other.patches))
        assert 0 < levels.mean() < 1 and levels.max() < 10
        # What has been decoded whole all the same is no picture of the exact mode either.
        assert exact.load(image(png()), tenant="t").key != fast.load(image(png()), tenant="t").key


def test_a_clip():
    frames = [png(seed) for seed in range(3)]
    with running() as ingest:
        item = ingest.load(clip(*frames, fps=4), tenant="t")
        arrays = [np.asarray(Image.open(BytesIO(frame))) for frame in frames]
        assert np.array_equal(item.patches, PROCESSOR.patches(arrays, item.geometry))
        assert (item.geometry.kind, item.geometry.frames, item.geometry.seconds_per_grid) == ("video", 3, 0.5)
        same = ingest.load(clip(*arrays, fps=4), tenant="t")
        assert same.key == item.key
        assert ingest.load(clip(*arrays, fps=5), tenant="t").key != item.key


def test_same_pixels_same_key_whatever_they_came_in():
    picture = Image.open(BytesIO(png()))
    bmp = BytesIO()
    picture.save(bmp, "BMP")
    with running() as ingest:
        sources = [png(), bmp.getvalue(), picture, np.asarray(picture)]
        assert len({ingest.load(image(source), tenant="t").key for source in sources}) == 1
        assert ingest.load(image(png()), tenant="u").key != ingest.load(image(png()), tenant="t").key


@pytest.mark.parametrize(
    ("part", "error", "words"),
    [
        (image(b"nonsense"), MediaError, "supported formats"),
        (image(png()[:200]), MediaError, "cannot be decoded"),
        (image(None), MediaError, "NoneType"),
        (image([png()]), MediaError, "list"),
        (image("https://example.org/x.png"), MediaForbidden, "--allowed-media-domains"),
        (image("/etc/hostname"), MediaForbidden, "allowed-local-media-path"),
        (image(png(), max_pixel=5), InvalidParameter, "max_pixel"),
        (image(png(), max_pixels="5"), InvalidParameter, "max_pixels"),
        (image(png(size=(401, 2))), MediaError, "aspect ratio"),
        (image(png(), min_pixels=2**30), MediaTooLarge, "limit 50000 together"),
        (image(png(size=(300, 200))), MediaTooLarge, "limit 50000"),
        (clip(), MediaError, "no frames"),
        (clip(png(), png(size=(64, 50))), MediaError, "frame 1 of the clip is 64x50, frame 0 is 64x48"),
        (clip(*[png()] * 4, min_pixels=20_000), MediaTooLarge, "4 x "),
        (MediaPart(kind="video", source=b"clip"), MediaError, "in none of the formats"),
    ],
)
def test_errors_are_typed_and_forgotten(part, error, words):
    with running(max_pixels=50_000) as ingest:
        for _ in range(2):
            with pytest.raises(error, match=words):
                ingest.load(part, tenant="t")
        assert ingest.cached_bytes == 0
        assert ingest.load(image(png()), tenant="t").key == expected(png())[0]


def test_too_large_is_refused_before_decoding():
    gate = Gate()
    with running(gate, max_pixels=50_000) as ingest:
        with pytest.raises(MediaTooLarge):
            ingest.load(image(png(), min_pixels=60_000), tenant="t")
        assert gate.num_started == 0


def test_a_fault_of_ours_is_an_engine_error():
    gate = Gate()
    gate.error = ZeroDivisionError("oh")
    with running(gate) as ingest:
        with pytest.raises(EngineError, match="ZeroDivisionError: oh") as caught:
            ingest.load(image(png()), tenant="t")
        assert caught.value.__cause__ is gate.error


# --- single flight and cache


def test_one_decode_for_many_askers():
    gate = Gate()
    with running(gate, workers=3) as ingest:
        gate.opened.clear()
        futures = [submit(ingest, image(png())) for _ in range(8)]
        other = submit(ingest, image(png(1)))
        salted = submit(ingest, image(png()), "u")
        assert gate.entered.acquire(timeout=5)
        gate.opened.set()
        items = [future.result(5) for future in futures]
        assert len({item.key for item in items}) == 1
        assert all(item.patches is items[0].patches for item in items)
        assert len({items[0].key, other.result(5).key, salted.result(5).key}) == 3
        assert gate.num_started == 3


def test_waiting_for_the_same_picture_blocks_no_worker():
    gate = Gate()
    with running(gate, workers=2) as ingest:
        gate.opened.clear()
        first = submit(ingest, image(png()))
        assert gate.entered.acquire(timeout=5)
        joined = [submit(ingest, image(png())) for _ in range(5)]
        # The second worker has passed all five by and takes up another picture.
        other = submit(ingest, image(png(1)))
        assert gate.entered.acquire(timeout=5)
        gate.opened.set()
        assert len({future.result(5).key for future in [first, *joined, other]}) == 2


def test_the_second_question_costs_no_decode():
    gate = Gate()
    with running(gate) as ingest:
        first = ingest.load(image(png()), tenant="t")
        again = ingest.load(image(png()), tenant="t")
        assert gate.num_started == 1
        assert again.patches is first.patches and again.key == first.key
        assert again.decode_s == 0.0 and again.fetch_s > 0
        assert ingest.load(image(png(), max_pixels=4000), tenant="t").patches is first.patches, (
            "the same size"
        )
        ingest.load(image(png(), max_pixels=3000), tenant="t")
        ingest.load(image(png()), tenant="u")
        ingest.load(clip(png()), tenant="t")
        assert gate.num_started == 4


def test_cache_is_bounded_and_drops_the_least_used():
    gate = Gate()
    size = expected(png())[1].nbytes
    with running(gate, cache_bytes=2 * size + 10) as ingest:
        for seed in (0, 1, 0, 2):  # 2 pushes 1 out
            ingest.load(image(png(seed)), tenant="t")
            assert ingest.cached_bytes <= 2 * size + 10
        assert (gate.num_started, ingest.cached_bytes) == (3, 2 * size)
        ingest.load(image(png(0)), tenant="t")
        assert gate.num_started == 3
        ingest.load(image(png(1)), tenant="t")
        assert gate.num_started == 4
        ingest.load(image(png(size=(640, 480))), tenant="t")  # larger than the whole cache
        assert ingest.cached_bytes == 2 * size
    with running(gate, cache_bytes=0) as ingest:
        ingest.load(image(png()), tenant="t")


def test_a_failure_reaches_all_and_is_not_kept():
    gate = Gate()
    gate.error = MediaError("broken")
    with running(gate, workers=2) as ingest:
        gate.opened.clear()
        futures = [submit(ingest, image(png())) for _ in range(4)]
        futures.append(submit(ingest, image(png(1))))
        for _ in range(2):  # one worker decodes, the other has gone past the three that joined
            assert gate.entered.acquire(timeout=5)
        gate.opened.set()
        for future in futures:
            with pytest.raises(MediaError, match="broken"):
                future.result(5)
        assert gate.num_started == 2
        gate.error = None
        assert ingest.load(image(png()), tenant="t").key == expected(png())[0]


# --- deadlines, cancellation, end


def test_deadline():
    gate = Gate()
    gate.opened.clear()
    with running(gate, workers=1, timeout_s=0.15) as ingest:
        started = time.monotonic()
        decoding = submit(ingest, image(png()))
        queued = ingest.plan(image(png(1)), tenant="t")
        for future in (decoding, queued):
            with pytest.raises(MediaTimeout, match=r"longer than 0\.15 s .*--media-timeout-s"):
                future.result(5)
        assert 0.1 < time.monotonic() - started < 2
        gate.opened.set()
        assert ingest.load(image(png(2)), tenant="t").key == expected(png(2))[0]
        assert gate.num_started <= 3


def test_the_longest_timeout_is_one_the_watcher_can_wait_for():
    longest = RANGES["timeout_s"][2]
    with running(timeout_s=longest) as ingest:
        ingest.load(image(png()), tenant="t")
        assert ingest._deadlines._thread.is_alive()


def test_a_deadline_is_each_askers_own():
    gate = Gate()
    gate.opened.clear()
    with running(gate, timeout_s=1.2) as ingest:
        early = submit(ingest, image(png()))
        assert gate.entered.acquire(timeout=5)
        time.sleep(0.6)
        late = submit(ingest, image(png()))
        with pytest.raises(MediaTimeout):
            early.result(5)
        gate.opened.set()
        assert late.result(5).key == expected(png())[0]
        assert gate.num_started == 1


def test_cancelling_one_asker_leaves_the_others():
    gate = Gate()
    gate.opened.clear()
    with running(gate) as ingest:
        first = submit(ingest, image(png()))
        assert gate.entered.acquire(timeout=5)
        second = submit(ingest, image(png()))
        assert first.cancel()
        gate.opened.set()
        assert second.result(5).key == expected(png())[0]
        assert first.cancelled()


def test_a_clip_goes_on_for_who_still_waits_for_it():
    gate = Gate()
    gate.opened.clear()
    frames = [png(seed) for seed in range(4)]
    with running(gate) as ingest:
        first = submit(ingest, clip(*frames))
        assert gate.entered.acquire(timeout=5)
        second = submit(ingest, clip(*frames))
        eventually_joined(ingest, 2)
        assert first.cancel()
        gate.opened.set()
        assert second.result(5).geometry.frames == 4
        assert gate.num_started == 1


def eventually_joined(ingest: Ingest, count: int) -> None:
    """So many askers wait for the one decode that is under way."""
    until = time.monotonic() + 5
    while [len(flight) for flight in ingest._flights.values()] != [count]:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_decodes_that_were_cancelled_before_they_started_never_do():
    gate = Gate()
    with running(gate, workers=1) as ingest:
        plans = [ingest.plan(image(png(seed)), tenant="t").result(5) for seed in (0, 1)]
        gate.opened.clear()
        first = ingest.decode(plans[0])
        assert gate.entered.acquire(timeout=5)
        queued = ingest.decode(plans[1])
        assert queued.cancel()
        gate.opened.set()
        first.result(5)
        ingest.load(image(png(2)), tenant="t")
        assert gate.num_started == 2


def test_who_comes_after_a_decode_has_its_own_fetch_and_no_decode():
    with running() as ingest:
        plans = [ingest.plan(image(png()), tenant="t").result(5) for _ in range(2)]
        assert ingest.decode(plans[0]).result(5).decode_s > 0
        late = ingest.decode(plans[1]).result(5)
        assert (late.fetch_s, late.decode_s) == (plans[1].fetch_s, 0.0)


def test_work_nobody_waits_for_stops_at_the_next_frame():
    gate = Gate()
    gate.opened.clear()
    frames = [png(seed) for seed in range(6)]
    with running(gate, workers=1) as ingest:
        given_up = submit(ingest, clip(*frames))
        assert gate.entered.acquire(timeout=5)
        assert given_up.cancel()
        gate.opened.set()
        assert ingest.load(image(png()), tenant="t").key == expected(png())[0]
        assert gate.num_frames == 2  # one of the clip, one of the picture
        assert ingest.load(clip(*frames), tenant="t").geometry.frames == 6


def test_cancelled_before_it_started():
    gate = Gate()
    gate.opened.clear()
    with running(gate, workers=1) as ingest:
        first = submit(ingest, image(png()))
        assert gate.entered.acquire(timeout=5)
        queued = ingest.plan(image(png(1)), tenant="t")
        assert queued.cancel()
        gate.opened.set()
        first.result(5)
        ingest.load(image(png(2)), tenant="t")
        assert gate.num_started == 2


async def test_from_an_event_loop():
    with running() as ingest:

        def start(part: MediaPart) -> asyncio.Future[MediaItem]:
            return asyncio.wrap_future(submit(ingest, part))

        items = await asyncio.gather(*(start(image(png(seed % 3))) for seed in range(9)))
        assert len({item.key for item in items}) == 3
        with pytest.raises(MediaError, match="supported formats"):
            await start(image(b"x"))
        task = start(image(png(9)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_close_fails_what_waits():
    gate = Gate()
    gate.opened.clear()
    ingest = Ingest(gate, MediaConfig(), workers=1)
    decoding = submit(ingest, image(png()))
    queued = ingest.plan(image(png(1)), tenant="t")
    assert gate.entered.acquire(timeout=5)
    threading.Timer(0.1, gate.opened.set).start()
    ingest.close()
    for future in (decoding, queued):
        with pytest.raises(CapacityError, match="shutting down"):
            future.result(0)
    with pytest.raises(CapacityError, match="shutting down"):
        ingest.plan(image(png()), tenant="t")
    ingest.close()  # again is fine
    assert (ingest.num_open, ingest.num_flights, ingest.cached_bytes) == (0, 0, 0)


def ask_much(ingest: Ingest, seed: int, futures: list[Future]) -> None:
    """60 loads of good and bad pictures and clips, some given up at either step."""
    rng = random.Random(seed)
    good = [png(number) for number in range(5)]
    bad: list[object] = [b"", b"x", None, png()[:100], "http://x", "data:,"]
    for _ in range(60):
        source = rng.choice(good) if rng.random() < 0.7 else rng.choice(bad)
        part = clip(source, source) if rng.random() < 0.2 else image(source)
        plan = ingest.plan(part, tenant=rng.choice("ab"))
        if rng.random() < 0.1 and plan.cancel():
            futures.append(plan)
            continue
        try:
            future = ingest.decode(plan.result(5))
        except MediaError:
            futures.append(plan)
            continue
        futures.append(future)
        if rng.random() < 0.1:
            future.cancel()


def test_nothing_is_left_after_a_mixed_load():
    futures: list[Future] = []
    threads_before = threading.active_count()
    with running(workers=3, cache_bytes=50_000, timeout_s=5) as ingest:
        askers = [threading.Thread(target=ask_much, args=(ingest, seed, futures)) for seed in range(4)]
        for thread in askers:
            thread.start()
        for thread in askers:
            thread.join()
        assert not wait(futures, 20).not_done
        outcomes = {"item": 0, "error": 0, "cancelled": 0}
        for future in futures:
            try:
                assert isinstance(future.result(0), MediaItem)
                outcomes["item"] += 1
            except MediaError:
                outcomes["error"] += 1
            except CancelledError:
                outcomes["cancelled"] += 1
        assert sum(outcomes.values()) == 240 and min(outcomes.values()) > 5, outcomes
    assert threading.active_count() == threads_before


def test_a_video_where_a_picture_should_be_is_told_as_such() -> None:
    with (
        running() as ingest,
        pytest.raises(MediaError, match="is a video and no picture; send it as video_url"),
    ):
        submit(ingest, image(encoded(2)))


def test_a_still_picture_in_a_box_of_videos_is_no_video() -> None:
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0\0\0\x10mdat" + b"Z" * 8
    with running() as ingest, pytest.raises(MediaError, match="supported formats"):
        submit(ingest, image(heic))
