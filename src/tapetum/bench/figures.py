"""What a workload's answers say: a few numbers under fixed names, in seconds and per second.

A figure that has no answer behind it is absent, not zero.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from tapetum.bench.load import Answer, Outcome

Figures = dict[str, float]


def figures_of(workload: str, outcome: Outcome) -> Figures:
    """`num_failed` is always there; what else depends on the workload."""
    answers = outcome.answers
    return {
        "num_requests": len(answers),
        "num_failed": sum(answer.fault is not None for answer in answers),
        **_OF_WORKLOAD.get(workload, _plain)(outcome),
    }


def quantile(values: Iterable[float], share: float) -> float:
    """The nearest of the values themselves."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def _plain(outcome: Outcome) -> Figures:
    return _times(outcome.answers)


def _many_clients(outcome: Outcome) -> Figures:
    good = _good(outcome.answers)
    return {
        **_times(good),
        "requests_per_s": len(good) / outcome.wall_s,
        "tokens_per_s": sum(answer.num_tokens for answer in good) / outcome.wall_s,
    }


def _conversations(outcome: Outcome) -> Figures:
    first = _good(lane[0] for lane in outcome.lanes)
    later = _good(answer for lane in outcome.lanes for answer in lane[1:])
    return {
        **_times(outcome.answers),
        **_ttft("first_turn_ttft", first),
        **_ttft("later_turns_ttft", later),
    }


def _large_beside_text(outcome: Outcome) -> Figures:
    gaps = [gap for answer in _good(outcome.paced) for gap in answer.gaps_s]
    figures = {
        **_times(outcome.paced),
        **_ttft("large_ttft", _good(outcome.lanes[0])),
    }
    if gaps:
        shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
        figures |= {f"gap_{name}_s": quantile(gaps, share) for name, share in shares.items()}
    return figures


def _windows(outcome: Outcome) -> Figures:
    windows = outcome.lanes[0]
    return {
        **_times(windows),
        **_ttft("first_window_ttft", _good(windows[:1])),
        **_ttft("later_windows_ttft", _good(windows[1:])),
    }


_OF_WORKLOAD: dict[str, Callable[[Outcome], Figures]] = {
    "W2": _many_clients,
    "W3": _conversations,
    "W4": _large_beside_text,
    "W5": _windows,
    "throughput": _many_clients,
}


def _times(answers: Sequence[Answer]) -> Figures:
    good = _good(answers)
    if not good:
        return {}
    return {
        **_ttft("ttft", good),
        "tpot_s": statistics.median(answer.tpot_s for answer in good),
        "e2e_s": statistics.median(answer.end_s for answer in good),
        "num_prompt_tokens": good[0].num_prompt_tokens or 0,
        "num_tokens": statistics.median(answer.num_tokens for answer in good),
    }


def _ttft(name: str, good: Sequence[Answer]) -> Figures:
    if not good:
        return {}
    times = [answer.ttft_s for answer in good]
    return {f"{name}_s": statistics.median(times), f"{name}_p95_s": quantile(times, 0.95)}


def _good(answers: Iterable[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer.fault is None]
