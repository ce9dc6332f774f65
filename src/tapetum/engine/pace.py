"""How an engine's thread goes from step to step: with another one that carries the steps out, or by itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from tapetum.engine.engine import Engine
from tapetum.engine.output import Delta
from tapetum.engine.overlap import Overlap

OnNews = Callable[[Mapping[str, Delta]], None]


class Pace(Protocol):
    """Belongs to one thread."""

    def turn(self) -> None:
        """A step and what belongs to it, if there is anything to do."""

    def close(self) -> None:
        """See what runs to its end."""

    def drop(self) -> None:
        """The thread ends, whatever runs."""


class Straight:
    """One thing after the other."""

    def __init__(self, engine: Engine, on_news: OnNews) -> None:
        self._engine, self._on_news = engine, on_news

    def turn(self) -> None:
        if self._engine.has_mail:  # who has come hears so before the step, not behind it
            self._tell(self._engine.take_news())
        self._tell(self._engine.step())

    def _tell(self, news: Mapping[str, Delta]) -> None:
        if news:
            self._on_news(news)

    def close(self) -> None:
        """Nothing runs between turns."""

    def drop(self) -> None:
        """Nothing runs between turns."""


def pace_of(engine: Engine, changed: threading.Condition, on_news: OnNews) -> Pace:
    """`changed` is notified when the engine has mail; `on_news` must not block."""
    if has_core_to_spare(engine.facts.device, engine.config.device.threads):
        return Overlap(engine, changed, on_news)
    return Straight(engine, on_news)


def has_core_to_spare(device: str, threads: int | None) -> bool:
    """Whether the host's work beside a step takes no core from the kernels; `threads` None = they use all."""
    if device != "cpu":
        return True
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return threads is not None and threads < cores
