"""Linear layers and the head of the native library, on every instruction set this processor has."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tapetum.native import library as native
from tapetum.ops import native_linear, reference
from tapetum.ops.best import BROKEN, argmax
from tapetum.ops.native_linear import ACTIVATIONS, NativeLinear
from tapetum.ops.parts import Activation, has_gate

DTYPES = (torch.float32, torch.bfloat16)
# around the edges of a group (32 columns, 16 with a gate), of a word (2 inputs) and of a block of the packing
SHAPES = ((1, 1), (5, 7), (15, 31), (16, 32), (17, 33), (31, 2), (32, 64), (33, 65), (130, 300))
ROWS = (1, 2, 3, 4, 5, 6, 7, 13, 14, 15, 28, 29, 64)  # around the heights of tiles
LIBRARY = native.load()

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the native library is not built: make native")


@pytest.fixture(params=("portable", "avx2", "avx512"))
def library(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    assert LIBRARY is not None
    best = LIBRARY.tpt_isa()
    if LIBRARY.tpt_use_isa(request.param.encode()):
        pytest.skip(f"this processor has no {request.param}")
    yield LIBRARY
    assert LIBRARY.tpt_use_isa(best) == 0


@pytest.fixture
def threads() -> Iterator[None]:
    assert LIBRARY is not None
    count = LIBRARY.tpt_num_threads()
    yield
    LIBRARY.tpt_set_num_threads(count)


def whole(*shape: int, dtype: torch.dtype) -> Tensor:
    """Small whole numbers: their products and sums are exact in any order."""
    return torch.randint(-4, 5, shape).to(dtype)


def fractions(*shape: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(shape) / shape[-1] ** 0.5).to(dtype)


def rows_of_weight(outputs: int, activation: Activation) -> int:
    return 2 * outputs if has_gate(activation) else outputs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_exact_sums_are_those_of_the_reference(
    library: ctypes.CDLL, dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    torch.manual_seed(outputs)
    weight, bias = whole(outputs, inputs, dtype=dtype), whole(outputs, dtype=dtype)
    for number, rows in enumerate(ROWS):
        x, residual = whole(rows, inputs, dtype=dtype), whole(rows, outputs, dtype=dtype)
        arguments = (weight, bias if number % 2 else None, "none")
        beside = residual if number % 3 else None
        got = NativeLinear(library, *arguments)(x, beside)
        assert got.dtype == dtype
        assert torch.equal(got, reference.Linear(*arguments)(x, beside)), rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_bias_and_residual_are_those_of_the_reference(
    library: ctypes.CDLL, dtype: torch.dtype, activation: Activation
) -> None:
    torch.manual_seed(1)
    close = {"rtol": 2e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 8e-3, "atol": 8e-3}
    for outputs, inputs in ((1, 3), (16, 32), (37, 70)):
        weight = 4 * fractions(rows_of_weight(outputs, activation), inputs, dtype=dtype)
        bias = torch.randn(len(weight)).to(dtype)
        for rows in (1, 5, 33):
            x = torch.randn(rows, inputs).to(dtype)
            for has_bias in (False, True):
                for residual in (None, torch.randn(rows, outputs).to(dtype)):
                    arguments = (weight, bias if has_bias else None, activation)
                    got = NativeLinear(library, *arguments)(x, residual)
                    torch.testing.assert_close(got, reference.Linear(*arguments)(x, residual), **close)


@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_activations_hold_far_from_zero(library: ctypes.CDLL, activation: Activation) -> None:
    x = torch.tensor([-1e30, -200.0, -90.0, -20.0, -9.0, -5.0, -1e-3, 0.0, 1e-3, 5.0, 20.0, 90.0, 1e30])
    weight = torch.ones(rows_of_weight(1, activation), 1)
    bias = torch.tensor([0.0, 1.0]) if has_gate(activation) else None
    weight[1:] = 0.0  # what the gate is multiplied with is the bias, 1
    got = NativeLinear(library, weight, bias, activation)(x[:, None])
    beside = torch.ones(len(x), len(weight) - 1)
    want = reference.ACTIVATIONS[activation](torch.cat((x[:, None], beside), 1).double())
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_row_has_the_same_bits_in_every_company_and_on_any_threads(
    library: ctypes.CDLL, threads: None, dtype: torch.dtype, activation: Activation
) -> None:
    torch.manual_seed(2)
    outputs, inputs = 75, 259
    weight = fractions(rows_of_weight(outputs, activation), inputs, dtype=dtype)
    linear = NativeLinear(library, weight, torch.randn(len(weight)), activation)
    x, residual = torch.randn(1000, inputs).to(dtype), torch.randn(1000, outputs).to(dtype)
    library.tpt_set_num_threads(1)
    alone = torch.cat([linear(x[row : row + 1], residual[row : row + 1]) for row in range(len(x))])
    for count in (1, 2, 5):
        library.tpt_set_num_threads(count)
        for rows in (*range(1, 65), 1000):
            assert torch.equal(linear(x[-rows:], residual[-rows:]), alone[-rows:]), (count, rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_larger_tensor_are_read_in_place_and_nothing_beside_them(
    library: ctypes.CDLL, dtype: torch.dtype
) -> None:
    for outputs, inputs in ((9, 31), (40, 64), (33, 1)):
        weight = whole(outputs, inputs, dtype=dtype)
        linear, oracle = NativeLinear(library, weight, None, "none"), reference.Linear(weight)
        for rows in (1, 3, 20):
            wide = torch.full((rows, inputs + 5), torch.nan, dtype=dtype)
            beside = torch.full((rows, outputs + 3), torch.nan, dtype=dtype)
            x, residual = wide[:, 2 : 2 + inputs], beside[:, 1 : 1 + outputs]
            x.copy_(whole(rows, inputs, dtype=dtype))
            residual.copy_(whole(rows, outputs, dtype=dtype))
            assert torch.equal(linear(x, residual), oracle(x, residual))
    x = whole(64, 40, dtype=dtype).t()  # [40, 64], whose rows are not contiguous
    weight = whole(3, 64, dtype=dtype)
    assert torch.equal(NativeLinear(library, weight, None, "none")(x), reference.Linear(weight)(x))


def test_weights_may_be_rows_of_a_larger_tensor(library: ctypes.CDLL) -> None:
    large = whole(20, 50, dtype=torch.bfloat16)
    weight, x = large[3:17, 5:42], whole(6, 37, dtype=torch.bfloat16)
    assert torch.equal(NativeLinear(library, weight, None, "none")(x), reference.Linear(weight)(x))


def test_leading_axes_stay_and_no_rows_are_no_rows(library: ctypes.CDLL) -> None:
    weight = whole(8, 6, dtype=torch.bfloat16)
    linear, oracle = NativeLinear(library, weight, None, "none"), reference.Linear(weight)
    x, residual = whole(2, 3, 6, dtype=torch.bfloat16), whole(2, 3, 8, dtype=torch.bfloat16)
    assert torch.equal(linear(x, residual), oracle(x, residual))
    assert torch.equal(linear(x[0, 0]), oracle(x[0, 0]))
    assert linear(x.new_empty(0, 6)).shape == (0, 8)
    assert linear.head(x.new_empty(0, 6))[1].shape == (0, 1)


def test_the_packed_form_is_the_same_for_every_instruction_set() -> None:
    assert LIBRARY is not None
    weight, best = torch.randn(50, 33).bfloat16(), LIBRARY.tpt_isa()
    forms = []
    for name in (b"portable", best):
        LIBRARY.tpt_use_isa(name)
        forms.append(native_linear.packed(LIBRARY, weight, "silu_mul").clone())
    LIBRARY.tpt_use_isa(best)
    assert torch.equal(*forms)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", (1, 31, 32, 33, 1000))
@pytest.mark.parametrize("num_best", (1, 4))
def test_the_head_gives_the_scores_of_a_linear_and_the_best_of_them(
    library: ctypes.CDLL, dtype: torch.dtype, vocabulary: int, num_best: int
) -> None:
    torch.manual_seed(3)
    for make in (fractions, whole):  # whole numbers of so few values tie everywhere
        linear = NativeLinear(library, make(vocabulary, 24, dtype=dtype), None, "none")
        for rows in (1, 3, 17, 40):
            x = make(rows, 24, dtype=dtype)
            scores, ids = linear.head(x, num_best)
            assert torch.equal(scores, linear(x))
            assert torch.equal(ids[:, 0], argmax(scores))
            count = min(num_best, vocabulary)
            order = scores.float().sort(dim=-1, descending=True, stable=True).indices
            assert torch.equal(ids[:, :count], order[:, :count])
            assert (ids[:, count:] == BROKEN).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("odd", "best"),
    [
        ({70: torch.nan}, [-1]),
        ({3: torch.nan, 70: torch.nan}, [-1, -1]),
        ({40: torch.inf, 2: 1e3}, [-1, 2]),
        ({40: torch.inf, 90: torch.nan, 7: 1e4, 99: 1e5}, [-1, -1, 99, 7]),
        ({5: -torch.inf, 6: 1e3}, [6]),
        (dict.fromkeys(range(100), -torch.inf), [-1, -1]),
        ({**dict.fromkeys(range(100), -torch.inf), 99: 0.0}, [99, -1]),
    ],
)
def test_scores_that_are_not_finite_are_no_tokens(
    library: ctypes.CDLL, dtype: torch.dtype, odd: dict[int, float], best: list[int]
) -> None:
    bias = torch.zeros(100)
    bias[list(odd)] = torch.tensor(list(odd.values()))
    linear = NativeLinear(library, fractions(100, 16, dtype=dtype), bias, "none")
    for rows in (1, 20):
        scores, ids = linear.head(fractions(rows, 16, dtype=dtype), len(best))
        assert ids.tolist() == [best] * rows
        assert torch.equal(ids[:, 0], argmax(scores))


def test_a_broken_row_leaves_its_neighbours_alone(library: ctypes.CDLL) -> None:
    linear = NativeLinear(library, fractions(100, 16, dtype=torch.bfloat16), None, "none")
    for rows in (3, 20):
        x = fractions(rows, 16, dtype=torch.bfloat16)
        _, sound = linear.head(x)
        x[1] = torch.nan
        _, ids = linear.head(x)
        assert ids[1].item() == BROKEN
        assert torch.equal(ids[[0, *range(2, rows)]], sound[[0, *range(2, rows)]])
