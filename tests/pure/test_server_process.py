"""Settings of the server's process, tried in a process of their own."""

from __future__ import annotations

import platform
import subprocess
import sys
import textwrap

import pytest


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries give back by themselves")
def test_freed_memory_goes_back_to_the_system():
    """Between small things that stay, in the heap of a thread that sleeps."""
    script = """
        import os, threading
        from tapetum.server.process import give_back_memory, keep_loop_on_time

        def num_mib():
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

        keep_loop_on_time()
        kept, freed = [], threading.Event()

        def work():
            buffers = []
            for number in range(2000):
                buffers.append(bytearray(150_000))
                kept.append(bytearray(700))
            del buffers
            freed.set()
            threading.Event().wait()

        threading.Thread(target=work, daemon=True).start()
        freed.wait()
        before = num_mib()
        give_back_memory()
        assert before > 250 and num_mib() < before - 200, (before, num_mib())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
