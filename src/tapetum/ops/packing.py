"""How an operation table keeps matrices, when it keeps them in a form of its own that may outlive the process."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tapetum.ops.parts import Activation, Linear


class Packing(Protocol):
    """A matrix is [outputs, inputs], with a gate [2 outputs, inputs]; packed it is a run of bytes, uint8."""

    @property
    def layout(self) -> str:
        """Bytes that were packed under another layout cannot be read."""

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype, activation: Activation) -> int: ...

    def pack(self, weight: Tensor, activation: Activation, memory: Tensor) -> None:
        """Write all of `memory`, which holds `num_bytes`."""

    def linear(
        self,
        memory: Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        bias: Tensor | None,
        activation: Activation,
    ) -> Linear:
        """The layer that reads `memory`, which stays as it is."""
