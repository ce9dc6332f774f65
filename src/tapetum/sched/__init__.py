"""Decisions: which requests advance in the next step, by how much, and who gives way; no tensors."""

from __future__ import annotations

from collections.abc import Callable

from tapetum.cache.blocks import BlockPool
from tapetum.cache.eviction import Quotas
from tapetum.cache.host import HostSlots
from tapetum.cache.ledger import Ledger
from tapetum.cache.prefix import PrefixTree
from tapetum.cache.traffic import Traffic
from tapetum.cache.visual import VisualCache
from tapetum.core.config import USUAL_CONTEXTS, EngineConfig
from tapetum.core.cost import CostModel
from tapetum.core.model import ModelFacts
from tapetum.sched.scheduler import Scheduler
from tapetum.sched.swap import Swap


def build_scheduler(
    config: EngineConfig, facts: ModelFacts, cost: CostModel, load_s: Callable[[int], float] | None = None
) -> Scheduler:
    """A scheduler over empty caches of the sizes that the loaded model allows.

    `load_s` = seconds in which a tier brings so many KV blocks; None = there is no tier for them.
    """
    pool = BlockPool(facts.num_blocks)
    quotas = Quotas(visual=config.cache.visual_kv_share)
    tree = PrefixTree(pool, quotas) if config.cache.has_prefix_caching else None
    fingerprints = (facts.weights_fingerprint, facts.encoder_fingerprint, facts.dtype)
    ledger = Ledger(pool, tree, facts.block_size, fingerprints, cost)
    visual = VisualCache(
        _feature_bytes(config, facts),
        facts.feature_bytes_per_token,
        facts.encoder_fingerprint,
        is_exporting=bool(config.tiers.feature_tiers),
        has_parts=facts.has_exact_parts,
    )
    host = HostSlots(facts.num_host_slots)
    block_bytes = facts.block_size * facts.kv_bytes_per_token
    swap = Swap(host, ledger, visual, cost, block_bytes)
    traffic = Traffic(ledger, cost, block_bytes, load_s)
    return Scheduler(config.schedule, ledger, visual, swap, traffic, cost, facts.max_model_len)


def _feature_bytes(config: EngineConfig, facts: ModelFacts) -> int:
    room = config.cache.feature_room
    if config.cache.feature_cache_bytes is not None or facts.device != "cpu":
        return room
    return min(room, USUAL_CONTEXTS * facts.max_model_len * facts.feature_bytes_per_token)
