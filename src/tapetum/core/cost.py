"""The cost model: seconds that an encode, a step or a move of KV will take, learned from those that were run.

    encode = c0 + c1·ΣP + c2·ΣP²            P = patches of an attention segment; a slice has its share of the sums
    step   = a + b·decodes + c·Σcontext + d·chunk + e·Σchunk·context
    move   = m0 + m1·bytes                  1/m1 = bandwidth

Owns the coefficients and nothing else: who observes and who decides is up to the caller. Coefficients are never
negative, so a prediction grows with the work and `max_chunk` with the time. Before the first observation it answers
from a prior, nearly linear in tokens and patches, in the order of a small model on a few CPU cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

MAX_CHUNK = 1 << 30  # when tokens cost nothing
MIN_SECONDS, MAX_SECONDS = 1e-9, 1e6  # of a step or an encode; outside them a clock or a wish is wrong

_STEP_PRIOR = (5e-3, 1e-3, 1e-6, 2e-4, 2e-8)
_ENCODE_PRIOR = (2e-3, 1e-4, 1e-8)
_MOVE_PRIOR = (1e-4, 1 / 8e9)
_FORGETTING = 0.995  # an observation counts half after about 140 more
_PRIOR_WEIGHT = 1e-6  # of one observation; decides only what no observation has told
_RATIO_FORGETTING = 0.98


def chunk_context(start: int, length: int) -> float:
    """Pairs of (new token, token it attends to) of a prefill chunk: Σ chunk·context for one row."""
    return length * (start + length / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What observations have taught of one formula: the normal equations, in units of the prior."""

    products: tuple[tuple[float, ...], ...]
    sums: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCosts:
    step: Learned
    encode: Learned
    move: Learned | None = None


class CostModel:
    """Predicts and learns. Lengths in tokens or patches, times in seconds.

    `step`, `encode` and `move` are its prior. `learned` is what another one knew; ValueError if that is no such
    equations.
    """

    def __init__(
        self,
        step: Sequence[float] = _STEP_PRIOR,
        encode: Sequence[float] = _ENCODE_PRIOR,
        move: Sequence[float] = _MOVE_PRIOR,
        *,
        learned: LearnedCosts | None = None,
    ) -> None:
        self._step = _Fit(tuple(step), learned.step if learned else None)
        self._encode = _Fit(tuple(encode), learned.encode if learned else None)
        self._move = _Fit(tuple(move), learned.move if learned else None)

    @property
    def learned(self) -> LearnedCosts:
        return LearnedCosts(step=self._step.learned, encode=self._encode.learned, move=self._move.learned)

    def observe_step(
        self, decodes: int, context: int, chunk: int, chunk_context: float, seconds: float
    ) -> None:
        """`context` = Σ context of the decoding rows, `chunk_context` = Σ of the function of that name."""
        self._step.observe((1.0, decodes, context, chunk, chunk_context), seconds)

    def observe_encode(self, patches: float, squares: float, seconds: float) -> None:
        """`squares` = Σ P² over attention segments; a slice counts its share of both."""
        self._encode.observe((1.0, patches, squares), seconds)

    def observe_move(self, num_bytes: int, seconds: float) -> None:
        self._move.observe((1.0, num_bytes), seconds)

    def step_seconds(self, decodes: int, context: int, chunk: int = 0, chunk_context: float = 0.0) -> float:
        a, b, c, d, e = self._step.coefficients
        return a + b * decodes + c * context + d * chunk + e * chunk_context

    def encode_seconds(self, patches: float, squares: float) -> float:
        """0 for nothing to encode."""
        start, per_patch, per_square = self._encode.coefficients
        return start + per_patch * patches + per_square * squares if patches else 0.0

    def move_seconds(self, num_bytes: int) -> float:
        """From the device to the host, or back."""
        return self._move.predict((1.0, num_bytes))

    def encode_share(self, seconds: float, patches: float, squares: float) -> float:
        """The share of such an encode that `seconds` suffice for, 0 to 1, whatever the start of a slice costs."""
        _, per_patch, per_square = self._encode.coefficients
        whole = per_patch * patches + per_square * squares
        return min(1.0, max(0.0, seconds) / whole) if whole > 0 else 1.0

    @property
    def step_coefficients(self) -> tuple[float, ...]:
        """a to e."""
        return self._step.coefficients

    @property
    def encode_coefficients(self) -> tuple[float, ...]:
        """c0 to c2."""
        return self._encode.coefficients

    @property
    def encode_start_s(self) -> float:
        """What a step pays for encoding anything at all."""
        return self._encode.coefficients[0]

    def max_chunk(self, seconds: float, decodes: int, context: int, chunk_start: int) -> int:
        """The longest prefill chunk from `chunk_start` on that fits a step of `seconds` beside these decodes."""
        *_, per_token, per_pair = self._step.coefficients
        left = min(seconds, MAX_SECONDS) - self.step_seconds(decodes, context)
        if not left > 0:  # NaN too
            return 0
        # Solve per_pair/2 · n² + linear · n = left; this form of the root has no cancellation.
        linear = per_token + per_pair * chunk_start
        divisor = linear + sqrt(linear * linear + 2 * per_pair * left)
        return int(min(MAX_CHUNK, 2 * left / divisor)) if divisor > 0 else MAX_CHUNK

    @property
    def step_error_ratio(self) -> float:
        """Predicted ÷ actual seconds of recent steps; 1 is perfect."""
        return self._step.error_ratio

    @property
    def encode_error_ratio(self) -> float:
        return self._encode.error_ratio


