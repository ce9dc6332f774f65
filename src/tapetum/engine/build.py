"""From a config to an engine that is ready: files, weights, a short profile. The one place where all parts meet."""

from __future__ import annotations

import logging
import time

from tapetum.core.config import EngineConfig
from tapetum.engine.engine import Engine
from tapetum.engine.files import ModelFiles
from tapetum.engine.find import find_model
from tapetum.engine.profile import profile

_log = logging.getLogger(__name__)


def build_engine(config: EngineConfig) -> Engine:
    """Load the model and measure it; raises ConfigError and its children."""
    # Imported here: everything above the executor can be imported without torch.
    from tapetum.runtime.executor import load_executor

    directory = find_model(config.model)
    files = ModelFiles.load(directory)
    started_s = time.perf_counter()
    executor = load_executor(directory, config)
    facts, loaded_s = executor.facts, time.perf_counter()
    cost = profile(executor, facts, files.processor, config, time.perf_counter)
    _log.info("loaded in %.2f s, profiled in %.2f s", loaded_s - started_s, time.perf_counter() - loaded_s)
    return Engine(config, executor=executor, facts=facts, files=files, cost=cost)
