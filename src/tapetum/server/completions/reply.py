"""The answers to the prompts of one completion request: whole, or as a stream of chunks.

Owns the order of the choices (prompt by prompt) and what is said when: the first chunk of a choice has the echoed
prompt, text follows, its last chunk tells why it ended; the very last of all tells where the time went.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import UNSET, UnsetType

from tapetum.core.chat import TextInput
from tapetum.engine.choices import Choices
from tapetum.engine.generation import Generation
from tapetum.engine.output import Delta, joined
from tapetum.server.chat.voice import refuse_abort
from tapetum.server.completions.logprobs import TokenLog
from tapetum.server.completions.merge import merged
from tapetum.server.completions.schema import CompletionRequest
from tapetum.server.completions.wire import Choice, Completion
from tapetum.server.disclosure import Disclosure, PromptDetails, Usage, closing, opening, usage
from tapetum.text.tokenizer import Tokenizer


class CompletionReply:
    """Reads the answers to all prompts to their ends and writes them down. `num_waiting`: others before them."""

    def __init__(
        self,
        prompts: Sequence[TextInput],
        sources: Sequence[Choices],
        asked: CompletionRequest,
        *,
        model: str,
        tokenizer: Tokenizer,
        num_waiting: int = 0,
    ) -> None:
        self._prompts = prompts
        self._sources = sources
        self._asked = asked
        self._model = model
        self._tokenizer = tokenizer
        self._num_waiting = num_waiting
        self._created = int(time.time())

    async def whole(self) -> Completion:
        deltas: list[list[Delta]] = [[] for _ in range(self._num_choices)]
        try:
            async with aclosing(merged(self._sources)) as news:
                async for place, index, delta in news:
                    refuse_abort(delta)
                    deltas[place * self._asked.num_choices + index].append(delta)
        except BaseException:  # closing a generator and cancelling a task count
            self._cancel()
            raise
        choices = [self._whole_choice(number, joined(parts)) for number, parts in enumerate(deltas)]
        return self._completion(choices, usage=self._usage(), tapetum=self._closing())

    async def chunks(self) -> AsyncGenerator[Completion, None]:
        """The answers as they come; raises TapetumError where they break off. Closing it cancels the requests."""
        logs = [self._token_log(number) for number in range(self._num_choices)]
        num_open = self._num_choices
        try:
            for number in range(self._num_choices):
                yield self._opening_chunk(number)
            async with aclosing(merged(self._sources)) as news:
                async for place, index, delta in news:
                    refuse_abort(delta)
                    number = place * self._asked.num_choices + index
                    num_open -= delta.finish_reason is not None
                    if delta.text or delta.finish_reason or (delta.tokens and self._tells_tokens):
                        choice = self._choice(number, delta.text, delta, logs[number])
                        yield self._completion([choice], tapetum=UNSET if num_open else self._closing())
            if self._asked.has_usage_chunk:
                yield self._completion([], usage=self._usage())
        except BaseException:  # closing a generator and cancelling a task count
            self._cancel()
            raise

    def _opening_chunk(self, number: int) -> Completion:
        """The echoed prompt, or nothing yet."""
        ids = self._prompt_token_ids(number)
        choice = Choice(index=number, text=self._echo(number), prompt_token_ids=ids)
        first = opening(self._generation(0), self._num_waiting)
        return self._completion([choice], tapetum=UNSET if number else first)

    def _whole_choice(self, number: int, answer: Delta) -> Choice:
        return self._choice(
            number, self._echo(number) + answer.text, answer, self._token_log(number), is_whole=True
        )

    def _choice(
        self, number: int, text: str, delta: Delta, log: TokenLog, *, is_whole: bool = False
    ) -> Choice:
        has_ids = bool(self._asked.return_token_ids)
        return Choice(
            index=number,
            text=text,
            logprobs=None if self._asked.logprobs is None else log.read(delta.tokens),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            token_ids=[token.token_id for token in delta.tokens] if has_ids else UNSET,
            prompt_token_ids=self._prompt_token_ids(number) if is_whole else UNSET,
        )

    def _completion(
        self,
        choices: Sequence[Choice],
        *,
        usage: Usage | UnsetType = UNSET,
        tapetum: Disclosure | UnsetType = UNSET,
    ) -> Completion:
        return Completion(
            id=f"cmpl-{self._asked.request_id or self._generation(0).request_id}",
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            tapetum=tapetum,
        )

    @property
    def _num_choices(self) -> int:
        """Of all prompts together."""
        return len(self._sources) * self._asked.num_choices

    @property
    def _tells_tokens(self) -> bool:
        return self._asked.logprobs is not None or bool(self._asked.return_token_ids)

    def _echo(self, number: int) -> str:
        if not self._asked.echo:
            return ""
        prompt = self._prompts[self._place(number)].prompt
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt, skip_special=False)

    def _token_log(self, number: int) -> TokenLog:
        return TokenLog(self._tokenizer, self._generation(number).prompt.token_ids)

    def _prompt_token_ids(self, number: int) -> Sequence[int] | UnsetType:
        if not self._asked.return_token_ids:
            return UNSET
        return self._generation(number).prompt.token_ids

    def _generation(self, number: int) -> Generation:
        """The first of the answers to the prompt that a choice is of."""
        return self._sources[self._place(number)].generation

    def _place(self, number: int) -> int:
        return number // self._asked.num_choices

    def _usage(self) -> Usage:
        """The sum over all prompts."""
        each = [usage(source.generation, source.num_tokens) for source in self._sources]
        return Usage(
            prompt_tokens=sum(one.prompt_tokens for one in each),
            completion_tokens=sum(one.completion_tokens for one in each),
            total_tokens=sum(one.total_tokens for one in each),
            prompt_tokens_details=PromptDetails(
                cached_tokens=sum(one.prompt_tokens_details.cached_tokens for one in each),
                visual_tokens=sum(one.prompt_tokens_details.visual_tokens for one in each),
            ),
        )

    def _closing(self) -> Disclosure:
        """Of several prompts, the times of the one that waited longest for its first token."""
        return closing(
            max((source.generation for source in self._sources), key=lambda one: one.timing.ttft_s)
        )

    def _cancel(self) -> None:
        for source in self._sources:
            source.cancel()
