"""Tiers whose answers come when a test says so, and an engine before them without threads, tensors or a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import cast

from tapetum.assets import MODEL_DIR
from tapetum.cache.tiers import Entry, Kind, TierName
from tapetum.core.config import CacheConfig, EngineConfig, ScheduleConfig, TierConfig
from tapetum.core.cost import CostModel
from tapetum.core.media import MediaItem
from tapetum.core.plan import BatchPlan, StepResult
from tapetum.core.request import Request
from tapetum.engine.engine import Engine
from tapetum.engine.files import ModelFiles
from tapetum.engine.output import Delta
from tapetum.engine.tiers import Found, Tiers
from tests.pure.stage import make_facts
from tests.scripted import ScriptedExecutor

BYTES_PER_TOKEN = 12  # of features


@dataclass(eq=False)
class Ask:
    """A load or a claim that waits for its answer."""

    kind: Kind
    keys: tuple[bytes, ...]
    tell: Callable[[object], None]
    is_claim: bool = False
    patience_s: float = 0.0
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass(eq=False)
class Place:
    """What several processes share: entries and leases."""

    entries: dict[tuple[Kind, bytes], Entry] = field(default_factory=dict)
    leases: dict[bytes, object] = field(default_factory=dict)  # who holds them


class ScriptedTiers:
    """`place` may be that of others; `knows` and `seconds` answer what a test sets."""

    def __init__(self, place: Place | None = None, *, tier: TierName = "redis") -> None:
        self.place = place or Place()
        self.tier = tier
        self.load_s = 0.0
        self.asks: list[Ask] = []
        self.saved: Counter[Kind] = Counter()
        self.rejected: list[Found] = []
        self.is_certain = False  # whether it knows what is there

    def has(self, kind: Kind) -> bool:
        return True

    def knows(self, kind: Kind, key: bytes) -> bool | None:
        return (kind, key) in self.place.entries if self.is_certain else None

    def nearest(self, kind: Kind, key: bytes) -> TierName | None:
        return self.tier if self.is_certain and (kind, key) in self.place.entries else None

    def seconds(self, kind: Kind, num_bytes: int, key: bytes | None = None) -> float:
        return self.load_s

    def counts(self) -> tuple[()]:
        return ()

    def load(
        self,
        kind: Kind,
        keys: Iterable[bytes],
        on_done: Callable[[Mapping[bytes, Found]], None],
        *,
        patience_s: float = 0.0,
    ) -> Ask:
        self.asks.append(
            Ask(kind, tuple(keys), cast("Callable[[object], None]", on_done), patience_s=patience_s)
        )
        return self.asks[-1]

    def save(self, entry: Entry) -> None:
        self.saved[entry.kind] += 1
        self.place.entries[entry.kind, entry.key] = entry

    def use(self, kind: Kind, keys: Sequence[bytes]) -> None:
        """Nothing here has a limit."""

    def reject(self, found: Found) -> None:
        self.rejected.append(found)
        self.place.entries.pop((found.entry.kind, found.entry.key), None)

    def claim(self, kind: Kind, key: bytes, seconds: float, on_done: Callable[[bool], None]) -> None:
        self.asks.append(Ask(kind, (key,), cast("Callable[[object], None]", on_done), is_claim=True))

    def release(self, kind: Kind, key: bytes) -> None:
        if self.place.leases.get(key) is self:
            del self.place.leases[key]

    @property
    def open(self) -> list[Ask]:
        """What waits for an answer that somebody still wants, or for a lease, which is given either way."""
        self.asks = [ask for ask in self.asks if not ask.is_cancelled]
        return self.asks

    def answer(self, ask: Ask, *, is_lost: bool = False) -> None:
        """By what is there now; `is_lost`: the store finds nothing, or cannot be asked for the lease."""
        self.asks.remove(ask)
        if ask.is_claim:
            holder = self if is_lost else self.place.leases.setdefault(ask.keys[0], self)
            ask.tell(holder is self)
            return
        found = {} if is_lost else {key: self.place.entries.get((ask.kind, key)) for key in ask.keys}
        ask.tell(
            {key: Found(entry=entry, tier=self.tier) for key, entry in found.items() if entry is not None}
        )

    def answer_all(self) -> None:
        """What waits now; a load with patience waits on while nothing is there."""
        for ask in list(self.open):
            if not ask.patience_s or (ask.kind, ask.keys[0]) in self.place.entries:
                self.answer(ask)


class Brittle(ScriptedExecutor):
    """Raises in place of a plan, as often as `fault` gives something to raise."""

    fault: Callable[[BatchPlan], BaseException | None] = staticmethod(lambda plan: None)

    def execute(self, plan: BatchPlan) -> StepResult:
        if error := self.fault(plan):
            raise error
        released = tuple(name for name in plan.released if name in self.request_ids)
        dropped = tuple(key for key in plan.dropped_features if key in self.feature_keys | self.encode_keys)
        return super().execute(replace(plan, released=released, dropped_features=dropped))


class Scene:
    """An engine, its clock and what came of its requests."""

    def __init__(
        self,
        tiers: ScriptedTiers | None,
        *,
        feature_tokens: int = 100,
        is_caching: bool = False,
        script: Callable[[str, int], int] | None = None,
        **schedule: object,
    ) -> None:
        self.now = 100.0
        self.tiers = tiers
        more = {"script": script} if script else {}
        self.executor = Brittle(4, feature_bytes=BYTES_PER_TOKEN, **more)  # type: ignore[arg-type]
        config = EngineConfig(
            cache=CacheConfig(
                block_size=4,
                feature_cache_bytes=feature_tokens * BYTES_PER_TOKEN,
                has_prefix_caching=is_caching,
            ),
            schedule=ScheduleConfig(speculate="off", **schedule),  # type: ignore[arg-type]
            tiers=TierConfig(feature_tiers=("redis://127.0.0.1:1/0",) if tiers else ()),
        )
        facts = replace(make_facts(256, 1000), feature_bytes_per_token=BYTES_PER_TOKEN)
        self.engine = Engine(
            config,
            executor=self.executor,
            facts=facts,
            files=files(),
            cost=CostModel(encode=(0.5, 0.01, 0.0)),
            tiers=cast("Tiers | None", tiers),
            clock=lambda: self.now,
        )
        self.whole: dict[str, Delta] = {}

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.engine.add(request)

    def turn(self, seconds: float = 0.001) -> None:
        """One turn of the loop, which takes so long."""
        self.hear(self.engine.step())
        self.now += seconds

    def hear(self, news: Mapping[str, Delta]) -> None:
        for name, delta in news.items():
            past = self.whole.get(name, Delta())
            assert past.finish_reason is None, f"news of {name} after its end"
            self.whole[name] = past.then(delta)

    def drain(self, max_turns: int = 3000) -> None:
        """Until all is done, with every answer given at once."""
        for _ in range(max_turns):
            if self.tiers is not None:
                self.tiers.answer_all()
            if not self.engine.has_work:
                return
            self.turn(0.01)
        raise AssertionError("the engine does not come to rest")

    def tokens(self, name: str) -> tuple[int, ...]:
        return tuple(token.token_id for token in self.whole[name].tokens)

    def source(self, name: str) -> tuple[str, ...]:
        stats = self.whole[name].stats
        assert stats is not None, "told with the first token"
        return stats.media_sources

    def num_encodes(self, item: MediaItem) -> int:
        return self.executor.encoded[item.key]

    def assert_at_rest(self) -> None:
        """Nothing is held, pinned, reserved, leased or searched for."""
        engine, visual = self.engine, self.engine._scheduler.visual
        assert not engine.has_work
        assert not engine._promotion.is_holding
        assert engine._promotion.num_leases == 0
        assert visual.num_pinned == 0
        assert (visual.reserve.num_requests, visual.reserve.num_bytes) == (0, 0)
        assert engine._reservations.num_open == 0
        assert not self.executor.request_ids
        assert self.executor.feature_keys == frozenset(visual.resident_keys)
        assert all(delta.finish_reason is not None for delta in self.whole.values())


@cache
def files() -> ModelFiles:
    return ModelFiles.load(MODEL_DIR)
