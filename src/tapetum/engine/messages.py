"""What the front's process and the engine's say to each other, and its bytes.

Owns the records of the line between them: commands to an engine, reports from it. Pixels do not travel here: a command
says where in the shared arena they lie, unless that was full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from tapetum.core import errors
from tapetum.core.config import EngineConfig
from tapetum.core.errors import EngineError, TapetumError
from tapetum.core.media import (
    Degradation,
    Geometry,
    MediaItem,
    MediaKind,
    PagesSeen,
    Part,
    ProcessorMode,
    Reuse,
    Span,
)
from tapetum.core.model import ModelFacts
from tapetum.core.request import Grammar, Prompt, Request, SamplingParams
from tapetum.core.stats import Backlog, SchedulerStats
from tapetum.engine.forecast import Forecast, Workload
from tapetum.engine.meters import Metric
from tapetum.engine.output import Delta
from tapetum.engine.reservations import Reserved, Wanted


class ItemMessage(Struct, frozen=True, kw_only=True):
    """A MediaItem; `patches` are its bytes where they are not in the arena at `offset`; none of what is reserved."""

    key: bytes
    geometry: Geometry
    shape: tuple[int, ...]
    offset: int
    patches: bytes
    parts: tuple[Part, ...]
    alias: bytes
    is_reserved: bool
    fetch_s: float
    decode_s: float
    resize_s: float
    processor: ProcessorMode
    degraded: Degradation | None
    compared_with: bytes | None


class SpanMessage(Struct, frozen=True, kw_only=True):
    start: int
    end: int
    item: int  # index of the request's items
    placement: tuple[float, ...]
    runs: tuple[tuple[int, int], ...]
    position: int
    is_atomic: bool


class Add(Struct, frozen=True, kw_only=True, tag=True):
    """A request; arrays as little-endian bytes."""

    request_id: str
    token_ids: bytes  # int32 [T]
    position_ids: bytes  # int32 [3, T]
    position_delta: int
    items: list[ItemMessage]
    spans: list[SpanMessage]
    sampling: dict[str, Any]
    max_tokens: int
    stop_token_ids: frozenset[int]
    tenant: str
    priority: int
    arrival_s: float
    deadline_s: float | None
    num_choices: int
    is_sibling: bool
    prediction: bytes  # int32
    reuse: Reuse
    left_out: tuple[MediaKind, ...]
    pages: tuple[PagesSeen, ...]


class Abort(Struct, frozen=True, tag=True):
    request_id: str


class LetGo(Struct, frozen=True, tag=True):
    """A request that has reserved something will not be added."""

    request_id: str


class Ask(Struct, frozen=True, kw_only=True, tag=True):
    """A question; its answer comes under the same number, in the field of the answer's kind."""

    number: int
    subject: str  # a field of Answer
    workload: Workload | None = None
    request_id: str = ""
    wanted: tuple[Wanted, ...] = ()


class Stop(Struct, frozen=True, tag=True):
    grace_s: float


Command = Add | Abort | LetGo | Ask | Stop


class Opening(Struct, frozen=True, kw_only=True):
    """The first thing an engine process reads: what it is to be. `builder` is module:function of a config."""

    config: EngineConfig
    builder: str
    commands: str  # address of the socket
    reports: str
    arena_file: int
    arena_bytes: int
    log_level: str


class Ready(Struct, frozen=True, tag=True):
    facts: ModelFacts


class Failed(Struct, frozen=True, tag=True):
    """The engine could not be built, or its loop has ended."""

    error: TapetumError


class News(Struct, frozen=True, tag=True):
    deltas: dict[str, Delta]
    backlog: Backlog


class Beat(Struct, frozen=True, tag=True):
    """The process lives; its loop gave a sign `loop_age_s` ago."""

    loop_age_s: float
    backlog: Backlog


class Answer(Struct, frozen=True, kw_only=True, tag=True):
    number: int
    stats: SchedulerStats | None = None
    metrics: tuple[Metric, ...] | None = None
    media_keys: tuple[bytes, ...] | None = None
    forecast: Forecast | None = None
    reset_caches: bool | None = None
    reserved: Reserved | None = None
    error: TapetumError | None = None


Report = Ready | Failed | News | Beat | Answer


