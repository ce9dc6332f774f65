"""A device that carries out no plan and says how long that would have taken.

Owns the seconds: those of the cost model with the coefficients of a real device, and if wanted a scatter around them
that only depends on the seed and on how many steps came before.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.plan import BatchPlan, Row, SampledToken, StepResult

_TOKEN = SampledToken(token_id=0)
_LONGEST_RUN = 1024  # steps
_SCATTERS = 4096  # factors, which come around again


@dataclass(frozen=True, slots=True, kw_only=True)
class Decodes:
    """The rows of a plan that compute one token each."""

    count: int
    context: int

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Decodes:
        starts = [row.start for row in rows if row.is_decode]
        return cls(count=len(starts), context=sum(starts) + len(starts))

    def ahead(self, steps: int) -> Decodes:
        """The same rows so many steps later."""
        return Decodes(count=self.count, context=self.context + steps * self.count)


class Device:
    """`noise`: the standard deviation of the logarithm of a step's time."""

    def __init__(self, cost: CostModel, *, noise: float = 0.0, seed: int = 0) -> None:
        self._cost = cost
        draws = random.Random(f"{seed} device")
        self._scatter = [draws.lognormvariate(0.0, noise) for _ in range(_SCATTERS)] if noise else [1.0]
        self._num_steps = 0

    def ends_ahead(self, rows: Sequence[Row], now: float, until_s: float) -> list[float]:
        """When steps of these decodes are over, one behind the other, to the first that is not before `until_s`."""
        decodes, ends_s = Decodes.of(rows), list[float]()
        while len(ends_s) < _LONGEST_RUN and (not ends_s or ends_s[-1] < until_s):
            step = decodes.ahead(len(ends_s))
            now += self._cost.step_seconds(step.count, step.context) * self._factor(len(ends_s))
            ends_s.append(now)
        return ends_s

    def run(self, plan: BatchPlan, num_steps: int, seconds: float) -> StepResult:
        """So many steps of decodes as one result."""
        tokens = (_TOKEN,) * num_steps
        self._num_steps += num_steps
        return StepResult(
            step=plan.step, tokens={row.request_id: tokens for row in plan.rows}, forward_s=seconds
        )

    def execute(self, plan: BatchPlan) -> StepResult:
        factor = self._factor(0)
        self._num_steps += 1
        encode_s, forward_s = self._encode_seconds(plan) * factor, self._forward_seconds(plan.rows) * factor
        return StepResult(
            step=plan.step,
            tokens={row.request_id: (_TOKEN,) for row in plan.rows if row.has_sample},
            encoded={job.item.key: job.end for job in plan.encodes},
            encode_s=encode_s,
            forward_s=forward_s,
        )

    def _factor(self, ahead: int) -> float:
        return self._scatter[(self._num_steps + ahead) % len(self._scatter)]

    def _encode_seconds(self, plan: BatchPlan) -> float:
        return self._cost.encode_seconds(
            sum(job.share * job.num_patches for job in plan.encodes),
            sum(job.share * job.squares for job in plan.encodes),
        )

    def _forward_seconds(self, rows: Sequence[Row]) -> float:
        if not rows:
            return 0.0
        decodes = Decodes.of(rows)
        chunks = [row for row in rows if not row.is_decode]
        return self._cost.step_seconds(
            decodes.count,
            decodes.context,
            sum(row.length for row in chunks),
            sum(chunk_context(row.start, row.length) for row in chunks),
        )
