"""Asks the questions of a batch, several at a time, and writes each answer as it comes.

Owns what counts as an answer. A fault of one question is its answer; a server that is full is asked again later; one
that is gone ends the run, and what it has not answered stays to be asked by the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import httpx2
import msgspec
from msgspec import Raw, Struct

from tapetum.commands.batch_files import Entry, Fault, Output, Question, Response
from tapetum.core.errors import CapacityError

_MAX_TRIES = 20
_MAX_WAIT_S = 30.0  # between two tries
_FULL = (429, 503)


class BadLine(Exception):
    """A line that is no request; the others go on."""


class _Line(Struct, frozen=True):
    url: str
    body: Raw
    method: str = "POST"


class _Body(Struct, frozen=True):
    stream: object = None


class _ErrorDetail(Struct, frozen=True):
    message: str
    code: str | None = None


class _ErrorBody(Struct, frozen=True):
    error: _ErrorDetail


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_body = msgspec.json.Decoder(_Body).decode
_decode_error = msgspec.json.Decoder(_ErrorBody, strict=False).decode


class BatchRun:
    """`told` is called after each answer with whether it is one."""

    def __init__(self, client: httpx2.AsyncClient, output: Output, told: Callable[[bool], None]) -> None:
        self._client = client
        self._output = output
        self._told = told

    async def ask_all(self, questions: Iterator[Question], concurrency: int) -> None:
        """Raises what ends the run for all; answers that are there by then are written."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(self._work(questions))
        except ExceptionGroup as faults:  # the first has ended the others
            raise faults.exceptions[0] from None

    async def _work(self, questions: Iterator[Question]) -> None:
        for question in questions:  # shared: each worker takes the next that nobody has taken
            entry = await self._entry(question)
            self._output.write(entry)
            self._told(entry.error is None)

    async def _entry(self, question: Question) -> Entry:
        try:
            line = _request_of(question.line)
        except BadLine as error:
            return Entry.of(question.custom_id, None, Fault("invalid_request", str(error)))
        answer = await self._post(line)
        response = Response(answer.status_code, answer.headers.get("x-request-id", ""), _json_of(answer))
        return Entry.of(question.custom_id, response, None if answer.is_success else _fault_of(answer))

    async def _post(self, line: _Line) -> httpx2.Response:
        headers = {"content-type": "application/json"}
        for _ in range(_MAX_TRIES):
            answer = await self._client.post(line.url, content=bytes(line.body), headers=headers)
            if answer.status_code not in _FULL:
                return answer
            await asyncio.sleep(_wait_s(answer))
        raise CapacityError(
            f"the server has refused {_MAX_TRIES} times: {_fault_of(answer).message}; run the command again later"
        )


def _request_of(text: bytes) -> _Line:
    try:
        line = _decode_line(text)
        streams = _decode_body(line.body).stream
    except msgspec.DecodeError as error:
        raise BadLine(f"the line is no request: {error}") from error
    if line.method != "POST" or not line.url.startswith("/v1/"):
        raise BadLine(f'"{line.method} {line.url}" is not served in a batch; POST to /v1/chat/completions')
    if streams:
        raise BadLine("stream is set; a batch takes whole answers, leave it out")
    return line


def _wait_s(answer: httpx2.Response) -> float:
    told = answer.headers.get("retry-after", "")
    return min(float(told), _MAX_WAIT_S) if told.isdecimal() else 1.0


def _json_of(answer: httpx2.Response) -> Raw:
    """The body as it is, in one line; a body that is no JSON (a proxy's page) as a JSON string."""
    try:
        return Raw(msgspec.json.format(answer.content, indent=-1))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Raw(msgspec.json.encode(answer.text))


def _fault_of(answer: httpx2.Response) -> Fault:
    unnamed = f"http_{answer.status_code}"
    try:
        error = _decode_error(answer.content).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Fault(unnamed, answer.reason_phrase or "the request failed")
    return Fault(error.code or unnamed, error.message)