def _encode_error(value: object) -> object:
    assert isinstance(value, TapetumError), f"{type(value).__name__} has no form on the line"
    return (type(value).__name__, value.message, value.param, value.wait_s)


def _decode_error(kind: type, value: Any) -> object:
    name, message, param, wait_s = value
    found = getattr(errors, name, EngineError)
    return found(message, param=param, wait_s=wait_s)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_error)
encode = _encoder.encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_opening = msgspec.msgpack.Decoder(Opening).decode
decode_report = msgspec.msgpack.Decoder(Report, dec_hook=_decode_error).decode


def add_message(request: Request, offsets: Mapping[bytes, int]) -> Add:
    """`offsets` says where in the arena the patches of a media key lie."""
    prompt = request.prompt
    items = {id(span.item): span.item for span in prompt.spans}
    places = {identity: place for place, identity in enumerate(items)}
    return Add(
        request_id=request.request_id,
        token_ids=np.asarray(prompt.token_ids, "<i4").tobytes(),
        position_ids=np.asarray(prompt.position_ids, "<i4").tobytes(),
        position_delta=prompt.position_delta,
        items=[_item_message(item, offsets.get(item.key)) for item in items.values()],
        spans=[_span_message(span, places[id(span.item)]) for span in prompt.spans],
        sampling=asdict(request.sampling),
        max_tokens=request.max_tokens,
        stop_token_ids=request.stop_token_ids,
        tenant=request.tenant,
        priority=request.priority,
        arrival_s=request.arrival_s,
        deadline_s=request.deadline_s,
        num_choices=request.num_choices,
        is_sibling=request.is_sibling,
        prediction=np.asarray(request.prediction, "<i4").tobytes(),
        reuse=request.reuse,
        left_out=request.left_out,
        pages=request.pages,
    )


def request_of(message: Add, items: list[MediaItem]) -> Request:
    """The request again, over items whose patches have been found."""
    prompt = Prompt(
        token_ids=tuple(np.frombuffer(message.token_ids, "<i4").tolist()),
        spans=tuple(_span_of(span, items[span.item]) for span in message.spans),
        position_ids=np.frombuffer(message.position_ids, "<i4").reshape(3, -1).astype(np.int64),
        position_delta=message.position_delta,
    )
    return Request(
        request_id=message.request_id,
        prompt=prompt,
        sampling=_sampling_of(message.sampling),
        max_tokens=message.max_tokens,
        stop_token_ids=message.stop_token_ids,
        tenant=message.tenant,
        priority=message.priority,
        arrival_s=message.arrival_s,
        deadline_s=message.deadline_s,
        num_choices=message.num_choices,
        is_sibling=message.is_sibling,
        prediction=tuple(np.frombuffer(message.prediction, "<i4").tolist()),
        reuse=message.reuse,
        left_out=message.left_out,
        pages=message.pages,
    )


def _span_message(span: Span, item: int) -> SpanMessage:
    return SpanMessage(
        start=span.start,
        end=span.end,
        item=item,
        placement=span.placement,
        runs=span.runs,
        position=span.position,
        is_atomic=span.is_atomic,
    )


def _span_of(message: SpanMessage, item: MediaItem) -> Span:
    return Span(
        start=message.start,
        end=message.end,
        item=item,
        placement=message.placement,
        runs=message.runs,
        position=message.position,
        is_atomic=message.is_atomic,
    )


def _item_message(item: MediaItem, offset: int | None) -> ItemMessage:
    patches = np.zeros(0, np.uint8) if item.is_reserved else np.asarray(item.patches)
    return ItemMessage(
        key=item.key,
        geometry=item.geometry,
        shape=patches.shape,
        offset=-1 if offset is None else offset,
        patches=patches.tobytes() if offset is None else b"",
        parts=item.parts,
        alias=item.alias,
        is_reserved=item.is_reserved,
        fetch_s=item.fetch_s,
        decode_s=item.decode_s,
        resize_s=item.resize_s,
        processor=item.processor,
        degraded=item.degraded,
        compared_with=item.compared_with,
    )


def _sampling_of(values: dict[str, Any]) -> SamplingParams:
    if values.get("grammar") is not None:
        values["grammar"] = Grammar(**values["grammar"])
    known = {field.name for field in fields(SamplingParams)}
    assert values.keys() == known, "both ends have the same fields"
    return SamplingParams(**values)
