"""Row kernels against the plain reference, for each instruction set; rows know nothing of their neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tapetum.native.library import load
from tapetum.ops import reference
from tapetum.ops.native_rows import NativeRows

LIBRARY = load()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the native library is not built: make native")
DTYPES = [(torch.float32, 3e-6), (torch.bfloat16, 8e-3)]
WIDTHS = [1, 7, 16, 40, 64, 96, 127, 1536]


@pytest.fixture(params=["portable", "avx2", "avx512"])
def ops(request: pytest.FixtureRequest) -> Iterator[NativeRows]:
    assert LIBRARY is not None
    best = LIBRARY.tpt_isa()
    if LIBRARY.tpt_use_isa(request.param.encode()):
        pytest.skip(f"this processor has no {request.param}")
    yield NativeRows(LIBRARY)
    LIBRARY.tpt_use_isa(best)


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(ours: Tensor, theirs: Tensor, bound: float) -> None:
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    error = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max().clamp(min=1e-6)
    assert error <= bound


def cut_in_pieces(rows: int) -> list[slice]:
    return [slice(0, 1), slice(1, rows // 2), slice(rows // 2, rows)]


@pytest.mark.parametrize("dtype,bound", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms(ops: NativeRows, dtype: torch.dtype, bound: float, width: int) -> None:
    x = randn(60, width, dtype=dtype) * 30 + 5
    weight, bias = randn(width, dtype=dtype, seed=1), randn(width, dtype=dtype, seed=2)
    rms = ops.rms_norm(x, weight, 1e-6)
    assert_close(rms, reference.rms_norm(x, weight, 1e-6), bound)
    layer = ops.layer_norm(x, weight, bias, 1e-3)
    assert_close(layer, reference.layer_norm(x, weight, bias, 1e-3), bound)
    for part in cut_in_pieces(60):
        assert torch.equal(ops.rms_norm(x[part], weight, 1e-6), rms[part])
        assert torch.equal(ops.layer_norm(x[part], weight, bias, 1e-3), layer[part])


def test_the_normalised_value_is_rounded_before_the_weight(ops: NativeRows) -> None:
    x, weight = randn(200, 64, dtype=torch.bfloat16), randn(64, dtype=torch.bfloat16, seed=1)
    ours, theirs = ops.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6)
    once = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    is_twice = theirs != once.bfloat16()  # where the two ways differ
    assert is_twice.sum() > 100
    assert (ours == theirs)[is_twice].float().mean() > 0.99


@pytest.mark.parametrize("width", WIDTHS)
def test_a_weight_of_float32_is_not_rounded_before(ops: NativeRows, width: int) -> None:
    x, weight = randn(60, width, dtype=torch.bfloat16), randn(width, dtype=torch.float32, seed=1)
    ours = ops.rms_norm(x, weight, 1e-6)
    exact = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6) * weight.double()
    assert (ours == exact.bfloat16()).double().mean() > 0.99
    assert_close(ours, reference.rms_norm(x, weight, 1e-6), 4e-3)
    for part in cut_in_pieces(60):
        assert torch.equal(ops.rms_norm(x[part], weight, 1e-6), ours[part])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_broken_row_leaves_its_neighbours_alone(ops: NativeRows, value: float) -> None:
    x, weight = randn(5, 96, dtype=torch.float32), randn(96, dtype=torch.float32, seed=1)
    clean = ops.rms_norm(x, weight, 1e-6)
    x[2, 3] = value
    found = ops.rms_norm(x, weight, 1e-6)
    assert torch.equal(found[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
    assert not torch.equal(found[2], clean[2])


@pytest.mark.parametrize("dtype,bound", DTYPES)
@pytest.mark.parametrize("width", [2, 8, 32, 80, 128])
def test_rotate(ops: NativeRows, dtype: torch.dtype, bound: float, width: int) -> None:
    joined = randn(300, 7, width, dtype=dtype)
    cos, sin = randn(300, 1, width, dtype=dtype, seed=1), randn(300, 1, width, dtype=dtype, seed=2)
    for x in (joined[:, :5], joined[:, 2:6], joined.transpose(0, 1).contiguous().transpose(0, 1)[:, 1:3]):
        found = ops.rotate(x, cos, sin)
        assert_close(found, reference.rotate(x, cos, sin), bound)
        for part in cut_in_pieces(300):
            assert torch.equal(ops.rotate(x[part], cos[part], sin[part]), found[part])


@pytest.mark.parametrize("dtype,bound", DTYPES)
@pytest.mark.parametrize("num_axes", [1, 2, 3])
def test_turns(ops: NativeRows, dtype: torch.dtype, bound: float, num_axes: int) -> None:
    positions = torch.randint(0, 40_000, (num_axes, 90), generator=torch.Generator().manual_seed(0))
    axes = torch.arange(20) % num_axes
    frequencies = 10000.0 ** -(torch.arange(20) / 20)
    cos, sin = ops.turns(positions, axes, frequencies, dtype)
    wanted = reference.turns(positions, axes, frequencies, dtype)
    assert_close(cos, wanted[0], bound)
    assert_close(sin, wanted[1], bound)
    for part in cut_in_pieces(90):
        found = ops.turns(positions[:, part], axes, frequencies, dtype)
        assert torch.equal(found[0], cos[part]) and torch.equal(found[1], sin[part])


def test_no_rows_are_no_work(ops: NativeRows) -> None:
    nothing = torch.empty(0, 64)
    assert ops.rms_norm(nothing, torch.ones(64), 1e-6).shape == (0, 64)
    assert ops.rotate(torch.empty(0, 2, 8), torch.empty(0, 1, 8), torch.empty(0, 1, 8)).shape == (0, 2, 8)
