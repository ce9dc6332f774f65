"""What the runtime asks of a model: encode pictures, embed tokens, run the decoder, give logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tapetum.core.footprint import StepMemory
from tapetum.core.media import Geometry
from tapetum.models.encoding import Encoding, KnownParts
from tapetum.ops.layout import AttentionLayout
from tapetum.ops.parts import DeepFeatures
from tapetum.ops.table import OpTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Sizes of a loaded model."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    dtype: torch.dtype
    device: torch.device
    feature_size: int  # values of a visual token: hidden_size, and as many again for each deep level
    step: StepMemory
    # of each layer, the angle by which each pair of values of a key is turned with a position, [layers, D / 2]
    key_frequencies: tuple[tuple[float, ...], ...]
    has_windows: bool = False  # its encoder does, and its first layers see nothing beyond them


class VisionLanguageModel(Protocol):
    """Three stages of one checkpoint; written for one device. T packed tokens, R rows that sample."""

    spec: ModelSpec
    weights_fingerprint: bytes
    encoder_fingerprint: bytes
    ops: OpTable  # of the decoder

    def begin_encode(
        self, patches: Sequence[Tensor], geometries: Sequence[Geometry], known: Sequence[KnownParts] = ()
    ) -> Encoding:
        """uint8 patches [P, values] of items -> an encode of [visual tokens, feature_size] per item.

        `known` of each item, or of none. The features of tiles that are left out are undefined.
        """
        ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T] -> [T, hidden]."""
        ...

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor,
        caches: Sequence[Tensor],
        layout: AttentionLayout,
        deep: Sequence[DeepFeatures] = (),
    ) -> Tensor:
        """x [T, hidden], position_ids [3, T]; writes K and V into caches -> hidden states [R, hidden]."""
        ...

    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[R, hidden] -> logits [R, vocabulary], best token of each row [R], -1 where its logit is not finite."""
        ...
