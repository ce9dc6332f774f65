"""Scheduler: what the next step does, and what has come of the last one.

`schedule` reads the state, reserves blocks and feature memory and returns a frozen plan; `commit` takes the result of
the plan and returns the news of requests. Every plan is committed or abandoned, an empty one too. In between, anything
may be added or aborted: what a plan in flight brings for an ended request is dropped. `foresee` may plan one step more
behind the plan in flight, which is committed in its turn, or withdrawn. Clock and results come in as arguments.
"""

from __future__ import annotations

from dataclasses import replace

from tapetum.cache.ledger import Ledger
from tapetum.cache.traffic import Traffic
from tapetum.cache.visual import VisualCache
from tapetum.core.config import ScheduleConfig
from tapetum.core.cost import CostModel
from tapetum.core.errors import Overloaded, TapetumError
from tapetum.core.plan import BatchPlan, Row, StepResult, TokenEvent
from tapetum.core.request import FinishReason, Phase, Request, RequestState
from tapetum.core.stats import Backlog, Budgets, SchedulerStats
from tapetum.sched.flight import Flight
from tapetum.sched.foresight import Foresight, next_rows, room_ahead, who_goes_on
from tapetum.sched.limits import AdmissionLimits
from tapetum.sched.links import Links
from tapetum.sched.progress import Progress
from tapetum.sched.promise import Prospect
from tapetum.sched.prospects import Prospects
from tapetum.sched.roster import Roster
from tapetum.sched.settle import Encodes, Tokens
from tapetum.sched.swap import Swap
from tapetum.sched.writer import Writer


