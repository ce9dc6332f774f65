"""The sampler beside transformers' processors, a dense copy of vLLM's penalties and plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tapetum.core.errors import EngineError
from tapetum.core.media import Geometry, MediaItem, Span
from tapetum.core.plan import SampledToken
from tapetum.core.request import Prompt, Request, SamplingParams
from tapetum.ops.best import argmax
from tapetum.runtime.draw import Shape, draw, weigh
from tapetum.runtime.sampler import Sampler
from tests.cpu.test_device_neutral import OneDevice

PICTURE = MediaItem(
    key=bytes(32),
    geometry=Geometry(
        kind="image",
        original=(28, 28),
        used=(28, 28),
        frames=1,
        grid_thw=(1, 2, 2),
        num_tokens=1,
        segments=(4,),
    ),
    patches=None,
)
VOCAB_SIZES = (1, 7, 511, 512, 513, 1000, 4096)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def request(request_id: str, prompt: Sequence[int] = (0,), spans: Sequence[Span] = (), **choices) -> Request:
    return Request(
        request_id=request_id,
        prompt=Prompt(token_ids=tuple(prompt), spans=tuple(spans), position_ids=None, position_delta=0),
        sampling=SamplingParams(**choices).resolved(SamplingParams()),
        max_tokens=1000,
        stop_token_ids=frozenset(),
    )


def sampler_of(*requests: Request, seed: int = 0) -> Sampler:
    sampler = Sampler(seed)
    for item in requests:
        sampler.add(item)
    return sampler


def token_ids(outcomes: Sequence[SampledToken | EngineError]) -> list[int]:
    assert all(isinstance(outcome, SampledToken) for outcome in outcomes), outcomes
    return [outcome.token_id for outcome in outcomes]


def run(sampler: Sampler, request_id: str, steps: Sequence[Tensor]) -> list[int]:
    return [token_ids(sampler.sample(logits[None], [request_id]))[0] for logits in steps]


class TestGreedy:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
    def test_takes_the_lowest_id_of_the_highest_logit(self, vocab_size: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(vocab_size)
        logits = (torch.randn(9, vocab_size, generator=generator) * 2).round().to(dtype)  # many ties
        expected = [row.index(max(row)) for row in logits.tolist()]
        assert argmax(logits).tolist() == expected

    def test_every_place_can_win(self) -> None:
        vocab_size = 1300
        logits = torch.eye(vocab_size)
        assert argmax(logits).tolist() == list(range(vocab_size))

    def test_fast_path_makes_no_float32_copy_of_the_logits(self) -> None:
        logits = torch.randn(4, 3000).bfloat16()
        names = ["a", "b", "c", "d"]
        sampler = sampler_of(*(request(name, temperature=0.0) for name in names))
        with _Wide(logits.shape[1]) as wide:
            outcomes = sampler.sample(logits, names)
        assert token_ids(outcomes) == logits.argmax(-1).tolist()
        assert wide.seen == []

    def test_that_check_sees_a_copy(self) -> None:
        logits = torch.randn(1, 3000).bfloat16()
        with _Wide(logits.shape[1]) as wide:
            sampler_of(request("a", temperature=1.0)).sample(logits, ["a"])
        assert wide.seen

    def test_cold_and_narrow_draws_are_greedy(self) -> None:
        logits = torch.randn(1, 3000)
        best = logits.argmax().item()
        for choices in ({"temperature": 1e-60}, {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
            sampler = sampler_of(request("a", **{"temperature": 1.0, **choices}))
            assert run(sampler, "a", [logits[0]] * 5) == [best] * 5, choices


class _Wide(TorchDispatchMode):
    """Notes every operation that puts out float32 values as many as a row of logits or more."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self._vocab_size = vocab_size
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.dtype == torch.float32 and out.numel() >= self._vocab_size:
            self.seen.append(str(func))
        return out


