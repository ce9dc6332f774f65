"""Memory on paper against the golden numbers of docs/techniques.md, and the sharing out of a device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tapetum.core.errors import ConfigError
from tapetum.core.footprint import Budget, Footprint, read_bytes, shown_bytes, shown_count

MIB, GIB = 2**20, 2**30


def footprint(num_layers: int, num_kv_heads: int, head_dim: int = 128, **changes: int) -> Footprint:
    values = {"num_parameters": 1000, "bytes_per_value": 2, "feature_size": 3584, **changes}
    return Footprint(num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim, **values)


@pytest.mark.parametrize(
    ("layers", "heads", "token_bytes", "of_576", "of_2304", "of_a_million"),
    [
        (28, 4, 57_344, 31.5, 126, 53.4),  # Qwen2-VL-7B
        (80, 8, 327_680, 180, 720, 305),  # 72B
        (32, 32, 524_288, 288, 1152, 488),  # LLaMA-7B, a key for each head
        (32, 8, 131_072, 72, 288, 122),  # Llama-3-8B
    ],
)
def test_keys_and_values_of_known_models(
    layers: int, heads: int, token_bytes: int, of_576: float, of_2304: float, of_a_million: float
) -> None:
    found = footprint(layers, heads).token_bytes
    assert found == token_bytes
    assert found * 576 / MIB == of_576
    assert found * 2304 / MIB == of_2304
    assert found * 10**6 / GIB == pytest.approx(of_a_million, rel=2e-3)


def test_features_are_far_smaller_than_keys_and_values() -> None:
    qwen = footprint(28, 4)
    assert qwen.feature_bytes == 7168
    assert qwen.token_bytes == 8 * qwen.feature_bytes
    assert footprint(28, 4, bytes_per_value=4).weight_bytes == 4000


def test_what_is_left_of_a_device_is_shared_out_in_whole_blocks() -> None:
    budget = Budget(
        memory_bytes=24 * GIB, share=0.75, weight_bytes=10 * GIB, working_bytes=GIB, feature_bytes=GIB
    )
    assert budget.spared_bytes == 6 * GIB
    assert budget.kv_bytes == budget.visual_kv_bytes == 6 * GIB
    assert replace(budget, visual_kv_share=0.25).visual_kv_bytes == 1.5 * GIB
    token = MIB
    assert budget.num_requests(1000, token, 16) == 6 * 1024 // 1008  # 63 blocks of 16 tokens
    assert budget.num_requests(6 * 1024, token, 16) == 1
    assert budget.num_requests(6 * 1024 + 1, token, 16) == 0
    too_small = Budget(memory_bytes=GIB, share=1.0, weight_bytes=GIB, working_bytes=1, feature_bytes=0)
    assert too_small.kv_bytes == -1 and too_small.visual_kv_bytes == 0
    assert too_small.num_requests(1, 1, 1) == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 * GIB), ("24", 24 * GIB), ("512MiB", 512 * MIB), ("0.5 gib", GIB // 2), ("1GB", 10**9)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert read_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "much", "1PiB", "nan", "inf"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a size such as 24GiB"):
        read_bytes(text)


def test_sizes_are_shown_as_they_are_spoken_of() -> None:
    shown = [shown_bytes(size) for size in (0, 512, 1024, 57_344, 126 * MIB, 15.4 * GIB, 3 * 2**40)]
    assert shown == ["0 B", "512 B", "1 KiB", "56 KiB", "126 MiB", "15.4 GiB", "3 TiB"]
    assert [shown_count(count) for count in (999, 788_000, 134_515_008, 999_885_952, 7_620_000_000)] == [
        "999", "788 K", "135 M", "1 B", "7.62 B",
    ]  # fmt: skip
