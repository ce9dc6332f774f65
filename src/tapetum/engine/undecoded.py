"""Pictures of a prompt that come to the engine undecoded, since it has their features within reach.

Owns when the engine is asked for that, on the front's side: not for what was decoded before and is still kept, nor for
what nobody can have. The engine's side is reservations.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from tapetum.core.request import new_request_id
from tapetum.engine.reservations import Reserved, Wanted
from tapetum.media.plan import MediaPlan

PATIENCE_S = 1.0  # then one decodes; a store that hangs is left alone after a while anyway


class Reserver(Protocol):
    """The way to an engine; both methods may be called from any thread."""

    def reserve(self, request_id: str, wanted: tuple[Wanted, ...]) -> Reserved:
        """Blocks, but not for long: what is not found by then is None."""

    def let_go(self, request_id: str) -> None:
        """The request will not be added."""


class Keeper(Protocol):
    """An engine of this process."""

    def reserve(self, request_id: str, wanted: tuple[Wanted, ...]) -> Future[Reserved]: ...

    def let_go(self, request_id: str) -> None: ...


class LocalReserver:
    """The way to an engine of this process."""

    def __init__(self, engine: Keeper) -> None:
        self._engine = engine

    def reserve(self, request_id: str, wanted: tuple[Wanted, ...]) -> Reserved:
        """What the engine keeps for a request, nothing where it does not say so soon."""
        try:
            return self._engine.reserve(request_id, wanted).result(PATIENCE_S)
        except TimeoutError:
            self._engine.let_go(request_id)
            return (None,) * len(wanted)

    def let_go(self, request_id: str) -> None:
        self._engine.let_go(request_id)


class Undecoded:
    """`has_tiers`: the engine may know what this process has never seen."""

    def __init__(self, reserver: Reserver, *, has_tiers: bool) -> None:
        self._reserver = reserver
        self._has_tiers = has_tiers

    def keys(self, request_id: str, plans: Sequence[MediaPlan]) -> Reserved:
        """The media keys of what need not be decoded for this request, None for the others."""
        asked = [index for index, plan in enumerate(plans) if self._may_be_known(plan)]
        keys: list[bytes | None] = [None] * len(plans)
        if asked:
            wanted = tuple(_wanted(plans[index]) for index in asked)
            for index, key in zip(asked, self._reserver.reserve(request_id, wanted), strict=True):
                keys[index] = key
        return tuple(keys)

    def recognised(self, plans: tuple[MediaPlan, ...]) -> tuple[MediaPlan, ...]:
        """The same with the media keys that only tiers know. Who merely asks keeps nothing within reach."""
        if not self._has_tiers or all(plan.key is not None for plan in plans):
            return plans
        request_id = new_request_id()
        try:
            keys = self.keys(request_id, plans)
        finally:
            self.let_go(request_id)
        return tuple(replace(plan, key=plan.key or key) for plan, key in zip(plans, keys, strict=True))

    def let_go(self, request_id: str) -> None:
        """The request will not come."""
        self._reserver.let_go(request_id)

    def _may_be_known(self, plan: MediaPlan) -> bool:
        is_new = plan.item is None and not plan.options.near_duplicate  # which compares pixels
        return is_new and (self._has_tiers or plan.key is not None)


def _wanted(plan: MediaPlan) -> Wanted:
    geometry = plan.geometry
    return Wanted(alias=plan.alias, key=plan.key, num_tokens=geometry.num_tokens, segments=geometry.segments)
