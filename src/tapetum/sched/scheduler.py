"""Scheduler: what the next step does, and what has come of the last one.

`schedule` reads the state, reserves blocks and feature memory and returns a frozen plan; `commit` takes the result of
the plan and returns the news of requests. Every plan is committed or abandoned, an empty one too. In between, anything
may be added or aborted: what a plan in flight brings for an ended request is dropped. `foresee` may plan one step more
behind the plan in flight, which is committed in its turn, or withdrawn. Order within a step: running decodes (all of
them, every step), prefills under way, admissions; the last two in turn. Clock and results come in as arguments.
"""

from __future__ import annotations

from itertools import islice

from tapetum.cache.ledger import Ledger
from tapetum.cache.visual import VisualCache
from tapetum.core.config import ScheduleConfig
from tapetum.core.cost import CostModel
from tapetum.core.errors import Overloaded, TapetumError
from tapetum.core.plan import BatchPlan, EncodeJob, Row, SampledToken, StepResult, TokenEvent
from tapetum.core.request import FinishReason, Phase, Request, RequestState
from tapetum.core.stats import Backlog, SchedulerStats
from tapetum.sched.budget import max_running, step_budget, step_seconds_limit
from tapetum.sched.draft import Draft
from tapetum.sched.foresight import Foresight, next_rows, room_ahead, who_goes_on
from tapetum.sched.limits import AdmissionLimits
from tapetum.sched.progress import Progress, ends_of, finish_reason_of, stats_of
from tapetum.sched.promise import Prospect
from tapetum.sched.prospects import Prospects
from tapetum.sched.roster import Roster
from tapetum.sched.settle import Encodes
from tapetum.sched.speculate import Speculation

_LOOKAHEAD = 8  # requests that wait and are looked at for short ones


