"""A step being written: rows and encodes so far.

Owns the rules for one row: how long a chunk may be, which pictures it needs, where it is cut. Which requests get
rows, and in which order, is the writer's business; how the time of the step is shared, that of step_time.py. Decodes
are added first, then the time is limited, then come the pictures that fit whole into the time for encodes, then
prefills, and last the pictures and slices that take what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tapetum.cache.ledger import Ledger
from tapetum.cache.visual import VisualCache
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.media import MediaItem, Span
from tapetum.core.plan import Link, Row
from tapetum.sched.budget import StepBudget
from tapetum.sched.encode import EncodeDraft, UnderWay
from tapetum.sched.links import Links, Offer
from tapetum.sched.progress import Progress
from tapetum.sched.speculate import MAX_GUESS, Outlook
from tapetum.sched.step_time import StepTime

_row = partial(tuple.__new__, Row)  # half of what its own constructor takes, for every decode


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
        self.time = StepTime(budget, self.encodes, cost, ledger.block_size)
        self._budget = budget
        self._ledger = ledger
        self._visual = visual
        self._cost = cost
        self._links = links
        self._may_encode = True

    def add_decodes(self, decodes: Sequence[Progress]) -> None:
        """Of requests that have blocks for their next token."""
        rows = [
            _row(
                (
                    progress.request_id,
                    progress.state.num_computed_tokens,
                    1,
                    progress.state.block_ids,
                    True,
                    (),
                )
            )
            for progress in decodes
        ]
        self.rows += rows
        self.owners += decodes
        self.time.add_decodes(len(rows), sum([row.start for row in rows]) + len(rows))
        self._budget.take_rows(len(rows), len(rows))

    def speculate(self, seconds: float | None, *, may_grow: bool) -> None:
        """Let decodes verify guesses within a step of `seconds`, in blocks that nobody else wants."""
        step = Outlook(len(self.rows), self.time.decodes_s)
        for index, progress in enumerate(self.owners):
            if progress.speculation is not None and progress.speculation.look(step):
                longest = min(progress.num_tokens_left - 1, self._budget.tokens)
                longest = min(longest, self._ledger.num_slots_ahead(progress.state, may_grow=may_grow))
                step.seconds_per_token = self._token_seconds(self.rows[index].end)
                if seconds is not None:
                    longest = min(longest, step.max_length(seconds))
                self._add_guess(index, progress.speculation.take(longest, step))

    def hold(self) -> None:
        """No encode is begun in this step."""
        self._may_encode = False

    def encode_whole(self, prefills: Sequence[Progress]) -> None:
        """Begin pictures that fit the time for encodes, of requests in the order in which they are due."""
        self._encode_ahead(prefills, may_slice=False)

    def encode_rest(self, prefills: Sequence[Progress]) -> None:
        """The same with all the time that is left, which belongs to them now; slices of what does not fit."""
        self.time.leave_rest()
        self._encode_ahead(prefills, may_slice=True)
        self.time.add_slices()

    @property
    def has_room(self) -> bool:
        """Whether another prefill may get a row: the first always, a further one if there is time for a block."""
        return self._budget.has_tokens and self.time.has_block

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
        self.time.is_cut |= end == timely < progress.state.num_tokens
        end = self._past_cuts(progress, start, end)
        if end <= start:
            return
        self.time.add_chunk(start, end - start, is_last=end == progress.state.num_tokens)
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
        self.time.add_guess(row.end, len(guess))
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
        """The longest chunk by tokens and time."""
        if not self._budget.has_tokens:
            return 0
        wanted = min(progress.state.num_remaining_tokens, self._budget.tokens)
        return min(wanted, self.time.longest_chunk(progress.state.num_computed_tokens, share))

    def _past_cuts(self, progress: Progress, start: int, end: int) -> int:
        """`end`, unless that lies within tokens that see each other both ways: then what comes before them.

        Where nothing does, the first chunk of a step takes all of them, whatever that costs, and others wait.
        """
        for span, _ in progress.spans_ahead():
            if span.start >= end:
                break
            for first, last in span.placeholders if span.is_atomic else ():
                if first < end < last:
                    whole = start if self.time.work.chunk else last
                    return first if first > start else whole
        return end

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
        may_begin = self._may_encode and not item.is_reserved
        return may_begin and self.encodes.try_begin(
            item, progress.due_s, self.time.for_encode_s, account=progress.account, may_slice=may_slice
        )
