"""ModelRunner: the two kinds of device work, encode and forward, over the stores it alone writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tapetum.core.errors import EngineError, TapetumError
from tapetum.core.media import MediaItem
from tapetum.core.plan import Row
from tapetum.models.base import VisionLanguageModel
from tapetum.runtime.inputs import TokenBook, build_inputs
from tapetum.runtime.store import FeatureStore, KVStore


class ModelRunner:
    def __init__(
        self, model: VisionLanguageModel, kv: KVStore, features: FeatureStore, book: TokenBook
    ) -> None:
        self._model, self._kv, self._features, self._book = model, kv, features, book

    def encode(self, items: Sequence[MediaItem]) -> Mapping[bytes, TapetumError]:
        """Encode items into the feature store; what failed comes back by media key."""
        try:
            self._encode(items)
            return {}
        except (RuntimeError, ValueError) as error:
            if len(items) == 1:
                return {items[0].key: EngineError(f"a picture could not be encoded: {error}")}
        failed: dict[bytes, TapetumError] = {}
        for item in items:  # one bad item must not take the others with it
            failed.update(self.encode([item]))
        return failed

    def forward(self, rows: Sequence[Row]) -> tuple[Tensor, tuple[str, ...]]:
        """Run all rows through the decoder -> (logits [rows that sample, vocabulary], their request ids)."""
        spec = self._model.spec
        inputs = build_inputs(rows, self._book, self._kv.block_size, spec.dtype, spec.device)
        x = self._model.embed(inputs.token_ids)
        for copy in inputs.copies:
            features = self._features.get(copy.key)
            x[copy.start : copy.end] = features[copy.offset : copy.offset + copy.end - copy.start]
        hidden = self._model.forward(x, inputs.position_ids, self._kv.layers, inputs.layout)
        if not inputs.sample_ids:
            return hidden, ()
        return self._model.logits(hidden), inputs.sample_ids

    def _encode(self, items: Sequence[MediaItem]) -> None:
        device = self._model.spec.device
        patches = [torch.from_numpy(np.asarray(item.patches)).to(device, non_blocking=True) for item in items]
        grids = [item.geometry.grid_thw for item in items]
        for item, features in zip(items, self._model.encode(patches, grids), strict=True):
            # A copy, so that one picture does not keep the memory of the whole batch alive.
            self._features.put(item.key, features.clone())
