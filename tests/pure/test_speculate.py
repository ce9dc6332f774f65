"""Guesses change when tokens come, never which: random answers, guessed rightly, wrongly and in part."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from tapetum.core.config import ScheduleConfig
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.plan import BatchPlan
from tapetum.core.request import Grammar, Request, RequestState, SamplingParams
from tapetum.engine.profile import observe
from tapetum.sched.lookup import Lookup
from tapetum.sched.speculate import MAX_GUESS, Outlook, Speculation
from tests.pure.stage import SIZE, Stage
from tests.scripted import RESOLVED, ScriptedExecutor, make_item, make_request

END = 999


class World:
    """Random requests whose answers follow their page, their prompt or nothing at all, with slips and early ends."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.answers: dict[str, list[int]] = {}
        self.starts: dict[str, int] = {}
        self.requests = [self._request(f"r{index}") for index in range(rng.randint(1, 5))]
        self.limits = {
            "num_blocks": rng.choice([max(map(_blocks, self.requests)), 30, 60]),
            "max_num_batched_tokens": rng.choice([5, 9, 40, 2048]),
            "max_num_seqs": rng.choice([1, 2, 8]),
            "is_caching": rng.random() < 0.5,
            "schedule": rng.choice(["balanced", "throughput"]),
        }
        self.limits["num_blocks"] = max(self.limits["num_blocks"], max(map(_blocks, self.requests)))
        self.aborts = {
            request.request_id: rng.randint(1, 12) for request in self.requests if rng.random() < 0.15
        }

    def run(self, speculate: str) -> Stage:
        executor = ScriptedExecutor(SIZE, script=self._say)
        stage = Stage(executor=executor, speculate=speculate, **self.limits)
        waiting = list(self.requests)
        for _ in range(2000):
            if waiting:
                stage.add(waiting.pop(0))
            elif not stage.scheduler.has_work:
                break
            stage.step()
            for name, limit in self.aborts.items():
                if name not in stage.ends and len(stage.tokens.get(name, ())) >= limit:
                    stage.tell([event for event in (stage.scheduler.abort(name, stage.now),) if event])
        while stage.scheduler.has_work:
            stage.step()
        stage.assert_clean()
        return stage

    def _request(self, name: str) -> Request:
        rng = self.rng
        page = [rng.randrange(12) for _ in range(rng.randint(0, 40))]
        text = [rng.randrange(12) for _ in range(rng.randint(1, 30))]
        source = rng.choice([page or text, text, text * 2])
        answer = _slipped(rng, source[rng.randrange(len(source)) :] or source, rng.choice([0.0, 0.1, 0.4]))
        limit = rng.randint(1, 40)
        answer = (answer * 8)[:limit]
        if rng.random() < 0.5:
            answer[rng.randrange(len(answer))] = END
        if rng.random() < 0.3 and page:
            page[rng.randrange(len(page))] = END
        self.answers[name] = answer
        segments: list = [*text[:3], make_item("p", 3), *text[3:]] if rng.random() < 0.3 else list(text)
        request = make_request(name, segments, max_tokens=limit, stop_token_ids=[END])
        self.starts[name] = request.num_prompt_tokens
        return make_request(
            name,
            segments,
            max_tokens=limit,
            stop_token_ids=[END],
            priority=rng.choice([0, 0, 1]),
            prediction=page if rng.random() < 0.6 else (),
        )

    def _say(self, name: str, position: int) -> int:
        answer, index = self.answers[name], position - self.starts[name]
        return answer[index] if index < len(answer) else 13


def _slipped(rng: random.Random, source: Iterable[int], share: float) -> list[int]:
    """A copy with some tokens changed, left out or put in."""
    copy: list[int] = []
    for token_id in source:
        if rng.random() >= share:
            copy.append(token_id)
        elif rng.random() < 0.7:
            copy += [rng.randrange(12)] * rng.randint(1, 2)
    return copy or [1]


