"""Linear layers with weights packed once for the processor's matrix kernels.

oneDNN keeps a bf16 weight in blocked order; unpacked, torch repacks it on every call, which costs more than the
product itself when few tokens are decoded. The operator is not a public torch name, so it is tried at start.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from tapetum.ops.reference import Linear as PlainLinear

logger = logging.getLogger(__name__)


class PackedLinear:
    """`x @ weight.T + bias` with the weight in oneDNN's blocked order; same numbers as the plain product."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


def has_packed_linear() -> bool:
    """Whether this torch build packs bf16 weights and then computes what the plain product computes."""
    weight = torch.linspace(-1, 1, 32 * 64).view(32, 64).bfloat16()
    x, bias = torch.linspace(-1, 1, 3 * 64).view(3, 64).bfloat16(), torch.ones(32).bfloat16()
    try:
        packed = PackedLinear(weight, bias)(x)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        logger.info("packed bf16 weights are not available, the plain product is used: %s", error)
        return False
    is_same = torch.allclose(packed.float(), PlainLinear(weight, bias)(x).float(), rtol=2e-2, atol=2e-2)
    if not is_same:
        logger.warning("packed bf16 weights give other values, the plain product is used")
    return is_same
