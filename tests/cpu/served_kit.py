"""`tapetum serve` as users start it: a process of its own, with the bundled model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading

from tests.cpu.server_kit import eventually

TAPETUM = (sys.executable, "-c", "from tapetum.cli import main; main()")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TAPETUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


class Served:
    """A `tapetum serve` process on a free port; `url` is read from its log."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [*TAPETUM, "serve", "--port", "0", *flags], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        self.url = ""
        self.log: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        assert eventually(lambda: bool(self.url) or self.process.poll() is not None, within_s=60)
        assert self.url, self.log

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if match := re.search(r"serving .* at (http://\S+)/v1", line):
                self.url = match[1]

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)
