"""An engine without a model: the bundled files, an executor that says what a test wants it to say, a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tapetum.assets import MODEL_DIR
from tapetum.core.chat import ChatInput, MediaPart, Message
from tapetum.core.config import CacheConfig, EngineConfig, ScheduleConfig
from tapetum.core.cost import CostModel
from tapetum.core.model import ModelFacts
from tapetum.core.plan import BatchPlan, StepResult
from tapetum.core.request import Request, SamplingParams
from tapetum.engine.engine import Engine
from tapetum.engine.files import ModelFiles
from tapetum.engine.front import Front
from tapetum.engine.output import Delta
from tapetum.engine.prompts import Terms
from tapetum.engine.tiers import Tiers
from tests.mini import EOS, VOCAB_SIZE
from tests.scripted import ScriptedExecutor

STEP_S = 0.01
BLOCK_SIZE = 16
KV_BYTES = 64  # of a token


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class SpeakingExecutor(ScriptedExecutor):
    """The strict scripted device, which answers each request with its tokens of `answers`, then the end of sequence.

    `faults` maps a request id or a media key to what is raised in place of executing it; `late_faults` raise once
    the requests of the plan have come and gone, as a device does that fails in the middle.
    """

    def __init__(self, answers: Callable[[str], Iterable[int]], clock: Clock | None = None) -> None:
        super().__init__(BLOCK_SIZE, script=self._say, block_bytes=BLOCK_SIZE * KV_BYTES, feature_bytes=64)
        self.answers = answers
        self.clock = clock
        self.faults: dict[str | bytes, BaseException] = {}
        self.late_faults: dict[str | bytes, BaseException] = {}
        self.forget_fault: BaseException | None = None
        self._prompt_lengths: dict[str, int] = {}

    def execute(self, plan: BatchPlan) -> StepResult:
        if plan.released and self.forget_fault:
            raise self.forget_fault
        names = [job.item.key for job in plan.encodes] + [row.request_id for row in plan.rows]
        _raise_any(self.faults, names)
        plan = replace(  # what a plan that failed whole or in part told to forget may be told again
            plan,
            released=tuple(name for name in plan.released if name in self.request_ids),
            dropped_features=tuple(
                key for key in plan.dropped_features if key in self.feature_keys | self.encode_keys
            ),
        )
        self._prompt_lengths |= {request.request_id: request.num_prompt_tokens for request in plan.admitted}
        if not self.late_faults.keys().isdisjoint(names):
            super().execute(replace(plan, rows=(), encodes=()))
            _raise_any(self.late_faults, names)
        result = super().execute(plan)
        if self.clock:
            self.clock.now += STEP_S
        return replace(
            result,
            encode_s=STEP_S / 2 if plan.encodes else 0.0,
            forward_s=STEP_S / 2 if plan.rows else 0.0,
        )

    def _say(self, request_id: str, position: int) -> int:
        answer = tuple(self.answers(request_id))
        index = position - self._prompt_lengths[request_id]
        return answer[index] if index < len(answer) else EOS


def _raise_any(faults: Mapping[str | bytes, BaseException], names: Iterable[str | bytes]) -> None:
    for name in names:
        if name in faults:
            raise faults[name]


@cache
def files() -> ModelFiles:
    return ModelFiles.load(MODEL_DIR)


def spoken(text: str) -> tuple[int, ...]:
    return files().tokenizer.encode_plain(text)


def facts(num_blocks: int = 256, max_model_len: int = 2048) -> ModelFacts:
    return ModelFacts(
        model_type="qwen2_vl",
        dtype="float32",
        device="cpu",
        vocab_size=VOCAB_SIZE,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        kv_bytes_per_token=KV_BYTES,
        feature_bytes_per_token=64,
        weights_fingerprint=b"weights",
        encoder_fingerprint=b"encoder",
    )


def engine_with(
    executor: SpeakingExecutor,
    *,
    num_blocks: int = 256,
    cost: CostModel | None = None,
    tiers: Tiers | None = None,
    clock: Callable[[], float] | None = None,
    **schedule: object,
) -> Engine:
    engine = Engine(
        EngineConfig(schedule=ScheduleConfig(**schedule), cache=CacheConfig(feature_cache_bytes=1 << 20)),
        executor=executor,
        facts=facts(num_blocks),
        files=files(),
        cost=cost,
        tiers=tiers,
        clock=clock or executor.clock or Clock(),
    )
    _fronts[id(engine)] = Front(
        files(), engine.config, engine.facts, forecast=engine.forecast, clock=engine.clock
    )
    return engine


_fronts: dict[int, Front] = {}


@pytest.fixture
def close_engines() -> Iterator[None]:
    """Ends the media threads of every engine that a test has made."""
    yield
    while _fronts:
        _fronts.popitem()[1].close()


def request_for(
    engine: Engine,
    request_id: str,
    content: object = "Hello",
    sampling: SamplingParams | None = None,
    **terms: object,
) -> Request:
    """A request over one user message; `content` is a text or a sequence of texts and media parts."""
    parts = (content,) if isinstance(content, str) else tuple(content)
    chat = ChatInput(messages=(Message(role="user", content=parts),))
    return _fronts[id(engine)].prompts.build(
        chat, sampling or SamplingParams(), Terms(request_id=request_id, arrival_s=engine.clock(), **terms)
    )


def picture(seed: int, width: int = 56, height: int = 56) -> MediaPart:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return MediaPart(kind="image", source=pixels, is_trusted=True)


class Listener:
    """Joins the news of an engine by request and counts endings."""

    def __init__(self) -> None:
        self.whole: dict[str, Delta] = {}
        self.pieces: dict[str, list[Delta]] = {}

    def hear(self, news: dict[str, Delta]) -> None:
        for request_id, delta in news.items():
            past = self.whole.get(request_id, Delta())
            assert past.finish_reason is None, f"{request_id} got news after its end"
            self.whole[request_id] = past.then(delta)
            self.pieces.setdefault(request_id, []).append(delta)

    @property
    def running(self) -> set[str]:
        return {name for name, delta in self.whole.items() if delta.finish_reason is None}


def run_to_end(engine: Engine, listener: Listener | None = None, max_steps: int = 2000) -> dict[str, Delta]:
    listener = listener or Listener()
    for _ in range(max_steps):
        if not engine.has_work:
            assert not listener.running, "requests without an end"
            return listener.whole
        listener.hear(engine.step())
    raise AssertionError("the engine does not come to rest")


def assert_at_rest(engine: Engine, executor: SpeakingExecutor) -> None:
    """Nothing is held: no request, no block; features are only those that the scheduler accounts for."""
    stats = engine.stats
    assert (stats.num_running, stats.num_waiting, stats.num_held_blocks) == (0, 0, 0)
    assert stats.num_free_blocks + stats.num_cached_blocks == engine.facts.num_blocks
    assert executor.request_ids == frozenset()
    items = (job.item for plan in executor.plans for job in plan.encodes)
    sizes = {item.key: item.geometry.num_tokens for item in items}
    resident = sum(sizes[key] for key in executor.feature_keys)
    assert stats.feature_bytes == resident * engine.facts.feature_bytes_per_token
