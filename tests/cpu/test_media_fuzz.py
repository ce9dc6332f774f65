"""Mutated pictures and videos through the whole intake: an item or a typed error, soon, and memory that stays.

Every input comes from its number alone. One that fails is printed as base64; should it end the process, it lies in the
file `input` of the test's temporary folder.
"""

from __future__ import annotations

import base64
import math
import os
import random
import statistics
import struct
import time
import zlib
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from tapetum.core.chat import MediaPart
from tapetum.core.config import MediaConfig
from tapetum.core.errors import EngineError, TapetumError
from tapetum.core.media import MediaItem, MediaKind
from tapetum.media.ingest import Ingest
from tests.processors import make_processor
from tests.pure.clips import avi, encoded, jpeg

SHORT, LONG = 1_000, 20_000
LONGEST_S = 5.0  # for one input, on a machine that others use too
GROWTH = 1.05
MAX_PIXELS = 500_000
INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
Seed = tuple[MediaKind, bytes]


def scene(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    picture = Image.new("RGB", size, (200, 120, 40))
    ImageDraw.Draw(picture).ellipse((5, 5, 25, 20), fill=(10, 60, 220))
    if "A" in mode:
        picture.putalpha(Image.linear_gradient("L").resize(size))
    return picture.convert(mode)


def saved(
    form: str,
    mode: str = "RGB",
    *more: Image.Image,
    size: tuple[int, int] = (40, 30),
    **options: object,
) -> bytes:
    out = BytesIO()
    if more:
        options |= {"save_all": True, "append_images": list(more)}
    scene(mode, size).save(out, form, **options)
    return out.getvalue()


def large() -> tuple[Seed, ...]:
    """The largest that may come, in every format: what it takes to decode them is part of being warm."""
    size = (math.isqrt(MAX_PIXELS), math.isqrt(MAX_PIXELS))
    forms = [("PNG", "RGBA"), ("JPEG", "CMYK"), ("WEBP", "RGBA"), ("GIF", "P")]
    pictures = [saved(form, mode, size=size) for form, mode in forms]
    clips = [avi([jpeg(number, size) for number in range(4)], size=size), pictures[-1]]
    return (*(("image", data) for data in pictures), *(("video", data) for data in clips))


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@cache
def seeds() -> tuple[Seed, ...]:
    other = scene(size=(40, 30)).rotate(180)
    pictures = [
        *(saved("PNG", mode) for mode in ("RGB", "RGBA", "P", "L", "LA", "1", "I;16")),
        saved("PNG", exif=turned(), dpi=(72, 72)),
        saved("PNG", "P", transparency=0),
        *(saved("JPEG", mode) for mode in ("RGB", "L", "CMYK")),
        saved("JPEG", progressive=True, exif=turned()),
        saved("WEBP"),
        saved("WEBP", lossless=True),
        saved("WEBP", "RGBA", exif=turned()),
        saved("WEBP", "RGB", other, duration=100),
        saved("GIF"),
        saved("GIF", "P", other.convert("P"), duration=100, transparency=0),
    ]
    frames = [jpeg(number, (40, 30)) for number in range(5)]
    small = {"gop": 3, "rate": 5}
    videos = [
        avi(frames, size=(40, 30)),
        avi(frames[:1], size=(40, 30)),
        encoded(6, codec="mpeg4", container="avi", **small),
        encoded(6, container="avi", **small),
        encoded(6, **small),
        encoded(6, codec="libvpx", container="webm", **small),
        pictures[-1],
    ]
    return (*(("image", data) for data in pictures), *(("video", data) for data in videos))


# --- mutations


def flip_bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def lie_about_a_number(data: bytearray, rng: random.Random) -> None:
    """Lengths, sizes and offsets are numbers of two or four bytes, of either order, most of them near the start."""
    size, order = rng.choice((2, 4)), rng.choice("<>")
    at = rng.randrange(min(len(data), rng.choice((64, 256, len(data)))))
    value = rng.choice((*INTERESTING, rng.randrange(2**32), len(data))) % 2 ** (8 * size)
    data[at : at + size] = struct.pack(f"{order}{'H' if size == 2 else 'I'}", value)


def lie_within_a_chunk(data: bytearray, rng: random.Random) -> None:
    """A field of a PNG chunk, with a checksum that fits it; of other files, any field."""
    if data[:4] != b"\x89PNG":
        return lie_about_a_number(data, rng)
    chunks, at = [], 8
    while at + 12 <= len(data):
        length = struct.unpack_from(">I", data, at)[0]
        if at + 12 + length > len(data):
            break
        chunks.append((at, length))
        at += 12 + length
    at, length = rng.choice(chunks or [(8, 0)])
    if length:
        data[at + 8 + rng.randrange(length)] = rng.choice((0, 1, 16, 127, 128, 255))
        data[at + 8 + length : at + 12 + length] = struct.pack(
            ">I", zlib.crc32(data[at + 4 : at + 8 + length])
        )
    return None


def splice(data: bytearray, rng: random.Random) -> None:
    other = rng.choice(seeds())[1]
    start = rng.randrange(len(other))
    at = rng.randrange(len(data))
    data[at : at + rng.randrange(64)] = other[start : start + rng.randrange(1, 256)]


def repeat(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    piece = data[start : start + rng.randrange(1, 200)] * rng.choice((2, 3, 50))
    data[start:start] = piece


def blank(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    length = min(rng.randrange(1, 64), len(data) - start)
    data[start : start + length] = bytes([rng.choice((0, 255))]) * length


MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip_bits,
    flip_bits,
    cut,
    lie_about_a_number,
    lie_about_a_number,
    lie_within_a_chunk,
    splice,
    repeat,
    blank,
)


def mutated(number: int) -> Seed:
    rng = random.Random(number)
    kind, data = seeds()[number % len(seeds())]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(MUTATIONS)(changed, rng)
        if not changed:
            break
    return kind, bytes(changed)


# --- the run


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def load(ingest: Ingest, kind: MediaKind, data: bytes, *, at_once: bool) -> str:
    """What came of it, in a word; raises AssertionError with the input for what must not be."""
    started = time.monotonic()
    source = data if at_once else f"data:image/png;base64,{base64.b64encode(data).decode()}"
    try:
        item = ingest.load(MediaPart(kind=kind, source=source), tenant="")
        assert isinstance(item, MediaItem)
        outcome = "item"
    except EngineError as error:
        raise AssertionError(f"{error!r}: {kind} {base64.b64encode(data).decode()}") from error
    except TapetumError as error:
        assert error.http_status in (400, 408, 413), f"{error!r}: {kind} {base64.b64encode(data).decode()}"
        assert len(error.message) < 500
        outcome = type(error).__name__
    took_s = time.monotonic() - started
    assert took_s < LONGEST_S, f"took {took_s:.1f} s: {kind} {base64.b64encode(data).decode()}"
    return outcome


@pytest.mark.parametrize("total", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def test_any_input_is_an_item_or_a_typed_error(total: int, tmp_path: Path) -> None:
    config = MediaConfig(max_pixels=MAX_PIXELS, timeout_s=LONGEST_S)
    ingest = Ingest(make_processor(), config, workers=1, cache_bytes=2**20)
    outcomes: dict[str, int] = {}
    resident: list[float] = []
    for kind, data in large() * 2:
        assert load(ingest, kind, data, at_once=True) in ("item", "MediaTooLarge")
    with (tmp_path / "input").open("wb") as last:
        for number in range(total):
            kind, data = mutated(number)
            last.seek(0)
            last.write(data)
            last.truncate()
            last.flush()
            outcome = load(ingest, kind, data, at_once=number % 7 > 0)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            resident.append(resident_mib())
    assert (ingest.num_open, ingest.num_flights) == (0, 0)
    ingest.close()
    assert outcomes["item"] > total / 20 and outcomes["MediaError"] > total / 20, outcomes
    fifth = total // 5
    middle, end = statistics.fmean(resident[2 * fifth : 3 * fifth]), statistics.fmean(resident[-fifth:])
    assert end <= GROWTH * middle, f"{middle:.0f} MiB in the middle, {end:.0f} MiB at the end"


@pytest.mark.parametrize("seed", range(len(seeds())))
def test_the_seeds_themselves_are_good(seed: int) -> None:
    kind, data = seeds()[seed]
    ingest = Ingest(make_processor(), MediaConfig(), workers=1)
    assert load(ingest, kind, data, at_once=True) == "item"
    ingest.close()
