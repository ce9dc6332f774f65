"""Traces: who asks for what, and when. Owns the JSON lines of a trace file and the records they are read into."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from tapetum.core.errors import ConfigError
from tapetum.core.media import MediaKind

_Count = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """A picture or clip. Those of the same `content` are the same one; without it, it is seen once."""

    kind: MediaKind = "image"
    width: _Count
    height: _Count
    frames: _Count = 1
    content: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a request is about, whoever sends it. `name` is what tables call it."""

    name: str
    prompt_tokens: _Count  # of text
    output_tokens: _Count
    media: tuple[Medium, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of a trace; a line of its file is this as JSON."""

    at_s: _Seconds
    shape: Shape
    tenant: str = ""
    priority: int = 0  # lower is earlier
    timeout_s: _Seconds | None = None


def read_trace(path: Path) -> tuple[Arrival, ...]:
    """In the order of time."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"trace {str(path)!r} cannot be read: {error.strerror}") from error
    arrivals = [
        _arrival(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not arrivals:
        raise ConfigError(f"trace {str(path)!r} has 0 requests, must have at least 1")
    return tuple(sorted(arrivals, key=lambda arrival: arrival.at_s))


def write_trace(arrivals: Iterable[Arrival], path: Path) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(arrival) + b"\n" for arrival in arrivals))


def _arrival(line: bytes, name: str) -> Arrival:
    try:
        return msgspec.json.decode(line, type=Arrival)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name}: {error}") from error