class Scheduler:
    def __init__(
        self, config: ScheduleConfig, ledger: Ledger, visual: VisualCache, cost: CostModel, max_model_len: int
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._visual = visual
        self._cost = cost
        self._limits = AdmissionLimits(max_model_len, ledger, visual)
        self._max_running = max_running(config, ledger.block_size)
        self._roster = Roster(ledger, visual, cost)
        self._encodes = Encodes(visual, self._roster)
        self._prospects = Prospects(config, self._roster, ledger, self._encodes, cost)
        self._news: list[TokenEvent] = []  # decided by `schedule`, told by the next `commit`
        self._owners: dict[int, tuple[Progress, ...]] = {}  # of the rows in flight, by step
        self._step = 0
        self._num_guessed = 0  # tokens
        self._num_guessed_right = 0

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Raises Overloaded, or the typed error of one that can never be served, or not in time."""
        self._limits.check(request, now)
        if self.num_waiting >= self._config.max_queue_len:
            raise Overloaded(
                f"{self.num_waiting} requests wait, limit {self._config.max_queue_len}; "
                "try again later or raise --max-queue-len"
            )
        self._roster.add(request, now, self._prospects.check(request, now))

    def abort(self, request_id: str, now: float) -> TokenEvent | None:
        """End a request for its client; None if it has ended already."""
        return self._end(request_id, "abort", now)

    def finish(self, request_id: str, now: float) -> TokenEvent | None:
        """End a request whose text has met a stop string; None if it has ended already."""
        return self._end(request_id, "stop", now)

    def close(self, now: float, error: TapetumError | None = None) -> list[TokenEvent]:
        """End all requests: aborted, or with the error that ended the engine."""
        news, self._news = self._news, []
        reason: FinishReason = "error" if error else "abort"
        return news + [
            self._roster.end(progress, reason, now, error=error) for progress in self._roster.live()
        ]

    @property
    def has_work(self) -> bool:
        """Whether there is something to schedule, to commit, to tell a client or to tell the executor."""
        is_busy = self.num_running or self.num_waiting or self._owners
        return bool(is_busy or self._news or self._roster.has_released)

    @property
    def num_waiting(self) -> int:
        return len(self._roster.waiting)

    @property
    def num_running(self) -> int:
        return len(self._roster.running)

    @property
    def backlog(self) -> Backlog:
        return self._prospects.backlog

    def prospect(
        self, priority: int, *, encode_s: float, prefill_s: float, min_tokens: int = 1, max_tokens: int = 1
    ) -> Prospect:
        """What is predicted of a request that comes now with so much to do. May be asked from another thread."""
        return self._prospects.prospect(
            priority, encode_s=encode_s, prefill_s=prefill_s, min_tokens=min_tokens, max_tokens=max_tokens
        )

    @property
    def media_keys(self) -> tuple[bytes, ...]:
        """Of the pictures and clips whose features are on the device."""
        return self._visual.resident_keys

    def has_cached(self, media_key: bytes) -> bool:
        """Whether cached keys and values hold some of a picture. May be asked from another thread."""
        return self._ledger.tree is not None and self._ledger.tree.holds(media_key)

    def reset_caches(self) -> None:
        """Drop every cached block and feature that no request holds."""
        if self._ledger.tree is not None:
            self._ledger.tree.clear()
        self._visual.clear()

    def schedule(self, now: float) -> BatchPlan:
        """Decide the next step and reserve what it needs."""
        assert not self._owners, "the plan before has not been committed"
        self._news += self._roster.end_expired(now)
        self._news += self._prospects.end_hopeless(now)
        self._encodes.drop_for_nobody()
        self._roster.turns.begin(self._roster.running, now)
        budget = step_budget(self._config, self._cost.step_seconds(0, 0))
        draft = Draft(budget, self._ledger, self._visual, self._cost, self._encodes.under_way)
        self._add_decodes(draft)
        draft.speculate(step_seconds_limit(self._config), may_grow=not self.num_waiting)
        draft.limit_time(step_seconds_limit(self._config))
        self._add_prefills(draft)
        self._admit(draft, now)
        draft.add_slice()
        return self._seal(draft)

    def foresee(self, plan: BatchPlan, now: float) -> Foresight | None:
        """The step after `plan`, which is in flight; None where what comes of `plan` decides it.

        What it reserves stays with the requests: `schedule` would reserve the same.
        """
        live = self._who_goes_on(plan, now)
        rows = next_rows(live, self._ledger) if live else None
        if rows is None:
            return None
        owners = tuple(live)
        return Foresight(
            plan=self._sealed(rows, owners),
            ends={owner.request_id: ends_of(owner.state.request) for owner in owners},
        )

    def stretch(self, plan: BatchPlan, longest: int, now: float) -> int:
        """How many tokens of each row of a plan in flight may be committed as one result, at most `longest`.

        More than 1 where the steps behind it are foreseen and no token ends an answer early: whoever executes them all
        at once must know both that and that nobody comes meanwhile. What they need is reserved.
        """
        live = self._who_goes_on(plan, now)
        return room_ahead(live, self._ledger, longest) if live and longest > 1 else 1

    def withdraw(self, plan: BatchPlan) -> None:
        """In place of `commit`, for a foreseen plan that nobody has begun to carry out."""
        del self._owners[plan.step]
        self._roster.return_released(plan.released)
        self._visual.return_dropped(plan.dropped_features)

    def commit(self, plan: BatchPlan, result: StepResult, now: float) -> list[TokenEvent]:
        """Take over what a step produced: tokens, full blocks, features, failures."""
        assert result.step == plan.step, f"result of step {result.step} for plan {plan.step}"
        news, self._news = self._news, []
        owners = self._owners.pop(plan.step)
        self._roster.charge(plan, owners, result)
        news += self._encodes.settle(plan, result, now)
        for row, progress in zip(plan.rows, owners, strict=True):
            if progress.state.phase is Phase.FINISHED:
                continue
            if error := result.failed.get(row.request_id):
                news.append(self._roster.end(progress, "error", now, error=error))
                continue
            if not progress.is_decoding:
                progress.state.prefill_s += result.forward_s
            if row.has_sample:
                news.append(self._take_tokens(progress, row, result.tokens[row.request_id], now))
            else:
                progress.advance(row.end, self._visual)
                self._ledger.publish(progress.state)
        return news

    def abandon(self, plan: BatchPlan, error: TapetumError, now: float) -> list[TokenEvent]:
        """In place of `commit`, for a plan that was broken off: nobody knows how much of it the executor has done.

        Every request of it ends with the error. What it told the executor to forget, the next plan tells again.
        """
        lost = StepResult(
            step=plan.step,
            failed={row.request_id: error for row in plan.rows},
            failed_features={job.item.key: error for job in plan.encodes},
        )
        self._roster.return_released(plan.released)
        self._visual.return_dropped(plan.dropped_features)
        return self.commit(plan, lost, now)

    def stats(self) -> SchedulerStats:
        pool, tree, roster = self._ledger.pool, self._ledger.tree, self._roster
        return SchedulerStats(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_held_blocks=pool.num_held,
            blocks_by_tag={str(tag): count for tag, count in pool.num_by_tag.items()},
            feature_bytes=self._visual.num_bytes,
            prefix_queries=roster.prefix_queries,
            prefix_hits=roster.prefix_hits,
            prefix_evictions=tree.num_evictions if tree else 0,
            feature_evictions=self._visual.num_evictions,
            num_preemptions=roster.num_preemptions,
            num_guessed_tokens=self._num_guessed,
            num_accepted_tokens=self._num_guessed_right,
            finished=dict(roster.finished),
            step_error_ratio=self._cost.step_error_ratio,
            encode_error_ratio=self._cost.encode_error_ratio,
        )

    def _add_decodes(self, draft: Draft) -> None:
        """A row for every decode, in order of seats; where blocks run out, the last give way."""
        running = self._roster.running
        for progress in tuple(running):
            if progress.state.phase is not Phase.RUNNING or not progress.is_decoding:
                continue
            while not self._ledger.extend(progress.state):
                victim = self._roster.victim
                self._roster.preempt(victim)
                if victim is progress:
                    break
            else:
                draft.add_decode(progress)

    def _add_prefills(self, draft: Draft) -> None:
        """A chunk for the prefills under way, in turn, as far as the step goes.

        One leaves half of the time to a much shorter one behind it, so that a question does not wait for a whole book.
        """
        prefills = self._roster.turns.prefills(self._roster.running)
        behind = [progress for progress in prefills if not draft.awaits_picture(progress)]
        if self.num_running < self._max_running:
            behind += islice(self._roster.waiting, _LOOKAHEAD)
        for progress in prefills:
            if draft.has_room:
                limit = progress.state.num_remaining_tokens / 2
                is_shared = any(other.state.num_remaining_tokens < limit for other in behind)
                draft.add_prefill(progress, share=0.5 if is_shared else 1.0)

    def _admit(self, draft: Draft, now: float) -> None:
        """Let requests in, strictly in turn, while the step has use for them.

        Each leaves one block to every request that runs, for the tokens these are about to make.
        """
        for progress in self._roster.turns.waiting():
            if self.num_running >= self._max_running or not draft.has_room:
                break
            num_matched = self._ledger.admit(progress.state, spare=self.num_running)
            if num_matched is None:
                break
            self._roster.start(progress, num_matched, now)
            draft.add_prefill(progress)

    def _who_goes_on(self, plan: BatchPlan, now: float) -> dict[Progress, Row]:
        """All that runs, with its rows in the plan in flight, where nothing but their next tokens can follow it."""
        is_open = self.num_waiting or self._news or plan.encodes or self._roster.has_expired(now)
        if is_open or self._owners.keys() != {plan.step}:
            return {}
        live = who_goes_on(plan.rows, self._owners[plan.step])
        return live if len(live) == self.num_running else {}

    def _seal(self, draft: Draft) -> BatchPlan:
        self._encodes.under_way = draft.encodes.under_way
        return self._sealed(tuple(draft.rows), tuple(draft.owners), tuple(draft.encodes.jobs))

    def _sealed(
        self, rows: tuple[Row, ...], owners: tuple[Progress, ...], encodes: tuple[EncodeJob, ...] = ()
    ) -> BatchPlan:
        self._step += 1
        self._owners[self._step] = owners
        admitted = [progress for progress in owners if not progress.is_known]
        for progress in admitted:
            progress.is_known = True
        return BatchPlan(
            step=self._step,
            rows=rows,
            encodes=encodes,
            admitted=tuple(progress.state.request for progress in admitted),
            released=self._roster.take_released(),
            dropped_features=self._visual.take_dropped(),
        )

    def _take_tokens(
        self, progress: Progress, row: Row, tokens: tuple[SampledToken, ...], now: float
    ) -> TokenEvent:
        """The tokens up to the one that ends the answer; what the row computed behind them is void."""
        state = progress.state
        count, reason = 0, None
        while count < len(tokens) and reason is None:
            state.output_token_ids.append(tokens[count].token_id)
            count += 1
            reason = finish_reason_of(state)
        progress.advance(state.num_tokens - 1, self._visual)
        self._ledger.publish(state)
        is_first = state.first_token_s is None
        if is_first:
            state.first_token_s = now
            progress.speculation = self._speculation(state)
        if row.guess:
            self._settle(progress, row, num_accepted=len(tokens) - 1)
        if reason:
            return self._roster.end(progress, reason, now, tokens=tokens[:count])
        if progress.speculation is not None:
            progress.speculation.append(token.token_id for token in tokens)
        stats = stats_of(state, now) if is_first else None
        return TokenEvent(request_id=progress.request_id, tokens=tokens[:count], stats=stats)

    def _speculation(self, state: RequestState) -> Speculation | None:
        """None where nothing may be guessed: a grammar says anew after every token what may come."""
        is_free = self._config.speculate == "auto" and state.request.sampling.grammar is None
        return Speculation(state) if is_free else None

    def _settle(self, progress: Progress, row: Row, num_accepted: int) -> None:
        """Some of the guess came true; the blocks of the rest go back."""
        assert progress.speculation is not None, "only who speculates has guesses"
        progress.speculation.settle(num_accepted)
        self._ledger.trim(progress.state)
        self._num_guessed += len(row.guess)
        self._num_guessed_right += num_accepted

    def _end(
        self, request_id: str, reason: FinishReason, now: float, error: TapetumError | None = None
    ) -> TokenEvent | None:
        progress = self._roster.find(request_id)
        return self._roster.end(progress, reason, now, error=error) if progress else None
