"""What a run says: a few numbers of each kind of request, each tenant and the whole, under fixed names.

A number that has nothing behind it is None, not zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tapetum.bench.figures import quantile
from tapetum.bench.simulate.outcome import Gaps, Outcome
from tapetum.bench.simulate.promises import Promise
from tapetum.bench.simulate.prompts import Unloaded
from tapetum.bench.simulate.simulation import Simulation
from tapetum.bench.simulate.trace import Arrival, Shape

_POINTS = 40  # of a curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The requests of one name. Times in seconds, quantiles over answered requests."""

    name: str
    num_requests: int
    num_answered: int
    num_refused: int  # when they came
    num_lost: int  # let in, and not answered
    num_good: int
    num_degraded: int  # with smaller pictures than were sent
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None
    unloaded_ttft_s: float  # mean
    itl_p50_s: float | None  # of the means of requests
    itl_p99_s: float | None
    gap_p99_s: float | None  # between any two tokens
    unloaded_itl_s: float
    slowdown: tuple[float, ...]  # time to first token over what was promised: quantiles at even distances


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """`share`: of the predicted seconds of encode and prefill that were done while every tenant waited for some."""

    name: str
    num_requests: int
    num_good: int
    work_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    name: str
    num_requests: int
    num_good: int
    num_accepted: int
    goodput: float  # good requests per second of the trace
    good_of_accepted: float | None
    answered_per_s: float
    end_s: float
    utilization: float
    num_preemptions: int
    longest_wait_s: float  # until its first step, of those that were let in
    kinds: tuple[Kind, ...]
    tenants: tuple[Tenant, ...]


class Summarizer:
    """Of the runs of one trace."""

    def __init__(
        self, trace: Sequence[Arrival], unloaded: Callable[[Shape], Unloaded], promise: Promise
    ) -> None:
        self._span_s = max(trace[-1].at_s - trace[0].at_s, 1e-9)
        self._unloaded = unloaded
        self._promise = promise

    def is_good(self, outcome: Outcome) -> bool:
        return self._promise.is_kept(outcome, self._unloaded(outcome.arrival.shape))

    def summary(self, name: str, simulation: Simulation) -> Summary:
        outcomes, end_s = simulation.outcomes, max(simulation.end_s, 1e-9)
        accepted = [outcome for outcome in outcomes if outcome.reason != "refused"]
        num_good = sum(map(self.is_good, outcomes))
        waits = [
            outcome.first_scheduled_s - outcome.arrival.at_s
            for outcome in accepted
            if outcome.first_scheduled_s is not None
        ]
        return Summary(
            name=name,
            num_requests=len(outcomes),
            num_good=num_good,
            num_accepted=len(accepted),
            goodput=num_good / self._span_s,
            good_of_accepted=num_good / len(accepted) if accepted else None,
            answered_per_s=sum(outcome.is_answered for outcome in outcomes) / end_s,
            end_s=end_s,
            utilization=simulation.busy_s / (end_s * len(simulation.replicas)),
            num_preemptions=sum(outcome.num_preemptions for outcome in outcomes),
            longest_wait_s=max(waits, default=0.0),
            kinds=tuple(
                self._kind(kind, members, simulation.watch.gaps[kind])
                for kind, members in _groups(outcomes, lambda outcome: outcome.arrival.shape.name)
            ),
            tenants=self._tenants(outcomes),
        )

    def _kind(self, name: str, outcomes: Sequence[Outcome], gaps: Gaps) -> Kind:
        answered = [outcome for outcome in outcomes if outcome.is_answered]
        unloaded = [self._unloaded(outcome.arrival.shape) for outcome in outcomes]
        ttfts, itls = [outcome.ttft_s for outcome in answered], [outcome.itl_s for outcome in answered]
        slowdowns = [
            outcome.ttft_s / self._promise.ttft_s(self._unloaded(outcome.arrival.shape))
            for outcome in answered
        ]
        num_refused = sum(outcome.reason == "refused" for outcome in outcomes)
        return Kind(
            name=name,
            num_requests=len(outcomes),
            num_answered=len(answered),
            num_refused=num_refused,
            num_lost=len(outcomes) - len(answered) - num_refused,
            num_good=sum(map(self.is_good, outcomes)),
            num_degraded=sum(outcome.rung != "high" for outcome in outcomes),
            ttft_p50_s=_quantile(ttfts, 0.5),
            ttft_p95_s=_quantile(ttfts, 0.95),
            ttft_p99_s=_quantile(ttfts, 0.99),
            unloaded_ttft_s=sum(each.ttft_s for each in unloaded) / len(unloaded),
            itl_p50_s=_quantile(itls, 0.5),
            itl_p99_s=_quantile(itls, 0.99),
            gap_p99_s=gaps.quantile(0.99),
            unloaded_itl_s=sum(each.itl_s for each in unloaded) / len(unloaded),
            slowdown=tuple(quantile(slowdowns, point / _POINTS) for point in range(_POINTS + 1))
            if slowdowns
            else (),
        )

    def _tenants(self, outcomes: Sequence[Outcome]) -> tuple[Tenant, ...]:
        groups = _groups(outcomes, lambda outcome: outcome.arrival.tenant)
        work = self._contended_work(outcomes, [name for name, _ in groups])
        total_s = max(sum(work.values()), 1e-9)
        return tuple(
            Tenant(
                name=name,
                num_requests=len(members),
                num_good=sum(map(self.is_good, members)),
                work_s=work[name],
                share=work[name] / total_s,
            )
            for name, members in groups
        )

    def _contended_work(self, outcomes: Sequence[Outcome], tenants: Sequence[str]) -> dict[str, float]:
        """Seconds of encode and prefill by tenant, of first tokens that came while all of them waited for one."""
        answered = [outcome for outcome in outcomes if outcome.first_token_s is not None]
        moments = [(outcome.arrival.at_s, 1, outcome) for outcome in answered]
        moments += [(outcome.arrival.at_s + outcome.ttft_s, -1, outcome) for outcome in answered]
        work, waiting = dict.fromkeys(tenants, 0.0), Counter[str]()
        for _, change, outcome in sorted(moments, key=lambda moment: (moment[0], -moment[1])):
            if change < 0 and all(waiting[name] for name in tenants):
                work[outcome.arrival.tenant] += self._unloaded(outcome.arrival.shape).ttft_s
            waiting[outcome.arrival.tenant] += change
        return work


def _groups(outcomes: Iterable[Outcome], name: Callable[[Outcome], str]) -> list[tuple[str, list[Outcome]]]:
    """By name, in the order of names."""
    found: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.number):
        found.setdefault(name(outcome), []).append(outcome)
    return sorted(found.items())


def _quantile(values: Sequence[float], share: float) -> float | None:
    return quantile(values, share) if values else None
