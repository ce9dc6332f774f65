"""What a request would cost, before anybody runs it: the question to an engine, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tapetum.media.plan import MediaPlan
from tapetum.sched.promise import Prospect


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A prompt in the terms of the cost model."""

    num_tokens: int
    segments: tuple[tuple[int, ...], ...]  # patches of each attention segment, of each picture or clip
    media_keys: tuple[bytes | None, ...]  # of each of them, None where it is not known
    priority: int = 0
    max_tokens: int = 1  # of the answer

    @classmethod
    def of(
        cls, num_tokens: int, media: Sequence[MediaPlan], *, priority: int = 0, max_tokens: int = 1
    ) -> Workload:
        return cls(
            num_tokens=num_tokens,
            priority=priority,
            max_tokens=max_tokens,
            segments=tuple(plan.geometry.segments for plan in media),
            media_keys=tuple(plan.key for plan in media),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Predicted seconds. What is somewhere already takes none to encode."""

    encode_s: tuple[float, ...]
    sources: tuple[str, ...]  # of features: device | host | disk | remote | miss
    is_held: tuple[bool, ...]  # as features somewhere, or in cached keys and values
    prefill_s: float  # should nothing of the prompt be cached
    queue_s: float
    prospect: Prospect = field(default_factory=Prospect)  # from the queue to the end of the answer