def _blocks(request: Request) -> int:
    return -(-(request.num_prompt_tokens + request.max_tokens) // SIZE)


@pytest.mark.parametrize("part", range(10))
def test_the_same_tokens_with_guesses_as_without(part: int) -> None:
    guessed = preempted = 0
    for seed in range(200 * part, 200 * (part + 1)):
        world = World(seed)
        plain, quick = world.run("off"), world.run("auto")
        kept = {name for name in plain.tokens if name not in world.aborts}
        for name in kept:
            assert quick.tokens[name] == plain.tokens[name], (seed, name)
        for name in world.aborts:
            shorter, longer = sorted((quick.tokens[name], plain.tokens[name]), key=len)
            assert longer[: len(shorter)] == shorter
        reasons = plain.reasons()
        assert {name: quick.reasons()[name] for name in kept} == {name: reasons[name] for name in kept}
        stats = quick.scheduler.stats()
        assert stats.num_guessed_tokens == sum(quick.executor.guessed.values())
        assert stats.num_accepted_tokens <= stats.num_guessed_tokens
        assert plain.scheduler.stats().num_guessed_tokens == 0
        guessed += stats.num_accepted_tokens
        preempted += stats.num_preemptions
    assert guessed > 1000 and preempted > 10


def test_an_answer_that_is_the_page_takes_few_steps() -> None:
    page = random.Random(1).sample(range(900), 100)
    plain, quick = (_transcribed(page, page, speculate) for speculate in ("off", "auto"))
    assert quick.tokens == plain.tokens == {"a": page}
    assert _steps(plain) == 100 and _steps(quick) < 12
    stats = quick.ends["a"].stats
    assert stats is not None and stats.num_predicted_right >= 90 and stats.num_predicted_wrong == 0


def test_a_wrong_page_is_given_up() -> None:
    rng = random.Random(2)
    page, answer = ([rng.randrange(900) for _ in range(300)] for _ in range(2))
    stage = _transcribed(page, answer, "auto")
    stats = stage.ends["a"].stats
    assert stage.tokens["a"] == answer and stats is not None
    assert stats.num_predicted_right < 5 and stats.num_predicted_wrong <= 2 * MAX_GUESS


def _transcribed(page: list[int], answer: list[int], speculate: str) -> Stage:
    executor = ScriptedExecutor(SIZE, script=lambda _, position: answer[position - 3])
    stage = Stage(executor=executor, speculate=speculate, num_blocks=100)
    stage.add(make_request("a", [950, 951, 952], max_tokens=len(answer), prediction=page))
    stage.drain()
    return stage


def _steps(stage: Stage) -> int:
    return sum(bool(plan.rows) for plan in stage.plans)


def test_no_guess_where_a_grammar_rules() -> None:
    sampling = SamplingParams(grammar=Grammar(kind="regex", source="a*")).resolved(RESOLVED)
    stage = Stage(executor=ScriptedExecutor(SIZE, script=lambda _, position: 5))
    stage.add(make_request("a", [5] * 10, max_tokens=30, sampling=sampling, prediction=[5] * 30))
    stage.drain()
    assert stage.scheduler.stats().num_guessed_tokens == 0


def test_blocks_behind_what_came_true_are_given_back() -> None:
    """With a page that is always wrong, after every step a request holds what it holds without guesses."""
    answer = [index % 7 + 10 * (index % 11) for index in range(60)]
    page = [token_id for index, token_id in enumerate(answer) if index % 6]  # a token is missing now and then
    executor = ScriptedExecutor(SIZE, script=lambda _, position: answer[position - 2])
    stage = Stage(executor=executor)
    stage.add(make_request("a", [900, 901], max_tokens=60, prediction=page))
    wrong = 0
    while stage.scheduler.has_work:
        plan = stage.step()
        if progress := stage.scheduler._roster.find("a"):
            state = progress.state
            assert len(state.block_ids) == -(-state.num_computed_tokens // SIZE)
            wrong += len(plan.rows[0].guess) > 0 and state.num_tokens < plan.rows[0].end + 1
    assert wrong > 3
    stage.assert_clean()


def test_guesses_take_no_block_that_another_waits_for() -> None:
    """A pool that holds both requests without a block to spare: the second comes in as early as without guesses."""
    starts = {}
    for speculate in ("off", "auto"):
        executor = ScriptedExecutor(SIZE, script=lambda _, position: 5)
        stage = Stage(executor=executor, speculate=speculate, num_blocks=16, is_caching=False)
        stage.add(make_request("a", [5] * 13, max_tokens=30))
        for _ in range(3):
            stage.step()
        stage.add(make_request("b", [5] * 20, max_tokens=4))
        stage.drain()
        stats = stage.scheduler.stats()
        assert stats.num_preemptions == 0
        starts[speculate] = next(
            index for index, plan in enumerate(stage.plans) if any(row.request_id == "b" for row in plan.rows)
        )
    assert starts["auto"] <= starts["off"]


def test_the_page_is_followed_over_slips() -> None:
    page = list(range(100, 140))
    lookup = Lookup(make_request("a", [1, 2, 3], prediction=page))
    assert lookup.guess(4).token_ids == (100, 101, 102, 103)
    for token_id in (100, 101, 999):  # another word in place of 102
        lookup.append(token_id)
    found = lookup.guess(2)
    assert found.token_ids == (103, 104) and found.kind == "short"
    lookup.append(103)
    found = lookup.guess(3)
    assert found.token_ids == (104, 105, 106) and found.kind == "followed" and found.is_predicted
    lookup.append(105)
    lookup.append(999)
    assert lookup.guess(4) is None  # two slips in a row
    for token_id in (105, 106):  # 104 left out: found again by two words
        lookup.append(token_id)
    assert lookup.guess(3).token_ids == (107, 108, 109)


def test_the_longest_match_wins_and_of_equal_ones_the_page() -> None:
    text = [1, 2, 3, 4, 50, 9, 3, 4, 60, 7]
    lookup = Lookup(make_request("a", [*text, 1, 2, 3]))
    lookup.append(4)
    found = lookup.guess(2)
    assert found.token_ids == (50, 9) and found.kind == "long"  # not 60, which came later behind 3, 4
    paged = Lookup(make_request("a", [8, 3, 4, 60, 7, 3], prediction=[0, 3, 4, 70]))
    paged.append(4)
    assert paged.guess(1).token_ids == (70,)


def test_guesses_stop_at_pictures_and_behind_ends() -> None:
    request = make_request("a", [1, 2, 3, make_item("p", 2), 5, 1], stop_token_ids=[60])
    lookup = Lookup(request)
    lookup.append(2)
    assert lookup.guess(9).token_ids == (3,)
    ended = Lookup(make_request("a", [1, 2, 60, 4, 1], stop_token_ids=[60]))
    ended.append(2)
    assert ended.guess(9).token_ids == (2, 60)[1:]


def test_repetitions_go_on() -> None:
    lookup = Lookup(make_request("a", [1, 2, 3, 1, 2]))
    lookup.append(3)
    assert lookup.guess(7).token_ids == (1, 2, 3, 1, 2, 3, 1)


def test_a_long_prompt_is_indexed_a_little_at_a_time() -> None:
    tokens = [index % 5000 for index in range(9000)]
    lookup = Lookup(make_request("a", tokens))
    lookup.append(4000)
    calls = 0
    while lookup.guess(2) is None:
        calls += 1
        assert calls < 100
    assert calls > 5


@pytest.mark.parametrize(("per_row", "per_token", "others"), [(1e-3, 1e-3, 0), (2e-3, 2e-3, 15)])
def test_nothing_is_guessed_where_verifying_costs_as_much_as_decoding(
    per_row: float, per_token: float, others: int
) -> None:
    step = Outlook(1.0 + others, 1e-5 + per_row * (1 + others), per_token)
    assert step.best_length(0.95, MAX_GUESS) == 0


def test_the_length_grows_with_the_rate_and_shrinks_with_the_cost() -> None:
    def length(rate: float, per_token: float) -> int:
        return Outlook(1.0, 10e-3, per_token).best_length(rate, MAX_GUESS)

    by_rate = [length(rate, 5e-4) for rate in (0.05, 0.3, 0.6, 0.9, 0.99)]
    assert by_rate == sorted(by_rate) and by_rate[0] <= 1 and by_rate[-1] >= 16
    by_cost = [length(0.9, cost) for cost in (0.0, 1e-4, 1e-3, 5e-3, 2e-2)]
    assert by_cost == sorted(by_cost, reverse=True) and by_cost[0] == MAX_GUESS and by_cost[-1] == 0


def test_a_source_that_came_true_again_is_taken_up_again() -> None:
    state = RequestState(make_request("a", [1, 2], max_tokens=5000, prediction=list(range(900)) * 3))
    speculation = Speculation(state)
    step = (1.0, 10e-3, 1e-3)
    for _ in range(12):  # wrong for a while
        assert speculation.look(Outlook(*step))
        if speculation.take(8, Outlook(*step)):
            speculation.settle(0)
    assert speculation.look(Outlook(*step)) and speculation.take(8, Outlook(*step)) == ()
    taken = [bool(_taken(speculation, step)) for _ in range(400)]
    assert sum(taken[:40]) == 0 and sum(taken[-50:]) > 30


def _taken(speculation: Speculation, step: tuple[float, float, float]) -> tuple[int, ...]:
    guess = speculation.take(8, Outlook(*step)) if speculation.look(Outlook(*step)) else ()
    if guess:
        speculation.settle(len(guess))
    return guess


def _device_seconds(base: float, row: float, token: float):
    def seconds(plan: BatchPlan) -> tuple[float, float]:
        decodes = sum(r.is_decode for r in plan.rows)
        chunk = sum(len(r.guess) if r.is_decode else r.length for r in plan.rows)
        return 0.0, base + row * decodes + token * chunk

    return seconds


@pytest.mark.parametrize(
    "device", [(5e-3, 1e-3, 1e-4), (1e-3, 1e-3, 1e-3), (1e-4, 2e-3, 2e-3), (2e-2, 1e-4, 5e-4)]
)
@pytest.mark.parametrize("slips", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("num_requests", [1, 6])
def test_never_slower_than_without(
    device: tuple[float, float, float], slips: float, num_requests: int
) -> None:
    spent = {}
    for speculate in ("off", "auto"):
        rng = random.Random(7)
        answers = {f"r{i}": [rng.randrange(900) for _ in range(150)] for i in range(num_requests)}
        pages = {
            name: [rng.randrange(900) if rng.random() < slips else token_id for token_id in answer]
            for name, answer in answers.items()
        }
        executor = ScriptedExecutor(
            SIZE,
            script=lambda name, position, answers=answers: answers[name][position - 8],
            seconds=_device_seconds(*device),
        )
        stage = Stage(
            executor=executor,
            speculate=speculate,
            num_blocks=1000,
            cost=_learned(device),
            itl_target_ms=1000.0,
        )
        for name, answer in answers.items():
            stage.add(make_request(name, [950] * 8, max_tokens=len(answer), prediction=pages[name]))
        spent[speculate] = 0.0
        while stage.scheduler.has_work:
            plan = stage.scheduler.schedule(stage.now)
            result = executor.execute(plan)
            observe(stage.cost, plan, result)
            spent[speculate] += result.forward_s
            stage.tell(stage.scheduler.commit(plan, result, stage.now))
        assert stage.tokens == answers
    assert spent["auto"] <= spent["off"] / 0.95
    if slips == 0.0 and device[2] < device[0]:
        assert spent["auto"] < 0.6 * spent["off"]


def _learned(device: tuple[float, float, float]) -> CostModel:
    """What a profile teaches."""
    cost = CostModel()
    for decodes, chunk in [(1, 0), (4, 0), (16, 0), (0, 16), (0, 64), (0, 128)] * 5:
        base, row, token = device
        seconds = base + row * decodes + token * chunk
        cost.observe_step(decodes, 100 * decodes, chunk, chunk_context(0, chunk), seconds)
    return cost


def test_off_is_off() -> None:
    assert ScheduleConfig().speculate == "auto"
    stage = Stage(executor=ScriptedExecutor(SIZE, script=lambda _, position: 5), speculate="off")
    stage.add(make_request("a", [5] * 10, max_tokens=30, prediction=[5] * 30))
    stage.drain()
    assert _steps(stage) == 30 and stage.scheduler.stats().num_guessed_tokens == 0


def test_where_one_row_among_many_gains_nothing_nothing_is_looked_for() -> None:
    """However well it is guessed: what a step costs the scheduler is not spent on that."""

    state = RequestState(make_request("a", [1, 2], max_tokens=500, prediction=range(100)))
    speculation = Speculation(state)
    state.output_token_ids.append(0)
    assert speculation.look(Outlook(100, 1e-3)) and not speculation.look(Outlook(256, 1e-3))
    few, many = Outlook(100.0, 1e-3), Outlook(256.0, 1e-3)
    assert few.best_length(0.9, MAX_GUESS) and not many.best_length(0.9, MAX_GUESS)
