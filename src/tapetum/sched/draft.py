"""A step being written: rows and encodes so far, what they will cost, and what the budget still allows.

Owns the rules for one row: how long a chunk may be, which pictures it needs, where it is cut. Which requests get
rows, and in which order, is the scheduler's business. Decodes are added first, then `limit_time`, then prefills.
"""

from __future__ import annotations

from dataclasses import dataclass

from tapetum.cache.ledger import Ledger
from tapetum.cache.visual import VisualCache
from tapetum.core.cost import MAX_CHUNK, CostModel, chunk_context
from tapetum.core.media import MediaItem, Span
from tapetum.core.plan import EncodeJob, Row
from tapetum.sched.budget import EncodeCredit, StepBudget
from tapetum.sched.progress import Progress


@dataclass(slots=True)
class Work:
    """The size of a step, in the terms of the cost model."""

    decodes: int = 0
    context: int = 0
    chunk: int = 0
    chunk_context: float = 0.0
    patches: int = 0
    squares: int = 0


class Draft:
    def __init__(
        self, budget: StepBudget, ledger: Ledger, visual: VisualCache, cost: CostModel, credit: EncodeCredit
    ) -> None:
        self.rows: list[Row] = []
        self.owners: list[Progress] = []  # of the rows, decodes first
        self.encodes: list[EncodeJob] = []
        self.work = Work()
        self._budget = budget
        self._ledger = ledger
        self._visual = visual
        self._cost = cost
        self._credit = credit
        self._is_credit_asked = False

    def add_decode(self, progress: Progress) -> None:
        state = progress.state
        self.work.decodes += 1
        self.work.context += state.num_tokens
        self._add_row(progress, state.num_computed_tokens, 1)

    def limit_time(self, seconds: float | None) -> None:
        """From here on the step as a whole should take `seconds` at most; without decodes nobody is kept waiting."""
        self._budget.seconds = seconds if self.work.decodes else None

    @property
    def has_room(self) -> bool:
        """Whether another prefill may get a row: the first always, a further one if there is time for a block."""
        is_timely = not self.work.chunk or self._timely(0) >= self._ledger.block_size
        return self._budget.has_tokens and is_timely

    def add_prefill(self, progress: Progress) -> None:
        """Give the request the longest chunk that budget and pictures allow; no row if that is nothing."""
        start = progress.state.num_computed_tokens
        end = start + self._chunk(progress)
        for span in progress.unready_spans():
            if span.start >= end:
                break
            if not self._make_ready(progress, span):
                end = span.start
                break
            end = min(end, start + self._chunk(progress))  # an encode takes time from the chunk
        if end <= start:
            return
        self.work.chunk += end - start
        self.work.chunk_context += chunk_context(start, end - start)
        self._add_row(progress, start, end - start)

    def _add_row(self, progress: Progress, start: int, length: int) -> None:
        state = progress.state
        self._budget.take_row(length)
        self.owners.append(progress)
        self.rows.append(
            Row(
                request_id=progress.request_id,
                start=start,
                length=length,
                block_ids=self._ledger.block_table(state),
                has_sample=start + length == state.num_tokens,
            )
        )

    def _chunk(self, progress: Progress) -> int:
        """The longest chunk by tokens and time. The first of a step is never cut below one block by time."""
        if not self._budget.has_tokens:
            return 0
        wanted = min(progress.state.num_remaining_tokens, self._budget.tokens)
        least = 0 if self.work.chunk else self._ledger.block_size
        return min(wanted, max(least, self._timely(progress.state.num_computed_tokens)))

    def _timely(self, start: int) -> int:
        """How many tokens from `start` on the step has time for."""
        if self._budget.seconds is None:
            return MAX_CHUNK
        work = self.work
        alone = self._cost.step_seconds(work.decodes, work.context)
        return self._cost.max_chunk(self._slack() + alone, work.decodes, work.context, start)

    def _slack(self) -> float:
        """Seconds of the step that nothing is planned for."""
        if self._budget.seconds is None:
            return float("inf")
        work = self.work
        step = self._cost.step_seconds(work.decodes, work.context, work.chunk, work.chunk_context)
        return self._budget.seconds - step - self._cost.encode_seconds(work.patches, work.squares)

    def _make_ready(self, progress: Progress, span: Span) -> bool:
        """Pin the features of `span`, with an encode in this step if nobody has them; False if that cannot be."""
        source = "device"
        if self._visual.state(self._visual.key_of(span.item)) == "absent":
            if not self._try_encode(span.item):
                return False
            source = "miss"
        progress.pin(span, self._visual, source)
        return True

    def _try_encode(self, item: MediaItem) -> bool:
        geometry, work = item.geometry, self.work
        if not (self._budget.allows_encode(geometry.num_tokens) and self._visual.has_room(item)):
            return False
        patches = work.patches + geometry.num_patches
        squares = work.squares + sum(size * size for size in geometry.segments)
        before = self._cost.encode_seconds(work.patches, work.squares)
        if not self._has_time(self._cost.encode_seconds(patches, squares) - before):
            return False
        self._visual.begin(item)
        self._budget.take_encode(geometry.num_tokens)
        work.patches, work.squares = patches, squares
        self.encodes.append(EncodeJob(item=item))
        return True

    def _has_time(self, seconds: float) -> bool:
        """Within the slack; the first picture of a step that is not may fall back on what was saved up."""
        slack = self._slack()
        if seconds <= slack:
            return True
        if self._is_credit_asked or self._budget.seconds is None:
            return False
        self._is_credit_asked = True
        return self._credit.try_spend(seconds, slack, self._budget.seconds)