class _Fit:
    """Least squares of relative error with forgetting and coefficients ≥ 0.

    Keeps the normal equations in units of the prior (the unknowns are factors on it), which makes them well scaled.
    Errors count relative to the observed time, so short steps weigh as much as long ones, and one that was
    held up by something else moves little.
    """

    def __init__(self, prior: tuple[float, ...], learned: Learned | None) -> None:
        size = len(prior)
        self._prior = prior
        self._products = [[0.0] * size for _ in range(size)]
        self._sums = [0.0] * size
        if learned is not None:
            _check(learned, size)
            self._products, self._sums = [list(row) for row in learned.products], list(learned.sums)
        self._active = frozenset(range(size))
        self._predicted = self._actual = 0.0
        self._solve()

    @property
    def learned(self) -> Learned:
        return Learned(products=tuple(map(tuple, self._products)), sums=tuple(self._sums))

    def observe(self, features: Sequence[float], seconds: float) -> None:
        if not MIN_SECONDS <= seconds <= MAX_SECONDS:
            return
        self._predicted = self._predicted * _RATIO_FORGETTING + self.predict(features)
        self._actual = self._actual * _RATIO_FORGETTING + seconds
        scaled = [value * unit / seconds for value, unit in zip(features, self._prior, strict=True)]
        for i, left in enumerate(scaled):
            self._sums[i] = self._sums[i] * _FORGETTING + left
            row = self._products[i]
            for j, right in enumerate(scaled):
                row[j] = row[j] * _FORGETTING + left * right
        self._solve()

    def predict(self, features: Sequence[float]) -> float:
        return sum(value * weight for value, weight in zip(features, self.coefficients, strict=True))

    @property
    def error_ratio(self) -> float:
        return self._predicted / self._actual if self._actual else 1.0

    def _solve(self) -> None:
        products = [
            [value + (_PRIOR_WEIGHT if i == j else 0.0) for j, value in enumerate(row)]
            for i, row in enumerate(self._products)
        ]
        sums = [value + _PRIOR_WEIGHT for value in self._sums]
        factors, self._active = _solve_nonnegative(products, sums, self._active)
        self.coefficients = tuple(
            factor * unit for factor, unit in zip(factors, self._prior, strict=True)
        )  # asked for many times in a step


def _check(learned: Learned, size: int) -> None:
    numbers = [*learned.sums, *(value for row in learned.products for value in row)]
    lengths = {len(learned.sums), len(learned.products), *map(len, learned.products)}
    if lengths != {size} or not all(map(isfinite, numbers)):
        raise ValueError(f"what was learned is not {size} equations of as many numbers")
    if any(learned.products[place][place] < 0 for place in range(size)):
        raise ValueError("what was learned has a negative square")


def _solve_nonnegative(
    products: list[list[float]], sums: list[float], active: frozenset[int]
) -> tuple[list[float], frozenset[int]]:
    """Minimise x·Mx/2 − s·x over x ≥ 0 for positive definite M; `active` is a guess of where x > 0.

    Murty's least-index pivoting: swap the last unknown that breaks the optimality conditions, until none does. It
    ends for every positive definite M; the bound on the loop only guards against rounding.
    """
    size = len(sums)
    for _ in range(1 << size):
        x = _solve_subset(products, sums, sorted(active))
        slopes = [
            sum(m * v for m, v in zip(row, x, strict=True)) - s for row, s in zip(products, sums, strict=True)
        ]
        wrong = [
            i for i in range(size) if (x[i] < 0 if i in active else slopes[i] < -1e-12 * (1 + abs(sums[i])))
        ]
        if not wrong:
            break
        active ^= {wrong[-1]}
    return [max(0.0, value) for value in x], active


def _solve_subset(products: list[list[float]], sums: list[float], subset: list[int]) -> list[float]:
    """Gaussian elimination on the unknowns of `subset`; the others are 0."""
    rows = [[products[i][j] for j in subset] + [sums[i]] for i in subset]
    for k, pivot in enumerate(rows):
        for row in rows[k + 1 :]:
            scale = row[k] / pivot[k]
            for j in range(k, len(row)):
                row[j] -= scale * pivot[j]
    x = [0.0] * len(sums)
    for k in reversed(range(len(rows))):
        known = sum(rows[k][j] * x[subset[j]] for j in range(k + 1, len(rows)))
        x[subset[k]] = (rows[k][-1] - known) / rows[k][k]
    return x
