"""What the scheduler and its caches hold and have done, read from their state at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What the last step could spend, in seconds and tokens, and what admission leaves free."""

    step_s: float = 0.0  # beside its decodes and with them; without decodes of its encodes alone
    chunk_tokens: int = 0  # the longest prefill chunk that would have fitted
    pace: float = 1.0  # what late tokens have left of the time target
    owed_s: float = 0.0  # to encodes by prefills; negative = to prefills
    watermark_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """Counts of now (`num_running` … `feature_bytes`) and totals since the start (the rest)."""

    num_running: int
    num_waiting: int
    waiting_by_class: Mapping[str, int]  # every class of priority
    num_free_blocks: int
    num_cached_blocks: int  # reusable by prefix, held by nobody, evictable
    num_held_blocks: int  # in use by running requests
    blocks_by_tag: Mapping[str, int]  # cached and held blocks: text, visual, mixed, cross
    num_tenants: int  # accounts with blocks
    largest_tenant_blocks: int  # of the one with most
    num_reused_blocks: int  # cached or held, and used by more than one request
    num_visual_budget_blocks: int  # beyond so many with pictures, those that are cached go first
    evictions_by_reason: Mapping[str, int]  # of prefix_evictions: worth, or the quota that was exceeded
    feature_bytes: int
    reserved_bytes: int  # of features that requests rely on, wherever these are
    prefix_queries: int  # tokens looked up at first admissions
    prefix_hits: int  # of those, found
    prefix_evictions: int  # blocks
    feature_evictions: int
    num_preemptions: int
    num_host_blocks: int  # of preempted requests, in host memory now
    num_saved_blocks: int  # moved to the host
    num_loaded_blocks: int  # and back
    num_exported_blocks: int  # copied out for the tiers
    num_arrived_blocks: int  # that came from there
    num_linked: int  # pictures taken over from another place
    num_rejected_links: int  # and prefilled, because they would not have fitted
    num_linked_tokens: int  # of those taken over
    num_guessed_tokens: int  # verified
    num_accepted_tokens: int  # of those, came true
    finished: Mapping[str, int]  # requests by finish_reason
    step_error_ratio: float  # predicted ÷ actual seconds of recent steps
    encode_error_ratio: float
    budgets: Budgets = Budgets()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits for its turn, in requests and in predicted seconds of the engine."""

    num_waiting: int = 0
    encode_s: float = 0.0
    prefill_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.encode_s + self.prefill_s