SHAPES = [
    Shape(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature in (0.3, 1.0, 1.7)
    for top_k, top_p, min_p in (
        (0, 1.0, 0.0),
        (1, 1.0, 0.0),
        (40, 1.0, 0.0),
        (10_000, 1.0, 0.0),
        (0, 0.05, 0.0),
        (0, 0.9, 0.0),
        (0, 0.999, 0.0),
        (0, 1.0, 0.02),
        (30, 0.8, 0.0),
        (30, 0.95, 0.1),
        (0, 0.6, 0.3),
    )
]


def reference(shape: Shape, scores: Tensor) -> Tensor:
    """What transformers makes of `scores` [V]: -inf where it removes a token."""
    steps = LogitsProcessorList([TemperatureLogitsWarper(shape.temperature)])
    if shape.top_k:
        steps.append(TopKLogitsWarper(shape.top_k))
    if shape.top_p < 1.0:
        steps.append(TopPLogitsWarper(shape.top_p))
    if shape.min_p:
        steps.append(MinPLogitsWarper(shape.min_p))
    return steps(torch.zeros(1, 1, dtype=torch.long), scores[None])[0]


class TestFilters:
    @pytest.mark.parametrize("vocab_size", [64, 1000, 3000])
    def test_keeps_the_tokens_and_probabilities_of_transformers(self, vocab_size: int) -> None:
        generator = torch.Generator().manual_seed(vocab_size)
        scores = torch.randn(len(SHAPES), vocab_size, generator=generator) * 3
        weights = weigh(scores, SHAPES)
        for row, shape in enumerate(SHAPES):
            expected = reference(shape, scores[row])
            assert torch.equal(weights[row] > 0, expected > -torch.inf), shape
            torch.testing.assert_close(
                weights[row] / weights[row].sum(), expected.softmax(-1), rtol=1e-4, atol=1e-7, msg=str(shape)
            )

    def test_rows_do_not_change_each_other(self) -> None:
        scores = torch.randn(len(SHAPES), 3000) * 2
        together = weigh(scores, SHAPES)
        for row, shape in enumerate(SHAPES):
            assert torch.equal(weigh(scores[row : row + 1], [shape])[0], together[row]), shape

    def test_a_share_of_nearly_one_adds_nothing_to_top_k(self) -> None:
        scores = torch.randn(30, 4000) * 6  # a wide range, so that the order of a sum shows in its last bits
        shape = Shape(temperature=1.0, top_k=3000, top_p=1.0 - 2.0**-53, min_p=0.0)
        assert (weigh(scores, [shape] * 30) > 0).sum(-1).max() == 3000

    def test_top_p_looks_past_the_best_tokens_of_a_flat_distribution(self) -> None:
        scores = torch.randn(2, 5000) * 0.01
        shape = Shape(temperature=1.0, top_k=0, top_p=0.7, min_p=0.0)
        kept = (weigh(scores, [shape, shape]) > 0).sum(-1)
        assert kept.tolist() == [int((reference(shape, row) > -torch.inf).sum()) for row in scores]
        assert kept.min() > 3000

    def test_equal_scores_at_the_edge_all_stay(self) -> None:
        scores = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0]])
        for shape in (
            Shape(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0),
            Shape(temperature=1.0, top_k=0, top_p=0.8, min_p=0.0),
        ):
            assert (weigh(scores, [shape])[0, :5] > 0).tolist() == [True, True, True, True, False]


