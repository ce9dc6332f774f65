"""The short form of a case: fewer requests where it asks for hundreds, all else the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.conformance.cases import Case

MANY = 40  # requests of a post_each step from which on it is cut
_KEPT = 10  # one in so many


@dataclass(frozen=True)
class ShortCase:
    """A case whose `post_each` steps are cut; numbers of distinct keys are cut with them."""

    whole: Case

    @property
    def id(self) -> str:
        return self.whole.id

    @property
    def title(self) -> str:
        return self.whole.title

    @property
    def is_cut(self) -> bool:
        """Whether the short form is shorter at all."""
        steps = self.whole.build().get("steps", ())
        return _shortened(steps) != list(steps)

    def build(self) -> dict:
        built = self.whole.build()
        return {**built, "steps": _shortened(built["steps"])} if "scenario" in built else built

    @property
    def expect(self) -> dict:
        checks = [_cut_keys(check) for check in self.whole.expect.get("checks", ())]
        return {**self.whole.expect, "checks": checks} if checks else self.whole.expect


def _shortened(steps: Sequence[dict]) -> list[dict]:
    return [_cut_step(step) if step["do"] == "post_each" else step for step in steps]


def _cut_step(step: dict) -> dict:
    number = step["args"]["n"]
    return {**step, "args": {**step["args"], "n": _cut(number)}}


def _cut_keys(check: dict) -> dict:
    if "distinct_image_keys" not in check:
        return check
    name, number = check["distinct_image_keys"]
    return {**check, "distinct_image_keys": [name, _cut(number)]}


def _cut(number: int) -> int:
    return number // _KEPT if number >= MANY else number
