"""The bound against starvation, looked for in what came of a trace: who was passed though nobody may any more.

A request may be passed by some that come after it: by better classes, by shorter prompts, by pictures that are due
earlier. It is due when four times its unloaded time to the first token is over, a second at least. From then on nobody
who comes passes it, but a better class: ten seconds count as much as one class.
"""

from __future__ import annotations

from collections.abc import Sequence

from tapetum.bench.simulate.outcome import Outcome
from tapetum.bench.simulate.prompts import Prompts
from tapetum.bench.simulate.trace import Arrival
from tapetum.sched.queue import AGEING_S

_PATIENCE, _LEAST_S = 4.0, 1.0


def passed(outcomes: Sequence[Outcome], prompts: Prompts) -> list[tuple[Outcome, Outcome]]:
    """Pairs of one who was due and one who came later and passed it: was let in, or encoded, before it."""
    let_in = [(outcome, outcome.first_scheduled_s) for outcome in outcomes]
    encoded = [(outcome, outcome.first_encode_s) for outcome in outcomes]
    return [*_passed(let_in, prompts), *_passed(encoded, prompts)]


def _passed(
    begins: Sequence[tuple[Outcome, float | None]], prompts: Prompts
) -> list[tuple[Outcome, Outcome]]:
    begun = [(outcome, began_s) for outcome, began_s in begins if began_s is not None]
    found = []
    for early, early_s in begun:
        due_s = _due_s(early.arrival, prompts)
        for late, late_s in begun:
            has_passed = early.arrival.at_s < late.arrival.at_s and late_s < early_s
            if has_passed and _counted(late.arrival) > due_s:
                found.append((early, late))
    return found


def _due_s(arrival: Arrival, prompts: Prompts) -> float:
    return _counted(arrival) + max(_LEAST_S, _PATIENCE * prompts.unloaded(arrival.shape).ttft_s)


def _counted(arrival: Arrival) -> float:
    """When it came, as its class counts."""
    return arrival.at_s + AGEING_S * arrival.priority
