"""Relations about the server as a process: memory, starts, ends, what it logs and leaves behind."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from tests.conformance.observation import Unmet
from tests.conformance.process import Start
from tests.conformance.reply import shortened
from tests.conformance.trial import Trial

_SMALLER = re.compile(r"lower|smaller|reduc|cut to|clamp|instead|at most|capped", re.I)
_SETTLE_S = 3.0  # what a process that ends may take to take its own with it
_EXIT_S = 60.0  # how long an end is waited for where no relation says


def log_never_contains(trial: Trial, words: str | Sequence[str]) -> None:
    for word in [words] if isinstance(words, str) else words:
        at = trial.seen.log.find(word)
        if at >= 0:
            raise Unmet(
                f"the log never says {word!r}; seen: {shortened(trial.seen.log[max(at - 60, 0) : at + 60])!r}"
            )


def rss_growth_mb_max(trial: Trial, limit_mb: float) -> None:
    growth_mb = trial.seen.growth_mb
    if growth_mb is None:
        raise Unmet("resident memory was measured; seen: nothing, the server is not ours")
    if growth_mb > limit_mb:
        raise Unmet(f"resident memory grows by at most {limit_mb:g} MB; seen: {growth_mb:.0f} MB")


def rss_growth_second_half_percent_max(trial: Trial, value: tuple[str, float]) -> None:
    name, percent = value
    measures = trial.seen.measures(name)
    if len(measures) < 3:
        raise Unmet(f"{name} has at least three measures; seen: {len(measures)}")
    middle, last = measures[(len(measures) - 1) // 2], measures[-1]
    growth = 100 * (last - middle) / middle
    if growth > percent:
        seen = ", ".join(f"{size / 1e6:.0f}" for size in measures)
        raise Unmet(
            f"memory grows by at most {percent:g} % from the middle on; seen: {growth:.1f} % of {seen} MB"
        )


async def exit_within_s(trial: Trial, limit_s: float | Sequence[float]) -> None:
    """Counted from the last signal, or from the end of the steps where none was sent."""
    limit_s = limit_s if isinstance(limit_s, int | float) else limit_s[-1]
    since_s = trial.seen.signals[-1] if trial.seen.signals else trial.seen.ended_s
    ended = await trial.server.ended(max(since_s + limit_s - time.monotonic(), 0.0))
    if ended is None or ended[1] - since_s > limit_s:
        seen = "it still runs" if ended is None else f"after {ended[1] - since_s:.1f} s"
        raise Unmet(f"the server ends within {limit_s:g} s; seen: {seen}")


async def exit_code(trial: Trial, wanted: int | Sequence[int]) -> None:
    codes = [wanted] if isinstance(wanted, int) else wanted
    ended = await trial.server.ended(_EXIT_S)
    if ended is None or ended[0] not in codes:
        raise Unmet(
            f"the server ends with {list(codes)}; seen: {'it still runs' if ended is None else ended[0]}"
        )


async def no_orphan_process(trial: Trial, is_wanted: bool) -> None:
    if not trial.seen.signals:
        raise Unmet("no_orphan_process looks at what a signal left behind, and none was sent")
    orphans = await trial.server.orphans(_SETTLE_S)
    if is_wanted and orphans:
        raise Unmet(
            f"nothing is left behind; seen: {', '.join(f'{item.pid} {item.command}' for item in orphans)}"
        )


def start_outcome(trial: Trial, phrases: str | Sequence[str]) -> None:
    start = _start(trial)
    if not any(_is_so(start, phrase) for phrase in ([phrases] if isinstance(phrases, str) else phrases)):
        raise Unmet(f"the start ends in one of {phrases}; seen: {_told(start)}")


def never(trial: Trial, phrases: str | Sequence[str]) -> None:
    start = _start(trial)
    for phrase in phrases.split(", ") if isinstance(phrases, str) else phrases:
        if _is_so(start, phrase):
            raise Unmet(f"the start never ends so: {phrase}; seen: {_told(start)}")


def _start(trial: Trial) -> Start:
    if trial.seen.start is None:
        raise Unmet("there is a start step; seen: none")
    return trial.seen.start


def _is_so(start: Start, phrase: str) -> bool:
    """Whether a start was as a phrase says; a phrase is made of the clauses below and nothing else."""
    rest, holds = phrase.strip(), True
    while rest:
        for pattern, is_true in _CLAUSES:
            found = re.match(pattern, rest, re.I)
            if found:
                holds = holds and is_true(start, found)
                rest = rest[found.end() :].lstrip(" ,")
                break
        else:
            raise Unmet(f"nobody knows how to check {rest!r} of {phrase!r}")
    return holds


_Clause = Callable[[Start, re.Match], bool]
_CLAUSES: tuple[tuple[str, _Clause], ...] = (
    (r"starts( normally)?\b", lambda start, _: start.is_ready),
    (r"with smaller limits( and says so)?\b", lambda start, _: _says_smaller(start)),
    (r"(and )?says so\b", lambda start, _: _says_smaller(start)),
    (r"(and )?(exits|ends|refuses to start|refuses)\b", lambda start, _: (start.exit_code or 0) > 0),
    (r"within (\d+) ?s(econds)?\b", lambda start, found: start.seconds <= float(found[1])),
    (r"with (?:exit )?code (\d+)\b", lambda start, found: start.exit_code == int(found[1])),
    (r"(and )?(naming|names) the option\b", lambda start, _: _names_option(start)),
    (r"killed( by the system)?\b", lambda start, _: _is_killed(start)),
    (r"(hangs?)\b", lambda start, _: not start.is_ready and start.exit_code is None),
    (
        r"(a )?stack trace only\b",
        lambda start, _: "Traceback" in start.log and not start.is_ready and not _names_option(start),
    ),
    (r"(a )?stack trace\b", lambda start, _: "Traceback" in start.log),
)


def _is_killed(start: Start) -> bool:
    return start.exit_code is not None and (start.exit_code < 0 or start.exit_code > 128)


def _names_option(start: Start) -> bool:
    return any(flag in start.log for flag in start.flags if flag.startswith("--"))


def _says_smaller(start: Start) -> bool:
    return any(
        _SMALLER.search(line) for line in start.log.splitlines() if re.search(r"limit|memory|len|max", line)
    )


def _told(start: Start) -> str:
    how = "ready" if start.is_ready else "hangs" if start.exit_code is None else f"exit {start.exit_code}"
    return f"{how} after {start.seconds:.0f} s; the log ends with {shortened(start.log[-200:])!r}"
