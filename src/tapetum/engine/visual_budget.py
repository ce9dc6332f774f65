"""Media of one prompt that share a budget of visual tokens."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from tapetum.core.chat import MediaPart
from tapetum.core.errors import InvalidParameter
from tapetum.core.media import Geometry, MediaItem
from tapetum.media.plan import MediaPlan
from tapetum.processing.share import Claim, share_out


class MediaLoader(Protocol):
    """Loads media on its own workers, in two steps: what it will be, then the item. `media.ingest.Ingest` is one."""

    def plan(self, part: MediaPart, *, tenant: str) -> Future[MediaPlan]: ...

    def decode(self, plan: MediaPlan) -> Future[MediaItem]: ...

    def reserved(self, plan: MediaPlan, key: bytes) -> MediaItem: ...

    def least_tokens(self, plan: MediaPlan) -> int: ...

    def capped(self, plan: MediaPlan, max_visual_tokens: int) -> MediaPlan: ...

    def shrunk(self, plan: MediaPlan, parts: int) -> MediaPlan: ...

    def is_dense(self, plan: MediaPlan) -> Future[bool]: ...


def within(budget: int, plans: Sequence[MediaPlan], loader: MediaLoader) -> list[MediaPlan]:
    """The media within a budget that they share by their areas; none gets less than its family takes at least."""
    claims = [
        Claim(_area(plan.geometry), loader.least_tokens(plan), plan.geometry.num_tokens) for plan in plans
    ]
    least = sum(claim.least for claim in claims)
    if least > budget:
        raise InvalidParameter(
            f"max_visual_tokens is {budget}, the {len(plans)} pictures and clips of the prompt have at least "
            f"{least}; raise it, or send fewer pictures or frames",
            param="max_visual_tokens",
        )
    shares = share_out(budget, claims)
    return [
        plan if share == claim.most else loader.capped(plan, share)
        for plan, claim, share in zip(plans, claims, shares, strict=True)
    ]


def _area(geometry: Geometry) -> float:
    width, height = geometry.original
    steps = geometry.grid_thw[0] if geometry.kind == "video" else 1  # of a picture they are tiles
    return float(width * height * steps)
