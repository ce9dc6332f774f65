"""The answer to one chat request in the words of the wire: whole, or as a stream of chunks.

Owns what is said when: the first chunk tells what the model will see, text follows, the last one tells where the time
went. With several choices each has chunks of its own, and the first and the last of all carry what is told once.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from tapetum.core.plan import SampledToken
from tapetum.engine.choices import Choices
from tapetum.server.chat.candidates import logprobs_of
from tapetum.server.chat.schema import ChatRequest
from tapetum.server.chat.voice import Voice
from tapetum.server.chat.wire import AnswerMessage, ChatAnswer, Choice, Logprobs
from tapetum.server.disclosure import CompletionDetails, Disclosure, Usage, closing, opening, usage
from tapetum.text.tokenizer import Tokenizer

_NOTHING = AnswerMessage()


class Reply:
    """Reads the choices of one request to their end and writes them down.

    `voices`: one for each choice. `num_waiting`: others that were before it. `choices` is for the log.
    """

    def __init__(
        self,
        choices: Choices,
        voices: Sequence[Voice],
        asked: ChatRequest,
        *,
        model: str,
        tokenizer: Tokenizer,
        num_waiting: int = 0,
    ) -> None:
        self.choices = choices
        self._generation = choices.generation
        self._asked = asked
        self._model = model
        self._tokenizer = tokenizer
        self._num_waiting = num_waiting
        self._created = int(time.time())
        self._voices = voices

    @property
    def request_id(self) -> str:
        """What the client calls the request, else what the engine does."""
        return self._asked.request_id or self._generation.request_id

    async def whole(self) -> ChatAnswer:
        """The answer once it is complete; raises TapetumError where it cannot be. Cancelling it ends the request."""
        try:
            async with aclosing(aiter(self.choices)) as news:
                async for index, delta in news:
                    self._voices[index].read(delta)
        finally:
            self._close()
        return self._answer(
            "chat.completion",
            [self._choice(index, voice) for index, voice in enumerate(self._voices)],
            usage=self._usage(),
            tapetum=closing(self._generation),
            has_prompt_ids=True,
        )

    async def chunks(self) -> AsyncGenerator[ChatAnswer, None]:
        """The answer as it comes; raises TapetumError where it breaks off. Closing the generator ends the request."""
        try:
            for index in range(len(self._voices)):
                yield self._opening_chunk(index)
            async with aclosing(aiter(self.choices)) as news:
                async for index, delta in news:
                    piece = self._voices[index].read(delta)
                    if piece != _NOTHING or (delta.tokens and self._tells_tokens):
                        yield self._chunk(self._piece(index, piece, delta.tokens))
                    if delta.finish_reason is not None:
                        yield self._closing_chunk(index)
            if self._asked.has_usage_chunk:
                yield self._chunk(usage=self._usage())
        finally:
            self._close()

    def _usage(self) -> Usage:
        choices = self.choices
        counted = usage(choices.generation, choices.num_tokens)
        if self._asked.prediction is None:
            return counted
        right, wrong = choices.num_predicted
        details = CompletionDetails(accepted_prediction_tokens=right, rejected_prediction_tokens=wrong)
        return replace(counted, completion_tokens_details=details)

    @property
    def _tells_tokens(self) -> bool:
        return bool(self._asked.logprobs or self._asked.return_token_ids)

    @property
    def _is_over(self) -> bool:
        return all(voice.finish_reason is not None for voice in self._voices)

    def _close(self) -> None:
        """End the request if it still runs."""
        if not self._is_over:
            self.choices.cancel()

    def _opening_chunk(self, index: int) -> ChatAnswer:
        choice = Choice(index=index, delta=AnswerMessage(role="assistant", content=""))
        if index:
            return self._chunk(choice)
        return self._answer(
            "chat.completion.chunk",
            [choice],
            tapetum=opening(self._generation, self._num_waiting),
            has_prompt_ids=True,
        )

    def _closing_chunk(self, index: int) -> ChatAnswer:
        voice = self._voices[index]
        choice = Choice(
            index=index, delta=_NOTHING, finish_reason=voice.finish_reason, stop_reason=voice.stop_reason
        )
        return self._chunk(choice, tapetum=closing(self._generation) if self._is_over else UNSET)

    def _chunk(
        self,
        *choices: Choice,
        usage: Usage | UnsetType = UNSET,
        tapetum: Disclosure | UnsetType = UNSET,
    ) -> ChatAnswer:
        return self._answer("chat.completion.chunk", choices, usage=usage, tapetum=tapetum)

    def _choice(self, index: int, voice: Voice) -> Choice:
        return Choice(
            index=index,
            message=voice.message(),
            logprobs=self._logprobs(voice.tokens),
            finish_reason=voice.finish_reason,
            stop_reason=voice.stop_reason,
            token_ids=self._token_ids(voice.tokens),
        )

    def _piece(self, index: int, piece: AnswerMessage, tokens: Sequence[SampledToken]) -> Choice:
        return Choice(
            index=index, delta=piece, logprobs=self._logprobs(tokens), token_ids=self._token_ids(tokens)
        )

    def _answer(
        self,
        kind: Literal["chat.completion", "chat.completion.chunk"],
        choices: Sequence[Choice],
        *,
        usage: Usage | UnsetType = UNSET,
        tapetum: Disclosure | UnsetType = UNSET,
        has_prompt_ids: bool = False,
    ) -> ChatAnswer:
        tells_prompt = has_prompt_ids and self._asked.return_token_ids
        return ChatAnswer(
            id=f"chatcmpl-{self.request_id}",
            object=kind,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            tapetum=tapetum,
            prompt_token_ids=self._generation.prompt.token_ids if tells_prompt else UNSET,
        )

    def _logprobs(self, tokens: Sequence[SampledToken]) -> Logprobs | None:
        return logprobs_of(tokens, self._tokenizer) if self._asked.logprobs else None

    def _token_ids(self, tokens: Sequence[SampledToken]) -> list[int] | UnsetType:
        return [token.token_id for token in tokens] if self._asked.return_token_ids else UNSET
