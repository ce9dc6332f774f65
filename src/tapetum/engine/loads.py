"""The media loads of one prompt: given up together, and each failure told with the place of its item."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import PurePath
from typing import Protocol, TypeVar

from tapetum.core.chat import MediaPart
from tapetum.core.errors import MediaTimeout, TapetumError

T = TypeVar("T")
_MAX_NAME = 255


class Cancellable(Protocol):
    """A future, whatever comes of it."""

    def cancel(self) -> bool: ...


class Loads:
    """The media loads of one prompt that is being built. Whoever wants the prompt may give them up from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: Sequence[Cancellable] = ()
        self._is_cancelled = False
        self._until_s: float | None = None

    def limit(self, seconds: float | None) -> None:
        """None of the loads may take longer than so many seconds from now."""
        self._until_s = None if seconds is None else time.monotonic() + seconds

    @property
    def left_s(self) -> float | None:
        return None if self._until_s is None else max(0.0, self._until_s - time.monotonic())

    def begin(self, futures: Sequence[Cancellable]) -> None:
        """These are the loads now; if they have been given up already, they end here."""
        with self._lock:
            self._futures = futures
            is_cancelled = self._is_cancelled
        if is_cancelled:
            self.cancel()

    def cancel(self) -> None:
        """End every load that is not done. The build then ends with CancelledError; no effect on one that is over."""
        with self._lock:
            self._is_cancelled = True
        self.end()

    def end(self) -> None:
        """End the loads that are not done, be it because all of them are or because one has failed."""
        with self._lock:
            futures = self._futures
        for future in futures:
            future.cancel()


def result_of(future: Future[T], part: MediaPart, index: int, count: int, left_s: float | None = None) -> T:
    """What came of a load, within `left_s`. An error says which of several it was; fresh, since loads may be shared."""
    try:
        return future.result(left_s)
    except TimeoutError:
        raise MediaTimeout(
            f"media {index + 1} of {count} did not come in the time that timeout_s leaves for it; "
            "raise timeout_s or send a smaller one"
        ) from None
    except TapetumError as error:
        place = f"media {index + 1} of {count}: " if count > 1 else ""
        name = _file_name(part)
        if name and name not in error.message:
            place += f"{name}: "
        raise type(error)(place + error.message, param=error.param) from error


def _file_name(part: MediaPart) -> str:
    """The name of a picture that the operator named by a path, else nothing: a client may not try names."""
    source = part.source if part.is_trusted else None
    if isinstance(source, str) and not source.startswith("data:"):
        source = PurePath(source[:_MAX_NAME])
    return source.name[:_MAX_NAME] if isinstance(source, PurePath) else ""
