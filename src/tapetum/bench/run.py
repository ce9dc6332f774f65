"""The order of a run: repeats outermost, within each the peers in turn, so that all meet the same machine.

Owns which servers run when. Each is started once and kept while others are asked, unless it spins while it waits.
Where starts are asked for (P10), each is started for its turn and stopped after it, so one alone is in memory. A peer
that fails is told and left out from there; the others go on.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tapetum.bench.figures import figures_of
from tapetum.bench.guard import CpuTimes, Use, cpu_times, use_between
from tapetum.bench.launch import Launched
from tapetum.bench.load import run_script
from tapetum.bench.patches import WAYS
from tapetum.bench.peers import Peer
from tapetum.bench.record import Repeat
from tapetum.bench.workloads import Sizes, script_of, warm_up
from tapetum.core.errors import EngineError

START = "P10"  # the workload that is a start
PATCHES = "P11"  # the one that needs no server
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "TAPETUM_THREADS": "1"}
_SETTLE_S = 2.0  # after a start or a stop, before anything is timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    workloads: tuple[str, ...]
    repeats: int
    seed: str
    sizes: Sizes
    checkpoint: Path
    logs: Path


class Run:
    """`told` is called with each repeat when it is done, `failed` with what is left out, and why."""

    def __init__(
        self, plan: Plan, told: Callable[[Repeat], None], failed: Callable[[str, str], None]
    ) -> None:
        self._plan = plan
        self._told = told
        self._failed = failed
        self._running: dict[str, Launched] = {}

    def all(self, peers: Sequence[Peer]) -> None:
        left = list(peers)
        try:
            for number in range(self._plan.repeats):
                self._patches(number)
                for peer in tuple(left):
                    try:
                        asyncio.run(self._turn(peer, number))
                    except EngineError as error:
                        left.remove(peer)
                        self._stop(peer)
                        self._failed(peer.label, error.message)
        finally:
            for launched in tuple(self._running.values()):
                self._stop(launched.peer)

    async def _turn(self, peer: Peer, number: int) -> None:
        launched = self._running.get(peer.label) or await self._start(peer, number)
        for workload in self._plan.workloads:
            if workload not in (START, PATCHES):
                self._told(await self._repeat(launched, workload, number))
        if START in self._plan.workloads or launched.spins():
            self._stop(peer)

    def _patches(self, number: int) -> None:
        """Pictures to patches, each way in a process of its own; one that cannot be run is told and left out."""
        for way, (label, _) in WAYS.items() if PATCHES in self._plan.workloads else ():
            words = [way, str(self._plan.checkpoint), f"{self._plan.seed}-{number}"]
            before = _times_of_children()
            done = subprocess.run(
                [sys.executable, "-m", "tapetum.bench.patches", *words],
                env={**os.environ, **_ONE_THREAD},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                self._failed(label, done.stderr.strip().rpartition("\n")[2])
                continue
            figures = {"patches_s": float(done.stdout)}
            use = use_between(before, _times_of_children())
            self._told(Repeat(peer=label, workload=PATCHES, number=number, figures=figures, use=use))

    async def _start(self, peer: Peer, number: int) -> Launched:
        launched = Launched(peer, self._plan.logs / f"{peer.label.replace(' ', '-')}.log")
        self._running[peer.label] = launched
        before = _cpu_times(launched)
        healthy_s, first_token_s = await launched.first_token()
        figures = {"healthy_s": healthy_s, "first_token_s": first_token_s}
        self._told(
            Repeat(
                peer=peer.label, workload=START, number=number, figures=figures, use=_use(launched, before)
            )
        )
        async with launched.client() as client:
            await run_script(launched.target(client), warm_up(f"{self._plan.seed}-{number}-warm"))
        await asyncio.sleep(_SETTLE_S)
        return launched

    async def _repeat(self, launched: Launched, workload: str, number: int) -> Repeat:
        script = script_of(workload, f"{self._plan.seed}-{workload}-{number}", self._plan.sizes)
        async with launched.client() as client:
            before = _cpu_times(launched)
            outcome = await run_script(launched.target(client), script)
            use = _use(launched, before)
        return Repeat(
            peer=launched.peer.label,
            workload=workload,
            number=number,
            figures=figures_of(workload, outcome),
            use=use,
            faults=tuple(answer.fault for answer in outcome.answers if answer.fault),
        )

    def _stop(self, peer: Peer) -> None:
        launched = self._running.pop(peer.label, None)
        if launched:
            launched.stop()


def _times_of_children() -> CpuTimes:
    """With the children that have ended in the place of a server."""
    used = os.times()
    times = cpu_times(os.getpid(), os.getpid())
    return replace(times, server_s=used.children_user + used.children_system)


def _cpu_times(launched: Launched) -> CpuTimes:
    return cpu_times(launched.pid, os.getpid())


def _use(launched: Launched, before: CpuTimes) -> Use:
    return use_between(before, _cpu_times(launched))
