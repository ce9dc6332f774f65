"""Runs planned cases: the right server, the steps, the verdict.

A case never stops a run: whatever goes wrong with it is its failure, and what it cannot do to a server that somebody
else runs is skipped.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.conformance import expect
from tests.conformance.cases import Case, Cases
from tests.conformance.faults.pictures import enc, scene
from tests.conformance.fleet import Fleet, StartFailed, Unavailable
from tests.conformance.observation import Observation, Unmet
from tests.conformance.origin import Origin
from tests.conformance.plan import Plan, Planner
from tests.conformance.process import Start
from tests.conformance.reply import Reply
from tests.conformance.server import LiveServer
from tests.conformance.steps import Steps, needs_process
from tests.conformance.trial import Trial

Verdict = Literal["passed", "failed", "skipped"]
_MEMORY = "rss_growth_mb_max"
_INSIDE = (
    _MEMORY,
    "reply_and_log_without_base64",
    "log_never_contains",
)  # what only the owner of a process sees


@dataclass(frozen=True)
class Outcome:
    case: Case
    verdict: Verdict
    problems: Sequence[str]
    seconds: float


async def outcomes_of(cases: Cases, chosen: Sequence[Case], fleet: Fleet) -> AsyncIterator[Outcome]:
    """One outcome after the other; all servers have ended when the last one is told."""
    runner = Runner(cases, fleet)
    try:
        for plan in await runner.plan(chosen):
            yield await runner.run(plan)
    finally:
        await runner.close()


def told(outcome: Outcome, path: Path) -> str:
    """One line for each case; where it failed also why, and how to run it alone."""
    case = outcome.case
    line = f"{outcome.verdict:<7} {case.id:<9} {outcome.seconds:6.1f} s  {case.title}"
    if outcome.verdict == "skipped":
        return f"{line}: {outcome.problems[0]}"
    if outcome.verdict == "failed":
        alone = f"python -m tests.conformance --cases {path} --only {case.id}"
        return "\n".join(
            [line, *(f"        {problem}" for problem in outcome.problems), f"        alone: {alone}"]
        )
    return line


class Runner:
    def __init__(self, cases: Cases, fleet: Fleet) -> None:
        self._cases = cases
        self._fleet = fleet
        self._origin = Origin()
        self._answers: Mapping[str, Reply] = {}
        file = fleet.folder / "picture.png"  # a server could read it, and must not
        file.write_bytes(enc(scene(112, 84)))
        self._words = {"{MEDIA}": self._origin.media, "{CANARY}": self._origin.canary, "{TMPFILE}": str(file)}

    async def close(self) -> None:
        self._origin.close()
        await self._fleet.close()

    async def plan(self, chosen: Sequence[Case]) -> list[Plan]:
        """The cases in the order in which they should run: those with equal settings together, defaults first."""
        planner = Planner(self._cases, self._words, await self._fleet.serving(()))
        plans = [await planner.plan(case) for case in chosen]
        self._answers = planner.answers
        return sorted(plans, key=lambda plan: (plan.starts_itself, plan.flags))

    async def run(self, plan: Plan) -> Outcome:
        began_s = time.monotonic()
        verdict: Verdict = "failed"
        try:
            problems = plan.problems or await self._problems(plan)
            verdict = "failed" if problems else "passed"
        except Unavailable as reason:
            problems, verdict = [str(reason)], "skipped"
        except (StartFailed, Unmet) as error:
            problems = [str(error)]
        except Exception as error:
            problems = [f"the case cannot be judged: {type(error).__name__}: {error}"]
        if verdict == "failed":
            self._fleet.retire()
        return Outcome(plan.case, verdict, problems, time.monotonic() - began_s)

    async def _problems(self, plan: Plan) -> list[str]:
        words = set(_words(plan.case.expect))
        stage = _Stage(self._cases, self._fleet, has_memory=_MEMORY in words)
        if not plan.starts_itself:
            is_ours = needs_process(plan.steps) or not words.isdisjoint(_INSIDE)
            await self._fleet.serving(plan.flags, needs_process=is_ours)
            stage.begin()
        self._origin.serve(plan.routes)
        seen = Observation(routes=plan.routes)
        await Steps(stage, seen).run(plan.steps)
        stage.end(seen)
        seen.visits = self._origin.visits
        trial = Trial(seen, stage.server, self._answers, self._cases.CONTROL)
        return await expect.problems_of(trial, plan.case.expect)


class _Stage:
    """Where the steps of one case happen: on the server that runs at the moment, whose log and memory it watches."""

    def __init__(self, cases: Cases, fleet: Fleet, *, has_memory: bool) -> None:
        self._fleet = fleet
        self._has_memory = has_memory
        self._log_start = 0
        self._resident_bytes = 0
        self.bodies_of = cases.iter_bodies

    @property
    def server(self) -> LiveServer:
        return self._fleet.current

    async def start(self, flags: tuple[str, ...]) -> Start:
        start = await self._fleet.start(flags)
        self.begin()
        self._log_start = 0
        return start

    def begin(self) -> None:
        """From here on this case is the only one."""
        process = self.server.process
        if process is not None:
            self._log_start = process.log_size
            self._resident_bytes = process.resident_bytes()
            if self._has_memory:
                process.forget_peak()

    def end(self, seen: Observation) -> None:
        process = self.server.process
        if process is not None:
            seen.log = process.log(self._log_start)
            if self._has_memory:
                seen.growth_mb = (process.peak_bytes() - self._resident_bytes) / 1e6


def _words(value: object) -> Iterator[str]:
    """All keys of an expectation, those of its checks and alternatives too."""
    if isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from _words(item)
    elif isinstance(value, list):
        for item in value:
            yield from _words(item)
