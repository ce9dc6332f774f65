"""Writer: which requests have a share in the next step, and who is let in.

Order within a step: running decodes (all of them, every step), prefills under way, admissions; the last two in turn.
Pictures that fit whole are begun before the prefills, slices take what is left behind the admissions. Owns what is
remembered from one step to the next to share its time: the pace, what encodes and prefills owe each other, the wait for
more pictures. How long a chunk or a slice may be is up to the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import inf
from operator import attrgetter

from tapetum.cache.ledger import Ledger
from tapetum.cache.visual import VisualCache
from tapetum.core.config import ScheduleConfig
from tapetum.core.cost import MAX_CHUNK, CostModel
from tapetum.core.stats import Budgets
from tapetum.sched.budget import kv_watermark, max_running, step_budget, step_seconds_limit
from tapetum.sched.draft import Draft
from tapetum.sched.hold import Batch, Hold
from tapetum.sched.links import Links
from tapetum.sched.pace import Pace
from tapetum.sched.progress import Progress
from tapetum.sched.roster import Roster
from tapetum.sched.settle import Encodes
from tapetum.sched.shares import Shares

_LOOKAHEAD = 8  # requests that wait and are looked at for short ones


class Writer:
    def __init__(
        self,
        config: ScheduleConfig,
        roster: Roster,
        encodes: Encodes,
        links: Links,
        ledger: Ledger,
        visual: VisualCache,
        cost: CostModel,
    ) -> None:
        self.pace = Pace(config)
        self.hold = Hold(cost)
        self._config = config
        self._roster = roster
        self._encodes = encodes
        self._links = links
        self._ledger = ledger
        self._visual = visual
        self._cost = cost
        self._shares = Shares()
        self._max_running = max_running(config, ledger.block_size)

    def write(self, now: float) -> Draft:
        """Decide a step, with blocks and feature memory reserved for it."""
        self._encodes.drop_for_nobody()
        self._roster.turns.begin(self._roster.running.prefills, now)
        budget = step_budget(self._config, self._cost.step_seconds(0, 0))
        draft = Draft(budget, self._ledger, self._visual, self._cost, self._encodes.under_way, self._links)
        self._add_decodes(draft)
        has_waiting = bool(self._roster.waiting)
        self._admit_first(draft, now)
        draft.speculate(step_seconds_limit(self._config), may_grow=not has_waiting)
        prefills = self._by_due()
        if prefills and not draft.lacks_picture(prefills[0]):
            draft.time.hurry(self.pace.limit(draft.time.decodes_s), prefills[0], now)
        is_urgent = draft.time.is_urgent
        draft.time.limit(self.pace.limit(draft.time.decodes_s, is_urgent=is_urgent), self._shares)
        if draft.time.work.decodes and self.hold.update(self._batch(prefills), now):
            draft.hold()
        draft.encode_whole(prefills)
        self._add_prefills(draft, prefills)
        self._admit(draft, now)
        draft.encode_rest(self._by_due())
        draft.time.settle(self._shares, lacks_room=bool(self._roster.waiting) and not draft.has_room)
        self._encodes.under_way = tuple(draft.encodes.under_way)
        return draft

    def budgets(self, draft: Draft) -> Budgets:
        """What a step could spend that has been written."""
        return draft.time.budgets(self.pace.factor, self._shares.owed_s, self._watermark)

    def _add_decodes(self, draft: Draft) -> None:
        """A row for every decode, in order of seats; where blocks run out, the last give way."""
        size = self._ledger.block_size
        draft.add_decodes(
            [
                progress
                for progress in tuple(self._roster.running.decodes)
                if progress.state.num_computed_tokens < size * len(progress.state.block_ids)
                or self._make_way(progress)
            ]
        )

    def _make_way(self, progress: Progress) -> bool:
        """Whether a decode has a block for its next token, or can have it of those behind."""
        while progress.is_decoding:
            if self._ledger.extend(progress.state):
                return True
            self._roster.preempt(self._roster.victim)
        return False

    def _add_prefills(self, draft: Draft, prefills: Sequence[Progress]) -> None:
        """A chunk for the prefills under way, as they are due, as far as the step goes.

        One leaves half of the time to a much shorter one behind it, so that a question does not wait for a whole book.
        """
        if not prefills:
            return
        waiting = islice(self._roster.waiting, _LOOKAHEAD if self._has_seat else 0)
        least = min((progress.state.num_remaining_tokens for progress in waiting), default=MAX_CHUNK)
        least_behind = []  # of each, the fewest tokens that one behind it has to go
        for progress in reversed(prefills):
            least_behind.append(least)
            if not draft.awaits_picture(progress):
                least = min(least, progress.state.num_remaining_tokens)
        for progress in prefills:
            is_shared = least_behind.pop() < progress.state.num_remaining_tokens / 2
            if draft.has_room:
                draft.add_prefill(progress, share=0.5 if is_shared else 1.0)

    def _admit_first(self, draft: Draft, now: float) -> None:
        """Let text in that is due before all that prefills, so that it goes on before them from the start; and who
        goes before it in turn. One that was preempted may lack nothing but its next token."""
        if not (self._has_seat and self._roster.waiting):
            return
        due_s = min((progress.due_s for progress in self._roster.running.prefills), default=inf)
        candidates = islice(self._roster.waiting, _LOOKAHEAD)
        hurried = next((found for found in candidates if found.due_s < due_s and found.is_text), None)
        if hurried is None:
            return
        for progress in self._roster.turns.waiting():
            if not (self._has_seat and self._let_in(progress, now)):
                break
            if progress.is_decoding:
                draft.add_decodes([progress])
            if progress is hurried:
                break
        self._roster.turns.begin(self._roster.running.prefills, now)

    def _admit(self, draft: Draft, now: float) -> None:
        """Let requests in, strictly in turn, while the step has use for them.

        One with a picture is also let in where nobody else has something to encode: the encoder has time for it.
        """
        if not self._has_seat:
            return
        for progress in self._roster.turns.waiting():
            has_room = draft.has_room
            has_use = has_room or (draft.is_encoder_idle and draft.wants_encode(progress))
            if not (has_use and self._has_seat and self._let_in(progress, now)):
                break
            if has_room:
                draft.add_prefill(progress)

    def _let_in(self, progress: Progress, now: float) -> bool:
        """Whether there is memory for it, which is reserved."""
        num_matched = self._ledger.admit(progress.state, spare=self._watermark)
        if num_matched is not None:
            self._roster.start(progress, num_matched, now)
        return num_matched is not None

    @property
    def _has_seat(self) -> bool:
        """Whether one more may run."""
        return len(self._roster.running) < self._max_running

    @property
    def _watermark(self) -> int:
        return kv_watermark(len(self._roster.running), self._ledger.pool.num_blocks)

    def _by_due(self) -> list[Progress]:
        """What prefills, in the order in which to go on: by turns of tenants, as they are due."""
        return self._roster.turns.prefills(self._roster.running.prefills, key=attrgetter("due_s"))

    def _batch(self, prefills: Sequence[Progress]) -> Batch:
        """The pictures next in line of what prefills, should nobody encode them yet."""
        batch = Batch()
        for progress in prefills:
            span, _ = next(progress.spans_ahead(), (None, False))
            if span is not None and self._visual.needs_encode(span.item):
                batch.add(self._visual.job_of(span.item), progress.due_s - progress.prefill_s)
        return batch
