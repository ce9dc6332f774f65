"""Whether a repeat counts: how much processor time others used meanwhile.

Own is the loaded server with all its children, and the process that asks. Everything else is foreign, idle servers
of the same run among it: one that spins while it waits is found here.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

FOREIGN_LIMIT = 0.1  # cores
_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """Processor seconds since the machine started, at one moment."""

    at_s: float
    busy_s: float  # of the whole machine
    stolen_s: float  # that the machine below gave to others
    server_s: float
    client_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Cores in use over a repeat, on average."""

    seconds: float
    server_cores: float
    foreign_cores: float
    stolen_cores: float

    @property
    def is_clean(self) -> bool:
        return self.foreign_cores <= FOREIGN_LIMIT


def cpu_times(server: int, client: int, proc: Path = _PROC) -> CpuTimes:
    busy_s, stolen_s = _machine_s((proc / "stat").read_text())
    processes = _processes(proc)
    itself = processes.get(client)
    return CpuTimes(
        at_s=time.monotonic(),
        busy_s=busy_s,
        stolen_s=stolen_s,
        server_s=_tree_s(processes, server),
        client_s=itself.own_s if itself else 0.0,
    )


def use_between(before: CpuTimes, after: CpuTimes) -> Use:
    seconds = max(after.at_s - before.at_s, 1e-9)
    server_s = after.server_s - before.server_s
    foreign_s = after.busy_s - before.busy_s - server_s - (after.client_s - before.client_s)
    return Use(
        seconds=seconds,
        server_cores=server_s / seconds,
        foreign_cores=max(0.0, foreign_s / seconds),
        stolen_cores=(after.stolen_s - before.stolen_s) / seconds,
    )


def tree_s(root: int, proc: Path = _PROC) -> float:
    """Processor seconds of a process and its children."""
    return _tree_s(_processes(proc), root)


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    own_s: float
    reaped_s: float  # of children that have ended


def _processes(proc: Path) -> dict[int, _Process]:
    found = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text()
        except OSError:  # it has ended
            continue
        fields = text.rpartition(")")[2].split()  # a name may hold anything, brackets too
        own, reaped = (sum(map(int, fields[first : first + 2])) for first in (11, 13))
        found[int(folder.name)] = _Process(int(fields[1]), own / _TICKS_PER_S, reaped / _TICKS_PER_S)
    return found


def _tree_s(processes: dict[int, _Process], root: int) -> float:
    children: dict[int, list[int]] = {}
    for number, process in processes.items():
        children.setdefault(process.parent, []).append(number)
    total_s, todo = 0.0, [root]
    while todo:
        number = todo.pop()
        if number in processes:
            total_s += processes[number].own_s + processes[number].reaped_s
        todo += children.get(number, [])
    return total_s


def _machine_s(stat: str) -> tuple[float, float]:
    """Busy and stolen. Idle and waiting for disks are not busy."""
    fields = [int(field) / _TICKS_PER_S for field in stat.partition("\n")[0].split()[1:9]]
    user, nice, system, _, _, irq, softirq, stolen = fields
    return user + nice + system + irq + softirq, stolen
