"""The way from the front to an engine, wherever that runs.

Two real ways: `LocalLink`, a thread of this process, here; `ProcessLink` (remote.py), an engine in its own process.
All methods may be called from any thread. News and death are told on a thread of the link, which must not be blocked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from tapetum.core.config import EngineConfig
from tapetum.core.errors import EngineDead
from tapetum.core.model import ModelFacts
from tapetum.core.request import Request
from tapetum.core.stats import Backlog, SchedulerStats
from tapetum.engine.build import build_engine
from tapetum.engine.engine import Engine
from tapetum.engine.files import ModelFiles
from tapetum.engine.forecast import Forecast, Workload
from tapetum.engine.loop import EngineLoop
from tapetum.engine.meters import Metric
from tapetum.engine.output import Delta
from tapetum.engine.reservations import Reserved, Wanted
from tapetum.engine.undecoded import LocalReserver

OnNews = Callable[[Mapping[str, Delta]], None]
OnDeath = Callable[[EngineDead], None]


class Link(Protocol):
    @property
    def config(self) -> EngineConfig: ...

    def clock(self) -> float:
        """Seconds on the clock that deadlines are told on."""

    def start(self, on_news: OnNews, on_death: OnDeath) -> tuple[ModelFacts, ModelFiles]:
        """Load the model and begin to step; blocks until that is done. May be called again after a death."""

    def stop(self, grace_s: float) -> None:
        """Let what runs finish for `grace_s` seconds, abort the rest, end the engine; blocks until that is done."""

    def prepare(self, request: Request) -> None:
        """Whatever of `add` takes time, on the caller's thread; `add` or `discard` follows."""

    def discard(self, request: Request) -> None:
        """Undo `prepare` and `reserve`: the request will not be added."""

    def add(self, request: Request) -> None: ...

    def abort(self, request_id: str) -> None: ...

    @property
    def is_healthy(self) -> bool:
        """Whether the loop lives and gives signs of it, be it idle or busy."""

    @property
    def backlog(self) -> Backlog:
        """What waits, as of the last news."""

    @property
    def num_shared_bytes(self) -> int:
        """Bytes of patches that live requests hold in memory shared with the engine."""

    def stats(self) -> SchedulerStats: ...

    def metrics(self) -> tuple[Metric, ...]: ...

    def media_keys(self) -> tuple[bytes, ...]:
        """Keys of all pictures and clips whose features the engine has."""

    def forecast(self, workload: Workload) -> Forecast: ...

    def reset_caches(self) -> None:
        """Drop every cached block and feature that no request holds."""

    def reserve(self, request_id: str, wanted: tuple[Wanted, ...]) -> Reserved:
        """Features that the engine keeps for a request; `add`, `discard` or `let_go` follows."""

    def let_go(self, request_id: str) -> None:
        """Of what a request has reserved that will not be added."""


class LocalLink:
    """An engine on a thread of this process: one that exists already, or one that is built from its config."""

    def __init__(self, source: Engine | EngineConfig) -> None:
        self._source = source
        self._engine: Engine | None = source if isinstance(source, Engine) else None
        self._loop: EngineLoop | None = None

    @property
    def config(self) -> EngineConfig:
        return self._source.config if isinstance(self._source, Engine) else self._source

    def clock(self) -> float:
        return self._engine.clock() if self._engine is not None else time.monotonic()

    def start(self, on_news: OnNews, on_death: OnDeath) -> tuple[ModelFacts, ModelFiles]:
        engine = self._source if isinstance(self._source, Engine) else build_engine(self._source)
        self._engine = engine
        self._loop = EngineLoop(engine, on_news=on_news, on_death=on_death)
        self._loop.start()
        return engine.facts, engine.files

    def stop(self, grace_s: float) -> None:
        if self._loop is not None:
            self._loop.stop(grace_s)

    def prepare(self, request: Request) -> None:
        """Nothing to do: the engine sees the same memory."""

    def discard(self, request: Request) -> None:
        self.let_go(request.request_id)

    def add(self, request: Request) -> None:
        self._running.add(request)

    def abort(self, request_id: str) -> None:
        self._running.abort(request_id)

    @property
    def is_healthy(self) -> bool:
        return self._loop is not None and self._loop.is_healthy

    @property
    def backlog(self) -> Backlog:
        return self._built.backlog

    @property
    def num_shared_bytes(self) -> int:
        return 0

    def stats(self) -> SchedulerStats:
        return self._built.stats

    def metrics(self) -> tuple[Metric, ...]:
        return self._built.metrics(self._running.heartbeat_age_s)

    def media_keys(self) -> tuple[bytes, ...]:
        return self._built.media_keys

    def forecast(self, workload: Workload) -> Forecast:
        return self._built.forecast(workload)

    def reset_caches(self) -> None:
        self._running.reset_caches()

    def reserve(self, request_id: str, wanted: tuple[Wanted, ...]) -> Reserved:
        return LocalReserver(self._built).reserve(request_id, wanted)

    def let_go(self, request_id: str) -> None:
        self._built.let_go(request_id)

    @property
    def _built(self) -> Engine:
        assert self._engine is not None, "the link has not been started"
        return self._engine

    @property
    def _running(self) -> EngineLoop:
        assert self._loop is not None, "the link has not been started"
        return self._loop
