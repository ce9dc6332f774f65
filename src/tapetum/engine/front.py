"""Everything before the scheduler: the files of a model, the media workers, the building of prompts.

Owns the workers and the limits of prompts. Needs no weights and no torch: it runs beside an engine in one process, or
in another one.
"""

from __future__ import annotations

from collections.abc import Callable

from tapetum.core.config import EngineConfig
from tapetum.core.model import ModelFacts
from tapetum.engine.files import ModelFiles
from tapetum.engine.forecast import Forecast, Workload
from tapetum.engine.prompts import PromptBuilder, PromptLimits
from tapetum.engine.quality import Quality
from tapetum.engine.timely import Timeliness
from tapetum.media.ingest import Ingest


class Front:
    """`prompts` builds requests for the engine that `facts` describe and that `forecast` asks."""

    def __init__(
        self,
        files: ModelFiles,
        config: EngineConfig,
        facts: ModelFacts,
        *,
        forecast: Callable[[Workload], Forecast],
        clock: Callable[[], float],
    ) -> None:
        self.files = files
        self._ingest = Ingest(files.processor, config.media)
        limits = PromptLimits(
            max_model_len=facts.max_model_len,
            max_media=config.media.limit_per_prompt,
            max_media_bytes=4 * config.media.max_bytes,
        )
        target_s = config.schedule.quality_ladder_s
        quality = None if target_s is None else Quality(target_s, forecast, clock)
        self.prompts = PromptBuilder(files, self._ingest, limits, quality, Timeliness(forecast, clock))

    def forget_media(self) -> None:
        """Drop what is kept of media that were loaded before."""
        self._ingest.clear()

    def close(self) -> None:
        """End the media workers and what checks grammars."""
        self._ingest.close()
        self.prompts.close()
