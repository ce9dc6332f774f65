"""The worker pools between a reference and a MediaItem.

A load has two steps, so that a whole prompt can be measured before anything of it is decoded: `plan` reads a
reference and its header, `decode` makes the item. Owns the threads, the deadline of each load, single flight (one
decode for all who ask for the same bytes at the same size at the same time). Does not own what is kept of what was
sent before (kept.py), what a reference may be (source.py), what comes of it (plan.py) or how it is decoded.

Every future ends exactly once. A failure reaches all who wait for it and is forgotten. Work that nobody waits for any
more stops soon: a fetch at the next wait, a decode at the next frame. A worker never waits for another. What is kept
of a reference is always its own item; whoever allows it is given one that looks the same (near.py).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from PIL import Image

from tapetum.core.chat import DocumentPart, MediaPart
from tapetum.core.config import MediaConfig
from tapetum.core.errors import CapacityError, EngineError, MediaTimeout, TapetumError
from tapetum.core.media import Geometry, MediaItem
from tapetum.media.deadlines import Deadlines, GivenUp, GoOn, Ticket
from tapetum.media.density import is_dense
from tapetum.media.document import Document
from tapetum.media.document_library import Consultation, DocumentLibrary, Question
from tapetum.media.kept import Kept
from tapetum.media.keys import alias_key, media_key
from tapetum.media.near import NearIndex
from tapetum.media.parts import keyed_parts
from tapetum.media.plan import MediaPlan, Planner, Shot
from tapetum.media.source import is_remote
from tapetum.processing.base import Processor
from tapetum.processing.options import ProcessorOptions

T = TypeVar("T")
DEFAULT_CACHE_BYTES = 64 * 1024**2
NEAR_BYTES = 64 * 1024**2  # of pictures that others are compared with
MAX_WORKERS = 8
MAX_FETCHES = 32  # fetches at a time; they wait, and must not keep decodes waiting


class Ingest:
    """Loads media on its own threads; all methods may be called from any thread."""

    def __init__(
        self,
        processor: Processor,
        config: MediaConfig,
        *,
        workers: int | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._processor = processor
        self._config = config
        self._planner = Planner(processor, config)
        self._kept = Kept(cache_bytes)
        self._near = NearIndex(NEAR_BYTES)
        self._state = threading.Lock()  # guards all below and the cache; never held while a future ends
        self._flights: dict[bytes, list[tuple[Ticket[MediaItem], MediaPlan]]] = {}  # with what each asked for
        self._is_closed = False
        size = workers or min(MAX_WORKERS, os.cpu_count() or 1)
        self._library = DocumentLibrary(config, size)
        self._decoders = ThreadPoolExecutor(size, thread_name_prefix="media")
        self._fetchers = ThreadPoolExecutor(MAX_FETCHES, thread_name_prefix="media-fetch")
        # Documents wait for the processes that read them, and keep nothing waiting but documents.
        self._readers = ThreadPoolExecutor(MAX_FETCHES, thread_name_prefix="media-document")
        self._drawers = ThreadPoolExecutor(size, thread_name_prefix="media-page")
        self._deadlines = Deadlines(self._late)

    def plan(self, part: MediaPart, *, tenant: str) -> Future[MediaPlan]:
        """Starts to read a reference and returns at once; cancelling the future gives the work up."""
        ticket: Ticket[MediaPlan] = Ticket(time.monotonic() + self._config.timeout_s)
        pool = self._fetchers if is_remote(part.source) else self._decoders
        self._start(pool, ticket, lambda: self._read(ticket, part, tenant))
        return ticket.future

    def decode(self, plan: MediaPlan) -> Future[MediaItem]:
        """Starts to make the item of a plan, within the deadline that the plan has had from its start."""
        ticket: Ticket[MediaItem] = Ticket(plan.deadline)
        if plan.item is not None and not plan.options.near_duplicate:
            ticket.deliver(_again(plan.item, plan))
            return ticket.future
        self._start(self._painters(plan), ticket, lambda: self._board(ticket, plan))
        return ticket.future

    def consult(self, part: DocumentPart, question: Question, *, tenant: str) -> Future[Consultation]:
        """Starts to open a document and to look up which of its pages a question is about."""
        ticket: Ticket[Consultation] = Ticket(time.monotonic() + self._config.timeout_s)

        def work() -> None:
            ticket.deliver(self._library.consult(part, question, tenant, ticket.go_on))

        self._start(self._readers, ticket, work)
        return ticket.future

    def page_texts(self, document: Document, pages: Sequence[int]) -> Future[list[str]]:
        """Starts to read what is written on pages, which are numbered from 1."""
        ticket: Ticket[list[str]] = Ticket(time.monotonic() + self._config.timeout_s)
        self._start(self._readers, ticket, lambda: ticket.deliver(document.texts(pages, ticket.go_on)))
        return ticket.future

    def reserved(self, plan: MediaPlan, key: bytes) -> MediaItem:
        """The item of a plan whose features the engine keeps: nothing is decoded."""
        with self._state:
            self._kept.learn(plan.alias, key)
        return MediaItem(
            key=key,
            geometry=plan.geometry,
            patches=None,
            processor=self._config.mm_processor,
            is_reserved=True,
            fetch_s=plan.fetch_s,
        )

    def capped(self, plan: MediaPlan, max_visual_tokens: int) -> MediaPlan:
        """The same picture or clip within so many visual tokens; raises InvalidParameter where it cannot be."""
        return self._with(plan, replace(plan.options, max_visual_tokens=max_visual_tokens))

    def shrunk(self, plan: MediaPlan, parts: int) -> MediaPlan:
        """The same picture or clip with one of so many `parts` of its area, but not below what a budget of a whole
        prompt leaves it; the same plan where its family makes nothing smaller of it."""
        width, height = plan.geometry.used
        least = self._processor.least_pixels(plan.geometry.kind, plan.options)
        pixels = max(1, least, width * height // parts)
        smaller = self._with(plan, replace(plan.options, max_pixels=pixels, min_pixels=None, detail=None))
        return smaller if smaller.geometry.num_patches < plan.geometry.num_patches else plan

    def is_dense(self, plan: MediaPlan) -> Future[bool]:
        """Starts to look whether a picture, or the first frame of a clip, is there to be read."""
        ticket: Ticket[bool] = Ticket(plan.deadline)
        self._start(self._painters(plan), ticket, lambda: self._look(ticket, plan))
        return ticket.future

    def least_tokens(self, plan: MediaPlan) -> int:
        """Visual tokens below which a budget of the whole prompt does not push it."""
        least = self._processor.least_pixels(plan.geometry.kind, plan.options)
        smallest = self._planner.geometry(plan.shot, replace(plan.options, max_pixels=least, min_pixels=None))
        return min(smallest.num_tokens, plan.geometry.num_tokens)

    def load(self, part: MediaPart, *, tenant: str) -> MediaItem:
        """Both steps at once: the item, or a MediaError that says what is wrong with it."""
        return self.decode(self.plan(part, tenant=tenant).result()).result()

    def clear(self) -> None:
        """Forget what was loaded before; loads under way go on."""
        with self._state:
            self._kept.clear()
        self._near.clear()
        self._library.clear()

    def close(self) -> None:
        """Fails what is still waiting and ends the threads; a decode in progress is waited for."""
        with self._state:
            self._is_closed = True
        self._deadlines.close(
            lambda: CapacityError("the server is shutting down; send the request again to another one")
        )
        for pool in (self._fetchers, self._readers, self._decoders, self._drawers):
            pool.shutdown(wait=True, cancel_futures=True)
        self._library.close()
        self.clear()

    @property
    def num_open(self) -> int:
        """Loads that have not ended."""
        return self._deadlines.num_open

    @property
    def num_reader_crashes(self) -> int:
        """Processes that have read documents and ended otherwise than they should."""
        return self._library.num_crashes

    @property
    def num_flights(self) -> int:
        """Distinct decodes under way."""
        return len(self._flights)

    @property
    def cached_bytes(self) -> int:
        return self._kept.num_bytes

    def _late(self) -> MediaTimeout:
        return MediaTimeout(
            f"picture, clip or document took longer than {self._config.timeout_s:g} s to fetch and decode; "
            "send a smaller one or raise --media-timeout-s"
        )

    def _start(self, pool: ThreadPoolExecutor, ticket: Ticket[T], work: Callable[[], None]) -> None:
        """Hands the work to a pool. The one broad catch of a worker: whatever goes wrong ends the ticket."""

        def run() -> None:
            try:
                if not ticket.is_over:
                    work()
            except GivenUp:
                pass
            except Exception as error:
                ticket.deliver(_typed(error))

        with self._state:
            if self._is_closed:
                raise CapacityError("the server is shutting down and takes no more media; try another one")
            self._deadlines.add(ticket)
            pool.submit(run)

    def _painters(self, plan: MediaPlan) -> ThreadPoolExecutor:
        """Those who make pictures of what a plan refers to."""
        return self._drawers if plan.shot.has_pages else self._decoders

    def _read(self, ticket: Ticket[MediaPlan], part: MediaPart, tenant: str) -> None:
        started = time.perf_counter()
        options = self._planner.options(part)
        shot = self._planner.shot(part, options, ticket.go_on)
        geometry = self._planner.geometry(shot, options)
        alias = self._alias(shot, geometry, tenant)
        with self._state:
            item, key = self._kept.item(alias), self._kept.key(alias)
        ticket.deliver(
            MediaPlan(
                geometry=geometry,
                item=item,
                key=key,
                shot=shot,
                options=options,
                alias=alias,
                tenant=tenant,
                deadline=ticket.deadline,
                fetch_s=time.perf_counter() - started,
            )
        )

    def _with(self, plan: MediaPlan, options: ProcessorOptions) -> MediaPlan:
        """The plan under other options."""
        geometry = self._planner.geometry(plan.shot, options)
        alias = self._alias(plan.shot, geometry, plan.tenant)
        with self._state:
            item, key = self._kept.item(alias), self._kept.key(alias)
        return replace(plan, geometry=geometry, options=options, alias=alias, item=item, key=key)

    def _look(self, ticket: Ticket[bool], plan: MediaPlan) -> None:
        ticket.deliver(self._is_dense(plan, ticket.go_on))

    def _is_dense(self, plan: MediaPlan, go_on: GoOn) -> bool:
        with self._state:
            known = self._kept.is_dense.get(plan.alias)
        found = is_dense(plan.shot.glance(self._config, go_on)) if known is None else known
        with self._state:
            self._kept.is_dense.put(plan.alias, found)
        return found

    def _board(self, ticket: Ticket[MediaItem], plan: MediaPlan) -> None:
        """Finds the item in the cache, joins a flight, or starts one."""
        with self._state:
            item = self._kept.item(plan.alias)
            is_leader = item is None and plan.alias not in self._flights
            if item is None:
                self._flights.setdefault(plan.alias, []).append((ticket, plan))
        if item is not None:
            self._deliver(ticket, plan, _again(item, plan))
        elif is_leader:
            self._fly(plan)

    def _fly(self, plan: MediaPlan) -> None:
        outcome: MediaItem | TapetumError
        try:
            outcome = self._made(plan)
        except GivenUp:
            return
        except Exception as error:
            outcome = _typed(error)
        with self._state:
            waiting = self._flights.pop(plan.alias)
            if isinstance(outcome, MediaItem):
                self._kept.put(plan.alias, outcome)
        for ticket, asked in waiting:
            if isinstance(outcome, MediaItem):
                self._deliver(ticket, asked, replace(outcome, fetch_s=asked.fetch_s))
            else:
                ticket.deliver(outcome)

    def _deliver(self, ticket: Ticket[MediaItem], plan: MediaPlan, item: MediaItem) -> None:
        """Its own item, or one that looks the same where that is allowed; a page of a document is there to be read."""
        outcome: MediaItem | TapetumError = item
        if plan.options.near_duplicate and not plan.shot.has_pages:
            try:
                outcome = self._near.settle(item, plan.tenant, lambda: self._is_dense(plan, ticket.go_on))
            except GivenUp:
                return
            except Exception as error:
                outcome = _typed(error)
        ticket.deliver(outcome)

    def _made(self, plan: MediaPlan) -> MediaItem:
        def go_on() -> None:
            with self._state:
                if all(ticket.is_over for ticket, _ in self._flights[plan.alias]):
                    del self._flights[plan.alias]
                    raise GivenUp

        started = time.perf_counter()
        geometry = plan.geometry
        pictures = _Timed(plan.shot.pictures(self._config, go_on, geometry.used))
        patches = self._processor.patches(pictures, geometry)
        mode, parameters = self._config.mm_processor, self._processor.parameters
        key = media_key(patches, geometry, parameters=parameters, tenant=plan.tenant, processor=mode)
        places = self._processor.parts(geometry)
        parts = keyed_parts(patches, places, parameters=parameters, tenant=plan.tenant, processor=mode)
        resize_s = time.perf_counter() - started - pictures.seconds
        return MediaItem(
            key=key,
            geometry=geometry,
            patches=patches,
            parts=parts,
            processor=mode,
            alias=plan.alias,
            decode_s=pictures.seconds,
            resize_s=resize_s,
        )

    def _alias(self, shot: Shot, geometry: Geometry, tenant: str) -> bytes:
        return alias_key(
            shot,
            geometry,
            tenant=tenant,
            processor=self._config.mm_processor,
            parameters=self._processor.parameters,
            ground=self._config.alpha_ground,
        )


class _Timed:
    """An iterator, and the seconds that its items took to make."""

    def __init__(self, pictures: Iterator[Image.Image]) -> None:
        self._pictures = pictures
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Image.Image]:
        return self

    def __next__(self) -> Image.Image:
        started = time.perf_counter()
        try:
            return next(self._pictures)
        finally:
            self.seconds += time.perf_counter() - started


def _again(item: MediaItem, plan: MediaPlan) -> MediaItem:
    """What was made before, at no cost but that of the fetch."""
    return replace(item, fetch_s=plan.fetch_s, decode_s=0.0, resize_s=0.0)


def _typed(error: Exception) -> TapetumError:
    """Our own errors as they are; anything else is our fault, and says so."""
    if isinstance(error, TapetumError):
        return error
    typed = EngineError(f"loading a picture, clip or document failed: {type(error).__name__}: {error}")
    typed.__cause__ = error
    return typed
