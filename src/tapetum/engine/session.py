"""One engine process, from its start to its end, as the front sees it.

Owns the process, the sockets to it, and the arena in which patches cross over. The process ends with its front, however
that ends, and its end is the death that is told. What a request holds of the arena is freed with its last news.
"""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from itertools import count

import zmq

from tapetum.core.config import EngineConfig
from tapetum.core.errors import CapacityError, EngineDead, EngineError, TapetumError
from tapetum.core.model import ModelFacts
from tapetum.core.request import Request
from tapetum.core.stats import Backlog
from tapetum.engine.arena import Arena
from tapetum.engine.child import Child
from tapetum.engine.forecast import Workload
from tapetum.engine.holdings import Holdings
from tapetum.engine.link import OnDeath, OnNews
from tapetum.engine.loop import MAX_STEP_S
from tapetum.engine.messages import (
    Answer,
    Ask,
    Beat,
    Failed,
    LetGo,
    News,
    Opening,
    Ready,
    Stop,
    add_message,
    decode_report,
    encode,
)
from tapetum.engine.output import Delta
from tapetum.engine.reservations import Reserved, Wanted
from tapetum.engine.undecoded import PATIENCE_S

_log = logging.getLogger(__name__)
_MAX_SILENCE_S = 10.0  # without a beat the process hangs
_ANSWER_S = 30.0
_END_S = 10.0  # for a process to end once it has been told to, beyond its grace


