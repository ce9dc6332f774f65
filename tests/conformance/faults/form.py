"""What a case is, and how a file of cases lists them.

Owns no words of the specification: those are in public_faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Build = Callable[[], dict]
BAD = [400, 422]
ALIVE = {"server_alive_after": True}


@dataclass(frozen=True)
class Case:
    """`report` is the public report behind it; a `reference` only serves others to compare with."""

    id: str
    report: str
    kind: str
    fault: str
    title: str
    build: Build
    expect: dict = field(default_factory=dict)
    reference: bool = False


class Catalogue(list[Case]):
    """The cases of one kind, in the order in which they are written down."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def case(
        self, case_id: str, fault: str, title: str, expect: dict, reference: bool = False
    ) -> Callable[[Build], Build]:
        def listed(build: Build) -> Build:
            self.append(Case(case_id, case_id[:3], self._kind, fault, title, build, expect, reference))
            return build

        return listed
