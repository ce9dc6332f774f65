"""Logits to tokens: each row by the choices of its own request.

Owns what sampling remembers of a request: the tokens that penalties count, and its random generator. Does not
own the logits, the arithmetic of a draw, stop conditions or limits. Order of operations, as in vLLM: mask of a
grammar, min_tokens, logit_bias, penalties, temperature, top-k, top-p, min-p. Log-probabilities are those of the model,
before all of that. A greedy or seeded row gets the same token alone and among neighbours; rows without a seed share
one generator.

R rows, V vocabulary, N pairs of a row and a token that penalties touch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tapetum.core.errors import EngineError
from tapetum.core.plan import SampledToken
from tapetum.core.request import Prompt, Request, SamplingParams
from tapetum.ops.best import BROKEN, argmax
from tapetum.runtime.draw import Shape, draw
from tapetum.runtime.steer import add_bias, hold_back, keep_allowed


class Sampler:
    """Sampling state of every request; the executor writes it. `seed` serves requests without their own."""

    def __init__(self, seed: int = 0) -> None:
        self._shared = torch.Generator().manual_seed(seed)
        self._states: dict[str, _State] = {}

    def add(self, request: Request) -> None:
        assert request.request_id not in self._states, f"request {request.request_id} was added before"
        self._states[request.request_id] = _State(request, self._shared)

    def remove(self, request_id: str) -> None:
        self._states.pop(request_id, None)

    def sample(
        self,
        logits: Tensor,
        request_ids: Sequence[str],
        masks: Mapping[str, bytes] | None = None,
        best: Sequence[int] | None = None,
        places: Sequence[int] | None = None,
    ) -> list[SampledToken | EngineError]:
        """One token for each request, in order; where a request has a mask, one of its tokens.

        A request has the row of `logits` [R, V] at its place; without places, they are its rows in order. `best` are
        the best tokens of the rows, or BROKEN, where they are known already.

        A row whose logits hold NaN or +inf, or nothing but -inf, gets an error in place of a token and leaves
        its neighbours alone. Tokens enter the histories of their requests only here, when all rows are done.
        """
        states = [self._states[request_id] for request_id in request_ids]
        found = [masks.get(request_id) if masks else None for request_id in request_ids]
        places = range(len(request_ids)) if places is None else places
        best = argmax(logits).tolist() if best is None else best
        chosen = [best[place] for place in places]
        if shaped := [row for row, state in enumerate(states) if state.is_shaped or found[row] is not None]:
            rows = torch.tensor([places[row] for row in shaped], device=logits.device)
            picked = _pick(
                logits.index_select(0, rows).float(),
                [states[row] for row in shaped],
                {place: mask for place, row in enumerate(shaped) if (mask := found[row]) is not None},
            )
            for row, token_id in zip(shaped, picked.tolist(), strict=True):
                if chosen[row] != BROKEN:
                    chosen[row] = token_id
        outcomes: list[SampledToken | EngineError] = []
        for row, token_id in enumerate(chosen):
            num_logprobs = states[row].num_logprobs
            if token_id == BROKEN:
                outcomes.append(_broken(request_ids[row]))
            elif num_logprobs is None:
                outcomes.append(SampledToken(token_id=token_id))
            else:
                outcomes.append(_with_logprobs(logits[places[row]], token_id, num_logprobs))
        for state, outcome in zip(states, outcomes, strict=True):
            if isinstance(outcome, SampledToken):
                state.append(outcome.token_id)
        return outcomes


class _State:
    """The choices of one request, with neutral values filled in, and what it put out so far."""

    __slots__ = ("_generator", "bias", "ends", "history", "num_early", "num_logprobs", "shape")

    def __init__(self, request: Request, shared: torch.Generator) -> None:
        sampling = request.sampling
        self.shape = Shape(
            temperature=sampling.temperature or 0.0,
            top_k=max(sampling.top_k or 0, 0),
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
            min_p=sampling.min_p or 0.0,
        )
        self.num_logprobs = sampling.logprobs
        self.bias = sampling.logit_bias
        self.ends = tuple(request.stop_token_ids)
        self.num_early = sampling.min_tokens if self.ends else 0  # tokens to come before one of the ends may
        self._generator = shared if sampling.seed is None else torch.Generator().manual_seed(sampling.seed)
        history = _History(request.prompt, sampling)
        self.history = history if history.has_effect else None

    @property
    def is_random(self) -> bool:
        return self.shape.temperature > 0.0

    @property
    def is_shaped(self) -> bool:
        """Whether the token may be another than the argmax of the raw logits."""
        return self.is_random or self.history is not None or bool(self.bias) or self.num_early > 0

    def append(self, token_id: int) -> None:
        self.num_early -= self.num_early > 0
        if self.history is not None:
            self.history.append(token_id)

    def number(self) -> float:
        """The next number from [0, 1): the one random choice of a token, made on the host for every device."""
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))


class _History:
    """The distinct tokens of a request, how often each was put out, and the penalties on them.

    Prompt tokens that stand for pictures are left out: their number says nothing about repetition.
    """

    __slots__ = ("_counts", "_places", "_token_ids", "frequency", "presence", "repetition")

    def __init__(self, prompt: Prompt, sampling: SamplingParams) -> None:
        self.repetition = 1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty
        self.presence = sampling.presence_penalty or 0.0
        self.frequency = sampling.frequency_penalty or 0.0
        seen = list(dict.fromkeys(_text_tokens(prompt)))
        self._places = {token_id: place for place, token_id in enumerate(seen)}
        self._token_ids = torch.tensor(seen, dtype=torch.long)
        self._counts = torch.zeros(len(seen))

    @property
    def has_effect(self) -> bool:
        return self.repetition != 1.0 or self.presence != 0.0 or self.frequency != 0.0

    @property
    def token_ids(self) -> Tensor:
        """[distinct tokens], on the host."""
        return self._token_ids[: len(self._places)]

    @property
    def counts(self) -> Tensor:
        """Occurrences in the output, [distinct tokens], on the host."""
        return self._counts[: len(self._places)]

    def append(self, token_id: int) -> None:
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._token_ids):
            self._grow()
        self._token_ids[place] = token_id
        self._counts[place] += 1.0

    def _grow(self) -> None:
        room = max(64, len(self._token_ids))
        self._token_ids = torch.cat((self._token_ids, self._token_ids.new_zeros(room)))
        self._counts = torch.cat((self._counts, self._counts.new_zeros(room)))


def _text_tokens(prompt: Prompt) -> list[int]:
    kept: list[int] = []
    end = 0
    for start, stop in sorted(run for span in prompt.spans for run in span.placeholders):
        kept += prompt.token_ids[end:start]
        end = stop
    return [*kept, *prompt.token_ids[end:]]


def _pick(scores: Tensor, states: Sequence[_State], masks: Mapping[int, bytes]) -> Tensor:
    """Tokens [R] for float32 `scores` [R, V], which are changed in place; `masks` by row."""
    keep_allowed(scores, masks)
    hold_back(scores, [(row, state.ends) for row, state in enumerate(states) if state.num_early > 0])
    add_bias(scores, [(row, state.bias) for row, state in enumerate(states) if state.bias])
    _penalise(scores, states)
    drawn = [row for row, state in enumerate(states) if state.is_random]
    picked = argmax(scores)
    if drawn:
        rows = torch.tensor(drawn, device=scores.device)
        shapes = [states[row].shape for row in drawn]
        tokens = draw(scores.index_select(0, rows), shapes, [states[row].number() for row in drawn])
        picked[rows] = tokens.where(picked[rows] != BROKEN, BROKEN)
    return picked


def _penalise(scores: Tensor, states: Sequence[_State]) -> None:
    """Lower the scores of seen tokens in place, repetition first, by the formulas of vLLM."""
    penalised = [(row, state.history) for row, state in enumerate(states) if state.history is not None]
    if not penalised:
        return
    sizes = torch.tensor([len(history.token_ids) for _, history in penalised])
    choices = torch.tensor([(row, h.repetition, h.frequency, h.presence) for row, h in penalised])
    choices = choices.repeat_interleave(sizes, dim=0).to(scores.device)  # [N, 4]
    rows, repetition, frequency, presence = choices[:, 0].long(), choices[:, 1], choices[:, 2], choices[:, 3]
    token_ids = torch.cat([history.token_ids for _, history in penalised]).to(scores.device)  # [N]
    counts = torch.cat([history.counts for _, history in penalised]).to(scores.device)  # [N]
    seen = scores[rows, token_ids]  # [N]
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    scores[rows, token_ids] = seen - frequency * counts - presence * (counts > 0)


def _with_logprobs(logits: Tensor, token_id: int, count: int) -> SampledToken:
    """The token with log-probabilities of the raw logits [V]; equal alternatives in the order of their ids."""
    logprobs = logits.float().log_softmax(-1)
    top: list[tuple[int, float]] = []
    if count:
        least = logprobs.topk(min(count, len(logprobs))).values[-1]
        candidates = (logprobs >= least).nonzero().squeeze(1)  # ascending ids, all ties
        order = logprobs[candidates].sort(descending=True, stable=True).indices[:count]
        candidates = candidates[order]
        top = list(zip(candidates.tolist(), logprobs[candidates].tolist(), strict=True))
    return SampledToken(token_id=token_id, logprob=float(logprobs[token_id]), top_logprobs=tuple(top))


def _broken(request_id: str) -> EngineError:
    return EngineError(
        f"request {request_id}: the model put out logits that are not finite, so this request ends; "
        "if it happens again, use --dtype float32 or check the weights"
    )
