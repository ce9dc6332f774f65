"""Nobody is ever given another picture: many look-ups by the keys that are really made, and pairs made to be confused.

The look-ups go to real keys over pictures that differ in as little as can be: one step of one pixel, the shape of
the same bytes, one parameter, the tenant. The pairs go through the whole way from a file to a media key; what the
model would see of them, as an array, says which of them are one picture.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tapetum.cache.visual import VisualCache
from tapetum.core.chat import MediaPart
from tapetum.core.config import MediaConfig
from tapetum.core.media import Geometry, MediaItem
from tapetum.media.ingest import Ingest
from tapetum.media.keys import media_key
from tests.processors import make_processor

PROCESSOR = make_processor("qwen2_vl")
PARAMETERS = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
NUM_LOOKUPS = 10_000_000
NUM_PICTURES = 31_623  # whose pairs are 10^9


def geometry(width: int, height: int, kind: str = "image") -> Geometry:
    grid = (1, height // 14, width // 14)
    patches = grid[1] * grid[2]
    return Geometry(
        kind=kind,
        original=(width, height),
        used=(width, height),
        frames=1,
        grid_thw=grid,
        num_tokens=patches // 4,
        segments=(patches,),
    )


def variants() -> Iterator[bytes]:
    """Keys of pictures with nearly the same content, without end."""
    shapes = [geometry(56, 28), geometry(28, 56), geometry(112, 14), geometry(56, 28, "video")]
    base = np.random.default_rng(0).integers(0, 256, (8, 1176), dtype=np.uint8)
    place = 0
    while True:
        patches = base.copy()
        row, column = divmod(place, base.shape[1])
        patches[row, column] ^= 1
        for shape in shapes:
            for tenant in ("a", "b"):
                yield media_key(patches, shape, parameters=PARAMETERS, tenant=tenant)
        yield media_key(patches, shapes[0], parameters={**PARAMETERS, "merge_size": 1}, tenant="a")
        yield media_key(patches, shapes[0], parameters=PARAMETERS, tenant="a", processor="fast")
        place += 1


def test_ten_million_lookups_never_find_another_picture():
    """A cache too small for all, so that pictures come and go: what is found under a key is what was put there."""
    keys = list(islice(variants(), 4000))
    items = [MediaItem(key=key, geometry=geometry(56, 28), patches=b"") for key in keys]
    cache = VisualCache(capacity_bytes=len(keys) // 2, bytes_per_token=1)
    feature_keys = [cache.key_of(item) for item in items]
    capacity = cache.capacity_bytes // items[0].geometry.num_tokens
    store: dict[bytes, int] = {}
    rng = np.random.default_rng(1)
    wrong = found = 0
    trace = rng.zipf(1.1, NUM_LOOKUPS) % len(keys)
    for start in range(0, NUM_LOOKUPS, 100_000):
        for which in np.unique(trace[start : start + 2 * capacity]).tolist():  # whoever is missed is encoded
            if cache.state(feature_keys[which]) == "absent":
                cache.begin(items[which])
                cache.complete(feature_keys[which])
                for key in cache.take_dropped():
                    del store[key]
                store[keys[which]] = which
        for which in trace[start : start + 100_000].tolist():
            held = store.get(keys[which])
            if held is not None:
                found += 1
                wrong += held != which
    assert wrong == 0
    assert NUM_LOOKUPS // 4 < found < NUM_LOOKUPS, "some hit, some miss"
    assert len(store) == len(cache.resident_keys)


def test_a_billion_pairs_of_pictures_share_no_key():
    """All ordered pairs of 31,623 pictures, by the first eighth of their keys alone."""
    words = np.frombuffer(b"".join(key[:8] for key in islice(variants(), NUM_PICTURES)), np.uint64)
    equal = sum(int(np.count_nonzero(words == word)) for word in words)
    assert len(words) ** 2 >= 1_000_000_000
    assert equal == len(words), "each is equal to itself alone"


def invoice(number: str) -> Image.Image:
    picture = Image.new("RGB", (112, 84), "white")
    draw = ImageDraw.Draw(picture)
    for row, text in enumerate(("INVOICE 2024", f"TOTAL {number}", "PAID")):
        draw.text((6, 8 + 24 * row), text, fill="black")
    return picture


def file(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def palette(colors: list[int]) -> bytes:
    picture = Image.new("P", (56, 56))
    picture.putpalette(colors + [0] * (768 - len(colors)))
    picture.putdata([index % 2 for index in range(56 * 56)])
    return file(picture)


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return file(invoice("41.70"), "JPEG", exif=exif, quality=95)


def clear(alpha: int) -> bytes:
    picture = Image.new("RGBA", (56, 56), (200, 30, 30, 255))
    picture.putpixel((20, 20), (200, 30, 30, alpha))
    return file(picture)


def raw(shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, 56 * 84 * 3, dtype=np.uint8).reshape(*shape, 3)


def grey(mode: str) -> bytes:
    return file(
        Image.fromarray(np.arange(56 * 56, dtype=np.uint16).reshape(56, 56) % 251).convert("L").convert(mode)
    )


PAIRS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "one digit": (lambda: file(invoice("41.70")), lambda: file(invoice("41.10"))),
    "shape of the same bytes": (lambda: raw((56, 84)), lambda: raw((84, 56))),
    "palette": (lambda: palette([255, 0, 0, 0, 0, 0]), lambda: palette([0, 0, 255, 0, 0, 0])),
    "turned by EXIF": (lambda: turned(1), lambda: turned(6)),
    "mirrored by EXIF": (lambda: turned(1), lambda: turned(2)),
    "one transparent pixel": (lambda: clear(255), lambda: clear(120)),
    "order of channels": (lambda: raw((56, 84)), lambda: np.ascontiguousarray(raw((56, 84))[:, :, ::-1])),
    "one step of one pixel": (lambda: raw((56, 84)), lambda: stepped(raw((56, 84)))),
    "mirrored": (lambda: raw((56, 84)), lambda: np.ascontiguousarray(raw((56, 84))[:, ::-1])),
    "quality of JPEG": (
        lambda: file(invoice("8"), "JPEG", quality=95),
        lambda: file(invoice("8"), "JPEG", quality=40),
    ),
}
SAME: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "another lossless format": (lambda: file(invoice("8")), lambda: file(invoice("8"), "BMP")),
    "another compression": (lambda: file(invoice("8")), lambda: file(invoice("8"), compress_level=1)),
    "grey as colours": (lambda: grey("L"), lambda: grey("RGB")),
    "a comment": (lambda: file(invoice("8"), "GIF"), lambda: file(invoice("8"), "GIF", comment=b"hello")),
}


def stepped(pixels: np.ndarray) -> np.ndarray:
    pixels[10, 10, 0] ^= 1
    return pixels


@pytest.fixture
def ingest() -> Iterator[Ingest]:
    with closing(Ingest(PROCESSOR, MediaConfig(), workers=1)) as ingest:
        yield ingest


def load(ingest: Ingest, source: object, tenant: str = "a", **options: object) -> MediaItem:
    return ingest.load(
        MediaPart(kind="image", source=source, options=options, is_trusted=True), tenant=tenant
    )


@pytest.mark.parametrize("pair", PAIRS)
def test_pairs_made_to_be_confused_are_told_apart(ingest, pair):
    one, other = (load(ingest, make()) for make in PAIRS[pair])
    is_same = one.geometry == other.geometry and np.array_equal(one.patches, other.patches)
    assert not is_same, "the pair does not show what it is meant to"
    assert one.key != other.key


@pytest.mark.parametrize("pair", SAME)
def test_the_same_picture_in_another_file_is_known(ingest, pair):
    one, other = (load(ingest, make()) for make in SAME[pair])
    assert np.array_equal(one.patches, other.patches)
    assert one.key == other.key


def test_the_same_file_for_another_tenant_or_size_is_another_picture(ingest):
    source = file(invoice("41.70").resize((448, 336)))
    mine = load(ingest, source, "a")
    theirs = load(ingest, source, "b")
    small = load(ingest, source, "a", max_pixels=56 * 56)
    assert len({mine.key, theirs.key, small.key}) == 3
    assert load(ingest, source, "a").key == mine.key


def test_parameters_of_the_processing_are_part_of_the_key(ingest):
    item = load(ingest, file(invoice("8")))
    patches, shape = np.asarray(item.patches), item.geometry
    parameters = dict(PROCESSOR.parameters)
    keys = {media_key(patches, shape, parameters=parameters, tenant="a")}
    for name in parameters:
        keys.add(media_key(patches, shape, parameters={**parameters, name: parameters[name] + 1}, tenant="a"))
    keys.add(media_key(patches, replace(shape, kind="video"), parameters=parameters, tenant="a"))
    assert item.key in keys
    assert len(keys) == len(parameters) + 2
