"""Numbers about the engine for dashboards, under the names that dashboards know.

Owns what nobody else counts: histograms of times, tokens, refusals. What the scheduler holds and has done is read
from its stats at the moment of asking. The answer is a list of Metric, which any exposition format can be written
from. The engine thread is the only writer; refusals are counted in front of the engine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tapetum.cache.tiers import EVENTS, KINDS, TierCounts, TierName
from tapetum.core.plan import BatchPlan
from tapetum.core.request import Request, RequestStats
from tapetum.core.stats import Backlog, Budgets, SchedulerStats

MetricKind = Literal["gauge", "counter", "histogram"]
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How many observations fell into each bucket: `counts[i]` up to `bounds[i]`, the last one above them all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One named quantity. `values` has one entry per value of `label`, or one under "" without a label.

    `fixed` are labels that all of its values have.
    """

    name: str  # without the prefix `tapetum:`
    kind: MetricKind
    text: str
    values: Mapping[str, float | Distribution]
    label: str | None = None
    fixed: Mapping[str, str] = field(default_factory=dict)


class Histogram:
    """Counts in fixed buckets."""

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> Distribution:
        return Distribution(bounds=self._bounds, counts=tuple(self._counts), total=self._total)


class Meters:
    """Everything that is counted as it happens; `block_bytes` is the size of a KV block."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._histograms = {name: Histogram(_BOUNDS.get(name, SECONDS)) for name in _HISTOGRAMS}
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._media_sources: Counter[str] = Counter()
        self._degradations: Counter[str] = Counter({"load": 0, "timeout": 0, "near_duplicate": 0})

    def taken(self, request: Request) -> None:
        self._degradations["timeout"] += len(request.left_out)
        for span in request.prompt.spans:
            self._histograms["media_fetch_seconds"].observe(span.item.fetch_s)
            self._histograms["media_decode_seconds"].observe(span.item.decode_s)
            self._histograms["media_resize_seconds"].observe(span.item.resize_s)
            if span.item.degraded is not None:
                self._degradations[span.item.degraded.reason] += 1

    def tokens(self, count: int, gap_s: float) -> None:
        """Tokens of output that came at once, `gap_s` after the one before them."""
        for place in range(count):
            self._histograms["inter_token_latency_seconds"].observe(0.0 if place else gap_s)

    def answered(self, request: Request, num_tokens: int) -> None:
        """An answer has come to its end. Tokens count as usage does: a prompt with several answers once."""
        self._num_prompt_tokens += 0 if request.is_sibling else request.num_prompt_tokens
        self._num_generation_tokens += num_tokens

    def executed(self, plan: BatchPlan, visual_tokens: int, drift: Mapping[bytes, float]) -> None:
        """A step was carried out; so many of the tokens of its rows stand for pictures."""
        for error in drift.values():
            self._histograms["near_duplicate_error"].observe(error)
        if plan.encodes:
            patches = sum(job.share * job.num_patches for job in plan.encodes)
            self._histograms["encode_batch_patches"].observe(patches)
        if num_tokens := sum(row.length for row in plan.rows):
            self._histograms["batch_visual_ratio"].observe(visual_tokens / num_tokens)

    def first_token(self, stats: RequestStats) -> None:
        self._media_sources.update(stats.media_sources)
        self._histograms["time_to_first_token_seconds"].observe(stats.ttft_s)
        self._histograms["request_queue_time_seconds"].observe(stats.queue_s)
        self._histograms["request_prefill_time_seconds"].observe(stats.prefill_s)
        if stats.vision_queue_s is not None:
            self._histograms["vision_queue_seconds"].observe(stats.vision_queue_s)
        if "miss" in stats.media_sources:
            self._histograms["vision_encode_seconds"].observe(stats.encode_s)

    def finished(self, stats: RequestStats, *, has_tokens: bool) -> None:
        self._histograms["e2e_request_latency_seconds"].observe(stats.e2e_s)
        if has_tokens:
            self._histograms["request_decode_time_seconds"].observe(stats.e2e_s - stats.ttft_s)

    def read(self, stats: SchedulerStats, backlog: Backlog, heartbeat_age_s: float) -> tuple[Metric, ...]:
        """All metrics of this moment."""
        sources = dict(self._media_sources)
        hits = {level: count for level, count in sources.items() if level != "miss"}
        waiting_s = {"encode": backlog.encode_s, "prefill": backlog.prefill_s}
        errors = {"step": stats.step_error_ratio, "encode": stats.encode_error_ratio}
        kv_bytes = sum(stats.blocks_by_tag.values()) * self._block_bytes
        kept = {"kv": kv_bytes, "features": stats.feature_bytes}
        evicted = {"kv": stats.prefix_evictions, "features": stats.feature_evictions}
        links = {"linked": stats.num_linked, "rejected": stats.num_rejected_links}
        degradations = {**self._degradations, "position_independent": stats.num_linked}
        travelled = {"out": stats.num_exported_blocks, "in": stats.num_arrived_blocks}
        moved = {
            "out": stats.num_saved_blocks * self._block_bytes,
            "in": stats.num_loaded_blocks * self._block_bytes,
        }
        return (
            _gauge("num_requests_running", "Requests that hold blocks.", stats.num_running),
            _gauge("num_requests_waiting", "Requests that wait for blocks.", stats.num_waiting),
            _labelled("num_requests_waiting_by_class", "The same.", "gauge", "class", stats.waiting_by_class),
            _gauge("kv_cache_usage_perc", "Share of KV blocks held by requests, 0 to 1.", _usage(stats)),
            _gauge("engine_heartbeat_seconds", "Since the last sign of life of the loop.", heartbeat_age_s),
            _labelled("backlog_seconds", "Predicted for what waits.", "gauge", "stage", waiting_s),
            *_budgets(stats.budgets),
            _labelled("kv_blocks", "KV blocks held or cached.", "gauge", "tag", stats.blocks_by_tag),
            *_accounts(stats),
            _labelled("kv_tier_blocks", "KV blocks to tiers and back.", "counter", "direction", travelled),
            _of_tier("device", "tier_bytes", kept),
            _of_tier("device", "tier_evictions", evicted),
            _labelled("cost_error_ratio", "Predicted by actual seconds.", "gauge", "stage", errors),
            _counter("prompt_tokens", "Tokens of prompts that were answered.", self._num_prompt_tokens),
            _counter(
                "generation_tokens", "Tokens of answers that came to their end.", self._num_generation_tokens
            ),
            _counter("num_preemptions", "Requests that gave their blocks back.", stats.num_preemptions),
            _gauge("swapped_blocks", "KV blocks of preempted requests on the host.", stats.num_host_blocks),
            _labelled("swap_bytes", "Keys and values moved.", "counter", "direction", moved),
            _counter("spec_decode_num_draft_tokens", "Guessed tokens verified.", stats.num_guessed_tokens),
            _counter("spec_decode_num_accepted_tokens", "Of those, came true.", stats.num_accepted_tokens),
            _counter("prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_queries),
            _counter("prefix_cache_hits", "Prompt tokens found.", stats.prefix_hits),
            _counter("mm_cache_queries", "Pictures and clips of prompts.", sum(sources.values())),
            _labelled("mm_cache_hits", "Of those, not encoded again.", "counter", "level", hits),
            _labelled("degradations", _DEGRADATIONS, "counter", "reason", degradations),
            _labelled("picture_links", "Pictures found elsewhere.", "counter", "outcome", links),
            _counter("picture_linked_tokens", "Tokens not computed by that.", stats.num_linked_tokens),
            _labelled("request_success", "Ended requests.", "counter", "finished_reason", stats.finished),
            *(
                Metric(name=name, kind="histogram", text=text, values={"": self._histograms[name].read()})
                for name, text in _HISTOGRAMS.items()
            ),
        )


def shared_patch_bytes(num_bytes: int) -> Metric:
    return _gauge("shared_patch_bytes", "Patches of live requests in shared memory.", num_bytes)


def reader_crashes(count: int) -> Metric:
    text = "Processes that read documents and ended over them, or were killed."
    return _counter("document_reader_crashes", text, count)


def rejections(by_reason: Mapping[str, float]) -> Metric:
    """Requests refused, wherever that was."""
    return _labelled("rejections", "Requests refused.", "counter", "reason", by_reason)


def tier_metrics(counts: Iterable[TierCounts]) -> tuple[Metric, ...]:
    """What the tiers behind the device hold and have done; tiers of one name are added up."""
    rows: dict[tuple[str, TierName], Counter[str]] = {}
    for each in counts:
        held = {"tier_bytes": each.holdings.num_bytes, "tier_evictions": each.holdings.num_evictions}
        happened = {f"tier_{event}": {kind: each.events[event, kind] for kind in KINDS} for event in EVENTS}
        for name, by_kind in (held | happened).items():
            rows.setdefault((name, each.tier), Counter()).update(by_kind)
    return tuple(_of_tier(tier, name, dict(by_kind)) for (name, tier), by_kind in rows.items())


_TIER_ROWS: dict[str, tuple[MetricKind, str]] = {
    "tier_bytes": ("gauge", "Bytes held or cached."),
    "tier_evictions": ("counter", "KV blocks and features of pictures dropped."),
    "tier_hits": ("counter", "Entries found in a tier."),
    "tier_misses": ("counter", "Entries not found in a tier, or not asked for as it rests."),
    "tier_errors": ("counter", "Reads and writes that failed or took too long."),
    "tier_corrupt": ("counter", "Entries found broken and removed."),
    "tier_version": ("counter", "Entries of another format, removed."),
    "tier_unsaved": ("counter", "Entries not written, as a tier was busy or resting."),
}
_DEGRADATIONS = "Pictures and clips of which models saw less than was asked for, or something not quite them."
_BOUNDS = {
    "encode_batch_patches": tuple(float(1 << power) for power in range(4, 17)),
    "batch_visual_ratio": tuple(step / 10 for step in range(11)),
    "near_duplicate_error": (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": "From the arrival of a request to its first token.",
    "inter_token_latency_seconds": "Between two tokens of a request.",
    "e2e_request_latency_seconds": "From the arrival of a request to its end.",
    "request_queue_time_seconds": "From the arrival of a request to its first step.",
    "request_prefill_time_seconds": "In steps that computed the prompt.",
    "request_decode_time_seconds": "From the first token to the last.",
    "vision_encode_seconds": "In the encoder, of requests that had something to encode.",
    "media_fetch_seconds": "Getting the bytes of a picture or clip.",
    "vision_queue_seconds": "From the arrival of a request to the first encode for it.",
    "media_decode_seconds": "Decoding a picture or clip.",
    "media_resize_seconds": "Resizing a picture or clip and cutting it into patches.",
    "encode_batch_patches": "Patches that one step encoded; of a slice, its share of them.",
    "batch_visual_ratio": "Share of visual tokens among those that one step computed.",
    "near_duplicate_error": "Relative difference of features, of near-duplicates that were encoded all the same.",
}


def _usage(stats: SchedulerStats) -> float:
    blocks = stats.num_free_blocks + stats.num_cached_blocks + stats.num_held_blocks
    return stats.num_held_blocks / blocks


def _budgets(budgets: Budgets) -> tuple[Metric, ...]:
    return (
        _gauge("step_limit_seconds", "Predicted seconds that the last step could take.", budgets.step_s),
        _gauge("step_pace_ratio", "Share of the time target left by late tokens, 1 = all.", budgets.pace),
        _gauge("prefill_chunk_tokens", "Longest chunk that the last step could take.", budgets.chunk_tokens),
        _gauge("encode_owed_seconds", "Owed to encodes by prefills; below 0 the reverse.", budgets.owed_s),
        _gauge("kv_watermark_blocks", "KV blocks that an admission leaves free.", budgets.watermark_blocks),
    )


def _accounts(stats: SchedulerStats) -> tuple[Metric, ...]:
    """Who has the KV blocks. Tenants are not named: they may be many, and a name may be its client's secret."""
    budget, evicted = stats.num_visual_budget_blocks, stats.evictions_by_reason
    return (
        _gauge("kv_tenants", "Tenants with KV blocks.", stats.num_tenants),
        _gauge("kv_largest_tenant_blocks", "KV blocks of the one with most.", stats.largest_tenant_blocks),
        _gauge("kv_reused_blocks", "KV blocks that several requests have used.", stats.num_reused_blocks),
        _gauge("kv_visual_budget_blocks", "KV blocks of pictures, before theirs go first.", budget),
        _labelled("kv_evictions", "KV blocks dropped, by why.", "counter", "reason", evicted),
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return Metric(name=name, kind="gauge", text=text, values={"": value})


def _counter(name: str, text: str, value: float) -> Metric:
    return Metric(name=name, kind="counter", text=text, values={"": value})


def _labelled(name: str, text: str, kind: MetricKind, label: str, values: Mapping[str, float]) -> Metric:
    return Metric(name=name, kind=kind, text=text, values=values, label=label)


def _of_tier(tier: str, name: str, by_kind: Mapping[str, float]) -> Metric:
    kind, text = _TIER_ROWS[name]
    return Metric(name=name, kind=kind, text=text, values=by_kind, label="kind", fixed={"tier": tier})
