"""Relations about statuses, errors and times."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tests.conformance.observation import Unmet
from tests.conformance.reply import Reply, shortened
from tests.conformance.trial import Trial

_INNER = re.compile(
    r"Traceback|File \"|\b\w+\.py\b|\b[A-Z]\w*(?:Error|Exception)\b|<class '|object at 0x[0-9a-f]+|\bline \d+, in "
)


def every_status(trial: Trial, name: str, *, in_: Sequence[int]) -> None:
    for index, reply in enumerate(trial.seen.named(name)):
        if reply.status not in in_:
            raise Unmet(f"{name}[{index}] has a status out of {list(in_)}; seen: {reply.outcome}")


def status_of(trial: Trial, name: str, *, in_: Sequence[int]) -> None:
    every_status(trial, name, in_=in_)


def no_status_of(trial: Trial, value: tuple[str, int]) -> None:
    name, status = value
    for index, reply in enumerate(trial.seen.named(name)):
        if reply.status == status:
            raise Unmet(f"{name}[{index}] must not have status {status}; seen: {reply.outcome}")


def one_status_in(trial: Trial, value: tuple[str, Sequence[int]]) -> None:
    name, statuses = value
    found = [reply.status for reply in trial.seen.named(name)]
    if sum(status in statuses for status in found) != 1:
        raise Unmet(f"exactly one of {name} has a status out of {list(statuses)}; seen: {found}")


def same_status_of_every(trial: Trial, name: str) -> None:
    found = [reply.status for reply in trial.seen.named(name)]
    if None in found or len(set(found)) != 1:
        raise Unmet(f"all of {name} have one status; seen: {found}")


def status_or_refused(trial: Trial, value: tuple[str, Sequence[int] | int]) -> None:
    name, wanted = value
    statuses = [wanted] if isinstance(wanted, int) else wanted
    for index, reply in enumerate(trial.seen.named(name)):
        if not reply.is_refused and reply.status not in statuses:
            raise Unmet(
                f"{name}[{index}] has a status out of {list(statuses)} or is refused; seen: {reply.outcome}"
            )


def status_within_s(trial: Trial, value: tuple[str, int, float]) -> None:
    """From the signal on; where there were several, from the last."""
    name, status, limit_s = value
    if not trial.seen.signals:
        raise Unmet("status_within_s counts from a signal, and none was sent")
    signal_s = trial.seen.signals[-1]
    polled = trial.seen.named(name)
    times = [
        reply.ended_s - signal_s for reply in polled if reply.status == status and reply.ended_s >= signal_s
    ]
    if not times or times[0] > limit_s:
        seen = f"after {times[0]:.2f} s" if times else f"never in {len(polled)} polls"
        raise Unmet(f"{name} tells {status} within {limit_s:g} s of the signal; seen: {seen}")


def max_seconds_of(trial: Trial, name: str, *, s: float) -> None:
    _check_seconds(name, trial.seen.named(name), s)


def max_seconds_each(trial: Trial, limit_s: float) -> None:
    if not trial.seen.replies:
        raise Unmet("max_seconds_each looks at replies, and there are none")
    _check_seconds("reply", trial.seen.replies, limit_s)


def p95_ms_of(trial: Trial, name: str, *, ms: float) -> None:
    """By nearest rank; a poll that was not answered took forever."""
    times = sorted(
        math.inf if reply.status is None else reply.seconds * 1000 for reply in trial.seen.named(name)
    )
    found = times[math.ceil(0.95 * len(times)) - 1]
    if found > ms:
        raise Unmet(f"95 % of {len(times)} polls {name} are within {ms:g} ms; seen: {found:.0f} ms")


def every_error_is_json(trial: Trial, name: str) -> None:
    for index, reply in enumerate(trial.seen.named(name)):
        if (reply.status or 0) >= 400 and not reply.has_error_document:
            body = shortened(reply.body.decode("utf-8", "replace"))
            raise Unmet(f'{name}[{index}] is {{"error": {{"message": …}}}}; seen: {reply.status} {body}')


def no_traceback_in(trial: Trial, name: str) -> None:
    for index, reply in enumerate(trial.seen.named(name)):
        found = _INNER.search(reply.body.decode("utf-8", "replace"))
        if found:
            raise Unmet(f"{name}[{index}] shows nothing of the inside; seen: {found[0]!r}")


def _check_seconds(name: str, replies: Sequence[Reply], limit_s: float) -> None:
    for index, reply in enumerate(replies):
        if reply.seconds > limit_s:
            raise Unmet(f"{name}[{index}] within {limit_s:g} s; seen: {reply.seconds:.2f} s, {reply.outcome}")
