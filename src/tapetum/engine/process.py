"""The engine process: `python -m tapetum.engine.process MODULE...`, started by the front (child.py), never by hand.

It imports the modules named and reads what it is to be from its standard input, which then stays open: its end means
that the front is gone, and this process ends too. Commands come in on the main thread, which also gives a sign of life
every second; the loop steps on a thread of its own. Signals that stop a server go to the whole group, but it is the
front that drains, so here they are ignored.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import numpy as np
import zmq

from tapetum.core.config import EngineConfig
from tapetum.core.errors import EngineDead, EngineError, TapetumError
from tapetum.core.logs import set_up_logging
from tapetum.core.media import MediaItem
from tapetum.engine.arena import ArenaReader
from tapetum.engine.engine import Engine
from tapetum.engine.loop import EngineLoop
from tapetum.engine.messages import (
    Abort,
    Add,
    Answer,
    Ask,
    Beat,
    Command,
    Failed,
    ItemMessage,
    LetGo,
    News,
    Opening,
    Ready,
    Report,
    Stop,
    decode_command,
    decode_opening,
    encode,
    request_of,
)
from tapetum.engine.output import Delta
from tapetum.engine.reservations import Reserved

_log = logging.getLogger("tapetum.engine.process")  # not __main__
BEAT_S = 1.0
_LENGTH_BYTES = 8  # of the opening, before it
_LINGER_MS = 2000


def main() -> None:
    gc.disable()  # nothing of what is made while a model loads is rubbish
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for module in sys.argv[1:]:
        importlib.import_module(module)
    source = sys.stdin.buffer
    length = int.from_bytes(source.read(_LENGTH_BYTES), "little")
    if not length:
        sys.exit("the engine was not told what to be: its server has ended before")
    opening = decode_opening(source.read(length))
    threading.Thread(target=_end_with, args=(source.fileno(),), daemon=True).start()
    set_up_logging(opening.log_level)
    reports = _Reports(opening.reports)
    try:
        engine = _builder(opening.builder)(opening.config)
    except Exception as error:
        if not isinstance(error, TapetumError):
            _log.exception("the engine cannot be built")
            error = EngineError(f"the engine cannot be built: {type(error).__name__}: {error}")
        reports.send(Failed(error))
        reports.close()
        sys.exit(1)
    gc.freeze()  # all of it stays: no collection has to look at it
    gc.enable()
    _Server(engine, opening, reports).run()


def _end_with(file: int) -> None:
    """End this process at once when the front has closed its end, whatever else goes on here."""
    while os.read(file, 1):
        pass
    os._exit(0)


def _builder(path: str) -> Callable[[EngineConfig], Engine]:
    module, _, name = path.partition(":")
    found: Callable[[EngineConfig], Engine] = getattr(importlib.import_module(module), name)
    return found


class _Reports:
    """The socket to the front; any thread may send."""

    def __init__(self, address: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.set_hwm(0)  # what the front has not read waits; the loop never does
        self._socket.connect(address)
        self._lock = threading.Lock()

    def send(self, report: Report) -> None:
        message = encode(report)
        with self._lock:
            self._socket.send(message)

    def close(self) -> None:
        """Everything sent arrives before this returns, if anybody takes it."""
        with self._lock:
            self._socket.close(linger=_LINGER_MS)
        zmq.Context.instance().term()  # closing alone does not wait; no other socket may be open by now


class _Server:
    """Carries out commands until it is told to stop or the loop has ended."""

    def __init__(self, engine: Engine, opening: Opening, reports: _Reports) -> None:
        self._engine = engine
        self._reports = reports
        self._arena = ArenaReader(opening.arena_file, opening.arena_bytes)
        self._loop = EngineLoop(engine, on_news=self._tell, on_death=self._die)
        self._is_over = threading.Event()
        self._exit_code = 0
        self._commands: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        self._commands.set_hwm(0)
        self._commands.connect(opening.commands)

    def run(self) -> None:
        self._loop.start()
        self._reports.send(Ready(self._engine.facts))
        last_beat_s = 0.0
        while not self._is_over.is_set():
            now = self._engine.clock()
            if now - last_beat_s >= BEAT_S:
                last_beat_s = now
                self._reports.send(Beat(self._loop.heartbeat_age_s, self._engine.backlog))
            if self._commands.poll(100):
                self._carry_out(decode_command(self._commands.recv()))
        self._commands.close(linger=0)
        self._reports.close()
        sys.exit(self._exit_code)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Add():
                self._loop.add(request_of(command, [self._item(item) for item in command.items]))
            case Abort(request_id):
                self._loop.abort(request_id)
            case LetGo(request_id):
                self._engine.let_go(request_id)
            case Stop(grace_s):
                threading.Thread(target=self._stop, args=(grace_s,), daemon=True).start()
            case Ask(subject="reset_caches"):  # the loop has to be between two steps for it
                threading.Thread(target=self._answer, args=(command,), daemon=True).start()
            case Ask(subject="reserved"):
                self._reserve(command)
            case Ask():
                self._answer(command)

    def _item(self, message: ItemMessage) -> MediaItem:
        patches: object
        if message.is_reserved:
            patches = None
        elif message.offset >= 0:
            patches = self._arena.array(message.offset, message.shape)
        else:
            patches = np.frombuffer(bytearray(message.patches), np.uint8).reshape(message.shape)
        return MediaItem(
            key=message.key,
            geometry=message.geometry,
            patches=patches,
            parts=message.parts,
            alias=message.alias,
            is_reserved=message.is_reserved,
            fetch_s=message.fetch_s,
            decode_s=message.decode_s,
            resize_s=message.resize_s,
            processor=message.processor,
            degraded=message.degraded,
            compared_with=message.compared_with,
        )

    def _reserve(self, ask: Ask) -> None:
        """The answer comes when tiers have been looked into, and not at all where nobody waits for it any more."""

        def tell(done: Future[Reserved]) -> None:
            if not done.cancelled():
                self._reports.send(Answer(number=ask.number, reserved=done.result()))

        self._engine.reserve(ask.request_id, ask.wanted).add_done_callback(tell)

    def _answer(self, ask: Ask) -> None:
        try:
            self._reports.send(self._answer_to(ask))
        except Exception as error:
            _log.exception("%s cannot be answered", ask.subject)
            self._reports.send(
                Answer(number=ask.number, error=EngineError(f"{ask.subject} cannot be answered: {error}"))
            )

    def _answer_to(self, ask: Ask) -> Answer:
        engine, number = self._engine, ask.number
        match ask.subject:
            case "stats":
                return Answer(number=number, stats=engine.stats)
            case "metrics":
                return Answer(number=number, metrics=engine.metrics(self._loop.heartbeat_age_s))
            case "media_keys":
                return Answer(number=number, media_keys=engine.media_keys)
            case "reset_caches":
                self._loop.reset_caches()
                return Answer(number=number, reset_caches=True)
            case "forecast" if ask.workload is not None:
                return Answer(number=number, forecast=engine.forecast(ask.workload))
        raise ValueError(f"nobody knows about {ask.subject}")

    def _stop(self, grace_s: float) -> None:
        self._loop.stop(grace_s)
        self._is_over.set()

    def _tell(self, news: Mapping[str, Delta]) -> None:
        self._reports.send(News(dict(news), self._engine.backlog))

    def _die(self, death: EngineDead) -> None:
        self._reports.send(Failed(death))
        self._exit_code = 1
        self._is_over.set()


if __name__ == "__main__":
    main()