class Session:
    """One engine process from its start to its end; a new process is a new session."""

    def __init__(
        self, config: EngineConfig, builder: str, child: Child, on_news: OnNews, on_death: OnDeath
    ) -> None:
        self.backlog = Backlog()
        self._on_news = on_news
        self._on_death = on_death
        self._facts: Future[ModelFacts] = Future()
        self._last_beat_s = time.monotonic()
        self._loop_age_s = 0.0
        self._is_stopping = False
        self._state = threading.Lock()  # guards what is below
        self._death: EngineDead | None = None
        self._questions: dict[int, Future[Answer]] = {}
        self._numbers = count()
        self._sending = threading.Lock()
        self._process = child.process
        with ExitStack() as held:
            held.callback(self._end_process)
            self.arena = Arena(child.arena_file, child.arena_bytes)
            held.callback(self.arena.close)
            self.holdings = Holdings(self.arena)
            self._folder = tempfile.mkdtemp(prefix="tapetum-")  # only this user can look into it
            held.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._commands = self._bound(zmq.PUSH, "commands", held)
            self._reports = self._bound(zmq.PULL, "reports", held)
            self._open(config, builder, child)
            self._held = held.pop_all()  # until the end
        self._reader = threading.Thread(target=self._read, name="tapetum-reports", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def opened(self) -> ModelFacts:
        """Wait until the engine is ready; raises what kept it from that."""
        return self._facts.result()

    @property
    def is_healthy(self) -> bool:
        silence_s = time.monotonic() - self._last_beat_s
        is_alive = self._death is None and self._process.poll() is None
        return is_alive and silence_s < _MAX_SILENCE_S and self._loop_age_s + silence_s < MAX_STEP_S

    def stop(self, grace_s: float) -> None:
        self._is_stopping = True
        if self._facts.done():
            self.send(Stop(grace_s))
        else:
            self._process.kill()  # it loads, nothing is lost
        try:
            self._process.wait(grace_s + _END_S)
        except subprocess.TimeoutExpired:
            _log.warning("the engine process does not end; killing it")
            self._process.kill()
        self._reader.join()

    def add(self, request: Request) -> None:
        try:
            self.send(add_message(request, self.holdings.offsets(request)))
        except BaseException:  # no news will come of it
            self.holdings.let_go(request.request_id)
            raise

    def send(self, command: object) -> None:
        """Never waits: a command for which nobody is there is dropped, since the end of the process tells them all."""
        message = encode(command)
        with self._sending:
            if self._commands.closed:
                return
            with suppress(zmq.Again):  # it has gone, which is not known here yet
                self._commands.send(message, zmq.DONTWAIT)

    def ask(self, subject: str, workload: Workload | None = None) -> Answer:
        """Blocks until the engine has answered."""
        try:
            return self._answer_to(
                Ask(number=next(self._numbers), subject=subject, workload=workload), _ANSWER_S
            )
        except TimeoutError:
            raise CapacityError(f"the engine does not answer within {_ANSWER_S:g} s; ask again") from None

    def reserve(self, request_id: str, wanted: tuple[Wanted, ...]) -> Reserved:
        """What the engine keeps for a request, nothing where it does not say so soon."""
        ask = Ask(number=next(self._numbers), subject="reserved", request_id=request_id, wanted=wanted)
        try:
            return self._answer_to(ask, PATIENCE_S).reserved or (None,) * len(wanted)
        except TimeoutError:
            self.send(LetGo(request_id))
            return (None,) * len(wanted)

    def _answer_to(self, ask: Ask, patience_s: float) -> Answer:
        """Raises TimeoutError, EngineDead, or what the engine has to say against the question."""
        future: Future[Answer] = Future()
        with self._state:
            if self._death is not None:
                raise EngineDead(self._death.message)
            self._questions[ask.number] = future
        self.send(ask)
        try:
            answer = future.result(patience_s)
        finally:
            with self._state:
                self._questions.pop(ask.number, None)
        if answer.error is not None:
            raise answer.error
        return answer

    def _bound(self, kind: int, name: str, held: ExitStack) -> zmq.Socket[bytes]:
        bound: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        held.callback(bound.close, linger=0)
        bound.set_hwm(0)
        bound.bind(self._address(name))
        return bound

    def _address(self, name: str) -> str:
        return f"ipc://{self._folder}/{name}"

    def _open(self, config: EngineConfig, builder: str, child: Child) -> None:
        """Tell the process what it is to be."""
        opening = encode(
            Opening(
                config=config,
                builder=builder,
                commands=self._address("commands"),
                reports=self._address("reports"),
                arena_file=child.arena_file,
                arena_bytes=child.arena_bytes,
                log_level=logging.getLevelName(logging.getLogger("tapetum").getEffectiveLevel()),
            )
        )
        assert self._process.stdin is not None, "it was asked for"
        with suppress(BrokenPipeError):  # it has ended already, which is seen when it is listened to
            self._process.stdin.write(len(opening).to_bytes(8, "little") + opening)
            self._process.stdin.flush()

    def _end_process(self) -> None:
        """It has ended, or nobody will ever listen to it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        """The thread that hears the engine. Whatever goes wrong here, the process ends and everybody is told."""
        try:
            error = self._listen()
        except Exception as fault:
            _log.exception("the engine cannot be heard any more")
            error = EngineError(f"its reports cannot be read: {type(fault).__name__}: {fault}")
            self._process.kill()
            self._process.wait()
        self._end(error)

    def _listen(self) -> TapetumError | None:
        """Until the process has ended and nothing more comes; the error it ended with, if it said one."""
        error: TapetumError | None = None
        while True:
            if not self._reports.poll(200):
                if self._process.poll() is None:
                    continue
                if not self._reports.poll(0):
                    return error
            report = decode_report(self._reports.recv())
            match report:
                case Ready(facts):
                    self._meet()
                    self._beat(0.0, self.backlog)
                    self._facts.set_result(facts)
                case News(deltas, backlog):
                    self._beat(0.0, backlog)
                    self._hear(deltas)
                case Beat(loop_age_s, backlog):
                    self._beat(loop_age_s, backlog)
                case Answer(number=number):
                    self._take(number, report)
                case Failed():
                    error = report.error

    def _meet(self) -> None:
        """Wait until commands have somebody to go to. Then the sockets need their names no longer."""
        while not self._commands.poll(100, zmq.POLLOUT) and self._process.poll() is None:
            pass
        shutil.rmtree(self._folder, ignore_errors=True)  # a front that is killed leaves nothing behind

    def _beat(self, loop_age_s: float, backlog: Backlog) -> None:
        self._last_beat_s, self._loop_age_s, self.backlog = time.monotonic(), loop_age_s, backlog

    def _hear(self, deltas: Mapping[str, Delta]) -> None:
        for request_id, delta in deltas.items():
            if delta.finish_reason is not None:
                self.holdings.let_go(request_id)
        self._on_news(deltas)

    def _take(self, number: int, answer: Answer) -> None:
        with self._state:
            future = self._questions.pop(number, None)
        if future is not None:
            future.set_result(answer)

    def _end(self, error: TapetumError | None) -> None:
        """The process has ended: tell everybody who waits, and clear away what it left."""
        how = _how(self._process.returncode) if error is None else f": {error.message}"
        death = EngineDead(f"the engine process has ended{how}; restart the server")
        with self._state:
            self._death = death
            questions = list(self._questions.values())
        for future in questions:
            future.set_exception(EngineDead(death.message))
        with self._sending:
            self._held.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not self._facts.done():
            self._facts.set_exception(error or death)
        elif self._process.returncode or not self._is_stopping:  # else it has told everybody before its end
            _log.error("%s", death.message)
            self._on_death(death)


def _how(code: int) -> str:
    """How a process ended, by its exit code; below 0 it is the number of a signal, which may have no name."""
    names = {number.value: number.name for number in signal.Signals}
    return f" by {names.get(-code, f'signal {-code}')}" if code < 0 else f" with exit code {code}"
