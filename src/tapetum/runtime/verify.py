"""Several tokens of a request from one step: the guessed ones that come true, and the one after them.

Owns the order: a position is sampled once all before it have come out as guessed, so a token never depends on whether
it was guessed. Penalties, biases and random numbers follow as they would one token a step.

S sampled positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from tapetum.core.errors import EngineError
from tapetum.core.plan import SampledToken
from tapetum.runtime.sampler import Sampler

Outcome = tuple[SampledToken, ...] | EngineError


def verify(
    sampler: Sampler,
    logits: Tensor,
    best: Sequence[int],
    request_ids: Sequence[str],
    guesses: Mapping[str, tuple[int, ...]],
    masks: Mapping[str, bytes],
) -> dict[str, Outcome]:
    """`logits` [S, V] and their best tokens; positions of a request are neighbours, one more than its guess has.

    An error behind a guessed token is left to the next step, which begins there.
    """
    first = {request_id: place for place, request_id in reversed(list(enumerate(request_ids)))}
    taken: dict[str, list[SampledToken]] = {request_id: [] for request_id in first}
    outcomes: dict[str, Outcome] = {}
    going, depth = list(first), 0
    while going:
        places = [first[request_id] + depth for request_id in going]
        sampled = sampler.sample(logits, going, masks, best, places)
        agreed: list[str] = []
        for request_id, token in zip(going, sampled, strict=True):
            if isinstance(token, SampledToken):
                taken[request_id].append(token)
                if guesses.get(request_id, ())[depth : depth + 1] == (token.token_id,):
                    agreed.append(request_id)
            elif not depth:
                outcomes[request_id] = token
        going, depth = agreed, depth + 1
    return outcomes | {request_id: tuple(tokens) for request_id, tokens in taken.items() if tokens}
