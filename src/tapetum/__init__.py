"""Tapetum: a vision-language inference engine that computes every picture once.

Names are loaded on first use, so `import tapetum` stays fast and free of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tapetum.core.config import EngineConfig as EngineConfig
    from tapetum.core.request import SamplingParams as SamplingParams
    from tapetum.engine.llm import LLM as LLM
    from tapetum.engine.service import AsyncEngine as AsyncEngine

__version__ = "0.6.0"
__all__ = ["LLM", "AsyncEngine", "EngineConfig", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "tapetum.engine.llm",
    "AsyncEngine": "tapetum.engine.service",
    "EngineConfig": "tapetum.core.config",
    "SamplingParams": "tapetum.core.request",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tapetum' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
