"""ModelRunner: rows through the decoder, over the stores of keys, values and features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tapetum.core.plan import Row
from tapetum.models.base import VisionLanguageModel
from tapetum.ops.parts import DeepFeatures
from tapetum.runtime.inputs import TokenBook, build_inputs
from tapetum.runtime.store import FeatureStore, KVStore


@dataclass(frozen=True, slots=True)
class Scored:
    """What the rows of a step that sample choose from."""

    logits: Tensor  # [rows, vocabulary]
    best: list[int]  # the best token of each row, or -1 where the best logit is not finite
    request_ids: tuple[str, ...]


class ModelRunner:
    def __init__(
        self, model: VisionLanguageModel, kv: KVStore, features: FeatureStore, book: TokenBook
    ) -> None:
        self._model, self._kv, self._features, self._book = model, kv, features, book

    def forward(self, rows: Sequence[Row]) -> Scored | None:
        """Run all rows through the decoder; None where none samples."""
        spec = self._model.spec
        inputs = build_inputs(rows, self._book, self._kv.block_size, spec.dtype, spec.device)
        x = self._model.embed(inputs.token_ids)
        deep: list[DeepFeatures] = []
        for copy in inputs.copies:
            features = self._features.get(copy.key)[copy.offset : copy.offset + copy.end - copy.start]
            x[copy.start : copy.end] = features[:, : spec.hidden_size]
            if spec.feature_size > spec.hidden_size:
                deep.append(DeepFeatures(copy.start, copy.end, features[:, spec.hidden_size :].contiguous()))
        hidden = self._model.forward(x, inputs.position_ids, self._kv.layers, inputs.layout, deep)
        if not inputs.sample_ids:
            return None
        logits, best = self._model.head(hidden)
        return Scored(logits, best.tolist(), inputs.sample_ids)
