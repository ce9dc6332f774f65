"""What a run has seen: repeats as they were, what they were taken on, and the medians over those that count.

Owns the JSON that a run leaves, which is all that tables, charts and pages are made from.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from tapetum.bench.figures import Figures
from tapetum.bench.guard import Use
from tapetum.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One workload asked of one peer once."""

    peer: str
    workload: str
    number: int
    figures: Figures
    use: Use
    faults: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        return self.use.is_clean and not self.faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was measured, where and when."""

    version: str  # of Tapetum
    model: str
    shape: str | None
    threads: int
    seed: str
    commands: Mapping[str, str]  # by peer
    failed: Mapping[str, str] = field(default_factory=dict)  # peers that were left out, and why
    at: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))
    processor: str = field(default_factory=lambda: processor_name(Path("/proc/cpuinfo")))
    num_cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    setup: Setup
    repeats: tuple[Repeat, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The medians of one workload of one peer."""

    figures: Mapping[str, float]
    num_clean: int
    num_repeats: int


def columns(repeats: Iterable[Repeat]) -> dict[tuple[str, str], Column]:
    """By peer and workload. Repeats that do not count are left out where others do."""
    groups: dict[tuple[str, str], list[Repeat]] = defaultdict(list)
    for repeat in repeats:
        groups[repeat.peer, repeat.workload].append(repeat)
    return {key: _column(group) for key, group in groups.items()}


def write_record(record: Record, path: Path) -> None:
    path.write_text(json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_record(path: Path) -> Record:
    try:
        return record_of(msgspec.json.decode(path.read_bytes()), str(path))
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a run's JSON: {error}") from error


def record_of(value: object, name: str) -> Record:
    try:
        return msgspec.convert(value, Record)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name} is not what a run leaves: {error}") from error


def processor_name(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _column(repeats: list[Repeat]) -> Column:
    clean = [repeat for repeat in repeats if repeat.counts]
    used = clean or repeats
    names = {name for repeat in used for name in repeat.figures}
    figures = {
        name: statistics.median(repeat.figures[name] for repeat in used if name in repeat.figures)
        for name in sorted(names)
    }
    return Column(figures=figures, num_clean=len(clean), num_repeats=len(repeats))
