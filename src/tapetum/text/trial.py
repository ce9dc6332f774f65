"""Trying grammars out where they can do no harm: in a process of its own.

A few lines of schema can take a compiler minutes, or its stack. So the first to compile a grammar is a process that
has a bound on its time and memory, dies of the bad ones, and is started again. It starts with the first grammar and
ends with its parent: the end of its input is its own. Both sides speak JSON, a line a message.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict

import tokenizers

from tapetum.core.errors import CapacityError, InvalidParameter, Overloaded
from tapetum.core.request import Grammar
from tapetum.text.grammar import check_grammar, check_size, refusal
from tapetum.text.tokenizer import Tokenizer

MAX_CPU_S = 1.0  # of one grammar; nearly all take milliseconds
_MAX_BYTES = 2**31  # of the whole process
_MAX_WAIT_S = 30.0  # for the grammars before; for the first, which waits for the process, several seconds
_MAX_WAITING = 256
_MAX_END_S = 5.0
_MAX_PASSED = 64
_COMMAND = (sys.executable, "-m", "tapetum.text.trial")


class Trials:
    """Checks grammars for one tokenizer, one at a time on a thread of its own; from any thread. `close` ends all."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._state = threading.Lock()  # guards the pool, whose one thread has the rest
        self._pool: ThreadPoolExecutor | None = None
        self._is_closing = False
        self._waiting: set[Future[None]] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._passed: dict[Grammar, None] = {}  # the latest, oldest first

    def check(self, grammar: Grammar) -> None:
        """Raises InvalidParameter for a grammar that cannot be kept to or costs too much; blocks meanwhile."""
        future = self._submit(grammar)
        try:
            future.result(_MAX_WAIT_S)
        except TimeoutError:
            future.cancel()
            raise _busy() from None

    async def check_aside(self, grammar: Grammar) -> None:
        """Like `check`, and no thread waits for it. Whoever is cancelled takes the grammar out of the queue."""
        try:
            async with asyncio.timeout(_MAX_WAIT_S):
                await asyncio.wrap_future(self._submit(grammar))
        except TimeoutError:
            raise _busy() from None

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process is not None else None

    def close(self) -> None:
        """Ends the process; who waits is refused."""
        with self._state:
            self._is_closing = True
            if self._pool is not None:
                self._pool.shutdown()
            self._pool = None
            self._end()
            self._is_closing = False

    def _submit(self, grammar: Grammar) -> Future[None]:
        check_size(grammar)
        if grammar in self._passed:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        if len(self._waiting) >= _MAX_WAITING:
            raise Overloaded(f"{_MAX_WAITING} grammars wait to be compiled, the limit; try again later")
        with self._state:
            self._pool = self._pool or ThreadPoolExecutor(1, "tapetum-trial")
            future = self._pool.submit(self._run, grammar)
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def _run(self, grammar: Grammar) -> None:
        if self._is_closing:
            raise CapacityError("the engine is shutting down; ask another or come back later")
        if grammar in self._passed:
            return  # another of its kind came before
        self._try(grammar)
        self._passed[grammar] = None
        if len(self._passed) > _MAX_PASSED:
            del self._passed[next(iter(self._passed))]

    def _try(self, grammar: Grammar) -> None:
        reply = self._reply(grammar)
        if reply is None and self._end() != -signal.SIGPROF:
            reply = self._reply(grammar)  # it may have died of something else, such as a kill from outside
        if reply is None:
            self._end()
            raise refusal(grammar.param, f"it takes more than {MAX_CPU_S:g} s or too much memory to compile")
        error = json.loads(reply)
        if error is not None:
            raise InvalidParameter(error, param=grammar.param)

    def _reply(self, grammar: Grammar) -> bytes | None:
        if self._process is None or self._process.poll() is not None:
            self._start()
        return self._ask(json.dumps(asdict(grammar)))

    def _start(self) -> None:
        self._end()
        self._process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self._ask(json.dumps([self._tokenizer.to_json(), self._tokenizer.slot_texts])) is None:
            raise CapacityError("the process that tries grammars out does not start; try again later")

    def _ask(self, line: str) -> bytes | None:
        """The answer to a line; None if the process has died of it."""
        assert self._process is not None, "it has been started"
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None and sink is not None, "both are pipes"
        try:
            sink.write(line.encode() + b"\n")
            sink.flush()
        except BrokenPipeError:
            return None
        return source.readline() or None

    def _end(self) -> int | None:
        """How the process ended: at the end of its input, or before; None if there was none."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            process.communicate(timeout=_MAX_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return process.returncode


def _busy() -> Overloaded:
    return Overloaded(f"other grammars have been compiled for {_MAX_WAIT_S:g} s; try again later")


def main() -> None:
    """The process: a tokenizer first, then grammars; answers to each null or what is wrong with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # goes to the whole group, and the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lines = iter(sys.stdin.buffer.readline, b"")
    text, slots = json.loads(next(lines))
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(text), slots=slots)
    assert tokenizer.number_tokens is not None, "made before the clock runs, as is the trie"
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    _answer(None)
    for line in lines:
        signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # its signal ends the process
        try:
            check_grammar(Grammar(**json.loads(line)), tokenizer)
            _answer(None)
        except InvalidParameter as error:
            _answer(error.message)
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _answer(error: str | None) -> None:
    sys.stdout.write(json.dumps(error) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
