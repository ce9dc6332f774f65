"""Answers, streams and servers made up by hand, for tests of the conformance checks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tests.conformance import relations
from tests.conformance.exposition import Numbers
from tests.conformance.observation import Observation, Unmet
from tests.conformance.process import Process, Start
from tests.conformance.reply import Chunk, Reply
from tests.conformance.trial import PromptSeen, Segment, Span, Trial

LOGITS = {"red": -0.1, "blue": -2.5, "a": -4.0}
USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 0, "visual_tokens": 16},
}


def answer(
    text: str = "red",
    *,
    logits: Mapping[str, float] | None = LOGITS,
    usage: Mapping[str, object] = USAGE,
    asked: dict | None = None,
    finish_reason: str = "stop",
    num_choices: int = 1,
    seconds: float = 0.1,
    began_s: float = 0.0,
) -> Reply:
    """A whole answer."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": text},
            "logprobs": _logprobs(logits),
            "finish_reason": finish_reason,
        }
        for index in range(num_choices)
    ]
    body = json.dumps({"choices": choices, "usage": usage}).encode()
    return Reply(asked=asked or {}, status=200, body=body, began_s=began_s, ended_s=began_s + seconds)


def stream(
    *pieces: str | bytes, times: Sequence[float] = (), usage: bool = False, asked: dict | None = None
) -> Reply:
    """A streamed answer: an opening, each piece at its time, an end. Bytes are the data of a chunk as they are."""
    data = [_piece("")]
    data += [piece if isinstance(piece, bytes) else _piece(piece) for piece in pieces]
    if usage:
        data.append(json.dumps({"choices": [], "usage": USAGE}).encode())
    data.append(b"[DONE]")
    at = [0.0, *(times or [0.1 * (index + 1) for index in range(len(pieces))])]
    at += [at[-1]] * (len(data) - len(at))
    chunks = tuple(map(Chunk, data, at))
    return Reply(asked=asked or {}, status=200, body=b"\n".join(data), chunks=chunks)


def failure(
    status: int | None = 400,
    message: str = "the prompt is too long",
    *,
    seconds: float = 0.1,
    **fields: object,
) -> Reply:
    """An error as it should be, or no answer at all."""
    body = b"" if status is None else json.dumps({"error": {"message": message}}).encode()
    return Reply(status=status, body=body, ended_s=seconds, failure="" if status else message, **fields)


def scrape(**counts: float) -> Reply:
    """An answer of /metrics; `finished_stop` and the like are labels of request_success."""
    lines = []
    for name, value in counts.items():
        if name.startswith("finished_"):
            name = f'request_success_total{{finished_reason="{name.removeprefix("finished_")}"}}'
        elif name in ("prompt_tokens", "generation_tokens"):
            name = f"{name}_total"
        kind = "counter" if "_total" in name else "gauge"
        bare = name.partition("{")[0].removesuffix("_total")
        lines += [f"# TYPE tapetum:{bare} {kind}", f"tapetum:{name} {value}"]
    return Reply(path="/metrics", status=200, body="\n".join(dict.fromkeys(lines)).encode() + b"\n")


def start(code: int | None = None, *, ready: bool = False, log: str = "", seconds: float = 1.0) -> Start:
    return Start(is_ready=ready, exit_code=code, seconds=seconds, flags=("--max-model-len", "64"), log=log)


class MadeUpServer:
    """Answers what it is told to."""

    def __init__(
        self,
        *,
        answers: Sequence[Reply] = (),
        prompts: Sequence[PromptSeen] = (),
        scrapes: Sequence[Reply] = (),
        ended: tuple[int, float] | None = None,
        orphans: Sequence[Process] = (),
        is_healthy: bool = True,
    ) -> None:
        self._answers = list(answers)
        self._prompts = list(prompts)
        self._scrapes = list(scrapes)
        self._ended = ended
        self._orphans = orphans
        self._is_healthy = is_healthy
        self.num_resets = 0

    async def post(self, body: dict) -> Reply:
        return _next(self._answers)

    async def prompt_of(self, body: dict) -> PromptSeen:
        return _next(self._prompts)

    async def numbers(self) -> Numbers:
        return Numbers(_next(self._scrapes).body.decode())

    async def reset_caches(self) -> None:
        self.num_resets += 1

    async def check_health(self) -> None:
        if not self._is_healthy:
            raise Unmet("/health is 200; seen: 503")

    async def ended(self, within_s: float) -> tuple[int, float] | None:
        return self._ended

    async def orphans(self, within_s: float) -> Sequence[Process]:
        return self._orphans


def seen(**saved: Reply | int | Sequence[Reply | int]) -> Observation:
    """What was saved under which name."""
    found = Observation()
    for name, values in saved.items():
        for value in values if isinstance(values, list | tuple) else [values]:
            found.keep(name, value)
            if isinstance(value, Reply):
                found.replies.append(value)
    return found


def prompt(*parts: str, roles: Sequence[str] = ("user", "assistant"), keys: Sequence[str] = ()) -> PromptSeen:
    """A prompt of texts and, written as image or video, pictures and clips."""
    kinds = [part if part in ("image", "video") else "text" for part in parts]
    named = iter(keys)
    spans = [
        Span(kind, index, index + 1, next(named, f"key {index}"))
        for index, kind in enumerate(kinds)
        if kind != "text"
    ]
    segments = [
        Segment(kind, part if kind == "text" else "") for kind, part in zip(kinds, parts, strict=True)
    ]
    return PromptSeen(spans, segments, roles)


def problem(
    check: dict, observation: Observation, server: MadeUpServer | None = None, **answers: Reply
) -> str | None:
    """Why a check does not hold."""
    assert relations.check_form(check) is None
    trial = Trial(observation, server or MadeUpServer(), answers, "C00")
    try:
        asyncio.run(relations.hold(trial, check))
    except Unmet as unmet:
        return str(unmet)
    return None


@dataclass(frozen=True)
class Example:
    """A check, what it holds of and what it must not hold of; the servers are those that go with each."""

    check: dict
    right: Sequence[Observation]
    wrong: Sequence[Observation]
    right_server: MadeUpServer | None = None
    wrong_server: MadeUpServer | None = None

    def prove(self) -> None:
        control = answer()
        for observation in self.right:
            assert problem(self.check, observation, self.right_server, C00=control) is None
        for observation in self.wrong:
            assert problem(self.check, observation, self.wrong_server, C00=control), observation


def with_(observation: Observation, **fields: object) -> Observation:
    return replace(observation, **fields)


def _piece(text: str) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()


def _logprobs(logits: Mapping[str, float] | None) -> dict | None:
    if logits is None:
        return None
    top = [
        {"token": token, "logprob": value, "bytes": list(token.encode())} for token, value in logits.items()
    ]
    return {"content": [{"token": "red", "logprob": -0.1, "top_logprobs": top}]}


def _next(items: list) -> object:
    """The next one; the last one again and again."""
    return items.pop(0) if len(items) > 1 else items[0]
