"""A device without a device: executes plans by the book, and builders of requests. No torch, no numpy.

`ScriptedExecutor` keeps for every KV slot what was written there (the token, the picture behind it and everything
before it) and fails on a plan that a real device would compute wrongly: a row that reads a slot with other contents,
two rows writing one slot, a picture without features or cut where it must stay whole, an unknown or ended request.
Its tokens depend on request id and position alone, so any two ways to schedule the same requests must produce the
same ones.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import ceil
from zlib import crc32

from tapetum.core.errors import TapetumError
from tapetum.core.media import EXACT, Geometry, MediaItem, Reuse, Span
from tapetum.core.plan import (
    BatchPlan,
    Executor,
    FeatureArrival,
    Link,
    Payload,
    Row,
    SampledToken,
    StepResult,
)
from tapetum.core.request import Prompt, Request, SamplingParams

PLACEHOLDER = 7  # token id of every picture token, as in a real model
VOCABULARY = 1000
RESOLVED = SamplingParams().resolved(SamplingParams())

Script = Callable[[str, int], int]  # (request id, position) -> token id
Seconds = Callable[[BatchPlan], tuple[float, float]]  # plan -> seconds of encode and forward
_Part = tuple[str, bytes, int, tuple[float, ...]]  # tenant, media key, offset, placement


class PlanError(AssertionError):
    """A plan that a device would compute wrongly."""


def hashed_token(request_id: str, position: int) -> int:
    return crc32(f"{request_id}:{position}".encode()) % VOCABULARY


def make_item(
    key: str | bytes, num_tokens: int, *, kind: str = "image", segments: tuple[int, ...] = ()
) -> MediaItem:
    """An item of `num_tokens` visual tokens in one row of merged 2x2 patches."""
    raw = key.encode() if isinstance(key, str) else key
    geometry = Geometry(
        kind="video" if kind == "video" else "image",
        original=(28 * num_tokens, 28),
        used=(28 * num_tokens, 28),
        frames=1,
        grid_thw=(1, 2, 2 * num_tokens),
        num_tokens=num_tokens,
        segments=segments or (4 * num_tokens,),
    )
    return MediaItem(key=raw.ljust(32, b"\0"), geometry=geometry, patches=None)


def make_prompt(segments: Iterable[int | MediaItem], *, is_atomic: bool = False) -> Prompt:
    """Token ids and items in order; each item becomes its placeholders and a span, or an atomic one."""
    token_ids: list[int] = []
    spans: list[Span] = []
    for segment in segments:
        if isinstance(segment, int):
            token_ids.append(segment)
            continue
        start, count = len(token_ids), segment.geometry.num_tokens
        token_ids += [PLACEHOLDER] * count
        placement = (1.0, 1.0, float(count))
        spans.append(
            Span(
                start=start,
                end=start + count,
                item=segment,
                placement=placement,
                position=start,
                is_atomic=is_atomic,
            )
        )
    return Prompt(token_ids=tuple(token_ids), spans=tuple(spans), position_ids=None, position_delta=0)


def make_request(
    request_id: str,
    segments: Iterable[int | MediaItem],
    *,
    max_tokens: int = 4,
    stop_token_ids: Iterable[int] = (),
    sampling: SamplingParams = RESOLVED,
    tenant: str = "",
    priority: int = 0,
    arrival_s: float = 0.0,
    deadline_s: float | None = None,
    prediction: Iterable[int] = (),
    is_atomic: bool = False,
    reuse: Reuse = EXACT,
) -> Request:
    return Request(
        request_id=request_id,
        prompt=make_prompt(segments, is_atomic=is_atomic),
        sampling=sampling,
        max_tokens=max_tokens,
        stop_token_ids=frozenset(stop_token_ids) | frozenset(sampling.stop_token_ids),
        tenant=tenant,
        priority=priority,
        arrival_s=arrival_s,
        deadline_s=deadline_s,
        prediction=tuple(prediction),
        reuse=reuse,
    )


class ScriptedExecutor(Executor):
    """Checks a plan whole before it takes effect: one that raises changes nothing.

    fail_requests: errors for rows of these requests, once each. fail_features: the same for encodes by media key.
    quantum: encodes stop at multiples of this share only, so they get ahead of the plan. link_error: how far a link is
    from fitting; None = it is not looked at.
    """

    def __init__(
        self,
        block_size: int,
        *,
        script: Script = hashed_token,
        seconds: Seconds = lambda plan: (0.0, 0.0),
        quantum: float = 0.0,
        feature_bytes: int = 32,
        link_error: Callable[[Link], float | None] = lambda link: 0.0,
        block_bytes: int = 0,
    ) -> None:
        self.fail_requests: dict[str, TapetumError] = {}
        self.fail_features: dict[bytes, TapetumError] = {}
        self.encoded: Counter[bytes] = Counter()
        self.computed: Counter[str] = Counter()  # tokens by request, recomputed ones again
        self.guessed: Counter[str] = Counter()  # of those, guesses
        self.plans: list[BatchPlan] = []
        self._block_size = block_size
        self._script = script
        self._seconds = seconds
        self._quantum = quantum
        self._feature_bytes = feature_bytes  # of a token
        self._link_error = link_error
        self._pictures: dict[int, _Part] = {}  # of fingerprints that rest on no link
        self._block_bytes = block_bytes or 8 * block_size
        self._requests: dict[str, _Tokens] = {}
        self._released: set[str] = set()
        self._host: dict[int, list[int]] = {}  # as _blocks, by slot
        self._features: set[bytes] = set()
        self._num_tokens: dict[bytes, int] = {}  # of all features that ever were here
        self._shares: dict[bytes, float] = {}  # of encodes under way
        self._failed_features: set[bytes] = set()  # dropped afterwards, though they never were there
        self._blocks: dict[int, list[int]] = {}  # fingerprints of what was written, from the block's start

    @property
    def request_ids(self) -> frozenset[str]:
        return frozenset(self._requests)

    @property
    def feature_keys(self) -> frozenset[bytes]:
        return frozenset(self._features)

    @property
    def encode_keys(self) -> frozenset[bytes]:
        """Of the encodes under way."""
        return frozenset(self._shares)

    def execute(self, plan: BatchPlan) -> StepResult:
        requests = self._requests_after(plan)
        features, shares = self._features_after(plan)
        keys = {job.item.key for job in plan.encodes}
        failed_features = {key: error for key, error in self.fail_features.items() if key in keys}
        rows = [row for row in plan.rows if not _lacks(row, requests, failed_features)]
        exported = {key: self._payload(key) for key in plan.exports if key in self._features}
        exported_blocks = self._export_blocks(plan)
        self._move(plan)
        self._check_rows(rows, requests, features)
        self._check_links(plan, rows, requests)
        self._requests, self._features = requests, features - failed_features.keys()
        self._shares = {key: share for key, share in shares.items() if key not in failed_features}
        self._failed_features = (self._failed_features - set(plan.dropped_features)) | failed_features.keys()
        self._released = (self._released | set(plan.released)) - requests.keys()
        self.plans.append(plan)
        encoded = {job.item.key: shares.get(job.item.key, 1.0) for job in plan.encodes}
        self.encoded.update(key for key, share in encoded.items() if share == 1)
        for key in failed_features:
            del self.fail_features[key]
        names = [row.request_id for row in rows if row.request_id in self.fail_requests]
        failed = {request_id: self.fail_requests.pop(request_id) for request_id in names}
        encode_s, forward_s = self._seconds(plan)
        done = [row for row in rows if row.request_id not in failed]
        return StepResult(
            step=plan.step,
            tokens=self._run(done),
            links=self._link(plan.links, {row.request_id for row in done}),
            failed=failed,
            encoded={key: share for key, share in encoded.items() if key not in failed_features},
            failed_features=failed_features,
            exported=exported,
            exported_blocks=exported_blocks,
            encode_s=encode_s,
            forward_s=forward_s,
        )

    def _payload(self, key: bytes) -> Payload:
        """Features that say whose they are."""
        count = self._num_tokens[key]
        data = (key * -(-self._feature_bytes // len(key)))[: self._feature_bytes] * count
        return Payload(dtype="float32", shape=(count, self._feature_bytes // 4), data=data)

    def _arrive(self, arrivals: Sequence[FeatureArrival], features: set[bytes]) -> None:
        for arrival in arrivals:
            self._num_tokens[arrival.key] = arrival.payload.shape[0]
            if bytes(arrival.payload.data) != self._payload(arrival.key).data:  # type: ignore[call-overload]
                raise PlanError(f"features {arrival.key!r} arrive with the contents of others")
            if arrival.key in features:
                raise PlanError(f"features {arrival.key!r} arrive twice")
            features.add(arrival.key)

    def _export_blocks(self, plan: BatchPlan) -> dict[bytes, Payload]:
        """Blocks as what was written there."""
        exported = {}
        for export in plan.block_exports:
            for name, block in zip(export.names, export.block_ids, strict=True):
                if len(self._blocks.get(block, ())) != self._block_size:
                    raise PlanError(f"block {block} is copied out before it is full")
                data = struct.pack(f"<{self._block_size}q", *self._blocks[block])
                exported[name] = Payload(
                    dtype="float32",
                    shape=(self._block_bytes // 4,),
                    data=data.ljust(self._block_bytes, b"\0"),
                )
        return exported

    def _move(self, plan: BatchPlan) -> None:
        for arrival in plan.block_arrivals:
            for block, payload in zip(arrival.block_ids, arrival.payloads, strict=True):
                data = bytes(payload.data)[: 8 * self._block_size]  # type: ignore[call-overload]
                self._blocks[block] = list(struct.unpack(f"<{self._block_size}q", data))
        for move in plan.saves:
            for block, slot in zip(move.block_ids, move.slots, strict=True):
                self._host[slot] = self._blocks[block]
        for move in plan.loads:
            for block, slot in zip(move.block_ids, move.slots, strict=True):
                self._blocks[block] = self._host[slot]

    def _run(self, rows: Sequence[Row]) -> dict[str, tuple[SampledToken, ...]]:
        tokens = {}
        for row in rows:
            self.computed[row.request_id] += row.length
            self.guessed[row.request_id] += len(row.guess)
            self._write(row, self._requests[row.request_id])
            if row.has_sample:
                taken = self._sample(row)
                self._requests[row.request_id].extend(taken)
                tokens[row.request_id] = tuple(SampledToken(token_id=token_id) for token_id in taken)
        return tokens

    def _link(self, links: Sequence[Link], done: Collection[str]) -> dict[str, float]:
        errors: dict[str, float] = {}
        for link in links:
            error = self._link_error(link) if link.request_id in done else None
            if error is not None:
                errors[link.request_id] = error
            if error is not None and link.fits(error):
                tokens = self._requests[link.request_id]
                tokens.link(link.start)
                self._put(link.block_ids, link.start, tokens.fingerprints[: link.end])
        return errors

    def _sample(self, row: Row) -> list[int]:
        """The next token, and one more for each that was guessed rightly."""
        place = row.end - len(row.guess)
        taken = [self._script(row.request_id, place)]
        for guessed in row.guess:
            if taken[-1] != guessed:
                break
            taken.append(self._script(row.request_id, place + len(taken)))
        return taken

    def _requests_after(self, plan: BatchPlan) -> dict[str, _Tokens]:
        requests = dict(self._requests)
        for request_id in plan.released:
            if request_id in self._released and request_id not in requests:
                raise PlanError(f"request {request_id} is released twice")
            requests.pop(request_id, None)
        for request in plan.admitted:
            if request.request_id in requests:
                raise PlanError(f"request {request.request_id} is admitted twice")
            requests[request.request_id] = _Tokens(request)
        return requests

    def _features_after(self, plan: BatchPlan) -> tuple[set[bytes], dict[bytes, float]]:
        """What is there when the rows run, and how far the encodes under way are."""
        features, shares = set(self._features), dict(self._shares)
        for key in plan.dropped_features:
            if key not in features | shares.keys() | self._failed_features:
                raise PlanError(f"features {key!r} are dropped but not there")
            features.discard(key)
            shares.pop(key, None)
        self._arrive(plan.arrivals, features)
        there = frozenset(features)
        for job in plan.encodes:
            key = job.item.key
            if lost := {part.media_key for part in job.known} - there - {key}:
                raise PlanError(f"features {key!r} take parts from {lost}, which are not there")
            self._num_tokens[key] = job.item.geometry.num_tokens
            if key in features:
                raise PlanError(f"features {key!r} are encoded twice")
            if job.start != shares.pop(key, 0.0) or not job.start < job.end <= 1:
                raise PlanError(f"features {key!r} are encoded from {job.start} to {job.end}")
            share = self._reached(job.end)
            if share < 1:
                shares[key] = share
            else:
                features.add(key)
        return features, shares

    def _reached(self, share: float) -> float:
        return min(1.0, ceil(share / self._quantum) * self._quantum) if self._quantum else share

    def _check_rows(self, rows: Sequence[Row], requests: Mapping[str, _Tokens], features: set[bytes]) -> None:
        """Every row reads what was there before the step and its own; no block is written by two."""
        writers: dict[int, str] = {}
        for row in rows:
            tokens = requests.get(row.request_id)
            if tokens is None or row.request_id in writers.values():
                raise PlanError(f"request {row.request_id} has two rows, has ended or was never admitted")
            self._check_row(row, tokens, features)
            for block in self._written(row):
                if block in writers:
                    raise PlanError(f"requests {writers[block]} and {row.request_id} write block {block}")
                writers[block] = row.request_id
        for row in rows:
            past = row.block_ids[: -(-row.start // self._block_size)]
            if any(writers.get(block, row.request_id) != row.request_id for block in past):
                raise PlanError(f"another row writes into the past of request {row.request_id}")

    def _check_links(self, plan: BatchPlan, rows: Sequence[Row], requests: Mapping[str, _Tokens]) -> None:
        """Each goes on behind a row, and copies tokens of the same picture that rest on no link."""
        size, by_request = self._block_size, {row.request_id: row for row in rows}
        written = {block for row in rows for block in self._written(row)}
        for link in plan.links:
            row = by_request.get(link.request_id)
            if row is None:
                continue  # its picture has failed
            if row.end != link.start or not link.first < link.start < link.end or row.has_sample:
                raise PlanError(f"{link} is not behind {row}")
            if len(link.block_ids) * size < link.end or written & set(link.source_ids):
                raise PlanError(f"{link} has no blocks of its own, or its source is written")
            for position in range(link.first, link.end):
                block, slot = divmod(link.source_first + position - link.first, size)
                found = self._blocks.get(link.source_ids[block], [])[slot : slot + 1]
                part = self._pictures.get(found[0]) if found else None
                if part is None or part != requests[link.request_id].parts.get(position):
                    raise PlanError(f"{link} takes something else for token {position}")

    def _check_row(self, row: Row, tokens: _Tokens, features: set[bytes]) -> None:
        known, size = len(tokens.fingerprints), self._block_size
        end = row.end - len(row.guess)
        if (
            end <= row.start
            or end > known
            or row.has_sample != (end == known)
            or row.num_samples < len(row.guess)
        ):
            raise PlanError(f"{row} of {known} tokens")
        if len(set(row.block_ids)) != len(row.block_ids) or len(row.block_ids) * size < row.end:
            raise PlanError(f"{row} has repeated or missing blocks")
        for start, block in zip(range(0, row.start, size), row.block_ids, strict=False):
            wanted = tokens.fingerprints[start : min(start + size, row.start)]
            if self._blocks.get(block, [])[: len(wanted)] != wanted:
                raise PlanError(f"{row} reads other contents in block {block}")
        for span in tokens.spans:
            if span.start < row.end and row.start < span.end and span.key not in features:
                raise PlanError(f"{row} needs features {span.key!r} that are not there")
            if span.is_atomic and any(first < row.end < last for first, last in span.placeholders):
                raise PlanError(f"{row} ends within tokens that see each other both ways")

    def _write(self, row: Row, tokens: _Tokens) -> None:
        tokens.compute(row.start)
        fingerprints = tokens.with_guess(row.guess)[: row.end]
        self._put(row.block_ids, row.start, fingerprints)
        for position in range(row.start, row.end):
            if position in tokens.parts and tokens.is_exact(position):
                self._pictures[fingerprints[position]] = tokens.parts[position]

    def _put(self, block_ids: Sequence[int], first: int, fingerprints: Sequence[int]) -> None:
        """Those from `first` on."""
        size = self._block_size
        for index in range(first // size, -(-len(fingerprints) // size)):
            start = index * size
            kept = self._blocks.get(block_ids[index], [])[: max(0, first - start)]
            self._blocks[block_ids[index]] = kept + list(fingerprints[max(first, start) : start + size])

    def _written(self, row: Row) -> tuple[int, ...]:
        return row.block_ids[row.start // self._block_size : -(-row.end // self._block_size)]


class _Tokens:
    """The tokens of a request and, for each, a fingerprint of it with all that its KV depends on."""

    def __init__(self, request: Request) -> None:
        self.spans = request.prompt.spans
        self.fingerprints: list[int] = []
        self.parts: dict[int, _Part] = {}
        self._token_ids: list[int] = []
        self._links: list[int] = []  # where they start
        self._root = self._last = hash(request.tenant)
        for span in self.spans:
            for position in range(span.start, span.end):
                self.parts[position] = (request.tenant, span.key, position - span.start, span.placement)
        self.extend(request.prompt.token_ids)

    def extend(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            self._token_ids.append(token_id)
            self._chain(len(self.fingerprints))

    def with_guess(self, token_ids: Iterable[int]) -> list[int]:
        """The fingerprints as they would be behind these tokens."""
        found, last = list(self.fingerprints), self._last
        for token_id in token_ids:
            last = hash((last, token_id, None))
            found.append(last)
        return found

    def link(self, start: int) -> None:
        """What lies from there on is not what it would be had it been computed."""
        self._links.append(start)
        self._chain(start)

    def compute(self, start: int) -> None:
        """What lies from there on is computed, over what is before it."""
        if any(place >= start for place in self._links):
            self._links = [place for place in self._links if place < start]
            self._chain(start)

    def is_exact(self, position: int) -> bool:
        return all(position < place for place in self._links)

    def _chain(self, start: int) -> None:
        del self.fingerprints[start:]
        last = self.fingerprints[-1] if start else self._root
        for position in range(start, len(self._token_ids)):
            if position in self._links:
                last = hash((last, "link"))
            last = hash((last, self._token_ids[position], self.parts.get(position)))
            self.fingerprints.append(last)
        self._last = last


def _lacks(row: Row, requests: Mapping[str, _Tokens], keys: Mapping[bytes, TapetumError]) -> bool:
    tokens = requests.get(row.request_id)
    return tokens is not None and any(
        span.key in keys and span.start < row.end and row.start < span.end for span in tokens.spans
    )
