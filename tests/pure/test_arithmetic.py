"""Reference arithmetic of Qwen2-VL-7B and its vision tower, from what Geometry and the block accounts say."""

from __future__ import annotations

import pytest

from tapetum.core.media import Geometry
from tapetum.core.model import kv_bytes_per_token
from tapetum.processing.options import ProcessorOptions
from tests.processors import make_processor

LAYERS, WIDTH = 32, 1280  # the vision tower
UNBOUNDED = {"min_pixels": 3136, "max_pixels": 12_845_056}


def geometry_of(width: int, height: int) -> Geometry:
    return make_processor(image=UNBOUNDED).geometry("image", width, height, options=ProcessorOptions())


def encoder_flop(geometry: Geometry) -> tuple[float, float]:
    """(all, of that attention): 24 P d² L for the linears, 4 ΣP² d L over the attention segments."""
    linear = 24 * geometry.num_patches * WIDTH**2 * LAYERS
    attention = 4 * sum(size * size for size in geometry.segments) * WIDTH * LAYERS
    return linear + attention, attention


@pytest.mark.parametrize(
    "height,width,patches,tera,share",
    [
        (448, 448, 1_024, 1.5, 12),
        (728, 1288, 4_784, 9.8, 38),
        (1092, 1932, 10_764, 32.5, 58),
        (2156, 3836, 42_196, 344.8, 85),
    ],
)
def test_encoder_work_grows_faster_than_pixels(
    height: int, width: int, patches: int, tera: float, share: int
) -> None:
    geometry = geometry_of(width, height)
    flop, attention = encoder_flop(geometry)
    assert geometry.num_patches == patches
    assert round(flop / 1e12, 1) == tera
    assert round(100 * attention / flop) == share


def test_four_times_the_pixels_are_ten_times_the_work() -> None:
    large, small = geometry_of(3840, 2160), geometry_of(1920, 1080)
    assert encoder_flop(large)[0] / encoder_flop(small)[0] == pytest.approx(10.6, abs=0.05)


def test_moving_a_picture_costs_less_as_embeddings_than_as_kv() -> None:
    tokens = geometry_of(1344, 1344).num_tokens
    kv = tokens * kv_bytes_per_token(28, 4, 128, 2)
    embeddings = tokens * 3584 * 2
    assert tokens == 2_304
    assert kv == 8 * embeddings
    assert kv / 25e9 == pytest.approx(5.3e-3, rel=0.01)  # PCIe 4
    assert kv / 6e9 == pytest.approx(22e-3, rel=0.01)  # NVMe
    assert kv / 1.25e9 == pytest.approx(106e-3, rel=0.01)  # 10 GbE
    assert embeddings / 1.25e9 == pytest.approx(13e-3, rel=0.02)
    recompute_s = 2 * 7.6e9 * tokens / 400e12
    assert recompute_s == pytest.approx(88e-3, rel=0.01)
    assert kv / 25e9 < recompute_s < kv / 1.25e9
