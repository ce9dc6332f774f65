"""Encoder: carries out the encodes of a plan and puts what they give into the feature store.

Owns the encodes under way. One ends with its last slice, with a failure, or when its features are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tapetum.core.errors import EngineError, TapetumError
from tapetum.core.media import MediaItem
from tapetum.core.plan import EncodeJob
from tapetum.models.base import VisionLanguageModel
from tapetum.models.encoding import Encoding, KnownParts
from tapetum.runtime.parts import Loan, loans_of, patches_of, pay_out, tiles_left
from tapetum.runtime.store import FeatureStore
from tapetum.runtime.windows import WindowCache


@dataclass(frozen=True, slots=True)
class _Start:
    """Encodes that have begun together, and what each item need not encode."""

    encoding: Encoding
    loans: Sequence[dict[int, Loan]]

    def finish(self) -> list[Tensor]:
        """The features of each item, still in the memory of all of them."""
        found = self.encoding.finish()
        for features, loans in zip(found, self.loans, strict=True):
            pay_out(loans, features)
        return found


class Encoder:
    def __init__(
        self, model: VisionLanguageModel, features: FeatureStore, windows: WindowCache | None = None
    ) -> None:
        self._model, self._features, self._windows = model, features, windows
        self._under_way: dict[bytes, _Start] = {}
        self.encoded: dict[bytes, float] = {}  # of the last call: media key -> share of the work done
        self.spared: dict[bytes, float] = {}  # of its work, by windows that were known
        self.failed: dict[bytes, TapetumError] = {}
        self.drift: dict[bytes, float] = {}  # of those to be compared: relative difference of features

    @property
    def keys(self) -> frozenset[bytes]:
        """Media keys of the encodes under way."""
        return frozenset(self._under_way)

    def encode(self, jobs: Sequence[EncodeJob]) -> None:
        """Whole items in one packed batch, the others by the slices they are given."""
        self.encoded, self.spared, self.failed, self.drift = {}, {}, {}, {}
        for job in jobs:
            if not job.is_whole:
                self._attempt([job])
        if whole := [job for job in jobs if job.is_whole]:
            self._attempt(whole)

    def drop_windows(self) -> None:
        if self._windows is not None:
            self._windows.clear()

    def drop(self, key: bytes) -> None:
        """Forget the features, and an encode that was to give them."""
        self._features.drop(key)
        self._under_way.pop(key, None)

    def _attempt(self, jobs: Sequence[EncodeJob]) -> None:
        try:
            if jobs[0].is_whole:
                self._encode(jobs)
            else:
                self._advance(jobs[0])
        except (RuntimeError, ValueError) as error:
            if len(jobs) == 1:
                failure = EngineError(f"a picture could not be encoded: {error}")
                self.failed[jobs[0].item.key] = failure
                return
            for job in jobs:  # one bad item must not take the others with it
                self._attempt([job])

    def _encode(self, jobs: Sequence[EncodeJob]) -> None:
        start = self._begin(jobs)
        for job, features in zip(jobs, start.finish(), strict=True):
            # A copy, so that one picture does not keep the memory of the whole batch alive.
            self._keep(job.item, features.clone())
            self.encoded[job.item.key] = 1.0
            self.spared[job.item.key] = start.encoding.spared

    def _advance(self, job: EncodeJob) -> None:
        """One slice. An encode that breaks off within it cannot go on: it is kept only once the slice is done."""
        key = job.item.key
        found = self._under_way.pop(key, None)
        if found is None and job.start > 0 and key in self._features.keys:
            self.encoded[key] = 1.0  # the step that brought the last slice broke later, and runs again
            return
        start = self._begin([job]) if found is None or job.start <= 0 else found
        self.encoded[key] = start.encoding.advance(job.end)
        self.spared[key] = start.encoding.spared
        if self.encoded[key] < 1:
            self._under_way[key] = start
        else:
            self._keep(job.item, start.finish()[0])

    def _keep(self, item: MediaItem, features: Tensor) -> None:
        self._features.put(item.key, features)
        if item.compared_with in self._features.keys:
            known = self._features.get(item.compared_with)
            self.drift[item.key] = float((features - known).norm() / known.norm())

    def _begin(self, jobs: Sequence[EncodeJob]) -> _Start:
        loans = [loans_of(job, self._features) for job in jobs]
        known = [
            KnownParts(
                tiles=tiles_left(job.item, own),
                windows=() if self._windows is None else tuple(part.key for part in job.item.parts),
                states=self._windows,
            )
            for job, own in zip(jobs, loans, strict=True)
        ]
        patches = [
            patches_of(job.item, each.tiles).to(self._model.spec.device, non_blocking=True)
            for job, each in zip(jobs, known, strict=True)
        ]
        encoding = self._model.begin_encode(patches, [job.item.geometry for job in jobs], known)
        return _Start(encoding, loans)
