"""What steps cost: a short measurement at start-up, and the same reading of every step that runs.

The profile sends a few synthetic pictures, slices of a larger one and rows of growing size through the real executor.
It is bounded in number and time and leaves no trace: its requests are released, its features dropped, and what it wrote
into KV blocks nobody reads, since a block is written by its owner first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

import numpy as np

from tapetum.core.config import EngineConfig
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.media import MediaItem
from tapetum.core.model import ModelFacts
from tapetum.core.plan import BatchPlan, EncodeJob, Executor, Move, Row, StepResult
from tapetum.core.request import Request, SamplingParams
from tapetum.processing.base import Processor
from tapetum.processing.options import ProcessorOptions

_SIDES = (56, 112, 224, 336, 448)  # of synthetic pictures, in pixels
_SLICED_SIDE = 896  # of one that is encoded in slices, and not to its end
_SLICES, _SLICE_S = 6, 0.03  # how many, and how long each
_CHUNKS = (16, 64, 128, 256)  # of synthetic prefill, one behind the other
_DECODES = (1, 4, 16)  # rows at a time, behind the whole prompt
_MOVES = (1, 4, 16, 64)  # blocks to the host and back
_BUDGET_S = 0.3  # for encodes, for chunks, for decodes and for moves each
_GROWTH = 5  # a size takes at most so many times as long as the one before


def observe(cost: CostModel, plan: BatchPlan, result: StepResult) -> None:
    """Teach the cost model what a step took."""
    if plan.encodes and not result.failed_features:
        shares = [(_share_done(job, result), job) for job in plan.encodes]
        patches = sum(share * job.num_patches for share, job in shares)
        squares = sum(share * job.squares for share, job in shares)
        if patches:
            cost.observe_encode(patches, squares, result.encode_s)
    if result.moved_bytes:
        cost.observe_move(result.moved_bytes, result.move_s)
    if plan.rows and not result.failed_features:
        decodes = [row for row in plan.rows if row.is_decode]
        chunks = [(row.start, row.length) for row in plan.rows if not row.is_decode]
        chunks += [(row.start + 1, len(row.guess)) for row in decodes if row.guess]
        cost.observe_step(
            len(decodes),
            sum(row.start + 1 for row in decodes),
            sum(length for _, length in chunks),
            sum(chunk_context(start, length) for start, length in chunks),
            result.forward_s,
        )


def _share_done(job: EncodeJob, result: StepResult) -> float:
    """Of the work that the item has by its size."""
    key = job.item.key
    return (result.encoded[key] - job.start) * (1 - result.spared.get(key, 0.0))


def profile(
    executor: Executor,
    facts: ModelFacts,
    processor: Processor,
    config: EngineConfig,
    clock: Callable[[], float],
) -> CostModel:
    """A cost model that has seen a few encodes and steps of this device."""
    cost = CostModel()
    probe = _Probe(executor, cost, clock)
    max_tokens = min(config.schedule.encoder_budget_tokens, facts.max_model_len)
    items = _items(processor, _SIDES, max_tokens)
    large = _items(processor, (_SLICED_SIDE,), max_tokens)
    requests = _requests(processor, facts, config)
    try:
        probe.measure({"encodes": (EncodeJob(item=item),)} for item in items)
        for item in large:
            probe.measure({"encodes": (job,)} for job in _slices(item, cost))
        probe.execute({"admitted": requests})
        probe.measure({"rows": (row,)} for row in _chunks(requests[0], facts.block_size, config))
        probe.measure({"rows": rows} for rows in _decodes(requests, facts.block_size))
        probe.measure({"saves": (move,), "loads": (move,)} for move in _moves(facts))
    finally:
        names = tuple(request.request_id for request in requests)
        probe.execute({"released": names, "dropped_features": tuple(item.key for item in (*items, *large))})
    return cost


class _Probe:
    """Executes plans with step numbers before those of the scheduler."""

    def __init__(self, executor: Executor, cost: CostModel, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._cost = cost
        self._clock = clock
        self._steps = count(-1000)

    def execute(self, parts: _Parts) -> tuple[BatchPlan, StepResult]:
        plan = BatchPlan(step=next(self._steps), **parts)  # type: ignore[arg-type]
        return plan, self._executor.execute(plan)

    def measure(self, plans: Iterable[_Parts]) -> None:
        """Observe the plans, smallest first, until the next might not fit the time."""
        end_s = self._clock() + _BUDGET_S
        for index, parts in enumerate(plans):
            plan, result, took_s = self._timed(parts)
            if index == 0 and took_s < _BUDGET_S / 2:  # it also warmed up what comes after it
                plan, result, took_s = self._timed(parts)
            observe(self._cost, plan, result)
            if self._clock() + _GROWTH * took_s > end_s:
                return

    def _timed(self, parts: _Parts) -> tuple[BatchPlan, StepResult, float]:
        started_s = self._clock()
        plan, result = self.execute(parts)
        return plan, result, self._clock() - started_s


_Parts = dict[str, object]  # fields of a BatchPlan


def _items(processor: Processor, sides: Iterable[int], max_tokens: int) -> tuple[MediaItem, ...]:
    """Grey squares; small ones may come out alike, since a model has a smallest size. None for a model of text."""
    if "image" not in processor.media_tokens:
        return ()
    geometries = (processor.geometry("image", side, side, options=ProcessorOptions()) for side in sides)
    by_size = {geometry.used: geometry for geometry in geometries if geometry.num_tokens <= max_tokens}
    return tuple(
        MediaItem(
            key=f"profile {width}x{height}".encode(),
            geometry=geometry,
            patches=processor.patches([np.full((height, width, 3), 128, np.uint8)], geometry),
        )
        for (width, height), geometry in by_size.items()
    )


def _slices(item: MediaItem, cost: CostModel) -> Iterator[EncodeJob]:
    """The first few of an item, each as long as takes `_SLICE_S` by what is known by then; all of it never."""
    start = 0.0
    for _ in range(_SLICES):
        share = cost.encode_share(_SLICE_S, item.geometry.num_patches, item.geometry.squares)
        end = start + min(share, 1 / (_SLICES + 1))
        yield EncodeJob(item=item, start=start, end=end)
        start = end


def _requests(processor: Processor, facts: ModelFacts, config: EngineConfig) -> tuple[Request, ...]:
    """As many as the widest decode has rows, all with one prompt of the longest profiled length."""
    schedule = config.schedule
    length = min(sum(_CHUNKS) + 1, facts.max_model_len - 1)
    token_id = next(
        token for token in range(facts.vocab_size) if token not in processor.media_tokens.values()
    )
    prompt = processor.layout([(token_id,) * length])
    sampling = SamplingParams().resolved(SamplingParams())
    return tuple(
        Request(
            request_id=f"profile {index}",
            prompt=prompt,
            sampling=sampling,
            max_tokens=len(_DECODES) + 1,  # each may sample once a width
            stop_token_ids=frozenset(),
        )
        for index in range(min(max(_DECODES), schedule.max_num_seqs, schedule.max_num_batched_tokens))
    )


def _chunks(request: Request, block_size: int, config: EngineConfig) -> Iterator[Row]:
    start = 0
    for chunk in _CHUNKS:
        if start + chunk < request.num_prompt_tokens and chunk <= config.schedule.max_num_batched_tokens:
            yield _row(request, start, chunk, block_size)
            start += chunk


def _decodes(requests: tuple[Request, ...], block_size: int) -> Iterator[tuple[Row, ...]]:
    """Rows at the end of the prompt. All requests share the blocks of the first."""
    for width in _DECODES:
        if width <= len(requests):
            yield tuple(
                _row(request, request.num_prompt_tokens - 1, 1, block_size) for request in requests[:width]
            )


def _moves(facts: ModelFacts) -> Iterator[Move]:
    for num_blocks in _MOVES:
        if num_blocks <= min(facts.num_host_slots, facts.num_blocks):
            yield Move(
                request_id="profile", block_ids=tuple(range(num_blocks)), slots=tuple(range(num_blocks))
            )


def _row(request: Request, start: int, length: int, block_size: int) -> Row:
    end = start + length
    return Row(
        request_id=request.request_id,
        start=start,
        length=length,
        block_ids=tuple(range(-(-end // block_size))),
        has_sample=end == request.num_prompt_tokens,
    )
