"""All weights in flat buffers that the processes share.

bfloat16 weights to compute with, float32 masters, float32 averages, and a gradient buffer for each process. A network
bound to them reads and writes these buffers directly.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

_ALIGNMENT = 32  # values


class SharedWeights:
    def __init__(self, network: nn.Module, num_processes: int) -> None:
        parameters = dict(network.named_parameters())
        self.names = list(parameters)
        self.shapes = [parameter.shape for parameter in parameters.values()]
        self.offsets, size = [], 0
        for shape in self.shapes:
            self.offsets.append(size)
            size += -(-prod(shape) // _ALIGNMENT) * _ALIGNMENT
        self.weights = torch.zeros(size, dtype=torch.bfloat16).share_memory_()
        self.masters = torch.zeros(size).share_memory_()
        self.averages = torch.zeros(size).share_memory_()
        self.gradients = [
            torch.zeros(size, dtype=torch.bfloat16).share_memory_() for _ in range(num_processes)
        ]
        for i, parameter in enumerate(parameters.values()):
            self.view(self.masters, i).copy_(parameter.data)
        self.weights.copy_(self.masters)
        self.averages.copy_(self.masters)

    def view(self, buffer: Tensor, i: int) -> Tensor:
        """Parameter number i in one of the buffers."""
        shape = self.shapes[i]
        return buffer[self.offsets[i] : self.offsets[i] + prod(shape)].view(shape)

    def bind(self, network: nn.Module, rank: int) -> None:
        """Let a network compute with the shared weights and leave its gradients in its own buffer."""
        for i, parameter in enumerate(network.parameters()):
            parameter.data = self.view(self.weights, i)
            parameter.grad = self.view(self.gradients[rank], i)

    def mean_gradient(self, i: int) -> Tensor:
        total = sum((self.view(buffer, i).float() for buffer in self.gradients), torch.zeros(()))
        return total / len(self.gradients)

    def publish(self, i: int, averaging: float) -> None:
        """After a change of master i: renew the weight and move the average."""
        master = self.view(self.masters, i)
        self.view(self.weights, i).copy_(master)
        self.view(self.averages, i).lerp_(master, 1 - averaging)

    def save(self, path: Path, step: int, progress: float) -> None:
        """A checkpoint: averages in bfloat16 for the export, masters to go on from."""
        content = {
            "averages": {name: self.view(self.averages, i).bfloat16() for i, name in enumerate(self.names)},
            "masters": {name: self.view(self.masters, i).clone() for i, name in enumerate(self.names)},
            "step": step,
            "progress": progress,
        }
        unfinished = path.with_suffix(".tmp")
        torch.save(content, unfinished)
        unfinished.replace(path)
