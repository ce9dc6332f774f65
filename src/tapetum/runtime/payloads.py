"""Tensors as bytes in the memory of the host, and back.

On a CPU both share their memory where that can be: what travels so never changes. From another device the bytes are
copied beside its work, and are there when the step is over; whoever reads them earlier reads nonsense.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tapetum.core.plan import Payload

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def payload_of(tensor: Tensor) -> Payload:
    if tensor.device.type != "cpu":
        copied = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        tensor = copied.copy_(tensor, non_blocking=True)
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Payload(dtype=dtype, shape=tuple(tensor.shape), data=flat.numpy().data)


def tensor_of(payload: Payload, device: torch.device) -> Tensor:
    """Raises ValueError for bytes that are not of the payload's type and shape."""
    dtype = _DTYPES[payload.dtype]
    data = memoryview(payload.data).cast("B")  # type: ignore[arg-type]
    wanted = math.prod(payload.shape) * dtype.itemsize
    if data.nbytes != wanted:
        raise ValueError(
            f"a payload of {payload.dtype} {payload.shape} has {data.nbytes} bytes, not {wanted}"
        )
    flat = torch.frombuffer(bytearray(data) if data.readonly else data, dtype=torch.uint8)
    if flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()
    return flat.view(dtype).view(payload.shape).to(device, non_blocking=True)


def joined(payloads: Sequence[Payload], shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Several of one shape as one tensor of the host, [n, *shape]. Raises ValueError for bytes of another size."""
    data = bytearray().join(memoryview(payload.data) for payload in payloads)  # type: ignore[arg-type]
    wanted = len(payloads) * math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise ValueError(f"{len(payloads)} payloads of {tuple(shape)} have {len(data)} bytes, not {wanted}")
    return torch.frombuffer(data, dtype=dtype).view(len(payloads), *shape)
