"""Pictures that are there to be read are found among those that are there to be looked at."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from tapetum.core.chat import MediaPart
from tapetum.core.config import MediaConfig
from tapetum.core.errors import MediaError
from tapetum.media.density import is_dense
from tapetum.media.ingest import Ingest
from tests.processors import make_processor
from tests.pure.clips import encoded

TEXT = "The quick brown fox jumps over the lazy dog, 0123456789 times.\n"


def page(size: tuple[int, int], letter: int, *, ground: int = 255, ink: int = 0) -> Image.Image:
    picture = Image.new("RGB", size, (ground,) * 3)
    ImageDraw.Draw(picture).multiline_text(
        (letter, letter), TEXT * 60, fill=(ink,) * 3, font=ImageFont.load_default(letter)
    )
    return picture


def scene(size: tuple[int, int], seed: int = 0) -> Image.Image:
    """Soft ground, large shapes, grain as of a sensor."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (5, 7, 3)).astype(np.uint8))
    picture = small.resize(size, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    for _ in range(6):
        x, y = (int(rng.integers(0, side)) for side in size)
        draw.ellipse((x, y, x + size[0] // 3, y + size[1] // 4), fill=tuple(rng.integers(0, 256, 3).tolist()))
    grain = np.asarray(picture).astype(np.int16) + rng.normal(0, 6, (size[1], size[0], 1)).astype(np.int16)
    return Image.fromarray(np.clip(grain, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("size", [(336, 168), (1344, 1344), (2480, 3508)])
@pytest.mark.parametrize(("ground", "ink"), [(255, 0), (0, 230), (200, 120)])
def test_pages_are_dense(size, ground, ink):
    assert is_dense(page(size, max(14, size[0] // 80), ground=ground, ink=ink))


@pytest.mark.parametrize("size", [(336, 168), (1344, 1344), (4000, 3000)])
@pytest.mark.parametrize("seed", range(3))
def test_scenes_are_not(size, seed):
    assert not is_dense(scene(size, seed))


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (1, 400), (400, 1), (6, 6), (31, 900)])
def test_a_picture_of_any_shape_has_an_answer(size):
    assert not is_dense(Image.new("RGB", size, (10, 200, 30)))


def test_a_word_in_a_scene_does_not_make_it_a_page():
    picture = scene((1600, 1200))
    ImageDraw.Draw(picture).text((700, 600), "exit", fill="white", font=ImageFont.load_default(30))
    assert not is_dense(picture)


def _file(picture: Image.Image, name: str) -> bytes:
    out = BytesIO()
    picture.save(out, name)
    return out.getvalue()


def test_the_pool_looks_at_files_pictures_and_clips():
    ingest = Ingest(make_processor("qwen2_5_vl"), MediaConfig(), workers=1)
    try:
        for name in ("PNG", "JPEG"):
            for picture, answer in ((page((2000, 1500), 20), True), (scene((2000, 1500)), False)):
                part = MediaPart(kind="image", source=_file(picture, name))
                plan = ingest.plan(part, tenant="").result(10)
                assert ingest.is_dense(plan).result(10) is answer
                assert ingest.is_dense(plan).result(10) is answer, "remembered"
                own = MediaPart(kind="image", source=picture, is_trusted=True)
                assert ingest.is_dense(ingest.plan(own, tenant="").result(10)).result(10) is answer
        frames = [page((320, 240), 14) for _ in range(4)]
        for source, answer in ((frames, True), (encoded(8), False)):
            clip = MediaPart(kind="video", source=source, is_trusted=True)
            assert ingest.is_dense(ingest.plan(clip, tenant="").result(10)).result(10) is answer
    finally:
        ingest.close()


def test_a_picture_that_cannot_be_decoded_is_told_as_by_a_decode():
    ingest = Ingest(make_processor("qwen2_5_vl"), MediaConfig(), workers=1)
    broken = _file(page((64, 64), 14), "PNG")[:120]
    try:
        plan = ingest.plan(MediaPart(kind="image", source=broken), tenant="").result(10)
        with pytest.raises(MediaError, match="cannot be decoded"):
            ingest.is_dense(plan).result(10)
    finally:
        ingest.close()
