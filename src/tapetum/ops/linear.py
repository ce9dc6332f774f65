"""Linear layers with weights packed once for the processor's matrix kernels.

oneDNN keeps a bf16 weight in blocked order; unpacked, torch repacks it on every call, which costs more than the
product itself when few tokens are decoded. The operator is not a public torch name, so it is tried at start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

logger = logging.getLogger(__name__)


class DenseLinear:
    """`activation(x @ weight.T + bias) + residual` by torch's own product."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str) -> None:
        self._weight, self._bias, self._activate = weight, bias, _ACTIVATIONS[activation]

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = self._activate(F.linear(x, self._weight, self._bias))
        return out if residual is None else out.add_(residual)


class PackedLinear:
    """The same with the weight in oneDNN's blocked order; same numbers as the plain product."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        self._bias, self._activate = bias, _ACTIVATIONS[activation]

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        out = self._activate(out)
        return out if residual is None else out.add_(residual)


def pack(weight: Tensor, bias: Tensor | None, activation: str) -> DenseLinear | PackedLinear:
    """Packed where the weight is bf16; the few weights that stay in float32 are not."""
    kind = PackedLinear if weight.dtype == torch.bfloat16 else DenseLinear
    return kind(weight, bias, activation)


def _quick_gelu(x: Tensor) -> Tensor:
    return torch.mul(x, 1.702).sigmoid_().mul_(x)


def _silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return _gelu_tanh(gate).mul_(up)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "quick_gelu": _quick_gelu,
    "gelu": F.gelu,
    "silu_mul": _silu_mul,
    "gelu_tanh": _gelu_tanh,
    "gelu_tanh_mul": _gelu_tanh_mul,
}


def has_packed_linear() -> bool:
    """Whether this torch build packs bf16 weights and then computes what the plain product computes."""
    weight = torch.linspace(-1, 1, 32 * 64).view(32, 64).bfloat16()
    x, bias = torch.linspace(-1, 1, 3 * 64).view(3, 64).bfloat16(), torch.ones(32).bfloat16()
    try:
        packed = PackedLinear(weight, bias, "none")(x)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        logger.info("packed bf16 weights are not available, the plain product is used: %s", error)
        return False
    is_same = torch.allclose(
        packed.float(), DenseLinear(weight, bias, "none")(x).float(), rtol=2e-2, atol=2e-2
    )
    if not is_same:
        logger.warning("packed bf16 weights give other values, the plain product is used")
    return is_same
