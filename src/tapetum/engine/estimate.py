"""What a request would take, and whether it can be served at all: told from headers, before a pixel is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from tapetum.core.config import EngineConfig
from tapetum.core.media import Degradation
from tapetum.core.model import ModelFacts
from tapetum.engine.forecast import Forecast
from tapetum.engine.prompts import PromptPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaEstimate:
    """One picture or clip; sizes are (width, height) in pixels. `cache` says where its features are, miss = nowhere;
    `degraded` what a load of now would leave of it."""

    original: tuple[int, int]
    used: tuple[int, int]
    visual_tokens: int
    patches: int
    encode_s: float
    cache: str
    degraded: Degradation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Times as they would be should nothing of the prompt's keys and values be cached."""

    prompt_tokens: int
    visual_tokens: int
    media: tuple[MediaEstimate, ...]
    prefill_s: float
    kv_bytes: int  # of the prompt and the longest answer
    admissible: bool
    reason: str | None  # why it is not
    queue_s: float  # predicted for what waits now


def estimate_of(
    plan: PromptPlan, max_tokens: int | None, forecast: Forecast, config: EngineConfig, facts: ModelFacts
) -> Estimate:
    """`max_tokens` of answer, None = what fits the context."""
    media = tuple(
        MediaEstimate(
            original=medium.geometry.original,
            used=medium.geometry.used,
            visual_tokens=medium.geometry.num_tokens,
            patches=medium.geometry.num_patches,
            encode_s=seconds,
            cache=source,
            degraded=medium.degraded,
        )
        for medium, seconds, source in zip(plan.media, forecast.encode_s, forecast.sources, strict=True)
    )
    num_answer = max_tokens or max(1, facts.max_model_len - plan.num_tokens)
    reason = _obstacle(plan, num_answer, config, facts)
    return Estimate(
        prompt_tokens=plan.num_tokens,
        visual_tokens=sum(item.visual_tokens for item in media),
        media=media,
        prefill_s=forecast.prefill_s,
        kv_bytes=(plan.num_tokens + num_answer - 1) * facts.kv_bytes_per_token,
        admissible=reason is None,
        reason=reason,
        queue_s=forecast.queue_s,
    )


def _obstacle(plan: PromptPlan, num_answer: int, config: EngineConfig, facts: ModelFacts) -> str | None:
    """What keeps a request from being served however idle the engine is."""
    total = plan.num_tokens + num_answer
    what = f"prompt has {plan.num_tokens} tokens and its answer up to {num_answer}"
    if total > facts.max_model_len:
        return f"{what}, limit {facts.max_model_len}; shorten it, lower max_visual_tokens or raise --max-model-len"
    num_slots = facts.num_blocks * facts.block_size
    if total - 1 > num_slots:
        return f"{what}, limit {num_slots} by the KV memory; shorten it or raise --kv-cache-memory"
    capacity = config.cache.feature_room
    for geometry in plan.geometries:
        num_bytes = geometry.num_tokens * facts.feature_bytes_per_token
        if num_bytes > capacity:
            return (
                f"{geometry.kind} has {geometry.num_tokens} visual tokens with {num_bytes} bytes of features, "
                f"limit {capacity}; raise --feature-cache-gib or send it smaller"
            )
    return None
