"""From a config to an engine that is ready: files, weights, what steps cost. The one place where all parts meet."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

from tapetum.cache.stores import open_stores
from tapetum.core.config import EngineConfig, TierConfig
from tapetum.core.model import ModelFacts
from tapetum.engine.cost_file import CostFile
from tapetum.engine.engine import Engine
from tapetum.engine.files import ModelFiles
from tapetum.engine.find import find_model
from tapetum.engine.profile import profile
from tapetum.engine.tiers import Tiers

_log = logging.getLogger(__name__)


def build_engine(config: EngineConfig) -> Engine:
    """Load the model and measure it; raises ConfigError and its children."""
    with ExitStack() as held:
        tiers = open_tiers(config.tiers)
        if tiers is not None:
            held.callback(tiers.close)
        engine = _loaded(config, tiers)
        engine.at_end.push(held.pop_all())
    return engine


def open_tiers(config: TierConfig) -> Tiers | None:
    """None where nothing leaves the device; raises ConfigError for a place that cannot be used."""
    stores = open_stores(config)
    return Tiers(stores) if any(stores.values()) else None


def _loaded(config: EngineConfig, tiers: Tiers | None) -> Engine:
    # Imported here: everything above the executor can be imported without torch.
    from tapetum.runtime.executor import load_executor, resolve_pack_folder
    from tapetum.runtime.machine import machine_name

    directory = find_model(config.model)
    files = ModelFiles.load(directory)
    started_s = time.perf_counter()
    executor = load_executor(directory, config)
    facts, loaded_s = executor.facts, time.perf_counter()
    machine = machine_name(facts.device, config.device.threads)
    kept = CostFile(resolve_pack_folder(config.model.pack_cache), f"{_subject(facts)} on {machine}")
    cost = kept.read()
    how = "known"
    if cost is None:
        how = "measured"
        cost = profile(executor, facts, files.processor, config, time.perf_counter)
        kept.write(cost)
    _log.info(
        "loaded in %.2f s, costs %s in %.2f s", loaded_s - started_s, how, time.perf_counter() - loaded_s
    )
    engine = Engine(config, executor=executor, facts=facts, files=files, cost=cost, tiers=tiers)
    engine.at_end.callback(kept.write, cost)
    return engine


def _subject(facts: ModelFacts) -> str:
    weights = (facts.weights_fingerprint + facts.encoder_fingerprint).hex()
    return f"{facts.model_type} {weights} in {facts.dtype}, blocks of {facts.block_size}"
