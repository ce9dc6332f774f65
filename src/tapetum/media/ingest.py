"""The worker pool between a reference and a MediaItem.

Owns the threads, the deadline of each load, single flight (one decode for all who ask for the same bytes with the
same options at the same time) and a small cache from what was sent to the finished item. Does not own what a reference
may be (source.py) or how it is decoded (image.py).

Every future ends exactly once: with an item, a typed error, or its canceller. A failure reaches all who wait for it
and is forgotten. Work that nobody waits for any more stops at the next frame. A worker never waits for another.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count

from PIL import Image

from tapetum.core.chat import MediaPart
from tapetum.core.config import MediaConfig
from tapetum.core.errors import (
    CapacityError,
    EngineError,
    MediaError,
    MediaTimeout,
    MediaTooLarge,
    PromptTooLong,
    TapetumError,
)
from tapetum.core.media import Geometry, MediaItem
from tapetum.media.image import decode, read_size
from tapetum.media.keys import alias_key, media_key
from tapetum.media.source import Loaded, SourceReader
from tapetum.processing.base import Processor, ProcessorOptions

DEFAULT_CACHE_BYTES = 128 * 1024**2
MAX_WORKERS = 8


@dataclass(slots=True, eq=False)
class _Ticket:
    """One load: what was asked, until when, and who waits."""

    part: MediaPart
    tenant: str
    deadline: float
    future: Future[MediaItem] = field(default_factory=Future)
    fetch_s: float = 0.0

    def deliver(self, outcome: MediaItem | TapetumError) -> None:
        """Ends the load; nothing happens when it has been cancelled or has timed out."""
        try:
            if isinstance(outcome, TapetumError):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(replace(outcome, fetch_s=self.fetch_s))
        except InvalidStateError:
            pass


class _Abandoned(Exception):
    """Nobody waits for this flight any more; it has been taken off the list."""


class Ingest:
    """Loads media on its own threads; all methods may be called from any thread."""

    def __init__(
        self,
        processor: Processor,
        config: MediaConfig,
        *,
        max_tokens: int | None = None,
        workers: int | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._processor = processor
        self._config = config
        self._max_tokens = max_tokens  # visual tokens of one item that a prompt can hold
        self._reader = SourceReader(config)
        self._cache = _AliasCache(cache_bytes)
        self._state = threading.Condition()  # guards all below and the cache; never held while a future ends
        self._open: dict[int, _Ticket] = {}  # by order of submission, which is the order of deadlines
        self._numbers = count()
        self._flights: dict[bytes, list[_Ticket]] = {}
        self._is_closed = False
        size = workers or min(MAX_WORKERS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="media")
        self._watch = threading.Thread(target=self._watch_deadlines, name="media-deadlines", daemon=True)
        self._watch.start()

    def load(self, part: MediaPart, *, tenant: str) -> MediaItem:
        """The item, or a MediaError that says what is wrong with it."""
        return self.submit(part, tenant=tenant).result()

    def submit(self, part: MediaPart, *, tenant: str) -> Future[MediaItem]:
        """Starts a load and returns at once; cancelling the future gives the work up."""
        ticket = _Ticket(part, tenant, time.monotonic() + self._config.timeout_s)
        with self._state:
            if self._is_closed:
                raise CapacityError("the server is shutting down and takes no more media; try another one")
            number = next(self._numbers)
            self._open[number] = ticket
            self._pool.submit(self._run, ticket)
            self._state.notify()
        ticket.future.add_done_callback(lambda future: self._forget(number, future))
        return ticket.future

    def clear(self) -> None:
        """Forget what was loaded before; loads under way go on."""
        with self._state:
            self._cache.clear()

    def close(self) -> None:
        """Fails what is still waiting and ends the threads; a decode in progress is waited for."""
        with self._state:
            self._is_closed = True
            waiting = list(self._open.values())
            self._state.notify()
        for ticket in waiting:
            ticket.deliver(
                CapacityError("the server is shutting down; send the request again to another one")
            )
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._watch.join()
        with self._state:
            self._cache.clear()

    @property
    def num_open(self) -> int:
        """Loads that have not ended."""
        return len(self._open)

    @property
    def num_flights(self) -> int:
        """Distinct decodes under way."""
        return len(self._flights)

    @property
    def cached_bytes(self) -> int:
        return self._cache.num_bytes

    def _forget(self, number: int, future: Future[MediaItem]) -> None:
        if future.cancelled():
            future.set_running_or_notify_cancel()  # without it `concurrent.futures.wait` would not see the end
        with self._state:
            del self._open[number]

    def _watch_deadlines(self) -> None:
        while True:
            with self._state:
                if self._is_closed:
                    return
                first = next(iter(self._open.values()), None)
                if first is None:
                    self._state.wait()
                    continue
                if (wait_s := first.deadline - time.monotonic()) > 0:
                    self._state.wait(wait_s)
                    continue
            first.deliver(
                MediaTimeout(
                    f"picture or clip took longer than {self._config.timeout_s:g} s to fetch and decode; "
                    "send a smaller one or raise --media-timeout-s"
                )
            )

    def _run(self, ticket: _Ticket) -> None:
        """The one broad catch of a worker: whatever goes wrong ends the load."""
        try:
            if not ticket.future.done():
                self._fetch(ticket)
        except Exception as error:
            ticket.deliver(_typed(error))

    def _fetch(self, ticket: _Ticket) -> None:
        """Reads the reference, then finds the item in the cache, joins a flight, or starts one."""
        started = time.perf_counter()
        part = ticket.part
        options = ProcessorOptions.from_mapping(part.options)
        if part.kind == "video":
            loaded = self._reader.read_clip(part.source, is_trusted=part.is_trusted)
        else:
            loaded = [self._reader.read(part.source, is_trusted=part.is_trusted)]
        alias = alias_key(loaded, kind=part.kind, options=options, tenant=ticket.tenant)
        ticket.fetch_s = time.perf_counter() - started
        with self._state:
            item = self._cache.get(alias)
            is_leader = item is None and alias not in self._flights
            if item is None:
                self._flights.setdefault(alias, []).append(ticket)
        if item is not None:
            ticket.deliver(replace(item, decode_s=0.0))
        elif is_leader:
            self._fly(alias, loaded, options, ticket)

    def _fly(self, alias: bytes, loaded: list[Loaded], options: ProcessorOptions, leader: _Ticket) -> None:
        outcome: MediaItem | TapetumError
        try:
            outcome = self._prepare(alias, loaded, options, leader)
        except _Abandoned:
            return
        except Exception as error:
            outcome = _typed(error)
        with self._state:
            tickets = self._flights.pop(alias)
            if isinstance(outcome, MediaItem):
                self._cache.put(alias, outcome)
        for ticket in tickets:
            ticket.deliver(outcome)

    def _prepare(
        self, alias: bytes, loaded: list[Loaded], options: ProcessorOptions, leader: _Ticket
    ) -> MediaItem:
        started = time.perf_counter()
        geometry = self._geometry(loaded, leader.part, options)
        patches = self._processor.patches(self._decoded(alias, loaded), geometry)
        key = media_key(patches, geometry, parameters=self._processor.parameters, tenant=leader.tenant)
        return MediaItem(key=key, geometry=geometry, patches=patches, decode_s=time.perf_counter() - started)

    def _geometry(self, loaded: list[Loaded], part: MediaPart, options: ProcessorOptions) -> Geometry:
        """From headers alone, so that whatever is too large is refused before it is decoded."""
        if not loaded:
            raise MediaError("clip has no frames; send at least one")
        sizes = [
            picture.size if isinstance(picture, Image.Image) else read_size(picture, self._config)
            for picture in loaded
        ]
        for number, size in enumerate(sizes):
            if size != sizes[0]:
                raise MediaError(
                    f"frame {number} of the clip is {size[0]}x{size[1]}, frame 0 is {sizes[0][0]}x{sizes[0][1]}; "
                    "scale all frames to one size"
                )
        geometry = self._processor.geometry(part.kind, *sizes[0], frames=len(sizes), options=options)
        width, height = geometry.used
        if width * height * len(sizes) > self._config.max_pixels:
            raise MediaTooLarge(
                f"{part.kind} would be scaled to {len(sizes)} x {width}x{height} pixels, limit "
                f"{self._config.max_pixels} together; lower its max_pixels or min_pixels, or send fewer frames"
            )
        if self._max_tokens is not None and geometry.num_tokens > self._max_tokens:
            raise PromptTooLong(
                f"{part.kind} has {geometry.num_tokens} visual tokens, limit {self._max_tokens} for the whole prompt; "
                "lower its max_pixels or min_pixels, send fewer frames or raise --max-model-len"
            )
        return geometry

    def _decoded(self, alias: bytes, loaded: list[Loaded]) -> Iterator[Image.Image]:
        """Canonical pictures one by one, as long as somebody waits for them."""
        for picture in loaded:
            with self._state:
                if all(ticket.future.done() for ticket in self._flights[alias]):
                    del self._flights[alias]
                    raise _Abandoned
            yield picture if isinstance(picture, Image.Image) else decode(picture, self._config)


class _AliasCache:
    """Least recently used items up to a number of bytes; the caller holds the lock."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: OrderedDict[bytes, tuple[MediaItem, int]] = OrderedDict()
        self.num_bytes = 0

    def get(self, alias: bytes) -> MediaItem | None:
        found = self._items.get(alias)
        if found is None:
            return None
        self._items.move_to_end(alias)
        return found[0]

    def put(self, alias: bytes, item: MediaItem) -> None:
        size = memoryview(item.patches).nbytes  # type: ignore[arg-type]
        if size > self._max_bytes:
            return
        self._items[alias] = (item, size)
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            _, (_, freed) = self._items.popitem(last=False)
            self.num_bytes -= freed

    def clear(self) -> None:
        self._items.clear()
        self.num_bytes = 0


def _typed(error: Exception) -> TapetumError:
    """Our own errors as they are; anything else is our fault, and says so."""
    if isinstance(error, TapetumError):
        return error
    typed = EngineError(f"loading a picture or clip failed: {type(error).__name__}: {error}")
    typed.__cause__ = error
    return typed
