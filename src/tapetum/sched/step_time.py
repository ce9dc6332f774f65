"""The time of a step being written: what is planned of it, and what its limit leaves to encodes and to prefills.

Owns the size of the rows in the terms of the cost model, and how both sides share what decodes leave. What the limit is
comes from outside, and so does what either side does with its time (draft.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.stats import Budgets
from tapetum.sched.budget import StepBudget
from tapetum.sched.encode import ENCODE_SHARE, LEAST_SHARE, EncodeDraft
from tapetum.sched.progress import Progress
from tapetum.sched.shares import Shares

_SURE = 1.5  # times as long as predicted: what is in a hurry is taken so far


@dataclass(slots=True)
class Work:
    """The size of a step's rows, in the terms of the cost model."""

    decodes: int = 0
    context: int = 0
    chunk: int = 0
    chunk_context: float = 0.0
    guessed: int = 0  # tokens beside those of the chunks, which cost the same
    guessed_context: float = 0.0


class StepTime:
    def __init__(self, budget: StepBudget, encodes: EncodeDraft, cost: CostModel, block_size: int) -> None:
        self.work = Work()
        self.decodes_s = cost.step_seconds(0, 0)  # predicted for the decodes alone
        self.is_urgent = False  # a prefill would be late if it shared the time
        self.is_cut = False  # a prefill would have gone on, had there been time
        self._budget = budget
        self._max_chunk = budget.tokens
        self._encodes = encodes
        self._cost = cost
        self._block_size = block_size
        self._for_encodes = 0.0  # seconds that prefills leave to them where they have use for it
        self._least_s: float | None = None  # for the first chunk; None = a block, whatever that takes
        self._is_alone = False  # a chunk or a slice, not both

    @property
    def seconds(self) -> float:
        """Predicted for the whole step."""
        work = self.work
        chunk, context = work.chunk + work.guessed, work.chunk_context + work.guessed_context
        return self._encodes.seconds + self._rows_seconds(chunk, context)

    def add_decodes(self, count: int, context: int) -> None:
        """All of them, before anything else."""
        work = self.work
        work.decodes, work.context = count, context
        self.decodes_s = self._cost.step_seconds(count, context)

    def add_guess(self, start: int, length: int) -> None:
        self.work.guessed += length
        self.work.guessed_context += chunk_context(start, length)

    def add_chunk(self, start: int, length: int, *, is_last: bool) -> None:
        """Of a prefill, perhaps the last one of its prompt."""
        work = self.work
        work.chunk += length
        work.chunk_context += chunk_context(start, length)
        if is_last:
            self._budget.end_soon(self._prefill_s)

    def hurry(self, seconds: float | None, progress: Progress, now: float) -> None:
        """Whether a prefill, which goes on first, would be late if it shared steps of `seconds` with encodes; then it
        goes before them, to its end."""
        start, length = progress.state.num_computed_tokens, progress.state.num_remaining_tokens
        needed_s = self._cost.step_seconds(0, 0, length, chunk_context(start, length))
        if seconds is None or not self.work.decodes:
            needed_s += self._budget.encode_s + self._budget.prefill_s
        else:
            share = (1 - ENCODE_SHARE) * max(0.0, seconds - self.seconds) / seconds
            needed_s = needed_s / share if share > 0 else inf
        progress.is_urgent |= progress.due_s - now < _SURE * needed_s
        self.is_urgent = progress.is_urgent

    def limit(self, seconds: float | None, shares: Shares) -> None:
        """From here on the step as a whole should take `seconds` at most; without decodes nobody is kept waiting."""
        budget = self._budget
        if seconds is None or not self.work.decodes:
            both = budget.encode_s + budget.prefill_s
            self._for_encodes = budget.encode_s = self._share_of_encodes(shares, budget.encode_s, both)
            budget.prefill_s = both - budget.encode_s
        else:
            budget.seconds = seconds
            self._share_slack(max(0.0, self._slack()), shares)
        self._encodes.try_end(self._slack())

    def _share_slack(self, slack: float, shares: Shares) -> None:
        """Of what decodes leave, each side gets a tenth of the step at least; where there is less, or a chunk is owed
        more than a slice, one goes alone, and each in its turn.

        Where decodes leave nothing no target is kept, and both go on all the same.
        """
        self._for_encodes = self._share_of_encodes(shares, ENCODE_SHARE * slack, slack)
        if slack <= 0:
            return
        self._least_s = LEAST_SHARE * self._limit
        slice_s = self._encodes.least_s(self._limit)
        is_tight = slack < slice_s + self._least_s
        is_owed = shares.owed_s < (0.0 if is_tight else -slice_s)
        self._is_alone = is_tight or is_owed or self._for_encodes <= 0
        if not self._is_alone:
            self._for_encodes = min(max(self._for_encodes, slice_s), slack - self._least_s)
        else:
            self._for_encodes = 0.0 if is_owed or self._for_encodes <= 0 else slack

    def _share_of_encodes(self, shares: Shares, even_s: float, both_s: float) -> float:
        return shares.of_encodes(even_s, both_s, is_urgent=self.is_urgent)

    def settle(self, shares: Shares, *, lacks_room: bool) -> None:
        """Tell what either side gets, once the step is written. `lacks_room`: somebody waits who found none."""
        shares.settle(
            self._encodes.seconds,
            self._prefill_s,
            is_contended=(self.is_cut or lacks_room) and bool(self._encodes.under_way),
            step_s=self._limit if self._budget.seconds is not None else self._limit + self._budget.prefill_s,
            is_urgent=self.is_urgent,
        )

    def budgets(self, pace: float, owed_s: float, watermark_blocks: int) -> Budgets:
        """What this step could spend."""
        budget, work = self._budget, self.work
        prefill_s = budget.prefill_s + self.decodes_s if budget.seconds is None else budget.seconds
        longest = self._cost.max_chunk(prefill_s, work.decodes, work.context, 0)
        return Budgets(
            step_s=self._limit,
            chunk_tokens=min(longest, self._max_chunk),
            pace=pace,
            owed_s=owed_s,
            watermark_blocks=watermark_blocks,
        )

    @property
    def has_block(self) -> bool:
        """Whether there is time for a block of another prefill; for the first one always."""
        return not self.work.chunk or self._timely(0) >= self._block_size

    def longest_chunk(self, start: int, share: float) -> int:
        """Of a prefill, in a share of what is left; the first of a step is never cut to nothing."""
        least = 0 if self.work.chunk else self._least_chunk(start)
        return max(least, self._timely(start, share))

    @property
    def for_encode_s(self) -> float:
        """What one more encode may take."""
        return min(self._slack(), self._for_encodes - self._encodes.seconds)

    def leave_rest(self) -> None:
        """All that is left belongs to encodes now."""
        self._for_encodes = inf

    def add_slices(self) -> None:
        """Of encodes under way, in what is left."""
        slack = self._slack()
        longest = self._limit - min(slack, 0.0)
        if not (self._is_alone and self.work.chunk) or slack >= self._encodes.least_s(longest):
            self._encodes.add_slices(slack, longest)

    def _least_chunk(self, start: int) -> int:
        """Tokens of the first chunk, whatever the time; none where it is the turn of an encode."""
        if self._least_s is None:
            return self._block_size
        if self._is_alone and self._for_encodes > 0 and self._is_kept:
            return 0
        return max(1, min(self._block_size, self._chunk_in(self._least_s, start)))

    def _timely(self, start: int, share: float = 1.0) -> int:
        """How many tokens from `start` on the step has time for, in a share of what is left of it."""
        work = self.work
        if self._budget.seconds is None:
            left = (
                self._budget.prefill_s + self.decodes_s - self._rows_seconds(work.chunk, work.chunk_context)
            )
        else:
            left = self._spare()
        return self._chunk_in(share * left, start)

    def _chunk_in(self, seconds: float, start: int) -> int:
        """How many tokens from `start` on take so long on top of the decodes."""
        work = self.work
        return self._cost.max_chunk(self.decodes_s + seconds, work.decodes, work.context, start)

    @property
    def _prefill_s(self) -> float:
        """Of the chunks so far, on top of the decodes."""
        return self._rows_seconds(self.work.chunk, self.work.chunk_context) - self.decodes_s

    @property
    def _limit(self) -> float:
        """Seconds of the step; where there is no limit to them, of its encodes."""
        return self._budget.encode_s if self._budget.seconds is None else self._budget.seconds

    def _slack(self) -> float:
        """What of the limit nothing is planned for."""
        planned = self._encodes.seconds if self._budget.seconds is None else self.seconds
        return self._limit - planned

    def _spare(self) -> float:
        """The slack that prefills may take: not what encodes that wait have a right to."""
        kept_s = max(0.0, self._for_encodes - self._encodes.seconds) if self._is_kept else 0.0
        return self._slack() - kept_s

    @property
    def _is_kept(self) -> bool:
        """Whether an encode waits for the time that is kept for encodes."""
        return bool(self._encodes.under_way) or self._encodes.lacks_time

    def _rows_seconds(self, chunk: int, context: float) -> float:
        """Of the decodes with so much beside them."""
        return self._cost.step_seconds(self.work.decodes, self.work.context, chunk, context)
