"""The engine's process before it knows what it is to be, with the shared memory that it inherits.

It may be started before anything else of the front is there: what both have to import they import at the same time.
It waits for its opening (process.py), and ends if the front does without having sent one. Nothing is imported here
that takes time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass

ARENA_BYTES = 512 * 1024**2
IMPORTS = ("tapetum.engine.build", "tapetum.runtime.executor")  # what an engine with a model will need


@dataclass(frozen=True, slots=True, eq=False)
class Child:
    process: subprocess.Popen[bytes]
    arena_file: int  # open in both processes
    arena_bytes: int


def start_child(arena_bytes: int = ARENA_BYTES, imports: tuple[str, ...] = IMPORTS) -> Child:
    """Raises OSError where there is no process or no memory to be had."""
    file = anonymous_file(arena_bytes)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "tapetum.engine.process", *imports],
            stdin=subprocess.PIPE,
            pass_fds=[file],
        )
    except OSError:
        os.close(file)
        raise
    return Child(process, file, arena_bytes)


def try_start_child() -> Child | None:
    """Early, where that can be; who needs it and has none tries again and says why it cannot be."""
    try:
        return start_child()
    except OSError:
        return None


def anonymous_file(num_bytes: int) -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("tapetum-patches")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, num_bytes)
    return file
