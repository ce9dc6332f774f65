"""Turns of tenants are those that a look at every tenant would give, number by number."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from tapetum.sched.fairness import Fairness, Turn
from tapetum.sched.queue import AGEING_S, Rank


class Naive:
    """Every tenant's counter, and who took part in the last decision."""

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}
        self.present: set[str] = set()
        self.level = 0.0
        self.limit = 0.0

    def decide(self, heads: dict[str, Rank], now: float) -> None:
        if not heads:
            self.counters, self.present = {}, set()
            return
        best = min(rank.priority for rank in heads.values())
        self.limit = max(best + now / AGEING_S, min(heads.values()).score)
        present = {tenant for tenant, rank in heads.items() if rank.score <= self.limit}
        for tenant in present - self.present:
            self.counters[tenant] = max(self.counter(tenant), self.level)
        self.present = present
        self.level = max(self.level, min(self.counters[tenant] for tenant in present))
        self.counters = {
            tenant: counter
            for tenant, counter in self.counters.items()
            if tenant in present or counter > self.level
        }

    def counter(self, tenant: str) -> float:
        return self.counters.get(tenant, self.level)

    def charge(self, tenant: str, seconds: float) -> None:
        self.counters[tenant] = self.counter(tenant) + seconds
        if tenant in self.present:
            self.level += seconds / len(self.present)

    def turn(self, tenant: str, rank: Rank) -> Turn:
        return (True, 0.0, rank) if rank.score > self.limit else (False, self.counter(tenant), rank)


@dataclass(eq=False)
class Job:
    rank: Rank
    work_s: float


class Market:
    """Tenants whose requests come, go and are paid for at random, with both ways to decide."""

    def __init__(self, random: Random) -> None:
        self.naive, self.fairness = Naive(), Fairness()
        self.pending: dict[str, list[Job]] = {}
        self._told: dict[str, Rank] = {}
        self._random = random
        self._tenants = [f"t{number}" for number in range(random.choice((2, 5, 40)))]
        self._priorities = random.choice(((0,), (-1, 0), (-1, 0, 1, 2)))
        self._now = 0.0
        self._num_added = 0

    def add(self) -> None:
        self._num_added += 1
        priority = self._random.choice(self._priorities)
        since_s = self._now - self._random.choice((0.0, 0.0, 0.1, 5.0, 20.0))
        rank = Rank(priority + since_s / AGEING_S, since_s, self._num_added, priority)
        jobs = self.pending.setdefault(self._random.choice(self._tenants), [])
        jobs.append(Job(rank, self._random.choice((0.1, 1.0, 3.0))))
        jobs.sort(key=lambda job: job.rank)

    def take(self, job: Job) -> None:
        """It begins, or leaves."""
        tenant = next(tenant for tenant, jobs in self.pending.items() if job in jobs)
        self.pending[tenant].remove(job)
        if not self.pending[tenant]:
            del self.pending[tenant]

    def decide(self) -> None:
        self._now += self._random.choice((0.0, 0.1, 1.0, 7.0))
        heads = {tenant: jobs[0].rank for tenant, jobs in self.pending.items()}
        tenants = heads.keys() | self._told.keys()
        changed = {name: heads.get(name) for name in tenants if heads.get(name) != self._told.get(name)}
        self.naive.decide(heads, self._now)
        self.fairness.decide(changed, self._now)
        self._told = heads

    def charge(self) -> None:
        tenant, seconds = self._random.choice(self._tenants), self._random.choice((0.1, 0.5, 2.0))
        self.naive.charge(tenant, seconds)
        self.fairness.charge({tenant: seconds})

    def assert_alike(self) -> None:
        heads = [(jobs[0].rank, tenant) for tenant, jobs in self.pending.items()]
        turns = [(self.naive.turn(tenant, rank), tenant) for rank, tenant in heads]
        assert list(self.fairness.tenants()) == sorted(turns)
        assert self.fairness._level == self.naive.level
        for tenant in self._tenants:
            assert self.fairness._counter(tenant) == self.naive.counter(tenant)


@pytest.mark.parametrize("part", range(10))
def test_turns_are_those_of_a_look_at_every_tenant(part: int) -> None:
    for seed in range(20):
        random = Random(100 * part + seed)
        market = Market(random)
        for _ in range(random.choice((30, 200))):
            for _ in range(random.choice((0, 0, 1, 2, 5))):
                market.add()
            market.decide()
            market.assert_alike()
            if random.random() < 0.3:
                jobs = list(market.fairness.in_turn(market.pending))
                for job in jobs[: random.randint(0, 3)]:
                    market.take(job)
            for _ in range(random.randint(0, 4)):
                market.charge()
            if random.random() < 0.05:  # nearly all leave
                for job in [job for jobs in market.pending.values() for job in jobs][2:]:
                    market.take(job)
