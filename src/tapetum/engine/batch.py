"""A list of prompts through an engine in the caller's own thread, results in the order of the list.

Prompts are built ahead on a few threads while the engine steps. How far ahead is bounded by what their pictures
weigh; a list that stays below the bound is built whole before the first step, so a prompt that cannot be built
stops it before anything has run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from tapetum.core.errors import TapetumError
from tapetum.core.request import Request
from tapetum.engine.engine import Engine
from tapetum.engine.loads import Loads
from tapetum.engine.output import Delta, RequestOutput, joined, output_of
from tapetum.engine.prompts import Draft, PromptBuilder, Terms

_MAX_BUILDS = 8  # prompts being built at a time
_MAX_PATCHES = 200_000  # of prompts built and not handed in, about 200 MB


def run_batch(
    engine: Engine,
    prompts: PromptBuilder,
    drafts: Sequence[Draft],
    texts: Sequence[str | None],
    pool: ThreadPoolExecutor,
    on_done: Callable[[], None],
) -> list[RequestOutput]:
    """Every prompt's output. The first that fails ends the batch: the rest is aborted and its error raised."""
    batch = _Batch(engine, prompts, drafts, texts, pool, on_done)
    try:
        while not batch.is_over:
            batch.advance()
    finally:  # also when the user interrupts
        batch.clear()
    return batch.outputs


def placed(error: TapetumError, index: int, count: int) -> TapetumError:
    """The error with the place of its prompt in the list."""
    if count == 1:
        return error
    return type(error)(f"prompts[{index}]: {error.message}", param=error.param)


@dataclass(slots=True, eq=False)
class _Run:
    """One prompt in the engine: its request, and its deltas so far."""

    index: int
    request: Request
    prepared_s: float
    deltas: list[Delta] = field(default_factory=list)


class _Batch:
    """Prompts go from to-do over building and built to running and done."""

    def __init__(
        self,
        engine: Engine,
        prompts: PromptBuilder,
        drafts: Sequence[Draft],
        texts: Sequence[str | None],
        pool: ThreadPoolExecutor,
        on_done: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._texts = texts
        self._pool = pool
        self._on_done = on_done
        self._count = len(drafts)
        self._todo = deque(enumerate(drafts))
        self._building: deque[tuple[int, Future[Request], Loads]] = deque()
        self._built: deque[tuple[int, Request]] = deque()
        self._running: dict[str, _Run] = {}
        self._done: dict[int, RequestOutput] = {}
        self._num_patches = 0  # of what is built
        self._is_started = False

    @property
    def is_over(self) -> bool:
        return len(self._done) == self._count

    @property
    def outputs(self) -> list[RequestOutput]:
        return [self._done[index] for index in range(self._count)]

    def advance(self) -> None:
        """One turn: begin builds, take over what is built, hand it in, step."""
        self._begin_builds()
        self._take_built()
        if self._is_started:
            self._hand_in()
            if self._engine.has_work:
                self._read(self._engine.step())

    def clear(self) -> None:
        """Give up what has not ended, and step until the executor has forgotten everything."""
        for index, future, loads in self._building:
            future.cancel()
            loads.cancel()
            future.add_done_callback(partial(self._let_go, _name(index)))
        for index, _ in self._built:
            self._engine.let_go(_name(index))
        for request_id in self._running:
            self._engine.abort(request_id)
        while self._engine.has_work:
            self._engine.step()

    def _let_go(self, request_id: str, _: Future[Request]) -> None:
        self._engine.let_go(request_id)

    def _begin_builds(self) -> None:
        while self._todo and len(self._building) < _MAX_BUILDS and not self._is_far_ahead:
            index, draft = self._todo.popleft()
            loads = Loads()
            self._building.append((index, self._pool.submit(self._build, index, draft, loads), loads))

    def _build(self, index: int, draft: Draft, loads: Loads) -> Request:
        terms = Terms(request_id=_name(index), arrival_s=self._engine.clock(), has_to_cross=True)
        return self._prompts.complete(draft, terms, loads)

    def _take_built(self) -> None:
        """Take what is ready, in order; wait for one where there is nothing else to do."""
        has_to_wait = not (self._running or self._built) or not self._is_started
        while self._building and (has_to_wait or self._building[0][1].done()):
            index, future, _ = self._building.popleft()
            try:
                request = future.result()
            except TapetumError as error:
                raise placed(error, index, self._count) from error
            self._num_patches += _num_patches(request)
            self._built.append((index, request))
            has_to_wait = False
        if self._is_far_ahead or not (self._todo or self._building):
            self._is_started = True

    def _hand_in(self) -> None:
        """Keep the scheduler supplied: as many waiting as may run at once."""
        limit = 2 * self._engine.config.schedule.max_num_seqs
        while self._built and len(self._running) < limit:
            index, request = self._built.popleft()
            self._num_patches -= _num_patches(request)
            self._running[request.request_id] = _Run(index, request, self._engine.clock())
            self._engine.add(request)

    def _read(self, news: Mapping[str, Delta]) -> None:
        for request_id, delta in news.items():
            run = self._running[request_id]
            run.deltas.append(delta)
            if delta.finish_reason is None:
                continue
            del self._running[request_id]
            if delta.error is not None:
                raise placed(delta.error, run.index, self._count)
            self._done[run.index] = output_of(
                run.request,
                self._texts[run.index],
                joined(run.deltas),
                run.prepared_s,
                self._engine.tokenizer,
            )
            self._on_done()

    @property
    def _is_far_ahead(self) -> bool:
        return self._num_patches >= _MAX_PATCHES


def _name(index: int) -> str:
    return f"prompt-{index}"


def _num_patches(request: Request) -> int:
    return sum(span.item.geometry.num_patches for span in request.prompt.spans)
