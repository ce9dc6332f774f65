"""Every relation that a check may name, in one table.

A relation takes the trial, its own value and, by name, the other entries of the check (`in` arrives as `in_`). It
raises Unmet when it does not hold. A check with an unknown relation or entry is an error of its case.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from keyword import iskeyword

from tests.conformance.fill import filled
from tests.conformance.relations import engine, media, process, statuses, streams, texts
from tests.conformance.trial import Trial

Relation = Callable[..., Awaitable[None] | None]

RELATIONS: dict[str, Relation] = {
    name: relation
    for module in (statuses, texts, streams, media, engine, process)
    for name, relation in vars(module).items()
    if inspect.isfunction(relation) and relation.__module__ == module.__name__ and not name.startswith("_")
}


def check_form(check: dict) -> str | None:
    """What is wrong with a check as it is written, before anything runs."""
    names = [name for name in check if name in RELATIONS]
    if len(names) != 1:
        return f"{check} names {len(names)} known relations, must name one"
    try:
        _bound(names[0], check, None)
    except TypeError as error:
        return f"{check}: {error}"
    return None


async def hold(trial: Trial, check: dict) -> None:
    """Raises Unmet unless the check holds."""
    name = next(name for name in check if name in RELATIONS)
    call = _bound(name, filled(check, {"{STOP}": trial.seen.stop}), trial)
    outcome = RELATIONS[name](*call.args, **call.kwargs)
    if outcome is not None:
        await outcome


def _bound(name: str, check: dict, trial: Trial | None) -> inspect.BoundArguments:
    others = {(f"{key}_" if iskeyword(key) else key): value for key, value in check.items() if key != name}
    return inspect.signature(RELATIONS[name]).bind(trial, check[name], **others)
