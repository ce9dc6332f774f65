"""The bounds against starvation, asserted through the whole scheduler for every request that is let in.

Within an account a request is passed only by better classes, and only by those that come within AGEING_S of it for
each class between. Between accounts it is let in, once it takes part and is the first of its own, before
(4n + 2)·C seconds of work have begun for others: n accounts at a time, C the most work under way at once.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import get_args

import pytest

from tapetum.core.config import Schedule
from tapetum.core.cost import CostModel
from tapetum.core.request import Request
from tapetum.core.tenant import salted
from tapetum.sched.progress import Progress
from tapetum.sched.queue import AGEING_S
from tests.pure.stage import Stage
from tests.scripted import make_item, make_request

NUM_STEPS = 150
BURST = 250  # requests that are there at the beginning, all of one account
PRIORITIES = (-1, 0, 0, 1, 2)


class Witness:
    """Sees every request let in, with all that wait meanwhile."""

    def __init__(self, stage: Stage) -> None:
        self.num_seen = 0
        self.longest = 0.0  # of the waits, as shares of the bound
        self._roster = stage.scheduler._roster
        self._ahead_s: defaultdict[Progress, float] = defaultdict(float)
        self._num_accounts, self._most_s = 0, 0.0
        self._start = self._roster.start
        self._roster.start = self._see  # type: ignore[method-assign]

    def _see(self, progress: Progress, num_matched: int, now: float) -> None:
        lines = self._roster.turns._lines
        mine = [_counted(other.state.request) for other in lines[progress.account]]
        assert _counted(progress.state.request) <= min(mine)
        under_way = [*self._roster.running.prefills, progress]
        self._most_s = max(self._most_s, sum(each.work_s for each in under_way))
        self._num_accounts = max(self._num_accounts, len({each.account for each in self._roster.live()}))
        bound_s = (4 * self._num_accounts + 2) * self._most_s
        waited_s = self._ahead_s.pop(progress, 0.0)
        assert waited_s < bound_s, (progress.request_id, waited_s, bound_s)
        self.longest = max(self.longest, waited_s / bound_s)
        for account, line in lines.items():
            if account != progress.account and line.first.rank.score <= self._roster.turns._fairness._limit:
                self._ahead_s[line.first] += progress.work_s
        self.num_seen += 1
        self._start(progress, num_matched, now)


def _counted(request: Request) -> float:
    """When it came, as its class counts."""
    return request.arrival_s + AGEING_S * request.priority


class Crowd:
    """One account that sends most, a few that send now and then, and ever new ones; some with salts."""

    def __init__(self, stage: Stage, random: Random) -> None:
        self._stage, self._random = stage, random
        self.num_sent = 0

    def send_any(self) -> None:
        kind = self._random.choices(("large", "small", "new"), (6, 2, 1))[0]
        self.send(
            {"large": "large", "small": self._random.choice("ab"), "new": f"new{self.num_sent // 50}"}[kind]
        )

    def send(self, account: str) -> None:
        random = self._random
        prompt: list[object] = [random.randrange(900) for _ in range(random.choice((10, 20, 30)))]
        if random.random() < 0.2:
            prompt.append(make_item(f"{random.randrange(30)}", random.choice((2, 4))))
        request = make_request(
            f"r{self.num_sent}",
            prompt,
            max_tokens=random.choice((1, 3, 12)),
            tenant=salted(account, random.choice(("", "x"))),
            priority=random.choice(PRIORITIES),
            arrival_s=self._stage.now,
        )
        self._stage.add(request)
        self.num_sent += 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_every_request_is_let_in_within_the_bound(schedule: Schedule, seed: int) -> None:
    random = Random(seed)
    stage = Stage(
        cost=CostModel(step=(1e-6, 1e-3, 1e-6, 1e-3, 1e-7), encode=(1e-6, 5e-3, 1e-6)),
        num_blocks=random.choice((60, 400)),
        max_num_seqs=random.choice((1, 2)),
        max_num_batched_tokens=64,
        schedule=schedule,
        step_seconds=lambda plan: 0.05,
    )
    witness, crowd = Witness(stage), Crowd(stage, random)
    for _ in range(BURST):
        crowd.send("large")
    for _ in range(NUM_STEPS):
        for _ in range(random.choice((0, 0, 1, 2))):
            crowd.send_any()
        stage.step()
    stage.drain(max_steps=20_000)
    assert len(stage.ends) == crowd.num_sent <= witness.num_seen
    assert witness.longest > 0.01  # some have had to wait
    stage.assert_clean()
