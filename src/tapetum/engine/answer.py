"""The tokens of one request as the text its client reads.

Owns the meeting of tokens and text: a token that ends the answer adds no text, a stop string may end it in the
middle of a token, and what was held back comes out at the end.
"""

from __future__ import annotations

from tapetum.core.plan import TokenEvent
from tapetum.core.request import Request
from tapetum.engine.output import Delta
from tapetum.text.stream import TextStream
from tapetum.text.tokenizer import Tokenizer


class Answer:
    """One running request as the engine loop sees it; `last_token_s` is for the loop's meters."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.request = request
        self.last_token_s: float | None = None
        self.num_tokens = 0
        self._stream = TextStream(tokenizer, request.prompt.token_ids, request.sampling.stop)

    @property
    def has_met_stop_string(self) -> bool:
        return self._stream.stopped is not None

    def read(self, event: TokenEvent) -> Delta:
        """The event in words."""
        token, reason = event.token, event.finish_reason
        is_stop_token = token is not None and reason == "stop"
        self.num_tokens += token is not None
        is_early = self.num_tokens <= self.request.sampling.min_tokens
        text = "" if token is None or is_stop_token else self._stream.push(token.token_id, is_early=is_early)
        if reason is not None:
            text += self._stream.flush()
        stop_reason: int | str | None = None
        if self._stream.stopped is not None and reason in ("stop", "length"):
            reason, stop_reason = "stop", self._stream.stopped
        elif token is not None and is_stop_token and token.token_id in self.request.sampling.stop_token_ids:
            stop_reason = token.token_id
        return Delta(
            text=text,
            tokens=() if token is None else (token,),
            finish_reason=reason,
            stop_reason=stop_reason,
            stats=event.stats,
            error=event.error,
        )
