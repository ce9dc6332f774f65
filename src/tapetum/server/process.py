"""Settings of the server's own process: its standard files, its memory, and what keeps its event loop on time while
pictures are prepared beside it.

Threads take turns at the interpreter, and large buffers cost what their pages cost: both are process-wide, so they are
set where a process is known to be a server, and nowhere else.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys

_TURN_S = 0.001  # how long another thread may go on once the loop wants the interpreter; by default 5 ms
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_BYTES, _KEPT_BYTES = 8 * 1024**2, 64 * 1024**2


def keep_standard_files() -> None:
    """Call it before any file is opened: a number that was closed would go to a socket, and with it what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def keep_loop_on_time() -> None:
    """Call it once, before the first request.

    Large buffers, those of decoded pictures, come from the system at every use, zeroed page by page as they are
    written. From the heap they would be cleared at once instead, by a thread that holds the interpreter: 20 ms for 12
    megapixels. What is smaller, such as a body, comes from a heap that keeps its pages, for new ones cost as much as
    the bytes in them.
    """
    sys.setswitchinterval(_TURN_S)
    _of_glibc("mallopt", _M_MMAP_THRESHOLD, _LARGE_BYTES)
    _of_glibc("mallopt", _M_TRIM_THRESHOLD, _KEPT_BYTES)
    gc.freeze()  # what has been imported stays, and no collection has to look at it


def give_back_memory() -> None:
    """Let the system have the pages of what was freed: every thread has a heap, which else stays as large as it was
    once. Call it while nothing is to be done, since the next buffers take new pages.
    """
    _of_glibc("malloc_trim", 0)


def _of_glibc(name: str, *numbers: int) -> None:
    """Call one of its functions; other libraries go without."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*numbers)
