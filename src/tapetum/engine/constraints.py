"""Requests with a grammar, on their way through the engine.

Owns their constraints, from the first moment to the last event. A grammar is compiled on a thread of its own before
the scheduler hears of the request, so the loop never waits for one. A preempted request keeps its constraint: what it
has put out stays put out, and only new tokens advance it. Requests without a grammar cost nothing here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from tapetum.core.errors import EngineError, TapetumError
from tapetum.core.plan import BatchPlan, StepResult
from tapetum.core.request import Request
from tapetum.sched.limits import late_among
from tapetum.text.grammar import Constraint
from tapetum.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
_MAX_IDLE_S = 0.01  # how long a loop with nothing else to do looks away


class Constraints:
    """Belongs to the thread of the loop."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pool: ThreadPoolExecutor | None = None
        self._compiling: list[tuple[Request, Future[Constraint]]] = []
        self._live: dict[str, Constraint] = {}
        self._bound: dict[str, Constraint] = {}  # by the last plan; who left since then is still among them

    @property
    def is_compiling(self) -> bool:
        return bool(self._compiling)

    def compile(self, request: Request) -> None:
        """Begin; the request comes back from `take_compiled`."""
        assert request.sampling.grammar is not None, "only grammars are compiled"
        self._pool = self._pool or ThreadPoolExecutor(1, "tapetum-grammar")
        future = self._pool.submit(
            Constraint, request.sampling.grammar, self._tokenizer, request.stop_token_ids
        )
        self._compiling.append((request, future))

    def wait(self) -> None:
        """Look away for a moment while something is compiled."""
        if self._compiling:
            wait([self._compiling[0][1]], _MAX_IDLE_S)

    def take_compiled(self) -> Iterator[tuple[Request, Constraint | TapetumError]]:
        """The requests whose grammar is done, in the order they came, with it or what was wrong with it."""
        while self._compiling and self._compiling[0][1].done():
            request, future = self._compiling.pop(0)
            yield request, _outcome(future)

    def drop(self, request_id: str) -> bool:
        """Forget a request whose grammar is being compiled; false if there is none."""
        return bool(self._drop(lambda request: request.request_id == request_id))

    def drop_late(self, now: float) -> Mapping[str, TapetumError]:
        """Forget the requests whose deadline has passed meanwhile, and say so."""
        late = late_among((request for request, _ in self._compiling), now)
        if late:
            self._drop(lambda request: request.request_id in late)
        return late

    def drop_all(self) -> list[str]:
        """Forget all requests whose grammars are being compiled."""
        return self._drop(lambda _: True)

    def _drop(self, is_meant: Callable[[Request], bool]) -> list[str]:
        """A grammar that has not been begun then never is."""
        dropped = [entry for entry in self._compiling if is_meant(entry[0])]
        self._compiling = [entry for entry in self._compiling if not is_meant(entry[0])]
        for _, future in dropped:
            future.cancel()
        return [request.request_id for request, _ in dropped]

    def begin(self, request_id: str, constraint: Constraint) -> None:
        """The request has been admitted."""
        self._live[request_id] = constraint

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._live.pop(request_id, None)

    def is_over(self, request_id: str) -> bool:
        """The grammar lets nothing follow what the request has put out."""
        constraint = self._live.get(request_id)
        return constraint is not None and constraint.is_over

    @property
    def num_live(self) -> int:
        return len(self._live)

    def bind(self, plan: BatchPlan) -> BatchPlan:
        """The plan with the masks of its rows."""
        if not self._live:
            return plan
        names = [row.request_id for row in plan.rows if row.has_sample and row.request_id in self._live]
        self._bound = {name: self._live[name] for name in names}
        return replace(plan, masks={name: constraint.mask for name, constraint in self._bound.items()})

    def follow(self, plan: BatchPlan, result: StepResult) -> StepResult:
        """Advance by the tokens of a plan that was bound. A request that cannot go on has failed instead."""
        failed: dict[str, TapetumError] = {}
        for request_id in result.tokens.keys() & plan.masks.keys():
            (token,) = result.tokens[request_id]  # nothing is guessed where a grammar rules
            try:
                self._bound[request_id].advance(token.token_id)
            except TapetumError as error:
                failed[request_id] = error
        if not failed:
            return result
        tokens = {name: taken for name, taken in result.tokens.items() if name not in failed}
        return replace(result, tokens=tokens, failed={**result.failed, **failed})


def _outcome(future: Future[Constraint]) -> Constraint | TapetumError:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, TapetumError):
        return error
    _log.error("a grammar cannot be compiled", exc_info=error)
    return EngineError(f"the grammar cannot be compiled: {type(error).__name__}: {error}")
