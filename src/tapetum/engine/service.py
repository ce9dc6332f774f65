"""The asynchronous front of an engine: many clients, one engine.

Owns the streams to clients and the pool on which prompts are built. The link to the engine posts the news of a step to
the event loop in one call; there what a client has not read waits, and is read as one delta. So a slow reader costs
little more than the tokens of its own answer and never holds the engine up. All of this class but its workers lives
on the event loop that called `start`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tapetum.assets import MODEL_DIR
from tapetum.core.chat import ChatInput, TextInput
from tapetum.core.config import EngineConfig
from tapetum.core.errors import (
    CapacityError,
    DeadlineOutOfReach,
    DeadlinePassed,
    EngineDead,
    TapetumError,
)
from tapetum.core.model import ModelFacts
from tapetum.core.request import Prompt, Request, SamplingParams, new_request_id
from tapetum.core.stats import SchedulerStats
from tapetum.engine.choices import Choices
from tapetum.engine.documents import (
    Errand,
    OnReading,
    Prepared,
    Spent,
    fulfilled,
    has_whole_documents,
    read_whole,
)
from tapetum.engine.engine import Engine
from tapetum.engine.estimate import Estimate, estimate_of
from tapetum.engine.files import ModelFiles
from tapetum.engine.front import Front
from tapetum.engine.generation import Generation
from tapetum.engine.golden import GOLDEN_SAMPLING, golden_prompt
from tapetum.engine.inputs import chat_input, text_input
from tapetum.engine.link import Link, LocalLink
from tapetum.engine.loads import Loads
from tapetum.engine.meters import Metric, reader_crashes, rejections, shared_patch_bytes
from tapetum.engine.options import config_from
from tapetum.engine.output import Delta, RequestOutput
from tapetum.engine.places import media_of
from tapetum.engine.preparation import Preparation, post
from tapetum.engine.prompts import PromptInput, PromptPlan, Terms
from tapetum.engine.remote import ProcessLink
from tapetum.engine.timely import OnVisionTimeout, check_terms, without_media
from tapetum.text.tokenizer import Tokenizer

AnyPrompt = PromptInput | str | Mapping[str, object] | Sequence[object]
_log = logging.getLogger(__name__)
_RESTART_PAUSE_S = 1.0
_MAX_QUESTIONS = 4  # to the engine at a time, each of which holds a thread
T = TypeVar("T")


class AsyncEngine:
    """`AsyncEngine(model, **options)` as LLM; or from a config, an engine that exists already, or a link to one.

    An engine process that dies is started again `restarts` times; the requests it had are lost.
    """

    def __init__(
        self,
        model: str | Path | EngineConfig | Engine | ProcessLink | None = None,
        *,
        restarts: int = 0,
        **options: object,
    ) -> None:
        source = model if isinstance(model, (Engine, ProcessLink)) else config_from(model, options)
        self._link: Link = source if isinstance(source, ProcessLink) else LocalLink(source)
        self._restarts_left = restarts
        self._front: Front | None = None
        self._facts: ModelFacts | None = None
        self._preparation = Preparation(self._link.config.schedule.max_queue_len)
        self._questions = ThreadPoolExecutor(_MAX_QUESTIONS, thread_name_prefix="tapetum-question")
        self._generations: dict[str, Generation] = {}
        self._refusal: TapetumError | None = None  # why nothing more is taken
        self._is_stopping = False
        self._is_ready = False
        self._restart: asyncio.Task[None] | None = None
        self._rejected: Counter[str] = Counter()

    async def start(self) -> None:
        """Load the model and begin to serve; the event loop stays free meanwhile."""
        event_loop = asyncio.get_running_loop()
        facts, files = await asyncio.to_thread(
            self._link.start,
            lambda news: post(event_loop, self._deliver, news),
            lambda death: post(event_loop, self._die, death),
        )
        if self._is_stopping:  # while it was loading
            await asyncio.to_thread(self._link.stop, 0.0)
            return
        self._front = self._front or Front(
            files,
            self._link.config,
            facts,
            forecast=self._link.forecast,
            clock=self._link.clock,
            reserver=self._link,
        )
        self._facts = facts
        self._refusal = None

    async def prove(self) -> None:
        """Ask the golden request; once it is answered the engine counts as ready. Raises what keeps it from that."""
        prompt = golden_prompt(self.files.processor.media_tokens)
        generation = await self.submit(prompt, GOLDEN_SAMPLING)
        await generation.output()
        self._is_ready = True

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take nothing more, let what runs finish for `grace_s` seconds, abort the rest, end the threads."""
        self._is_stopping = True
        self._is_ready = False
        if self._refusal is None:
            self._refusal = CapacityError("the engine is shutting down; ask another or come back later")
        if self._restart is not None:
            self._restart.cancel()
        await asyncio.to_thread(self._link.stop, grace_s)
        if self._front is not None:
            await asyncio.to_thread(self._front.close)
        self._preparation.close()
        self._questions.shutdown(wait=False)

    async def submit(
        self,
        prompt: AnyPrompt,
        sampling: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        on_vision_timeout: OnVisionTimeout = "reject",
        tenant: str = "",
        on_reading: OnReading | None = None,
    ) -> Generation:
        """Prepare a prompt and hand it to the engine. Everything that can be refused is refused from here.

        A prompt may also be what LLM takes: a string or a dict (`generate`), or a list of messages (`chat`). One with
        documents that are to be read whole is asked last, after as many other requests as that takes.
        """
        terms = self._terms(priority, timeout_s, tenant, on_vision_timeout)
        given, spent = _input_of(prompt), Spent()
        if isinstance(given, ChatInput) and has_whole_documents(given):
            prepared = await self._read_whole(given, sampling or SamplingParams(), terms, on_reading)
            given, spent = prepared.chat, prepared.spent
        request = await self._prepare(given, sampling, terms, has_to_cross=True)
        try:
            return await self._hand_in(request, spent)
        except (DeadlineOutOfReach, DeadlinePassed):
            is_text = not request.prompt.spans
            if on_vision_timeout == "reject" or is_text or not isinstance(given, ChatInput):
                raise
        return await self._hand_in(await self._text_alone(given, sampling, terms), spent)

    async def _text_alone(self, chat: ChatInput, sampling: SamplingParams | None, terms: Terms) -> Request:
        """In the place of a request that is refused for the time that its media would take."""
        again = replace(terms, request_id=new_request_id())
        request = await self._prepare(without_media(chat), sampling, again, has_to_cross=True)
        return replace(request, left_out=tuple(part.kind for part in media_of(chat)))

    async def _read_whole(
        self, chat: ChatInput, sampling: SamplingParams, terms: Terms, on_reading: OnReading | None
    ) -> Prepared:
        """All within the time that the last request has."""

        async def ask(errand: Errand) -> RequestOutput:
            own = replace(terms, request_id=new_request_id(), on_vision_timeout="reject")
            request = await self._prepare(errand.chat, errand.sampling, own, has_to_cross=True)
            generation = await self._hand_in(request)
            if on_reading is not None:
                on_reading(terms.request_id)
            return await generation.output()

        thinking = self.files.template.thinking
        return await fulfilled(read_whole(chat, sampling, self.facts.max_model_len, thinking), ask)

    async def prompt(
        self, prompt: AnyPrompt, sampling: SamplingParams | None = None, *, tenant: str = ""
    ) -> Prompt:
        """What the model would get; nothing is handed to the engine."""
        terms = self._terms(0, None, tenant)
        return (await self._prepare(prompt, sampling, terms, has_to_cross=False)).prompt

    def choices(self, generation: Generation) -> Choices:
        """As many answers as the prompt of `generation` is to have; it is the first. Each has a seed of its own."""
        return Choices(generation, generation.num_choices, partial(self._fork, generation))

    async def plan(
        self,
        prompt: AnyPrompt,
        sampling: SamplingParams | None = None,
        *,
        tenant: str = "",
        priority: int | None = None,
    ) -> PromptPlan:
        """What a prompt will be, from the headers of its media alone; raises for one that makes no sense.

        With a `priority` its media are as small as the load would have them now.
        """
        front, loads, chosen = self._serving(), Loads(), sampling or SamplingParams()
        given = _input_of(prompt)
        await front.prompts.feasibility.foresee(chosen)
        return await self._preparation.run(
            partial(front.plan, given, chosen, tenant=tenant, loads=loads, priority=priority),
            loads,
            has_media=bool(media_of(given)),
        )

    async def estimate(
        self,
        prompt: AnyPrompt,
        sampling: SamplingParams | None = None,
        *,
        tenant: str = "",
        priority: int = 0,
    ) -> Estimate:
        """What a request would take; raises as `plan` does."""
        front, chosen = self._serving(), sampling or SamplingParams()
        plan = await self.plan(prompt, chosen, tenant=tenant, priority=priority)
        plan = await self._ask(partial(front.recognised, plan))
        forecast = await self._ask(partial(self._link.forecast, plan.workload))
        max_tokens = chosen.max_tokens
        if max_tokens is None and (default := front.files.defaults.max_new_tokens) is not None:
            max_tokens = min(default, max(1, self.facts.max_model_len - plan.num_tokens))
        return estimate_of(plan, max_tokens, forecast, self._link.config, self.facts)

    @property
    def is_healthy(self) -> bool:
        """True while the engine loop lives, be it idle or busy."""
        return self._facts is not None and self._link.is_healthy

    @property
    def is_ready(self) -> bool:
        """True once the golden request has been answered, until the engine stops or dies."""
        return self._is_ready and self.is_healthy

    @property
    def facts(self) -> ModelFacts:
        self._started()
        assert self._facts is not None, "a front comes with facts"
        return self._facts

    @property
    def config(self) -> EngineConfig:
        return self._link.config

    @property
    def files(self) -> ModelFiles:
        return self._started().files

    @property
    def tokenizer(self) -> Tokenizer:
        return self.files.tokenizer

    @property
    def model_names(self) -> tuple[str, ...]:
        """What clients call the model, the first is the main one."""
        model = self._link.config.model
        return model.served_model_names or (Path(model.model).name if model.model else MODEL_DIR.name,)

    @property
    def num_waiting(self) -> int:
        """Requests that are prepared and wait for their turn."""
        self._started()
        return self._link.backlog.num_waiting

    @property
    def backlog_s(self) -> float:
        """Predicted seconds of the engine for all that waits."""
        self._started()
        return self._link.backlog.seconds

    async def metrics(self) -> tuple[Metric, ...]:
        """All numbers of this moment, read from their owners."""
        front = self._started()
        return (
            *await self._ask(self._link.metrics),
            rejections(dict(self._rejected)),
            reader_crashes(front.num_reader_crashes),
            shared_patch_bytes(self._link.num_shared_bytes),
        )

    async def stats(self) -> SchedulerStats:
        self._started()
        return await self._ask(self._link.stats)

    async def media_keys(self) -> tuple[bytes, ...]:
        """Keys of the pictures and clips whose features the engine has."""
        self._started()
        return await self._ask(self._link.media_keys)

    async def reset_caches(self) -> None:
        """Forget every picture and prefix that no request holds."""
        self._started().forget_media()
        await self._ask(self._link.reset_caches)

    def count_rejection(self, reason: str) -> None:
        """Add a request that was refused, here or before it came here; who tells the client counts it."""
        self._rejected[reason] += 1

    async def __aenter__(self) -> AsyncEngine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _ask(self, question: Callable[[], T]) -> T:
        """The answer of the engine. One that hangs keeps only other questions waiting, until it counts as dead."""

        def ask() -> T:
            self._check_healthy()  # it may have died since
            return question()

        self._check_healthy()
        return await asyncio.get_running_loop().run_in_executor(self._questions, ask)

    def _check_healthy(self) -> None:
        if not self.is_healthy:
            self._serving()
            raise EngineDead("the engine loop has ended or hangs; restart the server")

    def _terms(
        self,
        priority: int,
        timeout_s: float | None,
        tenant: str,
        on_vision_timeout: OnVisionTimeout = "reject",
    ) -> Terms:
        check_terms(priority, timeout_s, on_vision_timeout)
        now = self._link.clock()
        return Terms(
            request_id=new_request_id(),
            arrival_s=now,
            tenant=tenant,
            priority=priority,
            deadline_s=None if timeout_s is None else now + timeout_s,
            on_vision_timeout=on_vision_timeout,
        )

    async def _prepare(
        self, prompt: AnyPrompt, sampling: SamplingParams | None, terms: Terms, *, has_to_cross: bool
    ) -> Request:
        """The request, ready to be handed in if `has_to_cross`."""
        front, loads, given = self._serving(), Loads(), _input_of(prompt)
        chosen = sampling or SamplingParams()

        def build() -> Request:
            request = front.build(given, chosen, replace(terms, has_to_cross=has_to_cross), loads)
            if has_to_cross:
                self._cross(request)
            return request

        left_s = None if terms.deadline_s is None else terms.deadline_s - self._link.clock()
        try:
            async with asyncio.timeout(left_s):
                await front.prompts.feasibility.foresee(chosen)
                return await self._preparation.run(
                    build, loads, has_media=bool(media_of(given)), on_waste=self._link.discard
                )
        except TimeoutError:
            allowed_s = (terms.deadline_s or 0.0) - terms.arrival_s
            raise DeadlinePassed(
                f"prompt took longer to prepare than its timeout_s of {allowed_s:.3f} s; "
                "raise timeout_s or send smaller pictures",
                param="timeout_s",
            ) from None

    def _cross(self, request: Request) -> None:
        try:
            self._link.prepare(request)
        except BaseException:
            self._link.discard(request)
            raise

    async def _fork(self, generation: Generation, index: int) -> Generation:
        """Another answer to the same prompt."""
        return await self._hand_in(generation.forked(new_request_id(), index), is_prepared=False)

    async def _hand_in(
        self, request: Request, spent: Spent | None = None, *, is_prepared: bool = True
    ) -> Generation:
        try:
            self._serving()  # it may have ended during the preparation
        except TapetumError:
            if is_prepared:
                self._link.discard(request)
            raise
        if not is_prepared:
            self._link.prepare(request)
        generation = Generation(
            request,
            prepared_s=self._link.clock(),
            tokenizer=self.tokenizer,
            cancel=self._link.abort,
            spent=spent or Spent(),
        )
        self._link.add(request)
        self._generations[request.request_id] = generation
        await generation.accepted()
        return generation

    def _started(self) -> Front:
        if self._front is None:
            raise CapacityError("the engine is loading its model; come back in a moment")
        return self._front

    def _serving(self) -> Front:
        if self._refusal is not None:
            raise type(self._refusal)(self._refusal.message)
        return self._started()

    def _deliver(self, news: Mapping[str, Delta]) -> None:
        for request_id, delta in news.items():
            if delta.finish_reason is None:
                generation = self._generations.get(request_id)
            else:
                generation = self._generations.pop(request_id, None)
            if generation is not None:  # none: its engine has died, and with it the request
                generation.put(delta)

    def _die(self, death: EngineDead) -> None:
        self._is_ready = False
        self._refusal = death
        for generation in self._generations.values():
            generation.put(Delta(finish_reason="error", error=EngineDead(death.message)))
        self._generations.clear()
        is_restarting = self._restart is not None and not self._restart.done()
        if not self._is_stopping and not is_restarting:
            self._restart = asyncio.ensure_future(self._start_again())

    async def _start_again(self) -> None:
        """Until it lives again, or no restart is left."""
        while self._refusal is not None and self._restarts_left > 0:
            self._restarts_left -= 1
            _log.warning("starting the engine again, %d restarts left after this", self._restarts_left)
            await asyncio.sleep(_RESTART_PAUSE_S)
            try:
                await self.start()
                await self.prove()
            except TapetumError as error:
                _log.error("the engine does not start again: %s", error.message)


def _input_of(prompt: AnyPrompt) -> PromptInput:
    if isinstance(prompt, (ChatInput, TextInput)):
        return prompt
    return text_input(prompt) if isinstance(prompt, (str, Mapping)) else chat_input(prompt)
