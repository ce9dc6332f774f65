"""The asynchronous front of an engine: many clients, one engine thread.

Owns the streams to clients and the pool on which prompts are built. The engine thread posts the news of a step to
the event loop in one call; there what a client has not read waits, and is read as one delta. So a slow reader costs
little more than the tokens of its own answer and never holds the engine up. All of this class but its workers lives
on the event loop that called `start`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tapetum.assets import MODEL_DIR
from tapetum.core.chat import ChatInput, TextInput
from tapetum.core.config import EngineConfig
from tapetum.core.errors import (
    CapacityError,
    DeadlinePassed,
    EngineDead,
    InvalidParameter,
    Overloaded,
    TapetumError,
)
from tapetum.core.model import ModelFacts
from tapetum.core.request import Request, SamplingParams
from tapetum.engine.build import build_engine
from tapetum.engine.engine import Engine
from tapetum.engine.generation import Generation
from tapetum.engine.inputs import chat_input, text_input
from tapetum.engine.loop import EngineLoop
from tapetum.engine.meters import Metric
from tapetum.engine.options import config_from
from tapetum.engine.output import Delta
from tapetum.engine.prompts import Loads, PromptInput, Terms
from tapetum.text.tokenizer import Tokenizer

T = TypeVar("T")
_MAX_PREPARATIONS = 32  # prompts built at a time; they mostly wait for fetches and for the media workers


class AsyncEngine:
    """`AsyncEngine(model, **options)` as LLM, or from a config or an engine that exists already."""

    def __init__(self, model: str | Path | EngineConfig | Engine | None = None, **options: object) -> None:
        self._source = model if isinstance(model, Engine) else config_from(model, options)
        self._engine: Engine | None = None
        self._loop: EngineLoop | None = None
        self._pool = ThreadPoolExecutor(_MAX_PREPARATIONS, thread_name_prefix="tapetum-prompt")
        self._generations: dict[str, Generation] = {}
        self._num_preparing = 0  # until a thread is done with the prompt, be its client still there or not
        self._refusal: TapetumError | None = None  # why nothing more is taken

    async def start(self) -> None:
        """Load the model and begin to serve; the event loop stays free meanwhile."""
        source = self._source
        engine = source if isinstance(source, Engine) else await asyncio.to_thread(build_engine, source)
        if self._refusal is not None:  # stopped while it was loading
            engine.close()
            return
        event_loop = asyncio.get_running_loop()
        self._engine = engine
        self._loop = EngineLoop(
            engine,
            on_news=lambda news: _post(event_loop, self._deliver, news),
            on_death=lambda death: _post(event_loop, self._die, death),
        )
        self._loop.start()

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take nothing more, let what runs finish for `grace_s` seconds, abort the rest, end the threads."""
        if self._refusal is None:
            self._refusal = CapacityError("the engine is shutting down; ask another or come back later")
        if self._loop is not None:
            await asyncio.to_thread(self._loop.stop, grace_s)
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
        self._pool.shutdown(wait=False)  # what is queued there is refused when its turn comes

    async def submit(
        self,
        prompt: PromptInput | str | Mapping[str, object] | Sequence[object],
        sampling: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        tenant: str = "",
        request_id: str | None = None,
    ) -> Generation:
        """Prepare a prompt and hand it to the engine. Everything that can be refused is refused from here.

        A prompt may also be what LLM takes: a string or a dict (`generate`), or a list of messages (`chat`).
        """
        engine, _ = self._serving()
        if not isinstance(prompt, (ChatInput, TextInput)):
            prompt = text_input(prompt) if isinstance(prompt, (str, Mapping)) else chat_input(prompt)
        now = engine.clock()
        terms = Terms(
            request_id=request_id or uuid.uuid4().hex,
            arrival_s=now,
            tenant=tenant,
            priority=priority,
            deadline_s=None if timeout_s is None else now + timeout_s,
        )
        try:
            request = await self._prepare(engine, prompt, sampling or SamplingParams(), terms)
            generation = self._hand_in(request)
            await generation.accepted()
        except TapetumError as error:
            engine.meters.rejected(error)
            raise
        return generation

    @property
    def is_healthy(self) -> bool:
        """True while the engine loop lives, be it idle or busy."""
        return self._loop is not None and self._loop.is_healthy

    @property
    def facts(self) -> ModelFacts:
        return self._started()[0].facts

    @property
    def tokenizer(self) -> Tokenizer:
        return self._started()[0].tokenizer

    @property
    def model_names(self) -> tuple[str, ...]:
        """What clients call the model, the first is the main one."""
        source = self._source
        model = (source.config if isinstance(source, Engine) else source).model
        return model.served_model_names or (Path(model.model).name if model.model else MODEL_DIR.name,)

    @property
    def num_waiting(self) -> int:
        """Requests that are prepared and wait for their turn."""
        return self._started()[0].num_waiting

    async def metrics(self) -> tuple[Metric, ...]:
        """All numbers of this moment, read from their owners."""
        engine, loop = self._started()
        return engine.meters.read(engine.stats, loop.heartbeat_age_s)

    async def __aenter__(self) -> AsyncEngine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _prepare(
        self, engine: Engine, prompt: PromptInput, sampling: SamplingParams, terms: Terms
    ) -> Request:
        limit = engine.config.schedule.max_queue_len
        if self._num_preparing >= limit:
            raise Overloaded(f"{limit} prompts are being prepared, the limit; come back later")
        event_loop = asyncio.get_running_loop()
        loads = Loads()
        work = self._pool.submit(engine.prompts.build, prompt, sampling, terms, loads)
        self._count_preparing(1)
        work.add_done_callback(lambda _: _post(event_loop, self._count_preparing, -1))
        left_s = None if terms.deadline_s is None else terms.deadline_s - engine.clock()
        try:
            async with asyncio.timeout(left_s):
                return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            loads.cancel()
            raise
        except TimeoutError:
            loads.cancel()
            allowed_s = (terms.deadline_s or 0.0) - terms.arrival_s
            raise DeadlinePassed(
                f"prompt took longer to prepare than its timeout_s of {allowed_s:.3f} s; "
                "raise timeout_s or send smaller pictures",
                param="timeout_s",
            ) from None

    def _count_preparing(self, change: int) -> None:
        self._num_preparing += change

    def _hand_in(self, request: Request) -> Generation:
        engine, loop = self._serving()  # it may have ended during the preparation
        request_id = request.request_id
        if request_id in self._generations:
            raise InvalidParameter(f"request_id {request_id} is in use; choose another", param="request_id")
        generation = Generation(
            request, prepared_s=engine.clock(), tokenizer=engine.tokenizer, cancel=loop.abort
        )
        self._generations[request_id] = generation
        loop.add(request)
        return generation

    def _started(self) -> tuple[Engine, EngineLoop]:
        if self._engine is None or self._loop is None:
            raise CapacityError("the engine is loading its model; come back in a moment")
        return self._engine, self._loop

    def _serving(self) -> tuple[Engine, EngineLoop]:
        if self._refusal is not None:
            raise type(self._refusal)(self._refusal.message)
        return self._started()

    def _deliver(self, news: Mapping[str, Delta]) -> None:
        for request_id, delta in news.items():
            if delta.finish_reason is None:
                generation = self._generations[request_id]
            else:
                generation = self._generations.pop(request_id)
            generation.put(delta)

    def _die(self, death: EngineDead) -> None:
        self._refusal = death
        for generation in self._generations.values():
            generation.put(Delta(finish_reason="error", error=EngineDead(death.message)))
        self._generations.clear()


def _post(loop: asyncio.AbstractEventLoop, deliver: Callable[[T], None], news: T) -> None:
    """Run `deliver` on the event loop; nobody is left to tell when that has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(deliver, news)
