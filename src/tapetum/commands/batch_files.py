"""The two files of a batch: requests in, answers out, one JSON object a line.

Owns what makes a batch resumable: every request has its own `custom_id`, every answer is one whole line that is out
before the next begins, and a last line that a crash has torn is cut off and asked again.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Raw, Struct

from tapetum.core.errors import ConfigError, RequestError

_ID_PREFIX = "batch_req_"
_HEAD = f'{{"id":"{_ID_PREFIX}'.encode()  # how every line of an output begins


class Question(Struct, frozen=True):
    """A line of the input. Only its custom_id is checked for the whole file, before anything is asked."""

    custom_id: str
    line: bytes


class Response(Struct, frozen=True):
    status_code: int
    request_id: str
    body: Raw


class Fault(Struct, frozen=True):
    code: str
    message: str


class Entry(Struct, frozen=True, kw_only=True):
    """A line of the output; `error` is set where there is no answer."""

    id: str
    custom_id: str
    response: Response | None
    error: Fault | None

    @classmethod
    def of(cls, custom_id: str, response: Response | None, error: Fault | None) -> Entry:
        name = _ID_PREFIX + os.urandom(12).hex()
        return cls(id=name, custom_id=custom_id, response=response, error=error)


class _Asked(Struct, frozen=True):
    custom_id: str


class _Answered(Struct, frozen=True):
    custom_id: str
    error: Fault | None


_decode_asked = msgspec.json.Decoder(_Asked).decode
_decode_answered = msgspec.json.Decoder(_Answered).decode
_encode = msgspec.json.Encoder().encode


class Input:
    """The requests of a file that can be read twice."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self.custom_ids = self._checked()

    def __iter__(self) -> Iterator[Question]:
        for _, line in self._lines():
            yield Question(_decode_asked(line).custom_id, line)

    def _checked(self) -> frozenset[str]:
        first_seen: dict[str, int] = {}
        for number, line in self._lines():
            custom_id = self._custom_id(number, line)
            if custom_id in first_seen:
                raise RequestError(
                    f"{self._name} line {number}: custom_id {custom_id!r} was already on line "
                    f"{first_seen[custom_id]}; give every line its own"
                )
            first_seen[custom_id] = number
        return frozenset(first_seen)

    def _custom_id(self, number: int, line: bytes) -> str:
        reason = "it is empty"
        try:
            if custom_id := _decode_asked(line).custom_id:
                return custom_id
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason = str(error)
        raise RequestError(
            f"{self._name} line {number} has no custom_id: {reason}; write one JSON object a line, "
            '{"custom_id": "...", "method": "POST", "url": "/v1/chat/completions", "body": {...}}'
        )

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        self._file.seek(0)
        return ((number, line) for number, line in enumerate(self._file, 1) if line.strip())


class Output:
    """The file of answers. `answered` says of each custom_id in it whether it has an answer or an error."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise ConfigError(f"cannot write to {path}: {error.strerror}; choose another -o") from error
        self._path = path
        self.answered: dict[str, bool] = {}
        self._codes: dict[str, str] = {}  # of those that have an error
        try:
            self._lock()
            self._resume()
        except BaseException:
            self._file.close()
            raise

    def write(self, entry: Entry) -> None:
        try:
            self._file.write(_encode(entry) + b"\n")
            self._file.flush()
        except OSError as error:
            raise ConfigError(
                f"cannot write to {self._path}: {error.strerror}; make room, then run again"
            ) from error
        self._remember(entry.custom_id, entry.error)

    def close(self) -> None:
        with suppress(OSError):  # what could not be written has been told
            self._file.close()

    def num_answered(self, custom_ids: frozenset[str]) -> int:
        return sum(self.answered.get(custom_id, False) for custom_id in custom_ids)

    def errors(self, custom_ids: frozenset[str]) -> Counter[str]:
        """How often each code of an error stands where an answer should."""
        return Counter(code for custom_id, code in self._codes.items() if custom_id in custom_ids)

    def _remember(self, custom_id: str, error: Fault | None) -> None:
        self.answered[custom_id] = error is None
        self._codes.pop(custom_id, None)
        if error is not None:
            self._codes[custom_id] = error.code

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another run writes to {self._path}; wait for it or choose another -o"
            ) from None
        except OSError:
            pass  # a file system without locks

    def _resume(self) -> None:
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n") and _HEAD.startswith(line[: len(_HEAD)]):
                self._file.truncate(end)
                return
            self._note(number, line)
            end += len(line)

    def _note(self, number: int, line: bytes) -> None:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            entry = _decode_answered(line)
            self._remember(entry.custom_id, entry.error)
            return
        raise ConfigError(
            f"{self._path} line {number} is not an answer of a batch; choose another -o, or repair the line"
        )
