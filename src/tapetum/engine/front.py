"""Everything before the scheduler: the files of a model, the media workers, the building of prompts.

Owns the workers and the limits of prompts. Needs no weights and no torch: it runs beside an engine in one process, or
in another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tapetum.core.config import EngineConfig
from tapetum.core.model import ModelFacts
from tapetum.core.request import Request, SamplingParams
from tapetum.engine.files import ModelFiles
from tapetum.engine.forecast import Forecast, Workload
from tapetum.engine.loads import Loads
from tapetum.engine.pages import PageReader
from tapetum.engine.prompts import PromptBuilder, PromptInput, PromptLimits, PromptPlan, Terms
from tapetum.engine.quality import Quality
from tapetum.engine.timely import Timeliness
from tapetum.engine.undecoded import Reserver, Undecoded
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
        reserver: Reserver | None = None,
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
        has_tiers = bool(config.tiers.feature_tiers)
        self._undecoded = None if reserver is None else Undecoded(reserver, has_tiers=has_tiers)
        self.prompts = PromptBuilder(
            files, self._ingest, limits, quality, Timeliness(forecast, clock), self._undecoded
        )
        context = min(facts.max_model_len, facts.num_blocks * facts.block_size)
        self.pages = PageReader(files, self._ingest, self.prompts, replace(limits, max_model_len=context))

    def build(self, prompt: PromptInput, sampling: SamplingParams, terms: Terms, loads: Loads) -> Request:
        """The request of a prompt, with pages in the place of its documents; blocks until all media are there."""
        laid_out = self.pages.laid_out(prompt, sampling, terms.tenant, loads)
        return self.prompts.build(laid_out, sampling, terms, loads)

    def plan(
        self,
        prompt: PromptInput,
        sampling: SamplingParams,
        *,
        tenant: str,
        loads: Loads,
        priority: int | None,
    ) -> PromptPlan:
        """What `build` would make of a prompt, without decoding a pixel."""
        laid_out = self.pages.laid_out(prompt, sampling, tenant, loads)
        return self.prompts.plan(laid_out, sampling, tenant=tenant, loads=loads, priority=priority)

    def recognised(self, plan: PromptPlan) -> PromptPlan:
        """The plan with all that is known of its media, here or in tiers; asks the engine."""
        return (
            plan if self._undecoded is None else replace(plan, media=self._undecoded.recognised(plan.media))
        )

    def forget_media(self) -> None:
        """Drop what is kept of media that were loaded before."""
        self._ingest.clear()

    @property
    def num_reader_crashes(self) -> int:
        return self._ingest.num_reader_crashes

    def close(self) -> None:
        """End the media workers and what checks grammars."""
        self._ingest.close()
        self.prompts.close()
