"""Guessed tokens through engine, sampler, model and server: the same answers, sooner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch

from tapetum import LLM, SamplingParams
from tapetum.core.cost import CostModel
from tapetum.core.plan import SampledToken
from tapetum.engine import build
from tapetum.engine.output import Delta
from tapetum.runtime.sampler import Sampler
from tapetum.runtime.verify import verify
from tests.cpu.engine_kit import (
    EOS,
    SpeakingExecutor,
    assert_at_rest,
    close_engines,
    engine_with,
    request_for,
    run_to_end,
    spoken,
)
from tests.cpu.server_kit import Script, TestServer
from tests.scripted import make_request

TEXT = "The total is 12.50 and the tax is 1.20. The date is 2024-05-06, the total is 12.50 again."
pytestmark = pytest.mark.usefixtures(close_engines.__name__)


def _answer(sampling: SamplingParams, speculate: str, text: str = TEXT) -> tuple[Delta, int]:
    executor = SpeakingExecutor(lambda _: spoken(text))
    engine = engine_with(executor, speculate=speculate)
    engine.add(request_for(engine, "a", sampling=sampling))
    whole = run_to_end(engine)["a"]
    assert_at_rest(engine, executor)
    return whole, engine.stats.num_accepted_tokens


@pytest.mark.parametrize("stop", [(), "12.50", "x is 1", "0. T", ("again", "2024-05"), "The", "1", " "])
@pytest.mark.parametrize("min_tokens", [0, 12])
@pytest.mark.parametrize("limit", [7, 500])
def test_a_stop_string_among_accepted_tokens_ends_the_answer_there(
    stop: tuple[str, ...] | str, min_tokens: int, limit: int
) -> None:
    sampling = SamplingParams(
        stop=stop, min_tokens=min(min_tokens, limit), max_tokens=limit, prediction=TEXT, temperature=0.0
    )
    plain, _ = _answer(sampling, "off")
    quick, num_accepted = _answer(sampling, "auto")
    assert (quick.text, quick.tokens, quick.finish_reason, quick.stop_reason) == (
        plain.text,
        plain.tokens,
        plain.finish_reason,
        plain.stop_reason,
    )
    assert num_accepted > 0 or len(plain.tokens) < 3  # the first comes with the prompt


def test_a_stop_token_inside_the_prediction_ends_the_answer() -> None:
    comma = spoken(",")[0]
    assert comma in spoken(TEXT)
    sampling = SamplingParams(stop_token_ids=(comma,), prediction=TEXT, max_tokens=100)
    plain, _ = _answer(sampling, "off")
    quick, num_accepted = _answer(sampling, "auto")
    assert num_accepted > 0 and quick.tokens == plain.tokens and quick.text == plain.text
    assert quick.stop_reason == plain.stop_reason == comma


def test_gaps_between_tokens_count_each_token() -> None:
    executor = SpeakingExecutor(lambda _: spoken(TEXT))
    engine = engine_with(executor)
    engine.add(request_for(engine, "a", sampling=SamplingParams(max_tokens=100, prediction=TEXT)))
    whole = run_to_end(engine)["a"]
    metrics = {metric.name: metric for metric in engine.metrics(0.0)}
    assert metrics["inter_token_latency_seconds"].values[""].count == len(whole.tokens) - 1
    guessed = metrics["spec_decode_num_draft_tokens"].values[""]
    accepted = metrics["spec_decode_num_accepted_tokens"].values[""]
    assert 0 < accepted <= guessed and whole.tokens[-1].token_id == EOS


WIDTH = 40
CHOICES = [
    {},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.8, "seed": 6, "top_k": 5, "logprobs": 2},
    {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 1.2, "seed": 7, "repetition_penalty": 1.3, "min_tokens": 9, "logit_bias": {3: 2.0}},
]


def _logits(history: Sequence[int]) -> torch.Tensor:
    """A model: the scores after the last three tokens."""
    seed = hash(tuple(history[-3:])) % 2**31
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed)) * 2


def _sampler(names: Mapping[str, dict[str, object]]) -> Sampler:
    sampler = Sampler()
    for name, choice in names.items():
        sampling = SamplingParams(**choice).resolved(SamplingParams())  # type: ignore[arg-type]
        sampler.add(make_request(name, [1, 2, 3], max_tokens=60, stop_token_ids=[0], sampling=sampling))
    return sampler


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
def test_verified_tokens_are_those_of_one_at_a_time(share: float) -> None:
    """Rows of all kinds side by side, with guesses of which a share comes true."""
    names = {f"r{index}": choice for index, choice in enumerate(CHOICES)}
    plain: dict[str, list[SampledToken]] = {name: [] for name in names}
    sampler = _sampler(names)
    for _ in range(40):
        rows = [_logits([1, 2, 3, *(token.token_id for token in plain[name])]) for name in names]
        for name, token in zip(names, sampler.sample(torch.stack(rows), list(names)), strict=True):
            assert isinstance(token, SampledToken)
            plain[name].append(token)
    generator = torch.Generator().manual_seed(1)
    sampler = _sampler(names)
    found: dict[str, list[SampledToken]] = {name: [] for name in names}
    while live := [name for name in names if len(found[name]) < 30]:
        guesses, rows, ids = {}, [], []
        for name in live:
            start = len(found[name])
            guess = [token.token_id for token in plain[name][start : start + int(torch.randint(8, ()))]]
            guess = [
                token_id if float(torch.rand((), generator=generator)) < share else (token_id + 1) % WIDTH
                for token_id in guess
            ]
            history = [1, 2, 3, *(token.token_id for token in found[name])]
            rows += [_logits(history + guess[:place]) for place in range(len(guess) + 1)]
            ids += [name] * (len(guess) + 1)
            guesses[name] = tuple(guess)
        logits = torch.stack(rows)
        for name, taken in verify(sampler, logits, logits.argmax(-1).tolist(), ids, guesses, {}).items():
            assert isinstance(taken, tuple) and 1 <= len(taken) <= len(guesses[name]) + 1
            found[name] += taken
    for name in names:
        assert [t.token_id for t in found[name]] == [t.token_id for t in plain[name][: len(found[name])]]
        for mine, theirs in zip(found[name], plain[name], strict=False):
            assert mine.logprob is None or mine.logprob == pytest.approx(theirs.logprob, abs=1e-5)


def test_a_broken_position_behind_a_guess_is_left_to_the_next_step() -> None:
    sampler = _sampler({"a": {}})
    logits = torch.stack([_logits([1]), torch.full((WIDTH,), torch.nan), _logits([2])])
    best = logits.argmax(-1).tolist()
    best[1] = -1
    first = best[0]
    outcomes = verify(sampler, logits, best, ["a"] * 3, {"a": (first, 5)}, {})
    assert outcomes == {"a": (SampledToken(token_id=first),)}
    assert not isinstance(verify(sampler, logits[1:], best[1:], ["a"], {}, {})["a"], tuple)


class Settled(CostModel):
    """Steps cost so much that guesses pay, whatever else this machine does."""

    def __init__(self) -> None:
        super().__init__(step=(1e-2, 1e-4, 0.0, 1e-4, 0.0))

    def observe_step(self, *_: float) -> None: ...


@pytest.fixture(scope="module")
def llms() -> Iterator[dict[str, LLM]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "profile", lambda *_: Settled())
        patch.setattr(build.CostFile, "read", lambda _: None)
        patch.setattr(build.CostFile, "write", lambda *_: None)
        made = {name: LLM(dtype="float32", speculate=name, threads=1) for name in ("off", "auto")}
    yield made
    for llm in made.values():
        llm.close()


@pytest.mark.parametrize(
    "choice",
    [{}, {"temperature": 1.0, "seed": 3}, {"repetition_penalty": 1.3}, {"temperature": 0.7, "seed": 4}],
)
@pytest.mark.parametrize("is_right", [True, False])
def test_a_model_says_the_same(llms: dict[str, LLM], choice: dict[str, object], is_right: bool) -> None:
    messages = [{"role": "user", "content": "one two three four five one two three four five one two"}]
    sampling = SamplingParams(max_tokens=64, ignore_eos=True, **choice)  # type: ignore[arg-type]
    plain = llms["off"].chat(messages, sampling, use_tqdm=False)[0].outputs[0]
    page = plain.text if is_right else plain.text[::3]
    sampling = SamplingParams(max_tokens=64, ignore_eos=True, prediction=page, **choice)  # type: ignore[arg-type]
    before = llms["auto"]._engine.stats.num_guessed_tokens
    quick = llms["auto"].chat(messages, sampling, use_tqdm=False)[0].outputs[0]
    assert quick.token_ids == plain.token_ids and quick.text == plain.text
    assert len(quick.token_ids) == 64 and llms["auto"]._engine.stats.num_guessed_tokens > before


def test_the_server_takes_a_prediction_and_counts_it() -> None:
    script = Script(TEXT)
    with TestServer(script) as server:
        plain = server.chat(max_tokens=100).json()
        assert "completion_tokens_details" not in plain["usage"]
        for content in (TEXT, [{"type": "text", "text": TEXT[:20]}, {"type": "text", "text": TEXT[20:]}]):
            answer = server.chat(max_tokens=100, prediction={"type": "content", "content": content}).json()
            assert answer["choices"][0]["message"] == plain["choices"][0]["message"]
            details = answer["usage"]["completion_tokens_details"]
            assert details["accepted_prediction_tokens"] > 10
        other = {"type": "content", "content": TEXT[:20] + " or so, says the man at the counter"}
        wrong = server.chat(max_tokens=100, prediction=other).json()
        details = wrong["usage"]["completion_tokens_details"]
        assert details["rejected_prediction_tokens"] > 0 and details["accepted_prediction_tokens"] > 0
        assert wrong["choices"][0]["message"] == plain["choices"][0]["message"]
        bad = server.chat(prediction={"type": "file", "content": "x"})
        assert bad.status_code == 400 and "prediction.type" in bad.json()["error"]["param"]


def test_answers_to_one_prompt_are_counted_together() -> None:
    with TestServer(Script(TEXT)) as server:
        prediction = {"type": "content", "content": TEXT}
        one = server.chat(max_tokens=100, prediction=prediction).json()["usage"]["completion_tokens_details"]
        two = server.chat(max_tokens=100, prediction=prediction, n=2).json()["usage"][
            "completion_tokens_details"
        ]
        assert two["accepted_prediction_tokens"] > 1.5 * one["accepted_prediction_tokens"]
