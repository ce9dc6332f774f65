"""Pictures that are not prefilled but taken over from where they stood before, for requests that want that.

The exact way goes first: a link is tried for what no prefix has brought. The first tokens of the picture are computed
as ever, since they repair most of what the other place has changed (EPIC, Hu et al., 2024; MPIC and VLCache of 2025).
They also guard it: where they differ too much from what the other place had for them, all of the picture is computed.
Whatever rests on a link stays with its request. Owns the links in flight, whose sources are kept until then, and their
counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil

from tapetum.cache.ledger import Ledger
from tapetum.cache.sightings import Sighting
from tapetum.cache.visual import VisualCache
from tapetum.core.config import ScheduleConfig
from tapetum.core.media import Span
from tapetum.core.plan import Link, StepResult
from tapetum.core.request import Phase, RequestState
from tapetum.sched.progress import Progress
from tapetum.sched.roster import Roster


@dataclass(frozen=True, slots=True)
class Offer:
    """A link that a row may end with, and what it copies from."""

    link: Link
    sighting: Sighting


class Links:
    def __init__(self, config: ScheduleConfig, ledger: Ledger, visual: VisualCache, roster: Roster) -> None:
        self.num_linked = 0  # pictures since the start
        self.num_rejected = 0
        self.num_linked_tokens = 0
        self._config = config
        self._ledger = ledger
        self._visual = visual
        self._roster = roster
        self._in_flight: list[tuple[Progress, Offer]] = []

    def offer(self, state: RequestState, span: Span) -> Offer | None:
        """The best link for a picture whose first tokens are still to be computed; None = prefill it."""
        if not state.request.reuse.position_independent or span.is_atomic:
            return None
        config = self._config
        num_fresh = max(config.link_tokens, ceil(config.link_share * (span.end - span.start)))
        start = span.start + num_fresh
        if state.num_computed_tokens >= start:
            return None
        sightings = self._ledger.sightings(state, span.key)
        fitting = [sighting for sighting in sightings if _fits(sighting, span, state)]
        best = max(fitting, key=partial(_worth, span.position), default=None)
        if best is None:
            return None
        end = min(span.start + len(best.token_ids), state.num_tokens - 1)  # the last token is always computed
        if end - start < self._ledger.block_size:
            return None
        link = Link(
            request_id=state.request.request_id,
            first=span.start,
            start=start,
            end=end,
            block_ids=tuple(state.block_ids),
            source_ids=best.block_ids,
            source_first=best.first,
            shift=span.position - best.position,
            tolerance=config.link_tolerance,
        )
        return Offer(link, best)

    def begin(self, progress: Progress, offer: Offer) -> Link:
        """Of a row that ends where the link starts."""
        self._ledger.hold(offer.sighting)
        self._in_flight.append((progress, offer))
        return offer.link

    def settle(self, result: StepResult) -> None:
        """Of those that fitted, the tokens are there; requests may have ended, and links not been looked at."""
        flights, self._in_flight = self._in_flight, []
        for progress, offer in flights:
            self._ledger.let_go(offer.sighting)
            error = result.links.get(offer.link.request_id)
            if error is not None and progress.state.phase is Phase.RUNNING:
                self._take(progress, offer.link, error)

    def _take(self, progress: Progress, link: Link, error: float) -> None:
        if not link.fits(error):
            self.num_rejected += 1
            return
        self.num_linked += 1
        self.num_linked_tokens += link.end - link.start
        state = progress.state
        state.num_exact_tokens = min(state.num_exact_tokens, link.start)
        state.linked_spans.add(link.first)
        progress.advance(link.end, self._visual)
        self._roster.running.note_computed(progress)


def _worth(position: int, sighting: Sighting) -> tuple[int, int]:
    """The longest first, of those the nearest: what stands before it is the most alike there."""
    return len(sighting.token_ids), -abs(sighting.position - position)


def _fits(sighting: Sighting, span: Span, state: RequestState) -> bool:
    """Whether it holds the same tokens, placed alike around their beginning."""
    token_ids = state.request.prompt.token_ids[span.start : span.start + len(sighting.token_ids)]
    return sighting.placement == span.placement and sighting.token_ids == token_ids