class TestDraw:
    def test_a_number_picks_the_token_of_the_cumulated_softmax(self) -> None:
        scores = torch.randn(200, 1500, dtype=torch.float64) * 3
        numbers = torch.rand(200, dtype=torch.float64)
        shape = Shape(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        passed = scores.softmax(-1).cumsum(-1)
        tokens = draw(scores.float(), [shape] * 200, numbers.tolist())[:, None]
        end = passed.gather(1, tokens)[:, 0]
        start = end - scores.softmax(-1).gather(1, tokens)[:, 0]
        slack = 1e-6  # float32 weights
        assert ((start - slack < numbers) & (numbers < end + slack)).all()

    @pytest.mark.parametrize("number", [0.0, 0.5, 1.0 - 2.0**-53])
    def test_the_ends_of_the_range_fall_on_kept_tokens(self, number: float) -> None:
        scores = torch.full((1, 2000), -torch.inf)
        scores[0, 600:604] = 0.0
        shape = Shape(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        expected = {0.0: 600, 0.5: 602}.get(number, 603)
        assert draw(scores, [shape], [number]).tolist() == [expected]

    def test_the_last_number_never_falls_behind_the_last_kept_token(self) -> None:
        scores = torch.full((50, 1024), -torch.inf)
        scores[:, 520:620] = torch.randn(50, 100)
        shape = Shape(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        assert draw(scores, [shape] * 50, [1.0 - 2.0**-53] * 50).tolist() == [619] * 50

    @pytest.mark.parametrize(
        "choices", [{}, {"top_k": 12}, {"top_p": 0.8, "temperature": 1.4}, {"min_p": 0.05}]
    )
    def test_frequencies_follow_the_softmax(self, choices: dict[str, float]) -> None:
        """Pearson's chi-square over 8,000 draws stays within five deviations of its mean."""
        choices = {"temperature": 1.0, **choices}
        logits = torch.full((1200,), -torch.inf)
        logits[::40] = torch.randn(30, generator=torch.Generator().manual_seed(3))
        names = [str(row) for row in range(1000)]
        sampler = sampler_of(*(request(name, **choices) for name in names), seed=11)
        drawn = [
            token for _ in range(8) for token in token_ids(sampler.sample(logits.expand(1000, -1), names))
        ]
        shape = Shape(**{"top_k": 0, "top_p": 1.0, "min_p": 0.0, **choices})
        expected = reference(shape, logits).softmax(-1) * len(drawn)
        counts = torch.bincount(torch.tensor(drawn), minlength=1200)
        assert not counts[expected == 0].any()
        kept = expected > 0
        square = ((counts - expected)[kept] ** 2 / expected[kept]).sum().item()
        freedom = int(kept.sum()) - 1
        assert freedom >= 5
        assert abs(square - freedom) < 5 * math.sqrt(2 * freedom)


CHOICES = {"temperature": 1.2, "top_p": 0.95, "repetition_penalty": 1.1}


class TestSeeds:
    def steps(self, rows: int) -> Tensor:
        generator = torch.Generator().manual_seed(5)
        return (torch.randn(40, rows, 2000, generator=generator) * 2).bfloat16()  # [steps, rows, V]

    def test_a_seeded_request_is_the_same_alone_and_among_neighbours(self) -> None:
        steps = self.steps(5)
        seeded = request("x", prompt=(4, 5, 6), seed=42, **CHOICES)
        alone = run(sampler_of(seeded), "x", steps[:, 0])
        others = (
            request("greedy", temperature=0.0),
            request("narrow", temperature=0.7, top_k=5),
            request("wide", temperature=3.0, top_p=0.99, min_p=1e-4),
            request("seeded", temperature=1.0, seed=42, logprobs=2),
        )
        sampler = sampler_of(*others, seeded, seed=9)
        together = []
        for index, step in enumerate(steps):
            order = [0, *range(1, 1 + index % 5)]  # neighbours come and go, and their places change
            names = ["x", *(other.request_id for other in others)]
            if index % 2:
                order.reverse()
            outcomes = token_ids(sampler.sample(step[order], [names[row] for row in order]))
            together.append(outcomes[order.index(0)])
        assert together == alone

    def test_seeds_differ_and_repeat(self) -> None:
        steps = self.steps(1)[:, 0]
        texts = [
            run(sampler_of(request("x", seed=seed, **CHOICES), seed=shared), "x", steps)
            for seed, shared in ((1, 0), (1, 7), (2, 0), (-1, 0))
        ]
        assert texts[0] == texts[1]
        assert texts[0] != texts[2] != texts[3]

    def test_unseeded_requests_follow_the_seed_of_the_device(self) -> None:
        steps = self.steps(1)[:, 0]
        texts = [run(sampler_of(request("x", **CHOICES), seed=seed), "x", steps) for seed in (1, 1, 2)]
        assert texts[0] == texts[1] != texts[2]

    def test_a_removed_request_is_forgotten(self) -> None:
        steps = self.steps(1)[:, 0]
        item = request("x", seed=3, **CHOICES)
        sampler = sampler_of(item)
        first = run(sampler, "x", steps)
        sampler.remove("x")
        sampler.add(item)
        assert run(sampler, "x", steps) == first


class TestPenalties:
    def test_repetition_equals_transformers(self) -> None:
        generator = torch.Generator().manual_seed(1)
        prompt = torch.randint(0, 60, (25,), generator=generator).tolist()
        steps = torch.randn(80, 60, generator=generator) * 2
        processor = RepetitionPenaltyLogitsProcessor(penalty=1.3)
        expected: list[int] = []
        for logits in steps:
            ids = torch.tensor([prompt + expected])
            expected.append(int(processor(ids, logits[None].clone()).argmax()))
        sampler = sampler_of(request("a", prompt, temperature=0.0, repetition_penalty=1.3))
        assert run(sampler, "a", steps) == expected
        assert expected != steps.argmax(-1).tolist()

    @pytest.mark.parametrize("with_neighbour", [False, True])
    def test_all_three_equal_a_dense_copy_of_vllm(self, with_neighbour: bool) -> None:
        generator = torch.Generator().manual_seed(2)
        prompt = (1, 2, 3, 2)
        steps = torch.randn(200, 50, generator=generator)
        expected = _dense(prompt, steps, repetition=1.15, frequency=0.3, presence=0.4)
        one = request("a", prompt, repetition_penalty=1.15, frequency_penalty=0.3, presence_penalty=0.4)
        other = request("b", (7, 8), repetition_penalty=2.0, presence_penalty=-1.0)
        sampler = sampler_of(one, other)
        found = []
        for logits in steps:
            rows, names = (
                (torch.stack((logits.flip(0), logits)), ["b", "a"])
                if with_neighbour
                else (logits[None], ["a"])
            )
            found.append(token_ids(sampler.sample(rows, names))[-1])
        assert found == expected
        assert len(set(expected)) > 40

    def test_by_hand(self) -> None:
        logits = torch.full((8,), -9.0)
        logits[1], logits[2], logits[3] = 2.0, 1.9, -1.0
        cases: list[tuple[dict[str, float], tuple[int, ...], list[int]]] = [
            ({"repetition_penalty": 1.04}, (1,), [1]),  # 2 / 1.04 = 1.923
            ({"repetition_penalty": 1.06}, (1,), [2]),  # 2 / 1.06 = 1.887
            ({"presence_penalty": 0.5}, (1,), [1, 2, 1, 1]),  # the prompt does not count; once is enough
            ({"frequency_penalty": 0.06}, (1,), [1, 1, 2, 1]),  # 2, 1.94, 1.88 < 1.9, 1.88 > 1.84
        ]
        for choices, prompt, expected in cases:
            sampler = sampler_of(request("a", prompt, **choices))
            assert run(sampler, "a", [logits] * len(expected)) == expected, choices

    def test_negative_scores_are_multiplied(self) -> None:
        logits = torch.tensor([-1.0, -1.05, -3.0])
        assert run(sampler_of(request("a", (0,), repetition_penalty=1.1)), "a", [logits]) == [1]
        assert run(sampler_of(request("a", (0,), repetition_penalty=1.01)), "a", [logits]) == [0]

    def test_placeholders_of_pictures_are_not_counted(self) -> None:
        logits = torch.full((10,), -5.0)
        logits[9], logits[4] = 2.0, 1.5
        prompt = (1, 9, 9, 2, 9, 9, 3)
        spans = [
            Span(start=4, end=6, item=PICTURE, placement=()),
            Span(start=1, end=3, item=PICTURE, placement=()),
        ]
        seen_as_picture = sampler_of(request("a", prompt, spans, repetition_penalty=2.0))
        seen_as_text = sampler_of(request("a", prompt, repetition_penalty=2.0))
        half_text = sampler_of(request("a", prompt, spans[:1], repetition_penalty=2.0))
        assert run(seen_as_picture, "a", [logits, logits]) == [9, 4]  # once put out, it counts
        assert run(seen_as_text, "a", [logits]) == [4]
        assert run(half_text, "a", [logits]) == [4]

    def test_text_between_and_after_pictures_is_counted(self) -> None:
        spans = [Span(start=1, end=3, item=PICTURE, placement=())]
        for token_id in (1, 2):
            logits = torch.zeros(10)
            logits[token_id], logits[5] = 2.0, 1.5
            assert run(
                sampler_of(request("a", (1, 9, 9, 2), spans, repetition_penalty=2.0)), "a", [logits]
            ) == [5]

    def test_random_rows_are_penalised_too(self) -> None:
        logits = torch.full((600,), -100.0)
        logits[3], logits[599] = 50.0, 49.0
        sampler = sampler_of(request("a", (3,), temperature=1.0, repetition_penalty=10.0))
        assert run(sampler, "a", [logits] * 3)[0] == 599


def _dense(
    prompt: Sequence[int], steps: Tensor, *, repetition: float, frequency: float, presence: float
) -> list[int]:
    output: list[int] = []
    for logits in steps:
        scores = logits.clone()
        counts = torch.bincount(torch.tensor(output, dtype=torch.long), minlength=len(scores))
        seen = counts > 0
        seen[list(prompt)] = True
        scores = torch.where(seen, torch.where(scores > 0, scores / repetition, scores * repetition), scores)
        scores = scores - frequency * counts - presence * (counts > 0)
        output.append(int(scores.argmax()))
    return output


class TestLogprobs:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_they_are_the_log_softmax_of_the_raw_logits(self, dtype: torch.dtype) -> None:
        logits = (torch.randn(2, 700) * 3).to(dtype)
        bent = request("a", (0, 1), temperature=0.5, top_k=2, repetition_penalty=1.5, logprobs=4)
        plain = request("b", logprobs=4)
        outcomes = sampler_of(bent, plain).sample(logits, ["a", "b"])
        for row, outcome in enumerate(outcomes):
            expected = logits[row].double().log_softmax(-1)
            assert outcome.logprob == pytest.approx(expected[outcome.token_id].item(), abs=1e-5)
            values = [value for _, value in outcome.top_logprobs]
            assert values == pytest.approx(expected.topk(4).values.tolist(), abs=1e-5)
            assert values == pytest.approx(
                [expected[token].item() for token, _ in outcome.top_logprobs], abs=1e-5
            )

    def test_the_number_of_alternatives(self) -> None:
        logits = torch.randn(3, 12)
        names = ["none", "own", "all"]
        outcomes = sampler_of(
            request("none"), request("own", logprobs=0), request("all", logprobs=20)
        ).sample(logits, names)
        assert outcomes[0] == SampledToken(token_id=int(logits[0].argmax()))
        assert outcomes[1].logprob is not None
        assert outcomes[1].top_logprobs == ()
        assert sorted(token for token, _ in outcomes[2].top_logprobs) == list(range(12))

    def test_equal_alternatives_come_in_the_order_of_their_ids(self) -> None:
        logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0, 1.0, 1.0]])
        (outcome,) = sampler_of(request("a", logprobs=4)).sample(logits, ["a"])
        assert [token for token, _ in outcome.top_logprobs] == [1, 3, 2, 4]
        assert outcome.token_id == 1


