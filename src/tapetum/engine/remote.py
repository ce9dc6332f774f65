"""ProcessLink: the way to an engine in a process of its own. A new start is a new session (session.py)."""

from __future__ import annotations

import threading
import time
from typing import TypeVar

import zmq

from tapetum.core.config import EngineConfig
from tapetum.core.errors import CapacityError, EngineError
from tapetum.core.model import ModelFacts
from tapetum.core.request import Request
from tapetum.core.stats import Backlog, SchedulerStats
from tapetum.engine.child import ARENA_BYTES, IMPORTS, Child, start_child
from tapetum.engine.files import ModelFiles
from tapetum.engine.find import find_model
from tapetum.engine.forecast import Forecast, Workload
from tapetum.engine.link import OnDeath, OnNews
from tapetum.engine.messages import Abort, LetGo
from tapetum.engine.meters import Metric
from tapetum.engine.reservations import Reserved, Wanted
from tapetum.engine.session import Session

BUILDER = "tapetum.engine.build:build_engine"
T = TypeVar("T")


class ProcessLink:
    """`builder` is `module:function`, what the process builds its engine with from `config`.

    The first start takes `child` if there is one, and no other arena; every other starts a new process.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        builder: str = BUILDER,
        arena_bytes: int = ARENA_BYTES,
        child: Child | None = None,
    ) -> None:
        self._config = config
        self._builder = builder
        self._arena_bytes = arena_bytes
        self._child = child
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._is_stopped = False

    @property
    def config(self) -> EngineConfig:
        return self._config

    def clock(self) -> float:
        return time.monotonic()  # one clock for all processes of a machine

    def start(self, on_news: OnNews, on_death: OnDeath) -> tuple[ModelFacts, ModelFiles]:
        directory = find_model(self._config.model)  # which may have to fetch it, once for both processes
        with self._lock:
            if self._is_stopped:
                raise CapacityError("the engine has been stopped")
            session = self._session = self._opened(on_news, on_death)
        try:
            files = ModelFiles.load(directory)  # while the process loads the model
        except BaseException:
            session.stop(0.0)
            raise
        return session.opened(), files

    def stop(self, grace_s: float) -> None:
        with self._lock:
            self._is_stopped = True
        if self._session is not None:
            self._session.stop(grace_s)

    def prepare(self, request: Request) -> None:
        self._open.holdings.hold(request)

    def discard(self, request: Request) -> None:
        self._open.holdings.let_go(request.request_id)
        if any(span.item.is_reserved for span in request.prompt.spans):
            self.let_go(request.request_id)

    def add(self, request: Request) -> None:
        self._open.add(request)

    def abort(self, request_id: str) -> None:
        self._open.send(Abort(request_id))

    @property
    def is_healthy(self) -> bool:
        return self._session is not None and self._session.is_healthy

    @property
    def backlog(self) -> Backlog:
        return self._open.backlog

    @property
    def pid(self) -> int | None:
        """Of the engine process, while there is one."""
        return self._session.pid if self._session is not None else None

    @property
    def num_shared_bytes(self) -> int:
        return self._open.arena.num_held_bytes

    def stats(self) -> SchedulerStats:
        return _known(self._open.ask("stats").stats)

    def metrics(self) -> tuple[Metric, ...]:
        return _known(self._open.ask("metrics").metrics)

    def media_keys(self) -> tuple[bytes, ...]:
        return _known(self._open.ask("media_keys").media_keys)

    def forecast(self, workload: Workload) -> Forecast:
        return _known(self._open.ask("forecast", workload).forecast)

    def reset_caches(self) -> None:
        self._open.ask("reset_caches")

    def reserve(self, request_id: str, wanted: tuple[Wanted, ...]) -> Reserved:
        return self._open.reserve(request_id, wanted)

    def let_go(self, request_id: str) -> None:
        self._open.send(LetGo(request_id))

    def _opened(self, on_news: OnNews, on_death: OnDeath) -> Session:
        child, self._child = self._child, None
        try:
            if child is None:
                child = start_child(self._arena_bytes, IMPORTS if self._builder == BUILDER else ())
            return Session(self._config, self._builder, child, on_news, on_death)
        except (OSError, zmq.ZMQError) as error:
            raise EngineError(
                f"no process can be started for the engine: {error}; free memory or files"
            ) from error

    @property
    def _open(self) -> Session:
        assert self._session is not None, "the link has not been started"
        return self._session


def _known(value: T | None) -> T:
    if value is None:
        raise EngineError("the engine has answered another question")
    return value
