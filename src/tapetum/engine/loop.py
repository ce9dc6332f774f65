"""The thread that steps an engine, by itself or with another one that carries the steps out (pace.py).

Owns the thread: it sleeps while there is nothing to do, beats while it lives, and ends in one of two ways, stopped
(drained, or the rest aborted) or dead (the only broad catch of the thread). What happens to the news is up to the
two callbacks, which run on this thread and must not block.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from tapetum.core.errors import EngineDead
from tapetum.core.request import Request
from tapetum.engine.engine import Engine
from tapetum.engine.output import Delta
from tapetum.engine.pace import pace_of

_log = logging.getLogger(__name__)
_BEAT_S = 1.0  # longest sleep of an idle loop
MAX_STEP_S = 300.0  # a step that takes longer than this hangs


class EngineLoop:
    """`add` and `abort` from any thread, `start` and `stop` from one."""

    def __init__(
        self,
        engine: Engine,
        *,
        on_news: Callable[[Mapping[str, Delta]], None],
        on_death: Callable[[EngineDead], None],
    ) -> None:
        self._engine = engine
        self._on_news = on_news
        self._on_death = on_death
        self._changed = threading.Condition()
        self._pace = pace_of(engine, self._changed, self._tell)
        self._last_beat_s = engine.clock()
        self._stop_by_s: float | None = None  # set when stopping: drain until then
        self._is_dead = False
        self._thread = threading.Thread(target=self._run, name="tapetum-engine", daemon=True)

    def start(self) -> None:
        self._last_beat_s = self._engine.clock()
        self._thread.start()

    def add(self, request: Request) -> None:
        self._engine.add(request)
        self._notify()

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)
        self._notify()

    def reset_caches(self) -> None:
        """Drop what no request holds; blocks until the loop has done so."""
        done = self._engine.reset_caches()
        self._notify()
        done.result(MAX_STEP_S)

    def stop(self, grace_s: float) -> None:
        """Let what runs finish for `grace_s`, abort the rest, and wait for the thread to end."""
        self._stop_by_s = self._engine.clock() + grace_s
        self._notify()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def heartbeat_age_s(self) -> float:
        return self._engine.clock() - self._last_beat_s

    @property
    def is_healthy(self) -> bool:
        return self._thread.is_alive() and not self._is_dead and self.heartbeat_age_s < MAX_STEP_S

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._pace.turn()
            self._pace.close()
            self._tell(self._engine.abort_all())
            self._engine.end()
        except BaseException as error:
            self._is_dead = True
            _log.exception("the engine loop has ended")
            self._pace.drop()
            self._on_death(
                EngineDead(f"the engine loop has ended: {type(error).__name__}: {error}; restart the engine")
            )

    def _wait_for_work(self) -> bool:
        """True when there is something to step; False when it is time to stop."""
        with self._changed:
            while True:
                self._last_beat_s = self._engine.clock()
                if self._stop_by_s is not None and (
                    not self._engine.has_work or self._last_beat_s >= self._stop_by_s
                ):
                    return False
                if self._engine.has_work:
                    return True
                self._changed.wait(_BEAT_S)

    def _tell(self, news: Mapping[str, Delta]) -> None:
        if news:
            self._on_news(news)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify()
