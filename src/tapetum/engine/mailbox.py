"""Mailbox: what other threads have to tell the thread of the loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Message = Callable[[float], None]  # called on the thread of the loop with the time
_MAX_IDLE_S = 0.01  # how long a loop with nothing else to do looks away


class Mailbox:
    """`put` from any thread, all else belongs to the loop's."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._has_some = threading.Event()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Message) -> None:
        self._messages.append(message)
        self._has_some.set()

    def deliver(self, now: float) -> None:
        """Do what there is to be told."""
        self._has_some.clear()
        while self._messages:
            self._messages.popleft()(now)

    def wait(self) -> None:
        """Look away for a moment, unless somebody tells something."""
        self._has_some.wait(_MAX_IDLE_S)
