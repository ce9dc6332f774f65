"""The processes that read PDF files, as the threads of the media workers see them.

Owns the processes: a few, started when they are needed, each with one file open and one thing to do at a time. Who
asks goes on waiting only as long as somebody waits for the answer; then the process is killed, since nobody can know
when it would come back. A file that crashes its process is refused, and the next who asks gets a new one. One that
somebody else has killed, as a system without memory does, says nothing of the file, which is tried once more.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from tapetum.core.errors import CapacityError, MediaError
from tapetum.media.deadlines import GoOn
from tapetum.media.document_index import PageIndex

MEMORY_BYTES = 1024**3  # of a process, the file included
MAX_PAGE_CHARS = 2**16  # of the text of a page
_END_S = 1.0  # for a process that has closed its pipes to be gone
_WAIT_S = 0.05  # between two looks whether somebody still waits
_PIPE_BYTES = 2**20
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class PdfFile:
    """A file as it came, by the name that the processes know it by."""

    name: str
    data: bytes


class DocumentProcesses:
    """At most `count` processes; all methods may be called from any thread."""

    def __init__(self, count: int, max_pages: int) -> None:
        self._count = count
        self._max_pages = max_pages
        self._state = threading.Condition()  # guards all below
        self._idle: list[_Process] = []  # the one used last is at the end
        self._num_busy = 0
        self._is_closed = False
        self.num_crashes = 0

    def sizes(self, file: PdfFile, go_on: GoOn) -> list[tuple[float, float]]:
        """Width and height of each page in points; raises MediaError for a file that cannot be opened."""
        return self._done(file, lambda process: process.open(file, self._max_pages, go_on), go_on)

    def index(self, file: PdfFile, go_on: GoOn) -> PageIndex:
        _, parts = self._ask(file, go_on, do="index", max_chars=MAX_PAGE_CHARS)
        return PageIndex.from_parts(parts)

    def texts(self, file: PdfFile, pages: Sequence[int], go_on: GoOn) -> list[str]:
        """What is written on pages, which are counted from 0."""
        told, _ = self._ask(file, go_on, do="text", pages=list(pages), max_chars=MAX_PAGE_CHARS)
        return [str(text) for text in told["texts"]]

    def render(self, file: PdfFile, page: int, size: tuple[int, int], go_on: GoOn) -> bytearray:
        """A page, counted from 0, as RGB row by row, stretched to width and height in pixels."""
        _, (pixels,) = self._ask(file, go_on, do="render", page=page, width=size[0], height=size[1])
        return pixels

    def close(self) -> None:
        """End those that have nothing to do; the others end when they are done."""
        with self._state:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.kill()

    @property
    def num_processes(self) -> int:
        return len(self._idle) + self._num_busy

    def _ask(self, file: PdfFile, go_on: GoOn, **question: object) -> tuple[dict[str, Any], list[bytearray]]:
        def ask(process: _Process) -> tuple[dict[str, Any], list[bytearray]]:
            if process.file_name != file.name:
                process.open(file, self._max_pages, go_on)
            return process.ask(question, (), go_on)

        return self._done(file, ask, go_on)

    def _done(self, file: PdfFile, work: Callable[[_Process], T], go_on: GoOn) -> T:
        """What comes of some work on a file; raises MediaError where its process ends over it."""
        for is_last in (False, True):
            try:
                with self._process(file, go_on) as process:
                    return work(process)
            except _Crashed as error:
                with self._state:
                    self.num_crashes += 1
                if is_last or not error.is_killed:
                    raise MediaError(
                        "the document ended the process that reads it, by a fault in the file or by the memory that "
                        f"it takes (limit {MEMORY_BYTES} bytes); save it again or send pictures of its pages"
                    ) from error
        raise AssertionError("the last attempt has an end")

    @contextmanager
    def _process(self, file: PdfFile, go_on: GoOn) -> Iterator[_Process]:
        """One for the caller alone, if possible one that has the file open."""
        process = self._taken(file.name, go_on)
        is_well = False
        try:
            process = process or _Process()
            yield process
            is_well = True
        except MediaError:
            is_well = True
            raise
        finally:
            self._give_back(process, is_well=is_well)

    def _taken(self, name: str, go_on: GoOn) -> _Process | None:
        """One that is idle, or None for the right to start one."""
        with self._state:
            while True:
                go_on()
                if self._is_closed:
                    raise CapacityError(
                        "the server is shutting down and takes no more media; try another one"
                    )
                self._bury()
                if self._idle:
                    self._num_busy += 1
                    known = (at for at, process in enumerate(self._idle) if process.file_name == name)
                    return self._idle.pop(next(known, 0))
                if self._num_busy < self._count:
                    self._num_busy += 1
                    return None
                self._state.wait(_WAIT_S)

    def _bury(self) -> None:
        """Those that ended while they had nothing to do."""
        dead = [process for process in self._idle if not process.is_alive]
        self._idle = [process for process in self._idle if process not in dead]
        self.num_crashes += len(dead)
        for process in dead:
            process.kill()

    def _give_back(self, process: _Process | None, *, is_well: bool) -> None:
        with self._state:
            self._num_busy -= 1
            if process is not None and is_well and not self._is_closed:
                self._idle.append(process)
                process = None
            self._state.notify()
        if process is not None:
            process.kill()


class _Crashed(Exception):
    """The process has ended while it was asked; `is_killed` by somebody else."""

    def __init__(self, *, is_killed: bool) -> None:
        super().__init__()
        self.is_killed = is_killed


class _Process:
    def __init__(self) -> None:
        if importlib.util.find_spec("pypdfium2") is None:
            raise MediaError(
                "PDF documents are not supported by this server: pypdfium2 is missing; install tapetum[pdf], "
                "or send pictures of the pages"
            )
        self.file_name = ""  # of what it has open
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tapetum.media.document_child", str(MEMORY_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a file may make it say anything, as often as it likes
        )
        assert self._process.stdin is not None and self._process.stdout is not None, "they were asked for"
        self._questions, self._answers = self._process.stdin, self._process.stdout
        if sys.platform == "linux":
            with suppress(OSError):  # a page comes through in fewer turns
                fcntl.fcntl(self._answers, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def open(self, file: PdfFile, max_pages: int, go_on: GoOn) -> list[tuple[float, float]]:
        self.file_name = ""
        told, _ = self.ask({"do": "open", "max_pages": max_pages}, (file.data,), go_on)
        self.file_name = file.name
        return [(float(width), float(height)) for width, height in told["pages"]]

    def ask(
        self, question: dict[str, object], payloads: Sequence[bytes], go_on: GoOn
    ) -> tuple[dict[str, Any], list[bytearray]]:
        """The answer and the bytes that came with it; raises MediaError where it is a refusal."""
        head = json.dumps({**question, "sizes": [len(payload) for payload in payloads]}).encode()
        try:
            for piece in (len(head).to_bytes(8, "little"), head, *payloads):
                self._questions.write(piece)
            self._questions.flush()
        except OSError as error:
            raise self._crash() from error
        told = json.loads(self._read(int.from_bytes(self._read(8, go_on), "little"), go_on))
        if "refusal" in told:
            raise MediaError(f"the document {told['refusal']}")
        return told, [self._read(size, go_on) for size in told["sizes"]]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._answers.close()
        with suppress(OSError):  # what was not yet written has nobody to read it
            self._questions.close()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _crash(self) -> _Crashed:
        """It has closed its end, so it is about to be gone."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        return _Crashed(is_killed=self._process.returncode == -signal.SIGKILL)

    def _read(self, size: int, go_on: GoOn) -> bytearray:
        data, count = bytearray(size), 0
        while count < size:
            go_on()
            if select.select([self._answers], [], [], _WAIT_S)[0]:
                num_read = os.readv(self._answers.fileno(), [memoryview(data)[count:]])
                if not num_read:
                    raise self._crash()
                count += num_read
        return data
