"""Tokens with their log-probabilities, as OpenAI's chat API writes them.

Owns that JSON has no infinity. A token may be a part of a character: then its name tells its bytes, as `bytes` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from tapetum.core.plan import SampledToken
from tapetum.server.chat.wire import Logprobs, TokenChoice, TokenLogprob
from tapetum.server.token_names import token_name
from tapetum.text.tokenizer import Tokenizer

_LOWEST = -9999.0


def logprobs_of(tokens: Sequence[SampledToken], tokenizer: Tokenizer) -> Logprobs:
    return Logprobs([_entry(token, tokenizer) for token in tokens])


def _entry(token: SampledToken, tokenizer: Tokenizer) -> TokenLogprob:
    chosen = _candidate(token.token_id, _LOWEST if token.logprob is None else token.logprob, tokenizer)
    others = [_candidate(token_id, logprob, tokenizer) for token_id, logprob in token.top_logprobs]
    return TokenLogprob(token=chosen.token, logprob=chosen.logprob, bytes=chosen.bytes, top_logprobs=others)


def _candidate(token_id: int, logprob: float, tokenizer: Tokenizer) -> TokenChoice:
    return TokenChoice(
        token=token_name(tokenizer, token_id),
        logprob=max(logprob, _LOWEST),
        bytes=list(tokenizer.token_bytes(token_id)),
    )
