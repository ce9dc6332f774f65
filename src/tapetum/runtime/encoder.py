"""Encoder: carries out the encodes of a plan and puts what they give into the feature store.

Owns the encodes under way. One ends with its last slice, with a failure, or when its features are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tapetum.core.errors import EngineError, TapetumError
from tapetum.core.media import MediaItem
from tapetum.core.plan import EncodeJob
from tapetum.models.base import VisionLanguageModel
from tapetum.models.encoding import Encoding
from tapetum.runtime.store import FeatureStore


class Encoder:
    def __init__(self, model: VisionLanguageModel, features: FeatureStore) -> None:
        self._model, self._features = model, features
        self._under_way: dict[bytes, Encoding] = {}
        self.encoded: dict[bytes, float] = {}  # of the last call: media key -> share of the work done
        self.failed: dict[bytes, TapetumError] = {}
        self.drift: dict[bytes, float] = {}  # of those to be compared: relative difference of features

    @property
    def keys(self) -> frozenset[bytes]:
        """Media keys of the encodes under way."""
        return frozenset(self._under_way)

    def encode(self, jobs: Sequence[EncodeJob]) -> None:
        """Whole items in one packed batch, the others by the slices they are given."""
        self.encoded, self.failed, self.drift = {}, {}, {}
        for job in jobs:
            if not job.is_whole:
                self._attempt([job])
        if whole := [job for job in jobs if job.is_whole]:
            self._attempt(whole)

    def drop(self, key: bytes) -> None:
        """Forget the features, and an encode that was to give them."""
        self._features.drop(key)
        self._under_way.pop(key, None)

    def _attempt(self, jobs: Sequence[EncodeJob]) -> None:
        try:
            if jobs[0].is_whole:
                self._encode([job.item for job in jobs])
            else:
                self._advance(jobs[0])
        except (RuntimeError, ValueError) as error:
            if len(jobs) == 1:
                failure = EngineError(f"a picture could not be encoded: {error}")
                self.failed[jobs[0].item.key] = failure
                return
            for job in jobs:  # one bad item must not take the others with it
                self._attempt([job])

    def _encode(self, items: Sequence[MediaItem]) -> None:
        for item, features in zip(items, self._begin(items).finish(), strict=True):
            # A copy, so that one picture does not keep the memory of the whole batch alive.
            self._keep(item, features.clone())
            self.encoded[item.key] = 1.0

    def _advance(self, job: EncodeJob) -> None:
        """One slice. An encode that breaks off within it cannot go on: it is kept only once the slice is done."""
        key = job.item.key
        found = self._under_way.pop(key, None)
        if found is None and job.start > 0 and key in self._features.keys:
            self.encoded[key] = 1.0  # the step that brought the last slice broke later, and runs again
            return
        encoding = self._begin([job.item]) if found is None or job.start <= 0 else found
        self.encoded[key] = encoding.advance(job.end)
        if self.encoded[key] < 1:
            self._under_way[key] = encoding
        else:
            self._keep(job.item, encoding.finish()[0])

    def _keep(self, item: MediaItem, features: Tensor) -> None:
        self._features.put(item.key, features)
        if item.compared_with in self._features.keys:
            known = self._features.get(item.compared_with)
            self.drift[item.key] = float((features - known).norm() / known.norm())

    def _begin(self, items: Sequence[MediaItem]) -> Encoding:
        device = self._model.spec.device
        patches = [torch.from_numpy(np.asarray(item.patches)).to(device, non_blocking=True) for item in items]
        return self._model.begin_encode(patches, [item.geometry for item in items])
