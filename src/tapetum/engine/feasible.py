"""Whether a model can choose its tokens as asked: ids that its vocabulary has, a grammar that answers can keep to."""

from __future__ import annotations

from collections.abc import Iterable

from tapetum.core.checks import shown
from tapetum.core.errors import InvalidParameter
from tapetum.core.request import SamplingParams
from tapetum.text.tokenizer import Tokenizer
from tapetum.text.trial import Trials


class Feasibility:
    """Asked from any thread; `close` ends what it took to find out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._num_tokens = tokenizer.vocab_size
        self._trials = Trials(tokenizer)

    def check(self, sampling: SamplingParams) -> None:
        """Raises InvalidParameter; blocks while a grammar is compiled."""
        self._check_ids("stop_token_ids", sampling.stop_token_ids)
        self._check_ids("logit_bias", sampling.logit_bias)
        if sampling.grammar is not None:
            self._trials.check(sampling.grammar)

    async def foresee(self, sampling: SamplingParams) -> None:
        """Have a grammar checked while no thread waits; `check` then has its answer."""
        if sampling.grammar is not None:
            await self._trials.check_aside(sampling.grammar)

    def close(self) -> None:
        self._trials.close()

    def _check_ids(self, param: str, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self._num_tokens:
                raise InvalidParameter(
                    f"{param} holds {shown(token_id)}, tokens are integers from 0 to {self._num_tokens - 1}",
                    param=param,
                )
