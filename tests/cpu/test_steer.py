"""Masks, early ends and biases in the sampler, beside transformers' processors and rows without any."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from tapetum.core.errors import EngineError
from tapetum.core.plan import SampledToken
from tapetum.core.request import Prompt, Request, SamplingParams
from tapetum.runtime.sampler import Sampler
from tapetum.runtime.steer import add_bias, hold_back, keep_allowed
from tests.cpu.test_device_neutral import OneDevice

WIDTHS = (9, 64, 513, 1024)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def request(request_id: str, ends: Iterable[int] = (), **choices) -> Request:
    return Request(
        request_id=request_id,
        prompt=Prompt(token_ids=(1, 2, 3), spans=(), position_ids=None, position_delta=0),
        sampling=SamplingParams(**choices).resolved(SamplingParams()),
        max_tokens=1000,
        stop_token_ids=frozenset(ends),
    )


def sampler_of(*requests: Request) -> Sampler:
    sampler = Sampler(0)
    for one in requests:
        sampler.add(one)
    return sampler


def tokens(outcomes: Iterable[SampledToken | EngineError]) -> list[int]:
    return [outcome.token_id for outcome in outcomes]


def mask_of(token_ids: Iterable[int], num_bytes: int) -> bytes:
    mask = bytearray(num_bytes)
    for token_id in token_ids:
        mask[token_id // 8] |= 1 << token_id % 8
    return bytes(mask)


def some(source: random.Random, width: int) -> list[int]:
    return sorted(source.sample(range(width), source.randint(1, min(width, 20))))


@pytest.mark.parametrize("width", WIDTHS)
def test_masks_are_those_of_transformers(width: int) -> None:
    source = random.Random(width)
    scores = torch.randn(6, width)
    allowed = [some(source, width) for _ in range(6)]
    oracle = PrefixConstrainedLogitsProcessor(lambda batch, _: allowed[batch], num_beams=1)
    wanted = oracle(torch.zeros(6, 1, dtype=torch.long), scores.clone())
    keep_allowed(scores, {row: mask_of(ids, width // 8 + 3) for row, ids in enumerate(allowed)})
    assert torch.equal(scores, wanted)


@pytest.mark.parametrize("num_bytes", [1, 2, 5, 100])
def test_a_mask_may_be_narrower_or_wider_than_the_logits(num_bytes: int) -> None:
    scores = torch.zeros(2, 21)
    keep_allowed(scores, {1: mask_of([0, 7], num_bytes)})
    assert scores[0].tolist() == [0.0] * 21
    assert scores[1].isfinite().nonzero().flatten().tolist() == [0, 7]


@pytest.mark.parametrize("width", WIDTHS)
def test_biases_are_those_of_transformers(width: int) -> None:
    source = random.Random(width)
    biases = [{token_id: source.uniform(-100, 100) for token_id in some(source, width)} for _ in range(5)]
    scores = torch.randn(5, width)
    wanted = torch.cat(
        [
            SequenceBiasLogitsProcessor([[[token_id], value] for token_id, value in bias.items()])(
                torch.zeros(1, 1, dtype=torch.long), scores[row : row + 1].clone()
            )
            for row, bias in enumerate(biases)
        ]
    )
    add_bias(scores, list(enumerate(biases)))
    torch.testing.assert_close(scores, wanted)


def test_ends_are_held_back_as_by_transformers() -> None:
    ends, prompt = [3, 17], 4
    oracle = MinNewTokensLengthLogitsProcessor(prompt, 5, ends, device="cpu")
    sampler = sampler_of(request("a", ends, min_tokens=5))
    for length in range(8):
        logits = torch.randn(1, 20)
        logits[0, 3] += 5.0
        wanted = oracle(torch.zeros(1, prompt + length, dtype=torch.long), logits.clone()).argmax(-1)
        assert tokens(sampler.sample(logits, ["a"])) == wanted.tolist()


def test_ends_come_early_where_nothing_else_is_left() -> None:
    scores = torch.full((2, 8), -torch.inf)
    scores[0, 3] = scores[1, 3] = scores[1, 4] = 1.0
    hold_back(scores, [(0, (3, 99)), (1, (3, 99))])
    assert scores.isfinite().nonzero().tolist() == [[0, 3], [1, 4]]


def test_bias_and_mask_come_before_penalties() -> None:
    """vLLM and transformers agree: the repetition penalty sees the biased score."""
    bias = {2: 3.0, 5: -4.0}
    choices = {"logit_bias": bias, "repetition_penalty": 1.7}
    sampler = sampler_of(request("a", **choices))
    oracle = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor([[[token_id], value] for token_id, value in bias.items()]),
            RepetitionPenaltyLogitsProcessor(1.7),
        ]
    )
    past = [1, 2, 3]
    for _ in range(30):
        logits = torch.randn(1, 12) * 2
        wanted = int(oracle(torch.tensor([past]), logits.clone()).argmax())
        assert tokens(sampler.sample(logits, ["a"])) == [wanted]
        past.append(wanted)


WISHES: list[tuple[Mapping[str, object], list[int]]] = [
    ({"temperature": 0.0}, [4, 9, 33]),
    ({"temperature": 1.3, "seed": 5}, [4, 9, 33]),
    ({"temperature": 0.7, "top_k": 2, "top_p": 0.9, "min_p": 0.01, "seed": 6}, list(range(0, 40, 3))),
    ({"temperature": 1.0, "seed": 7, "presence_penalty": 1.0, "frequency_penalty": 0.5}, [0, 39]),
    ({"temperature": 1.0, "seed": 8, "logit_bias": {1: 100.0, 5: -1.0}}, [5, 6]),
    ({"temperature": 1.0, "seed": 9, "min_tokens": 100}, [7, 8, 9]),
    ({"temperature": 0.0, "repetition_penalty": 1.5, "logprobs": 3}, [1]),
]


@pytest.mark.parametrize(("choices", "allowed"), WISHES)
def test_a_mask_is_kept_to_whatever_else_is_asked_for(
    choices: Mapping[str, object], allowed: list[int]
) -> None:
    sampler = sampler_of(request("a", [7], **choices))
    seen = {
        token_id
        for _ in range(60)
        for token_id in tokens(sampler.sample(torch.randn(1, 40), ["a"], {"a": mask_of(allowed, 5)}))
    }
    assert seen <= set(allowed)
    assert len(seen) > 1 or len(allowed) == 1


@pytest.mark.parametrize("choices", [choices for choices, _ in WISHES])
def test_a_masked_row_draws_as_from_logits_without_the_other_tokens(choices: Mapping[str, object]) -> None:
    masked, plain = (sampler_of(request("a", **choices)) for _ in range(2))
    allowed = [0, 5, 6, 20, 39]
    for _ in range(30):
        logits = torch.randn(1, 40)
        less = torch.full_like(logits, -torch.inf)
        less[0, allowed] = logits[0, allowed]
        assert tokens(masked.sample(logits, ["a"], {"a": mask_of(allowed, 5)})) == tokens(
            plain.sample(less, ["a"])
        )


def test_neighbours_get_the_same_tokens_with_or_without_a_steered_row_among_them() -> None:
    others = [
        request("greedy", logprobs=2),
        request("drawn", temperature=1.0, seed=1),
        request("shaped", temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=2),
    ]
    steered = [
        request("masked", temperature=1.0, seed=3),
        request("biased", logit_bias={3: 50.0}, seed=4, temperature=1.0),
        request("early", [0, 1, 2], min_tokens=50),
    ]
    alone, among = sampler_of(*others), sampler_of(*others, *steered)
    names = ["masked", "greedy", "biased", "drawn", "early", "shaped"]
    kept = [1, 3, 5]
    for _ in range(20):
        logits = torch.randn(6, 700)
        result = among.sample(logits, names, {"masked": mask_of([5, 600], 90)})
        assert [result[row] for row in kept] == alone.sample(logits[kept], [names[row] for row in kept])
        assert result[0].token_id in (5, 600)
        assert result[4].token_id > 2


def test_logprobs_are_those_of_the_model_whatever_is_steered() -> None:
    logits = torch.randn(1, 40)
    steered = request("a", [4], logprobs=3, logit_bias={9: 80.0}, min_tokens=3)
    plain = logits.log_softmax(-1)[0]
    (outcome,) = sampler_of(steered).sample(logits, ["a"], {"a": mask_of([4, 9], 5)})
    assert outcome.token_id == 9
    assert outcome.logprob == pytest.approx(float(plain[9]))
    best = plain.sort(descending=True)
    assert [token_id for token_id, _ in outcome.top_logprobs] == best.indices[:3].tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_left_without_a_token_breaks_alone(temperature: float) -> None:
    requests = [request(name, temperature=temperature, seed=1) for name in ("a", "b")]
    logits = torch.randn(2, 16)
    logits[0, 3] = -torch.inf
    outcomes = sampler_of(*requests).sample(
        logits, ["a", "b"], {name: mask_of([3], 2) for name in ("a", "b")}
    )
    assert isinstance(outcomes[0], EngineError)
    assert isinstance(outcomes[1], SampledToken) and outcomes[1].token_id == 3


def test_steering_mixes_no_devices() -> None:
    scores = torch.empty(3, 100, device="meta")
    with OneDevice():
        keep_allowed(scores, {0: mask_of([1, 2], 13), 2: mask_of([5], 13)})
        hold_back(scores, [(1, (3, 4))])
        add_bias(scores, [(0, {1: 2.0}), (2, {5: 3.0, 6: 1.0})])
    assert scores.shape == (3, 100)
