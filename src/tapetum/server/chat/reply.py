"""One answer in the words of the wire: whole, or as a stream of events.

Owns what is said when: the first event tells what the model will see, text follows, the last event tells why the
answer ended and where the time went. An error after the first event becomes an event; before it, it is raised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Literal

from msgspec import UNSET, UnsetType

from tapetum.core.errors import CapacityError, EngineError, TapetumError
from tapetum.core.plan import SampledToken
from tapetum.engine.generation import Generation
from tapetum.engine.output import Delta, joined
from tapetum.server.chat.schema import ChatRequest
from tapetum.server.chat.wire import AnswerMessage, ChatAnswer, Choice, Logprobs, TokenChoice, TokenLogprob
from tapetum.server.disclosure import Disclosure, Usage, closing, opening, usage
from tapetum.server.errors import error_body
from tapetum.server.stream import DONE, as_event
from tapetum.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)
_LOWEST = -9999.0  # JSON has no infinity


class Reply:
    """Reads one generation to its end and writes it down."""

    def __init__(
        self, generation: Generation, asked: ChatRequest, *, model: str, tokenizer: Tokenizer
    ) -> None:
        self._generation = generation
        self._asked = asked
        self._model = model
        self._tokenizer = tokenizer
        self._created = int(time.time())
        self._num_tokens = 0

    async def whole(self) -> ChatAnswer:
        deltas: list[Delta] = []
        try:
            async for delta in self._generation:
                self._note(delta)
                deltas.append(delta)
        finally:
            answer = joined(deltas)
            self._close(answer)
        _refuse_abort(answer)
        choice = Choice(
            message=AnswerMessage(role="assistant", content=answer.text),
            logprobs=self._logprobs(answer.tokens),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            token_ids=self._token_ids(answer.tokens),
        )
        return self._answer(
            "chat.completion",
            [choice],
            usage=usage(self._generation, self._num_tokens),
            tapetum=closing(self._generation),
        )

    async def events(self, num_waiting: int) -> AsyncGenerator[bytes, None]:
        """Server-sent events; closing the generator cancels the request."""
        ending = Delta()
        try:
            yield self._opening_event(num_waiting)
            async for delta in self._generation:
                self._note(delta)
                ending = delta
                if delta.text or (delta.tokens and (self._asked.logprobs or self._asked.return_token_ids)):
                    yield self._text_event(delta)
            _refuse_abort(ending)
            yield self._closing_event(ending)
            if self._asked.stream_options and self._asked.stream_options.include_usage:
                yield as_event(
                    self._answer("chat.completion.chunk", [], usage=usage(self._generation, self._num_tokens))
                )
        except TapetumError as error:
            yield as_event(error_body(error))
        except Exception:  # the status line is out: the client can only learn of it from the stream
            _log.exception("request %s failed", self._generation.request_id)
            yield as_event(error_body(EngineError("the server failed; its log says more")))
        finally:
            self._close(ending)
        yield DONE

    def _note(self, delta: Delta) -> None:
        self._num_tokens += len(delta.tokens)

    def _close(self, ending: Delta) -> None:
        """End the request if it still runs, and leave one line about it in the log."""
        if ending.finish_reason is None:
            self._generation.cancel()
        timing = self._generation.timing
        _log.info(
            "%s: %d + %d tokens, %s; queue %.3f s, encode %.3f s, prefill %.3f s, first token %.3f s",
            self._generation.request_id,
            len(self._generation.prompt.token_ids),
            self._num_tokens,
            ending.finish_reason or "cut off",
            timing.queue_s,
            timing.encode_s,
            timing.prefill_s,
            timing.ttft_s,
        )

    def _opening_event(self, num_waiting: int) -> bytes:
        choice = Choice(delta=AnswerMessage(role="assistant", content=""))
        disclosure = opening(self._generation, num_waiting)
        return as_event(self._answer("chat.completion.chunk", [choice], tapetum=disclosure))

    def _text_event(self, delta: Delta) -> bytes:
        choice = Choice(
            delta=AnswerMessage(content=delta.text),
            logprobs=self._logprobs(delta.tokens),
            token_ids=self._token_ids(delta.tokens),
        )
        return as_event(self._answer("chat.completion.chunk", [choice]))

    def _closing_event(self, ending: Delta) -> bytes:
        choice = Choice(
            delta=AnswerMessage(), finish_reason=ending.finish_reason, stop_reason=ending.stop_reason
        )
        return as_event(self._answer("chat.completion.chunk", [choice], tapetum=closing(self._generation)))

    def _answer(
        self,
        kind: Literal["chat.completion", "chat.completion.chunk"],
        choices: Sequence[Choice],
        *,
        usage: Usage | UnsetType = UNSET,
        tapetum: Disclosure | UnsetType = UNSET,
    ) -> ChatAnswer:
        """A whole answer, or a chunk; the prompt's ids come where the request asks for them, once."""
        is_first = tapetum is not UNSET and (kind == "chat.completion" or tapetum.timing is UNSET)
        has_prompt_ids = self._asked.return_token_ids and is_first
        return ChatAnswer(
            id=f"chatcmpl-{self._generation.request_id}",
            object=kind,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            tapetum=tapetum,
            prompt_token_ids=self._generation.prompt.token_ids if has_prompt_ids else UNSET,
        )

    def _token_ids(self, tokens: Sequence[SampledToken]) -> list[int] | UnsetType:
        return [token.token_id for token in tokens] if self._asked.return_token_ids else UNSET

    def _logprobs(self, tokens: Sequence[SampledToken]) -> Logprobs | None:
        if not self._asked.logprobs:
            return None
        return Logprobs([self._token_logprob(token) for token in tokens])

    def _token_logprob(self, token: SampledToken) -> TokenLogprob:
        chosen = self._candidate(token.token_id, _LOWEST if token.logprob is None else token.logprob)
        others = [self._candidate(token_id, logprob) for token_id, logprob in token.top_logprobs]
        return TokenLogprob(
            token=chosen.token, logprob=chosen.logprob, bytes=chosen.bytes, top_logprobs=others
        )

    def _candidate(self, token_id: int, logprob: float) -> TokenChoice:
        text = self._tokenizer.decode((token_id,), skip_special=False)
        return TokenChoice(
            token=text,
            logprob=max(logprob, _LOWEST),
            bytes=list(self._tokenizer.token_bytes(token_id)),
        )


def _refuse_abort(ending: Delta) -> None:
    """Only a server that shuts down aborts a request whose client is still there."""
    if ending.finish_reason == "abort":
        raise CapacityError("the server ended the request before it was done; send it again")
