"""Log-probabilities in the form that came before chat: four lists side by side.

Owns where in the text each token begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from tapetum.core.plan import SampledToken
from tapetum.server.completions.wire import Logprobs
from tapetum.server.token_names import token_name
from tapetum.text.stream import TextStream
from tapetum.text.tokenizer import Tokenizer

_LOWEST = -9999.0  # JSON has no infinity


class TokenLog:
    """The tokens of one answer as they come."""

    def __init__(self, tokenizer: Tokenizer, prompt_tail: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._text = TextStream(tokenizer, prompt_tail)
        self._end = 0

    def read(self, tokens: Sequence[SampledToken]) -> Logprobs:
        """The entries of the next tokens."""
        offsets = []
        for token in tokens:
            offsets.append(self._end)
            self._end += len(self._text.push(token.token_id))
        chosen = [max(_LOWEST if token.logprob is None else token.logprob, _LOWEST) for token in tokens]
        return Logprobs(
            tokens=[self._name(token.token_id) for token in tokens],
            token_logprobs=chosen,
            top_logprobs=[self._candidates(token, own) for token, own in zip(tokens, chosen, strict=True)],
            text_offset=offsets,
        )

    def _candidates(self, token: SampledToken, own: float) -> dict[str, float]:
        """The chosen token, be it among the likely ones or not, and those."""
        others = {self._name(token_id): max(logprob, _LOWEST) for token_id, logprob in token.top_logprobs}
        return {self._name(token.token_id): own} | others

    def _name(self, token_id: int) -> str:
        return token_name(self._tokenizer, token_id)