class TestBrokenLogits:
    @pytest.mark.parametrize("choices", [{}, {"temperature": 1.0, "top_p": 0.9}, {"presence_penalty": 1.0}])
    @pytest.mark.parametrize("fault", ["nan", "inf", "nothing"])
    def test_one_row_fails_and_its_neighbours_do_not_notice(
        self, fault: str, choices: dict[str, float]
    ) -> None:
        logits = torch.randn(3, 1100)
        alone = run(sampler_of(request("b", seed=1, **choices)), "b", [logits[2]])
        if fault == "nothing":
            logits[1] = -torch.inf
        else:
            logits[1, 1050] = float(fault)
        sampler = sampler_of(request("a"), request("sick", **choices), request("b", seed=1, **choices))
        first, sick, last = sampler.sample(logits, ["a", "sick", "b"])
        assert isinstance(sick, EngineError)
        assert "sick" in sick.message
        assert "--dtype float32" in sick.message
        assert token_ids([first, last]) == [int(logits[0].argmax()), *alone]

    def test_tokens_that_are_ruled_out_are_not_a_fault(self) -> None:
        logits = torch.full((2, 900), -torch.inf)
        logits[:, 800] = 0.0
        sampler = sampler_of(request("a"), request("b", temperature=1.0, top_k=3, top_p=0.5))
        assert token_ids(sampler.sample(logits, ["a", "b"])) == [800, 800]


def test_everything_happens_on_the_device_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device stands in for a GPU; what has to come to the host there is made up."""
    monkeypatch.setattr(Tensor, "__bool__", lambda self: True)
    monkeypatch.setattr(Tensor, "tolist", lambda self: [7] * len(self))
    sampler = sampler_of(
        request("greedy", prompt=(1, 2), presence_penalty=1.0),
        request(
            "random", prompt=(3,), temperature=1.0, top_k=3, top_p=0.5, min_p=0.1, repetition_penalty=2.0
        ),
        request("plain"),
    )
    for _ in range(2):
        with OneDevice():
            logits = torch.empty(3, 700, dtype=torch.bfloat16, device="meta")
            outcomes = sampler.sample(logits, ["greedy", "random", "plain"])
    assert outcomes == [SampledToken(token_id=7)] * 3
