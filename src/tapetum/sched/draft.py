"""A step being written: rows and encodes so far, what they will cost, and what the budget still allows.

Owns the rules for one row: how long a chunk may be, which pictures it needs, where it is cut. Which requests get
rows, and in which order, is the scheduler's business. Decodes are added first, then `limit_time`, the pictures that fit
whole into the time for encodes, then prefills, and last the pictures and slices that take what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from tapetum.cache.ledger import Ledger
from tapetum.cache.visual import VisualCache
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.media import MediaItem, Span
from tapetum.core.plan import Link, Row
from tapetum.core.stats import Budgets
from tapetum.sched.budget import StepBudget
from tapetum.sched.encode import ENCODE_SHARE, LEAST_SHARE, EncodeDraft, UnderWay
from tapetum.sched.links import Links, Offer
from tapetum.sched.progress import Progress
from tapetum.sched.shares import Shares
from tapetum.sched.speculate import MAX_GUESS, Outlook

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


class Draft:
    def __init__(
        self,
        budget: StepBudget,
        ledger: Ledger,
        visual: VisualCache,
        cost: CostModel,
        under_way: tuple[UnderWay, ...],
        links: Links,
    ) -> None:
        self.rows: list[Row] = []
        self.owners: list[Progress] = []  # of the rows, decodes first
        self.links: list[Link] = []
        self.encodes = EncodeDraft(budget, visual, cost, under_way)
        self.work = Work()
        self.is_urgent = False  # a prefill would be late if it shared the time
        self._budget = budget
        self._max_chunk = budget.tokens
        self._ledger = ledger
        self._visual = visual
        self._cost = cost
        self._links = links
        self._for_encodes = 0.0  # seconds that prefills leave to them where they have use for it
        self._least_s: float | None = None  # for the first chunk; None = a block, whatever that takes
        self._is_alone = False  # a chunk or a slice, not both
        self._may_encode = True
        self._is_cut = False  # a prefill would have gone on, had there been time

    def add_decodes(self, decodes: Sequence[Progress]) -> None:
        """Of requests that have blocks for their next token."""
        rows = [
            Row(progress.request_id, progress.state.num_computed_tokens, 1, progress.state.block_ids, True)
            for progress in decodes
        ]
        self.rows += rows
        self.owners += decodes
        self.work.decodes += len(rows)
        self.work.context += sum([row.start for row in rows]) + len(rows)
        self._budget.take_rows(len(rows), len(rows))

    def speculate(self, seconds: float | None, *, may_grow: bool) -> None:
        """Let decodes verify guesses within a step of `seconds`, in blocks that nobody else wants."""
        step = Outlook(self.work.decodes, self._cost.step_seconds(self.work.decodes, self.work.context))
        for index, progress in enumerate(self.owners):
            if progress.speculation is not None and progress.speculation.look(step):
                longest = min(progress.num_tokens_left - 1, self._budget.tokens)
                longest = min(longest, self._ledger.num_slots_ahead(progress.state, may_grow=may_grow))
                step.seconds_per_token = self._token_seconds(self.rows[index].end)
                if seconds is not None:
                    longest = min(longest, step.max_length(seconds))
                self._add_guess(index, progress.speculation.take(longest, step))

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

    def limit_time(self, seconds: float | None, shares: Shares) -> None:
        """From here on the step as a whole should take `seconds` at most; without decodes nobody is kept waiting."""
        budget = self._budget
        if seconds is None or not self.work.decodes:
            both = budget.encode_s + budget.prefill_s
            self._for_encodes = budget.encode_s = self._share_of_encodes(shares, budget.encode_s, both)
            budget.prefill_s = both - budget.encode_s
        else:
            budget.seconds = seconds
            self._share_slack(max(0.0, self._slack()), shares)
        self.encodes.try_end(self._slack())

    def _share_slack(self, slack: float, shares: Shares) -> None:
        """Of what decodes leave, each side gets a tenth of the step at least; where there is less, or a chunk is owed
        more than a slice, one goes alone, and each in its turn.

        Where decodes leave nothing no target is kept, and both go on all the same.
        """
        self._for_encodes = self._share_of_encodes(shares, ENCODE_SHARE * slack, slack)
        if slack <= 0:
            return
        self._least_s = LEAST_SHARE * self._limit
        slice_s = self.encodes.least_s(self._limit)
        is_tight = slack < slice_s + self._least_s
        is_owed = shares.owed_s < (0.0 if is_tight else -slice_s)
        self._is_alone = is_tight or is_owed or self._for_encodes <= 0
        if not self._is_alone:
            self._for_encodes = min(max(self._for_encodes, slice_s), slack - self._least_s)
        else:
            self._for_encodes = 0.0 if is_owed or self._for_encodes <= 0 else slack

    def _share_of_encodes(self, shares: Shares, even_s: float, both_s: float) -> float:
        return shares.of_encodes(even_s, both_s, is_urgent=self.is_urgent)

    def hold(self) -> None:
        """No encode is begun in this step."""
        self._may_encode = False

    @property
    def decodes_s(self) -> float:
        """Predicted for the decodes alone."""
        return self._rows_seconds(0, 0.0)

    @property
    def seconds(self) -> float:
        """Predicted for the whole step."""
        work = self.work
        chunk, context = work.chunk + work.guessed, work.chunk_context + work.guessed_context
        return self.encodes.seconds + self._rows_seconds(chunk, context)

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

    def settle(self, shares: Shares, *, has_waiting: bool) -> None:
        """Tell what either side gets, once the step is written."""
        work = self.work
        prefill_s = self._rows_seconds(work.chunk, work.chunk_context) - self.decodes_s
        is_cut = self._is_cut or (has_waiting and not self.has_room)
        shares.settle(
            self.encodes.seconds,
            prefill_s,
            is_contended=is_cut and bool(self.encodes.under_way),
            step_s=self._limit if self._budget.seconds is not None else self._limit + self._budget.prefill_s,
            is_urgent=self.is_urgent,
        )

    def encode_whole(self, prefills: Sequence[Progress]) -> None:
        """Begin pictures that fit the time for encodes, of requests in the order in which they are due."""
        self._encode_ahead(prefills, may_slice=False)

    def encode_rest(self, prefills: Sequence[Progress]) -> None:
        """The same with all the time that is left, which belongs to them now; slices of what does not fit."""
        self._for_encodes = inf
        self._encode_ahead(prefills, may_slice=True)
        slack, longest = self._slack(), self._limit - min(self._slack(), 0.0)
        if not (self._is_alone and self.work.chunk) or slack >= self.encodes.least_s(longest):
            self.encodes.add_slices(slack, longest)

    @property
    def has_room(self) -> bool:
        """Whether another prefill may get a row: the first always, a further one if there is time for a block."""
        is_timely = not self.work.chunk or self._timely(0) >= self._ledger.block_size
        return self._budget.has_tokens and is_timely

    @property
    def is_encoder_idle(self) -> bool:
        """Whether nobody here has a picture to encode."""
        return not (self.encodes.jobs or self.encodes.under_way or self.encodes.lacks_time)

    def wants_encode(self, progress: Progress) -> bool:
        """Whether the next picture of a request is not there and nobody encodes it."""
        span, _ = next(progress.spans_ahead(), (None, False))
        return span is not None and self._visual.needs_encode(span.item)

    def awaits_picture(self, progress: Progress) -> bool:
        """Whether the next token of a prefill belongs to a picture that is being encoded."""
        for span, is_pinned in progress.spans_ahead():
            is_next = span.start <= progress.state.num_computed_tokens
            return is_next and is_pinned and not self.encodes.is_ready(span.item)
        return False

    def lacks_picture(self, progress: Progress) -> bool:
        """Whether some picture of a prefill is still to be encoded."""
        return not all(self.encodes.is_ready(span.item) for span, _ in progress.spans_ahead())

    def add_prefill(self, progress: Progress, *, share: float = 1.0) -> None:
        """Give the request the longest chunk that budget and pictures allow; no row if that is nothing.

        `share`: how much of the time that is left it may take.
        """
        start = progress.state.num_computed_tokens
        end = timely = start + self._chunk(progress, share)
        offer: Offer | None = None
        for span, is_pinned in progress.spans_ahead():
            if span.start >= end:
                break
            if not (is_pinned or self._try_pin(progress, span)) or not self.encodes.is_ready(span.item):
                end = span.start
                break
            end = timely = min(
                end, start + self._chunk(progress, share)
            )  # an encode takes time from the chunk
            offer = self._links.offer(progress.state, span)
            if offer is not None:
                end = min(end, offer.link.start)
                break
        self._is_cut |= end == timely < progress.state.num_tokens
        end = self._past_cuts(progress, start, end)
        if end <= start:
            return
        self.work.chunk += end - start
        self.work.chunk_context += chunk_context(start, end - start)
        if end == progress.state.num_tokens:
            self._budget.end_soon(
                self._rows_seconds(self.work.chunk, self.work.chunk_context) - self.decodes_s
            )
        self._add_row(progress, start, end - start)
        if offer is not None and end == offer.link.start:
            self.links.append(self._links.begin(progress, offer))

    def _add_guess(self, index: int, guess: tuple[int, ...]) -> None:
        if not guess:
            return
        row, state = self.rows[index], self.owners[index].state
        has_room = self._ledger.extend(state, num_ahead=len(guess))
        assert has_room, "a guess is no longer than there are slots"
        self._budget.tokens -= len(guess)
        self.work.guessed += len(guess)
        self.work.guessed_context += chunk_context(row.end, len(guess))
        self.rows[index] = row._replace(length=1 + len(guess), block_ids=state.block_ids, guess=guess)

    def _token_seconds(self, start: int) -> float:
        """Seconds of one more token in a chunk that begins at `start`."""
        alone = self._cost.step_seconds(0, 0)
        return (self._cost.step_seconds(0, 0, MAX_GUESS, chunk_context(start, MAX_GUESS)) - alone) / MAX_GUESS

    def _add_row(self, progress: Progress, start: int, length: int) -> None:
        state = progress.state
        self._budget.take_rows(1, length)
        self.owners.append(progress)
        self.rows.append(
            Row(
                request_id=progress.request_id,
                start=start,
                length=length,
                block_ids=state.block_ids,
                has_sample=start + length == state.num_tokens,
            )
        )

    def _chunk(self, progress: Progress, share: float) -> int:
        """The longest chunk by tokens and time. The first of a step is never cut to nothing by time."""
        if not self._budget.has_tokens:
            return 0
        wanted = min(progress.state.num_remaining_tokens, self._budget.tokens)
        start = progress.state.num_computed_tokens
        least = 0 if self.work.chunk else self._least(start)
        return min(wanted, max(least, self._timely(start, share)))

    def _least(self, start: int) -> int:
        """Tokens of the first chunk, whatever the time; none where it is the turn of an encode."""
        if self._least_s is None:
            return self._ledger.block_size
        if self._is_alone and self._for_encodes > 0 and self._is_kept:
            return 0
        return max(1, min(self._ledger.block_size, self._chunk_in(self._least_s, start)))

    def _past_cuts(self, progress: Progress, start: int, end: int) -> int:
        """`end`, unless that lies within tokens that see each other both ways: then what comes before them.

        Where nothing does, the first chunk of a step takes all of them, whatever that costs, and others wait.
        """
        for span, _ in progress.spans_ahead():
            if span.start >= end:
                break
            for first, last in span.placeholders if span.is_atomic else ():
                if first < end < last:
                    whole = start if self.work.chunk else last
                    return first if first > start else whole
        return end

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
    def _limit(self) -> float:
        """Seconds of the step; where there is no limit to them, of its encodes."""
        return self._budget.encode_s if self._budget.seconds is None else self._budget.seconds

    def _slack(self) -> float:
        """What of the limit nothing is planned for."""
        planned = self.encodes.seconds if self._budget.seconds is None else self.seconds
        return self._limit - planned

    def _rows_seconds(self, chunk: int, context: float) -> float:
        """Of the decodes with so much beside them."""
        return self._cost.step_seconds(self.work.decodes, self.work.context, chunk, context)

    def _spare(self) -> float:
        """The slack that prefills may take: not what encodes that wait have a right to."""
        kept_s = max(0.0, self._for_encodes - self.encodes.seconds) if self._is_kept else 0.0
        return self._slack() - kept_s

    @property
    def _is_kept(self) -> bool:
        """Whether an encode waits for the time that is kept for encodes."""
        return bool(self.encodes.under_way) or self.encodes.lacks_time

    def _encode_ahead(self, prefills: Sequence[Progress], *, may_slice: bool) -> None:
        """Pin the pictures ahead of these requests, in their order, as far as their encodes can begin or have begun.

        So the next picture of a request is encoded while the one before it is prefilled.
        """
        for progress in prefills:
            num_ahead = 0
            for span, is_pinned in progress.spans_ahead():
                if num_ahead >= self._budget.ahead_tokens:
                    break
                if not (is_pinned or self._try_pin(progress, span, may_slice=may_slice)):
                    break
                num_ahead += span.item.geometry.num_tokens

    def _try_pin(self, progress: Progress, span: Span, *, may_slice: bool = False) -> bool:
        """Pin the features of `span`, and see to them if nobody has; False if that cannot be in this step."""
        source: str | None = "device"
        state = self._visual.state(self._visual.key_of(span.item))
        if state == "landed":
            source = self.encodes.try_arrive(span.item)
        elif state == "absent":
            source = "miss" if self._try_encode(progress, span.item, may_slice=may_slice) else None
        else:
            self.encodes.join(span.item, progress.due_s)
        if source is not None:
            progress.pin(span, self._visual, source)
        return source is not None

    def _try_encode(self, progress: Progress, item: MediaItem, *, may_slice: bool) -> bool:
        """What is reserved and neither here nor there is being copied out: it comes back with the next step."""
        room = min(self._slack(), self._for_encodes - self.encodes.seconds)
        may_begin = self._may_encode and not item.is_reserved
        return may_begin and self.encodes.try_begin(
            item, progress.due_s, room, account=progress.account, may_slice=may_slice
        )
