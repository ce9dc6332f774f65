"""A file of cases: loading it, and what is wrong with a case as it is written, before anything runs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.conformance import expect, relations, steps


class CasesError(Exception):
    """A file that is no file of cases."""


class Case(Protocol):
    id: str
    title: str
    expect: dict

    def build(self) -> dict: ...


class Cases(Protocol):
    """What a file of cases has; the form is told in public_faults."""

    CASES: Sequence[Case]
    BY_ID: Mapping[str, Case]
    CONTROL: str
    EXPECT_KEYS: set[str]
    RELATIONS: Mapping[str, str]

    def iter_bodies(self, step: dict) -> Iterator[dict]: ...


_NAMES = ("CASES", "BY_ID", "CONTROL", "EXPECT_KEYS", "RELATIONS", "iter_bodies")


def load(path: Path) -> Cases:
    """Raises CasesError for a file that has not what a file of cases has."""
    name = f"cases_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CasesError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # records with annotations as text look their module up
    spec.loader.exec_module(module)
    missing = [name for name in _NAMES if not hasattr(module, name)]
    if missing:
        raise CasesError(f"{path} has no {', '.join(missing)}")
    return module  # type: ignore[return-value]


def unknown_words(cases: Cases) -> list[str]:
    """What a file of cases may use and the runner does not know; a case that does use it fails."""
    words = (cases.EXPECT_KEYS - expect.EXPECT.keys()) | (cases.RELATIONS.keys() - relations.RELATIONS.keys())
    return sorted(words)


def form_problems(cases: Cases, case: Case, built: dict) -> list[str]:
    """What is wrong with a case as it is written."""
    problems = expect.form_problems(case.expect)
    for case_id in (cases.CONTROL, *expect.named_cases(case.expect)):
        if case_id not in cases.BY_ID:
            problems.append(f"there is no case {case_id} to compare with")
    if "scenario" in built:
        unknown = built.keys() - {"scenario", "config", "serve", "steps"}
        problems += [f"the scenario has the unknown entry {name}" for name in sorted(unknown)]
        problems += steps.form_problems(built["steps"])
    elif "messages" not in built:
        problems.append("it builds neither a request nor a scenario")
    return problems
