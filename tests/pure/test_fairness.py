"""Turns of tenants: shares of work, the bound against starvation, and what is remembered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tapetum.core.cost import CostModel
from tapetum.core.tenant import account_of, salted
from tapetum.sched.fairness import Fairness
from tapetum.sched.queue import AGEING_S, Rank, rank_of
from tests.pure.stage import Stage
from tests.scripted import ScriptedExecutor, make_item, make_request

MOST_TENANTS = 5
DEAREST_S = 8.0  # what one request takes at most


@dataclass(eq=False)
class _Job:
    tenant: str
    rank: Rank
    work_s: float
    ahead_s: float = 0.0  # done for others since nothing of its own tenant was before it and it took part


class _Room:
    """One at a time is chosen, and done."""

    def __init__(self) -> None:
        self.fairness = Fairness()
        self.waiting: list[_Job] = []
        self.done: Counter[str] = Counter()
        self.num_added = 0
        self.now = 0.0
        self._heads: dict[str, Rank] = {}

    def decide(self, heads: dict[str, Rank]) -> None:
        tenants = heads.keys() | self._heads.keys()
        self.fairness.decide({tenant: heads.get(tenant) for tenant in tenants}, self.now)
        self._heads = heads

    def add(self, tenant: str, work_s: float, priority: int = 0) -> _Job:
        self.num_added += 1
        request = make_request("r", [1], priority=priority)
        job = _Job(tenant, rank_of(request, self.num_added, self.now), work_s)
        self.waiting.append(job)
        return job

    def serve(self) -> _Job:
        groups: dict[str, list[_Job]] = {}
        for job in sorted(self.waiting, key=lambda job: job.rank):
            groups.setdefault(job.tenant, []).append(job)
        self.decide({tenant: jobs[0].rank for tenant, jobs in groups.items()})
        chosen = next(self.fairness.in_turn(groups))
        assert next(self.fairness.tenants())[1] == chosen.tenant
        best = min(jobs[0].rank.priority for jobs in groups.values())
        for tenant, (first, *_) in groups.items():
            if tenant != chosen.tenant and first.rank.score <= best + self.now / AGEING_S:
                first.ahead_s += chosen.work_s
        self.waiting.remove(chosen)
        self.fairness.charge({chosen.tenant: chosen.work_s})
        self.done[chosen.tenant] += chosen.work_s
        self.now += chosen.work_s
        return chosen


ARRIVAL = st.tuples(
    st.integers(0, 30),  # tenants come and go, and new ones come again and again
    st.floats(0.1, DEAREST_S),
    st.integers(-1, 2),
    st.integers(0, 2),  # how many are served before the next comes
)


@given(st.lists(ARRIVAL, max_size=120))
def test_nobody_starves_whoever_comes(arrivals: list[tuple[int, float, int, int]]) -> None:
    room = _Room()
    limit_s = (4 * MOST_TENANTS + 2) * DEAREST_S
    num_served = 0
    for number, work_s, priority, num_steps in arrivals:
        present = {job.tenant for job in room.waiting}
        tenant = f"t{number}"
        if tenant in present or len(present) < MOST_TENANTS:
            room.add(tenant, work_s, priority)
        for _ in range(min(num_steps, len(room.waiting))):
            assert room.serve().ahead_s <= limit_s
            num_served += 1
    while room.waiting:
        assert room.serve().ahead_s <= limit_s
        num_served += 1
    assert num_served == room.num_added


@given(st.integers(1, 4), st.floats(0.1, DEAREST_S), st.integers(1, 3))
def test_new_tenants_without_end_do_not_starve_an_old_one(num_new: int, work_s: float, debt: int) -> None:
    """Each comes at the level, which rises with what is done for them."""
    room = _Room()
    for _ in range(debt):
        room.add("old", DEAREST_S)
        room.serve()
    room.add("old", 1.0)
    for number in range(1000):
        room.add(f"new{number}", work_s)
        if number >= num_new and room.serve().tenant == "old":
            break
    assert room.done["old"] > debt * DEAREST_S
    assert sum(room.done.values()) - room.done["old"] <= (4 * (num_new + 1) + 2) * DEAREST_S


@given(st.lists(st.floats(1.0, DEAREST_S), min_size=2, max_size=5))
def test_backlogged_tenants_get_equal_shares(costs: list[float]) -> None:
    """However dear a request of theirs is."""
    room = _Room()
    for tenant, work_s in enumerate(costs):
        for _ in range(int(100 / work_s)):
            room.add(f"t{tenant}", work_s)
    while sum(room.done.values()) < 90:
        room.serve()
    shares = [room.done[f"t{tenant}"] for tenant in range(len(costs))]
    assert max(shares) - min(shares) <= 2 * DEAREST_S


def test_nobody_saves_up_turns_while_away_or_passed_over() -> None:
    room = _Room()
    for _ in range(100):
        room.add("busy", 1.0)
    patient = room.add("patient", 1.0, priority=2)  # takes part after 20 s
    for _ in range(50):
        room.serve()
    assert patient not in room.waiting
    for _ in range(20):
        room.add("back", 1.0)
    told = [room.serve().tenant for _ in range(20)]
    assert told.count("back") == 10


def test_classes_go_before_turns_and_ageing_before_classes() -> None:
    room = _Room()
    for _ in range(10):
        room.add("a", 4.0, priority=-1)
    background = room.add("b", 4.0)  # a class behind
    served = [room.serve() for _ in range(5)]
    assert served.index(background) == 4  # it takes part after AGEING_S, from an equal level on


def test_what_is_remembered_does_not_grow() -> None:
    room = _Room()
    room.add("steady", 1.0)
    for number in range(5000):
        room.add(f"t{number}", 0.5)
        room.add("steady", 0.5)
        room.serve()
        room.serve()
        assert room.fairness.num_counters <= 1100
        assert len(room.fairness._levels) <= 8
    while room.waiting:
        room.serve()
    room.decide({})
    assert room.fairness.num_counters == 0


@given(st.text(max_size=12), st.text(max_size=12))
def test_a_salt_brings_no_turns_of_its_own(account: str, salt: str) -> None:
    if account:
        assert account_of(salted(account, salt)) == account
    assert account_of("plain") == "plain"


def _pictures(tenant: str, number: int, size: int = 4):
    return make_request(
        f"{tenant}{number}",
        [1, make_item(f"{tenant}{number}", size), 2],
        max_tokens=2,
        tenant=tenant,
    )


def _stage(seats: int) -> Stage:
    cost = CostModel(step=(1e-3, 1e-3, 1e-6, 1e-3, 1e-7), encode=(1e-3, 1e-2, 1e-6))
    return Stage(
        cost=cost,
        executor=ScriptedExecutor(4),
        num_blocks=400,
        feature_tokens=400,
        max_num_seqs=seats,
        max_num_batched_tokens=64,
        step_seconds=lambda plan: 0.05,
    )


def test_a_tenth_of_the_pictures_gets_half_of_the_work() -> None:
    """Two tenants with work left all the time, one with ten times the pictures."""
    for seats in (1, 4, 40):
        stage = _stage(seats)
        for number in range(200):
            stage.add(_pictures("large", number, size=4 + number % 3))
            if number % 10 == 0:
                stage.add(_pictures("small", number))
        while sum(name.startswith("small") for name in stage.ends) < 20:
            stage.step()
        work = Counter(dict.fromkeys(("large", "small"), 0))
        for name in stage.ends:
            work["large" if name.startswith("large") else "small"] += 1
        assert work["small"] >= 0.45 * sum(work.values()), (seats, work)
        stage.drain(max_steps=5000)
        stage.assert_clean()


def test_cached_work_is_not_charged() -> None:
    """The same picture again and again costs its tenant little, so it has most of the turns."""
    stage = _stage(seats=1)
    for number in range(40):
        picture = [1, make_item("same", 8), 2, 10 + number]
        stage.add(make_request(f"same{number}", picture, max_tokens=2, tenant="same"))
        stage.add(_pictures("fresh", number, size=8))
    while sum(name.startswith("same") for name in stage.ends) < 40:
        stage.step()
    assert sum(name.startswith("fresh") for name in stage.ends) < 20


def test_the_lowest_class_gives_way_first_then_the_latest() -> None:
    for schedule in ("balanced", "throughput"):
        stage = Stage(num_blocks=12, schedule=schedule, step_seconds=lambda plan: 0.01)
        for name, priority, length in (("low", 2, 7), ("early", 0, 7), ("late", 0, 7), ("top", -1, 7)):
            stage.add(make_request(name, range(100, 100 + length), max_tokens=12, priority=priority))
            stage.step()
        preempted: list[str] = []
        for _ in range(60):
            before = {progress.request_id for progress in stage.scheduler._roster.running}
            stage.step()
            waiting = {progress.request_id for progress in stage.scheduler._roster.waiting}
            preempted += sorted(before & waiting)
        assert preempted[0] == "low"
        assert set(preempted[1:]) <= {"low", "late"}
        assert set(stage.ends) == {"low", "early", "late", "top"}
