"""A scheduler, a scripted device and a hand-driven clock, with the news of every request collected."""

from __future__ import annotations

from collections.abc import Callable

from tapetum.core.config import CacheConfig, EngineConfig, ScheduleConfig
from tapetum.core.cost import CostModel
from tapetum.core.model import ModelFacts
from tapetum.core.plan import BatchPlan, StepResult, TokenEvent
from tapetum.core.request import Request
from tapetum.sched import build_scheduler
from tests.scripted import ScriptedExecutor

SIZE = 4  # tokens of a block
BYTES_PER_TOKEN = 10


def make_facts(
    num_blocks: int, max_model_len: int, num_host_slots: int = 0, *, has_exact_parts: bool = False
) -> ModelFacts:
    return ModelFacts(
        model_type="scripted",
        dtype="float32",
        device="none",
        vocab_size=1000,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=SIZE,
        kv_bytes_per_token=1,
        feature_bytes_per_token=BYTES_PER_TOKEN,
        weights_fingerprint=b"weights",
        encoder_fingerprint=b"encoder",
        has_exact_parts=has_exact_parts,
        num_host_slots=num_host_slots,
    )


class Stage:
    """Each step takes a second, or what `step_seconds` says. Checks on every event that a request ends once."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        num_host_slots: int = 0,
        max_model_len: int = 1000,
        feature_tokens: int = 100,
        is_caching: bool = True,
        has_parts: bool = False,
        cost: CostModel | None = None,
        load_s: Callable[[int], float] | None = None,
        executor: ScriptedExecutor | None = None,
        step_seconds: Callable[[BatchPlan], float] = lambda plan: 1.0,
        **schedule: object,
    ) -> None:
        config = EngineConfig(
            cache=CacheConfig(
                block_size=SIZE,
                feature_cache_bytes=feature_tokens * BYTES_PER_TOKEN,
                has_prefix_caching=is_caching,
            ),
            schedule=ScheduleConfig(**schedule),  # type: ignore[arg-type]
        )
        self.cost = cost or CostModel()
        facts = make_facts(num_blocks, max_model_len, num_host_slots, has_exact_parts=has_parts)
        self.scheduler = build_scheduler(config, facts, self.cost, load_s)
        self.executor = executor or ScriptedExecutor(SIZE)
        self.now = 0.0
        self._step_seconds = step_seconds
        self.plans: list[BatchPlan] = []
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, TokenEvent] = {}
        self.firsts: dict[str, TokenEvent] = {}

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request, self.now)
            self.tokens[request.request_id] = []
            self.ends.pop(request.request_id, None)
            self.firsts.pop(request.request_id, None)

    def step(self) -> BatchPlan:
        plan = self.scheduler.schedule(self.now)
        self.finish_step(plan)
        return plan

    def finish_step(self, plan: BatchPlan, executed: BatchPlan | None = None) -> StepResult:
        """Of a plan that was foreseen, what is `executed` may be less."""
        result = self.executor.execute(executed or plan)
        self.now += self._step_seconds(plan)
        self.plans.append(plan)
        self.tell(self.scheduler.commit(plan, result, self.now))
        return result

    def tell(self, events: list[TokenEvent]) -> None:
        for event in events:
            name = event.request_id
            assert name not in self.ends, f"news of {name} after its end"
            if event.tokens:
                self.tokens[name] += [token.token_id for token in event.tokens]
                self.firsts.setdefault(name, event)
            if event.finish_reason is not None:
                self.ends[name] = event

    def drain(self, max_steps: int = 1000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"work left after {max_steps} steps")

    def assert_clean(self) -> None:
        """Nothing is held, pinned, running or known any more."""
        stats = self.scheduler.stats()
        assert stats.num_held_blocks == stats.num_running == stats.num_waiting == stats.num_host_blocks == 0
        assert not self.scheduler.has_work
        assert not self.executor.request_ids and not self.executor.encode_keys
        assert not self.scheduler._encodes.under_way
        assert stats.feature_bytes <= self.scheduler.visual.capacity_bytes
        assert stats.num_free_blocks + stats.num_cached_blocks == self.scheduler._ledger.pool.num_blocks
        assert self.scheduler.visual.num_pinned == 0
        assert (
            self.scheduler._ledger.tree is None
            or self.scheduler._ledger.tree.num_blocks == stats.num_cached_blocks
        )

    def reasons(self) -> dict[str, str | None]:
        return {name: event.finish_reason for name, event in self.ends.items()}
