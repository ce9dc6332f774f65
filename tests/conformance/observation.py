"""What one case saw: answers by the names they were saved under, signals, the log, the media server's visitors.

Owns the paths of checks: `name.part.part` leads to a value. A path that leads nowhere is a failure of the check that
uses it, never an empty value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.conformance.logits import Logits
from tests.conformance.process import Start
from tests.conformance.reply import Reply


class Unmet(Exception):
    """A check that does not hold, with what was expected and what was seen."""


@dataclass(frozen=True)
class Visits:
    """Who came to the media server: the query strings it got, and how many spoke to its neighbour."""

    queries: tuple[str, ...] = ()
    canary_hits: int = 0


@dataclass(kw_only=True)
class Observation:
    """Filled while a case runs, read by its checks."""

    saved: dict[str, list[Reply | int]] = field(default_factory=dict)  # replies, or bytes of memory
    replies: list[Reply] = field(default_factory=list)  # of all posts in order
    stop: str = ""  # the derived stop string
    stop_source: str = ""  # the whole text it was cut from
    signals: list[float] = field(default_factory=list)  # when each was sent
    start: Start | None = None  # of the last start step
    routes: Sequence[dict] = ()  # of the media server
    visits: Visits = field(default_factory=Visits)
    log: str = ""
    seconds: float = 0.0  # all steps together
    ended_s: float = 0.0  # when the last step was over
    growth_mb: float | None = None  # of the server's resident memory at its peak

    def keep(self, name: str | None, value: Reply | int) -> None:
        if name is not None:
            self.saved.setdefault(name, []).append(value)

    def take(self, other: Observation) -> None:
        """Add what a branch saw that ran beside others."""
        for name, values in other.saved.items():
            self.saved.setdefault(name, []).extend(values)
        self.replies += other.replies
        self.signals += other.signals
        self.start = other.start or self.start

    def named(self, name: str) -> list[Reply]:
        """The replies saved under a name."""
        found = self.saved.get(name)
        if not found:
            raise Unmet(f"nothing was saved as {name}; saved are {', '.join(self.saved) or 'none'}")
        return [item for item in found if isinstance(item, Reply)]

    def measures(self, name: str) -> list[int]:
        return [item for item in self.saved.get(name, ()) if isinstance(item, int)]

    def values(self, path: str) -> list[object]:
        """One value for each reply of the path's name."""
        name, *parts = path.split(".")
        return [_value(reply, parts, path) for reply in self.named(name)]

    def value(self, path: str) -> object:
        """The value of a path; a list where its name was saved several times."""
        values = self.values(path)
        return values[0] if len(values) == 1 else values

    def texts(self, name: str) -> list[str]:
        """The texts of a name, each of which must be an answer that came to its end."""
        for reply in self.named(name):
            if not reply.is_whole:
                raise Unmet(f"{name} has no text: {reply.outcome}")
        return [reply.text for reply in self.named(name)]


def agree(ours: object, theirs: object) -> bool:
    """Equal; logits and lists of them within the tolerance."""
    if isinstance(ours, Logits) and isinstance(theirs, Logits):
        return ours.is_near(theirs)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(agree, ours, theirs))
    return ours == theirs


_ATTRIBUTES = ("status", "text", "logits", "error", "usage", "finish_reason", "seconds", "num_choices")


def _value(reply: Reply, parts: Sequence[str], path: str) -> object:
    first, *rest = parts
    if first == "text" and not reply.is_whole:
        raise Unmet(f"{path}: there is no text, {reply.outcome}")
    value: object = getattr(reply, first) if first in _ATTRIBUTES else _inside(reply.documents[:1], first)
    for part in rest:
        value = _inside([value], part)
    if value is None:
        raise Unmet(f"{path} is not in the answer: {reply.outcome}")
    return value


def _inside(owners: Sequence[object], part: str) -> object:
    for owner in owners:
        if isinstance(owner, dict):
            return owner.get(part)
        if isinstance(owner, list) and re.fullmatch(r"\d+", part) and int(part) < len(owner):
            return owner[int(part)]
    return None
