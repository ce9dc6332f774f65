"""One answer of a server as its client saw it, and what can be read off it.

Owns the reading of chat answers, whole or streamed. Does not own opinions: nothing here says what is right.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property

from tests.conformance.logits import Logits

DONE = b"[DONE]"


@dataclass(frozen=True)
class Chunk:
    """The data of one server-sent event, and when it came."""

    data: bytes
    at_s: float


@dataclass(frozen=True, kw_only=True)
class Reply:
    """`status` is None where the connection failed before one came; `failure` says how a connection failed."""

    asked: dict = field(default_factory=dict)  # the request, where it was a JSON object
    path: str = "/v1/chat/completions"
    status: int | None = None
    body: bytes = b""
    chunks: tuple[Chunk, ...] = ()
    failure: str = ""
    is_refused: bool = False  # nobody listened, or the connection was reset before anything came back
    began_s: float = 0.0
    ended_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s

    @property
    def is_whole(self) -> bool:
        """An answer that came to its end without an error."""
        is_ended = not self.chunks or self.chunks[-1].data == DONE
        return self.status == 200 and not self.failure and self.error is None and is_ended

    @cached_property
    def documents(self) -> list[dict]:
        """Every JSON object that came: the body, or the events of a stream."""
        raw = [chunk.data for chunk in self.chunks if chunk.data != DONE] if self.chunks else [self.body]
        return [document for document in map(_parsed, raw) if document is not None]

    @property
    def choices(self) -> list[dict]:
        """The choices of a whole answer, and all their pieces of a stream."""
        return [choice for document in self.documents for choice in document.get("choices") or ()]

    @property
    def num_choices(self) -> int:
        return len({choice.get("index", 0) for choice in self.choices})

    @cached_property
    def text(self) -> str:
        """What the first choice says."""
        return "".join(_text(choice) for choice in self.choices if choice.get("index", 0) == 0)

    @property
    def finish_reason(self) -> str | None:
        reasons = [choice.get("finish_reason") for choice in self.choices if choice.get("index", 0) == 0]
        return next((reason for reason in reasons if reason), None)

    @property
    def usage(self) -> dict | None:
        return next((found["usage"] for found in reversed(self.documents) if found.get("usage")), None)

    @property
    def prompt_tokens(self) -> int | None:
        return self.usage["prompt_tokens"] if self.usage else None

    @property
    def error(self) -> str | None:
        """The message of the error, be it the body or an event of a stream."""
        return next(filter(None, map(_message, self.documents)), None)

    @property
    def has_error_document(self) -> bool:
        """The body is `{"error": {"message": ...}}`."""
        return _message(_parsed(self.body) or {}) is not None

    @cached_property
    def logits(self) -> Logits | None:
        """The first token's candidates and their log-probabilities."""
        for choice in self.choices:
            tokens = (choice.get("logprobs") or {}).get("content") or ()
            if choice.get("index", 0) == 0 and tokens:
                return Logits.of(tokens[0]["top_logprobs"])
        return None

    @property
    def outcome(self) -> str:
        """The answer in a few words."""
        if self.status is None:
            return f"no answer ({self.failure})"
        said = self.error or self.failure
        return f"{self.status} {shortened(said)}" if said else str(self.status)


def shortened(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"


def _parsed(raw: bytes) -> dict | None:
    try:
        document = json.loads(raw)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _text(choice: dict) -> str:
    """What a choice of a chat, of a chunk or of a completion says."""
    said = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
    return said.get("content") or ""


def _message(document: dict) -> str | None:
    error = document.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) and message else None
