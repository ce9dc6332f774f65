"""A feature cache over a real executor, without a scheduler: pictures are encoded one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tapetum.cache.visual import VisualCache
from tapetum.core.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from tapetum.core.media import MediaItem, MediaKind
from tapetum.core.plan import BatchPlan, EncodeJob
from tapetum.media.keys import media_key
from tapetum.media.parts import keyed_parts
from tapetum.models.table import load_model
from tapetum.ops.table import choose_table
from tapetum.processing import load_processor
from tapetum.processing.base import Processor
from tapetum.processing.options import ProcessorOptions
from tapetum.runtime.executor import load_executor

CPU = torch.device("cpu")
Pixels = NDArray[np.uint8]  # [height, width, 3]


def noise(seed: int, width: int, height: int) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def edited(pixels: Pixels, x: int, y: int) -> Pixels:
    """One value of one pixel differs by one."""
    copy = pixels.copy()
    copy[y, x, 0] ^= 1
    return copy


def make_item(
    processor: Processor, *frames: Pixels, tenant: str = "t", kind: MediaKind | None = None
) -> MediaItem:
    """As the media front makes it."""
    height, width, _ = frames[0].shape
    kind = kind or ("image" if len(frames) == 1 else "video")
    geometry = processor.geometry(kind, width, height, frames=len(frames), options=ProcessorOptions())
    patches = processor.patches(frames, geometry)
    words = {"parameters": processor.parameters, "tenant": tenant}
    return MediaItem(
        key=media_key(patches, geometry, **words),
        geometry=geometry,
        patches=patches,
        parts=keyed_parts(patches, processor.parts(geometry), **words),
    )


class Desk:
    def __init__(self, directory: Path, dtype: str = "float32", **cache: int) -> None:
        config = EngineConfig(
            model=ModelConfig(model=str(directory), dtype=dtype, pack_cache=""),
            cache=CacheConfig(kv_cache_bytes=64 << 20, **cache),
            device=DeviceConfig(device="cpu", threads=1),
        )
        self.processor = load_processor(directory)
        self.executor = load_executor(directory, config)
        facts = self.executor.facts
        self.token_bytes = facts.feature_bytes_per_token
        self.visual = VisualCache(
            config.cache.feature_room, self.token_bytes, has_parts=facts.has_exact_parts
        )
        self._oracle = load_model(
            directory, getattr(torch, dtype), CPU, choose_table(CPU, getattr(torch, dtype))
        )

    def item(self, *frames: Pixels, tenant: str = "t", kind: MediaKind | None = None) -> MediaItem:
        return make_item(self.processor, *frames, tenant=tenant, kind=kind)

    def begin(self, item: MediaItem) -> EncodeJob:
        job = self.visual.begin(item)
        self.drop()
        return job

    def run(self, *jobs: EncodeJob) -> dict[bytes, float]:
        """As steps of a plan do; what ends is resident."""
        result = self.executor.execute(BatchPlan(step=1, encodes=jobs))
        for key, share in result.encoded.items():
            if share >= 1:
                self.visual.complete(self.visual.key_from(key))
        for key in result.failed_features:
            self.visual.fail(self.visual.key_from(key))
        self.drop()
        return dict(result.encoded)

    def encode(self, item: MediaItem, cuts: Iterable[float] = ()) -> EncodeJob:
        """To the end, in slices up to each of `cuts`."""
        job, done = self.begin(item), 0.0
        for end in (*cuts, 1.0):
            if done < 1:
                part = EncodeJob(item=item, start=done, end=max(end, done), known=job.known)
                done = self.run(part)[item.key]
        return job

    def drop(self) -> None:
        self.executor.execute(BatchPlan(step=1, dropped_features=self.visual.take_dropped()))

    def forget(self) -> None:
        """Evict everything, and see that nothing is left."""
        self.visual.clear()
        self.drop()
        assert not self.executor.feature_keys and not self.executor.encode_keys
        assert self.visual.num_bytes == 0 and self.visual.num_parts == 0

    @torch.inference_mode()
    def whole(self, item: MediaItem) -> torch.Tensor:
        """Its features, encoded alone with nothing known."""
        patches = torch.from_numpy(np.asarray(item.patches))
        return self._oracle.begin_encode([patches], [item.geometry]).finish()[0]

    def is_exact(self, *items: MediaItem) -> bool:
        return all(torch.equal(self.executor.features_of(item.key), self.whole(item)) for item in items)


def numbers(job: EncodeJob) -> Sequence[int]:
    """Of the parts that are encoded."""
    known = {part.number for part in job.known}
    return [number for number in range(len(job.item.parts)) if number not in known]