class Scheduler:
    def __init__(
        self,
        config: ScheduleConfig,
        ledger: Ledger,
        visual: VisualCache,
        swap: Swap,
        traffic: Traffic,
        cost: CostModel,
        max_model_len: int,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self.visual = visual  # in which features are reserved for requests before they are added
        self.traffic = traffic  # by which blocks land for requests before they are added
        self._cost = cost
        self._limits = AdmissionLimits(max_model_len, ledger, visual)
        self._swap = swap
        self._roster = Roster(ledger, visual, swap, traffic, cost)
        self._encodes = Encodes(visual, self._roster)
        self._prospects = Prospects(config, self._roster, ledger, self._encodes, swap, cost)
        self._tokens = Tokens(ledger, visual, self._roster, may_guess=config.speculate == "auto")
        self._links = Links(config, ledger, visual, self._roster)
        self._writer = Writer(config, self._roster, self._encodes, self._links, ledger, visual, cost)
        self._flight = Flight(self._roster, visual, swap, traffic)
        self._budgets = Budgets()
        self._news: list[TokenEvent] = []  # decided by `schedule`, told by the next `commit`

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Raises Overloaded, or the typed error of one that can never be served, or not in time."""
        self._limits.check(request, now)
        self._encodes.check_reserved(request)
        if self.num_waiting >= self._config.max_queue_len:
            raise Overloaded(
                f"{self.num_waiting} requests wait, limit {self._config.max_queue_len}; "
                "try again later or raise --max-queue-len"
            )
        self._roster.add(request, now, self._prospects.check(request, now))
        if request.prompt.spans:
            self._writer.hold.came(request.arrival_s)

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
        is_busy = self.num_running or self.num_waiting or self._flight
        is_told = not (self._news or self._roster.has_released or self.visual.has_exports)
        return bool(is_busy or not is_told or self.traffic.has_some)

    @property
    def num_waiting(self) -> int:
        return len(self._roster.waiting)

    @property
    def num_running(self) -> int:
        return len(self._roster.running)

    @property
    def backlog(self) -> Backlog:
        return self._prospects.backlog

    @property
    def charged_s(self) -> dict[str, float]:
        """Predicted seconds of the work done so far, by account: of those for which most was done."""
        return self._roster.charged.seconds

    def prospect(
        self,
        priority: int,
        *,
        now: float,
        encode_s: float,
        prefill_s: float,
        min_tokens: int = 1,
        max_tokens: int = 1,
    ) -> Prospect:
        """What is predicted of a request that comes now with so much to do. May be asked from another thread."""
        return self._prospects.prospect(
            priority,
            now=now,
            encode_s=encode_s,
            prefill_s=prefill_s,
            min_tokens=min_tokens,
            max_tokens=max_tokens,
        )

    @property
    def media_keys(self) -> tuple[bytes, ...]:
        """Of the pictures and clips whose features are on the device."""
        return self.visual.resident_keys

    def num_found(self, request: Request) -> int:
        """Tokens of a prompt whose keys and values are cached."""
        return self._ledger.num_found(RequestState(request))

    def has_cached(self, media_key: bytes) -> bool:
        """Whether cached keys and values hold some of a picture. May be asked from another thread."""
        return self._ledger.tree is not None and self._ledger.tree.holds(media_key)

    def reset_caches(self) -> None:
        """Drop every cached block and feature that no request holds."""
        if self._ledger.tree is not None:
            self._ledger.tree.clear()
        self.visual.clear()

    def schedule(self, now: float) -> BatchPlan:
        """Decide the next step and reserve what it needs."""
        assert not self._flight, "the plan before has not been committed"
        self._news += self._roster.end_expired(now)
        self._news += self._prospects.end_hopeless(now)
        draft = self._writer.write(now)
        plan = self._flight.begin(draft.rows, draft.owners, draft.encodes.jobs, draft.links)
        time = draft.time
        if time.work.decodes and (time.work.chunk or draft.encodes.jobs):
            self._writer.pace.planned(plan.step, time.seconds, time.decodes_s, is_urgent=time.is_urgent)
        self._prospects.begin(now, time.seconds)
        self._budgets = self._writer.budgets(draft)
        return plan

    def foresee(self, plan: BatchPlan, now: float) -> Foresight | None:
        """The step after `plan`, which is in flight; None where what comes of `plan` decides it.

        What it reserves stays with the requests: `schedule` would reserve the same.
        """
        live = self._who_goes_on(plan, now)
        rows = next_rows(live, self._ledger) if live else None
        if rows is None:
            return None
        return Foresight(
            plan=self._flight.begin(rows, list(live)),
            ends={owner.request_id: owner.ends for owner in live},
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
        self._flight.end(plan)
        self._flight.tell_again(plan)
        self._writer.pace.dropped(plan.step)

    def commit(self, plan: BatchPlan, result: StepResult, now: float) -> list[TokenEvent]:
        """Take over what a step produced: tokens, full blocks, features, failures."""
        assert result.step == plan.step, f"result of step {result.step} for plan {plan.step}"
        news, self._news = self._news, []
        owners = self._flight.end(plan)
        self._roster.charge(plan, owners, result)
        news += self._encodes.settle(plan, result, now)
        news += self._tokens.settle(plan, result, owners, now)
        self._links.settle(result)
        self.traffic.settle(plan, result)
        self._recover(result.lost_moves)
        self._writer.pace.ended(plan.step, now)
        self._prospects.end()
        return news

    def abandon(self, plan: BatchPlan, error: TapetumError, now: float) -> list[TokenEvent]:
        """In place of `commit`, for a plan that was broken off: nobody knows how much of it the executor has done.

        Every request of it ends with the error. What it told the executor to forget, the next plan tells again.
        """
        lost = StepResult(
            step=plan.step,
            failed={row.request_id: error for row in plan.rows},
            failed_features={job.item.key: error for job in plan.encodes},
            lost_moves=frozenset(move.request_id for move in (*plan.saves, *plan.loads)),
        )
        self._flight.tell_again(plan)
        return self.commit(
            replace(plan, exports=(), arrivals=(), block_exports=(), block_arrivals=()), lost, now
        )

    def stats(self) -> SchedulerStats:
        pool, tree, roster = self._ledger.pool, self._ledger.tree, self._roster
        return SchedulerStats(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            waiting_by_class=roster.queued.by_class(),
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_held_blocks=pool.num_held,
            blocks_by_tag={str(tag): count for tag, count in pool.num_by_tag.items()},
            num_tenants=pool.num_accounts,
            largest_tenant_blocks=max(pool.num_by_account.values(), default=0),
            num_reused_blocks=tree.order.num_reused if tree else 0,
            num_visual_budget_blocks=tree.order.num_visual_budget if tree else pool.num_blocks,
            evictions_by_reason={str(name): count for name, count in tree.order.evictions.items()}
            if tree
            else {},
            feature_bytes=self.visual.num_bytes,
            reserved_bytes=self.visual.reserve.num_bytes,
            prefix_queries=roster.prefix_queries,
            prefix_hits=roster.prefix_hits,
            prefix_evictions=tree.num_evictions if tree else 0,
            feature_evictions=self.visual.num_evictions,
            num_preemptions=roster.num_preemptions,
            num_host_blocks=self._swap.num_host_blocks,
            num_saved_blocks=self._swap.num_saved_blocks,
            num_loaded_blocks=self._swap.num_loaded_blocks,
            num_exported_blocks=self.traffic.num_exported,
            num_arrived_blocks=self.traffic.num_arrived,
            num_linked=self._links.num_linked,
            num_rejected_links=self._links.num_rejected,
            num_linked_tokens=self._links.num_linked_tokens,
            num_guessed_tokens=self._tokens.num_guessed,
            num_accepted_tokens=self._tokens.num_guessed_right,
            finished=dict(roster.finished),
            step_error_ratio=self._cost.step_error_ratio,
            encode_error_ratio=self._cost.encode_error_ratio,
            budgets=self._budgets,
        )

    def _who_goes_on(self, plan: BatchPlan, now: float) -> dict[Progress, Row]:
        """All that runs, with its rows in the plan in flight, where nothing but their next tokens can follow it."""
        is_open = self.num_waiting or self._news or plan.encodes or self._roster.has_expired(now)
        if is_open or not self._flight.has_only(plan):
            return {}
        live = who_goes_on(plan.rows, self._flight.owners(plan))
        return live if len(live) == self.num_running else {}

    def _recover(self, lost_moves: frozenset[str]) -> None:
        """Requests whose blocks hold nobody knows what, on the host or back on the device, are computed again."""
        self._swap.forget(lost_moves)
        for request_id in lost_moves:
            progress = self._roster.find(request_id)
            if progress is not None and progress.state.phase is Phase.RUNNING:
                self._roster.preempt(progress, may_save=False)

    def _end(
        self, request_id: str, reason: FinishReason, now: float, error: TapetumError | None = None
    ) -> TokenEvent | None:
        progress = self._roster.find(request_id)
        return self._roster.end(progress, reason, now, error=error) if progress else None
