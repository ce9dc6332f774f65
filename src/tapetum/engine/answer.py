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
        """The event in words. Tokens behind the one with which a stop string is met are not the answer's."""
        reason, count, text = event.finish_reason, 0, ""
        while count < len(event.tokens) and not self.has_met_stop_string:
            count += 1
            self.num_tokens += 1
            if reason != "stop" or count < len(event.tokens):
                is_early = self.num_tokens <= self.request.sampling.min_tokens
                text += self._stream.push(event.tokens[count - 1].token_id, is_early=is_early)
        tokens = event.tokens[:count]
        if reason is not None:
            text += self._stream.flush()
        stop_reason: int | str | None = None
        if self._stream.stopped is not None and reason in ("stop", "length"):
            reason, stop_reason = "stop", self._stream.stopped
        elif tokens and reason == "stop" and tokens[-1].token_id in self.request.sampling.stop_token_ids:
            stop_reason = tokens[-1].token_id
        return Delta(
            text=text,
            tokens=tokens,
            finish_reason=reason,
            stop_reason=stop_reason,
            stats=event.stats,
            error=event.error,
        )
