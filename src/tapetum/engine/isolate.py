"""Run a failing plan again in pieces, so that only the request or picture at fault is lost.

Executing twice is safe: a row writes the same KV entries again, a request that is released and admitted again
starts clean, an encode goes on to the same share, features arrive with the same bytes, a load copies what is on the
host, and a token counts only when its piece has succeeded. What the failing run has copied out the executor still has.
Only saves are not done twice: their blocks may be overwritten by now, and are computed again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tapetum.core.errors import EngineError, TapetumError
from tapetum.core.plan import (
    BatchPlan,
    EncodeJob,
    Executor,
    FeatureArrival,
    Move,
    Payload,
    Row,
    SampledToken,
    StepResult,
)
from tapetum.core.request import Request

_log = logging.getLogger(__name__)


def execute_apart(executor: Executor, plan: BatchPlan) -> StepResult:
    """The result of `plan`, each new request, encode and row executed on its own.

    A row whose picture has failed fails too, which changes nothing: its request ends by the picture. Raises what the
    executor raises while it merely forgets ended requests: then nobody is to blame but itself.
    """
    run = _Pieces(executor, plan.step)
    run.forget(plan)
    for move in plan.loads:
        run.load(move)
    for request in plan.admitted:
        run.admit(request)
    for arrival in plan.arrivals:
        run.arrive(arrival)
    for job in plan.encodes:
        run.encode(job)
    for row in plan.rows:
        run.advance(row, plan.masks)
    return run.result(lost_moves=frozenset(move.request_id for move in plan.saves))


class _Pieces:
    """What came of the pieces so far."""

    def __init__(self, executor: Executor, step: int) -> None:
        self._executor = executor
        self._step = step
        self._tokens: dict[str, tuple[SampledToken, ...]] = {}
        self._failed: dict[str, TapetumError] = {}
        self._lost_loads: set[str] = set()
        self._encoded: dict[bytes, float] = {}
        self._spared: dict[bytes, float] = {}
        self._failed_features: dict[bytes, TapetumError] = {}
        self._exported: dict[bytes, Payload] = {}
        self._exported_blocks: dict[bytes, Payload] = {}
        self._seconds = [0.0, 0.0]  # encode, forward

    def forget(self, plan: BatchPlan) -> None:
        again = BatchPlan(
            step=self._step,
            released=plan.released,
            dropped_features=plan.dropped_features,
            drops_windows=plan.drops_windows,
            exports=plan.exports,
            block_exports=plan.block_exports,
            block_arrivals=plan.block_arrivals,
        )
        result = self._executor.execute(again)
        self._exported.update(result.exported)
        self._exported_blocks.update(result.exported_blocks)

    def load(self, move: Move) -> None:
        again = BatchPlan(step=self._step, loads=(move,))
        if error := self._try(again, f"request {move.request_id}"):
            self._failed[move.request_id] = error
            self._lost_loads.add(move.request_id)

    def admit(self, request: Request) -> None:
        # The failing run may have admitted it already: forget it first.
        again = BatchPlan(step=self._step, released=(request.request_id,), admitted=(request,))
        if error := self._try(again, f"request {request.request_id}"):
            self._failed[request.request_id] = error

    def arrive(self, arrival: FeatureArrival) -> None:
        again = BatchPlan(step=self._step, arrivals=(arrival,))
        if error := self._try(again, "bringing the features of a picture or clip"):
            self._failed_features[arrival.key] = error

    def encode(self, job: EncodeJob) -> None:
        error = self._try(BatchPlan(step=self._step, encodes=(job,)), "encoding a picture or clip")
        if error:
            self._failed_features[job.item.key] = error

    def advance(self, row: Row, masks: Mapping[str, bytes]) -> None:
        name = row.request_id
        if name in self._failed:
            return
        own = {name: masks[name]} if name in masks else {}
        if error := self._try(BatchPlan(step=self._step, rows=(row,), masks=own), f"request {name}"):
            self._failed[name] = error

    def result(self, lost_moves: frozenset[str]) -> StepResult:
        return StepResult(
            step=self._step,
            tokens=self._tokens,
            failed=self._failed,
            encoded=self._encoded,
            spared=self._spared,
            failed_features=self._failed_features,
            exported=self._exported,
            exported_blocks=self._exported_blocks,
            lost_moves=lost_moves | self._lost_loads,
            encode_s=self._seconds[0],
            forward_s=self._seconds[1],
        )

    def _try(self, plan: BatchPlan, what: str) -> TapetumError | None:
        try:
            result = self._executor.execute(plan)
        except Exception as error:  # whatever it is, it belongs to this piece alone
            _log.exception("step %d: %s failed", self._step, what)
            if isinstance(error, TapetumError):
                return error
            return EngineError(f"{what} failed inside the engine: {type(error).__name__}: {error}")
        self._tokens.update(result.tokens)
        self._failed.update(result.failed)
        self._encoded.update(result.encoded)
        self._spared.update(result.spared)
        self._failed_features.update(result.failed_features)
        self._exported.update(result.exported)
        self._seconds[0] += result.encode_s
        self._seconds[1] += result.forward_s
        return None
