"""Muon for the matrices of blocks, AdamW for the rest, on masters in shared memory.

The parameters are dealt out among the processes by cost, so that each does its share of every step. Muon follows
Keller Jordan's (momentum, then five Newton-Schulz iterations towards the nearest orthogonal matrix).
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from training.train.shared import SharedWeights

_ITERATIONS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """[N, a, b] -> about the nearest matrices with singular values 1, in bfloat16."""
    x = matrices.bfloat16()
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True).to(x.dtype) + 1e-7)
    for _ in range(_ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(
            x, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445
        )
    return x.mT if is_tall else x


def takes_muon(name: str, shape: torch.Size) -> bool:
    """The merger is left to AdamW: its square matrix alone would cost as much as the rest of the vision tower."""
    return len(shape) == 2 and any(part in name for part in ("blocks.", "layers."))


class Optimizer:
    """The share of one process. Nobody else writes the masters of these parameters."""

    def __init__(
        self, shared: SharedWeights, rank: int, num_processes: int, lr_muon: float, lr_adam: float
    ) -> None:
        self.shared, self.lr_muon, self.lr_adam = shared, lr_muon, lr_adam
        self.steps = 0
        muon, adam = _deal(shared, num_processes)[rank]
        self.groups: dict[tuple[int, int], list[int]] = {}  # matrices of one size go through together
        for i in muon:
            self.groups.setdefault(self._matrix(i), []).append(i)
        self.momenta = {i: torch.zeros(shared.shapes[i]) for i in muon}
        self.means = {i: torch.zeros(shared.shapes[i]) for i in adam}
        self.squares = {i: torch.zeros(shared.shapes[i]) for i in adam}

    @torch.no_grad()
    def step(self, rate: float, averaging: float, skip: str | None = None) -> None:
        """`rate` scales both learning rates; parameters whose names begin with `skip` rest."""
        self.steps += 1
        for size, members in self.groups.items():
            active = [i for i in members if not self._rests(i, skip)]
            if active:
                self._muon(size, active, rate, averaging)
        for i in self.means:
            if not self._rests(i, skip):
                self._adam(i, rate, averaging)

    def _rests(self, i: int, skip: str | None) -> bool:
        return skip is not None and self.shared.names[i].startswith(skip)

    def _matrix(self, i: int) -> tuple[int, int]:
        """Rows and columns; a joint projection of queries, keys and values is three matrices."""
        rows, columns = self.shared.shapes[i]
        return (rows // 3 if "attn.qkv" in self.shared.names[i] else rows), columns

    def _muon(self, size: tuple[int, int], members: list[int], rate: float, averaging: float) -> None:
        momentum = 0.95 if self.steps > 150 else 0.85 + 0.1 * self.steps / 150
        updates = []
        for i in members:
            gradient = self.shared.mean_gradient(i)
            self.momenta[i].lerp_(gradient, 1 - momentum)
            updates.append(gradient.lerp(self.momenta[i], momentum).view(-1, *size))
        stretch = max(1, size[0] / size[1]) ** 0.5
        changes = orthogonalise(torch.cat(updates)).float() * stretch
        for i, change in zip(members, changes.split([len(update) for update in updates]), strict=True):
            master = self.shared.view(self.shared.masters, i)
            lr = self.lr_muon * rate * (0.6 if self.shared.names[i].startswith("visual") else 1.0)
            master.mul_(1 - lr * 0.02).sub_(change.reshape(master.shape), alpha=lr)
            self.shared.publish(i, averaging)

    def _adam(self, i: int, rate: float, averaging: float) -> None:
        beta1, beta2 = 0.9, 0.98
        gradient, mean, square = self.shared.mean_gradient(i), self.means[i], self.squares[i]
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        unbiased = mean / (1 - beta1**self.steps)
        scale = (square / (1 - beta2**self.steps)).sqrt() + 1e-9
        master = self.shared.view(self.shared.masters, i)
        master.sub_(unbiased / scale, alpha=self.lr_adam * rate * self._factor(i))
        self.shared.publish(i, averaging)

    def _factor(self, i: int) -> float:
        """Vectors learn at half the rate, patch embedding and merger a little slower still."""
        if "patch_embed" in self.shared.names[i] or "merger.mlp" in self.shared.names[i]:
            return 0.4
        return 1.0 if len(self.shared.shapes[i]) > 1 else 0.5


def _deal(shared: SharedWeights, num_processes: int) -> list[tuple[list[int], list[int]]]:
    """For each process its Muon and its Adam parameters, the dearest dealt first to whoever has least.

    The layers of the decoder are dealt apart from the rest, since they rest while vision trains alone.
    """
    jobs = []
    for i, (name, shape) in enumerate(zip(shared.names, shared.shapes, strict=True)):
        is_muon = takes_muon(name, shape)
        seconds = _seconds(shape) if is_muon else 3e-9 * prod(shape)
        jobs.append((name.startswith("model.layers"), seconds, i, is_muon))
    loads = {group: [0.0] * num_processes for group in (False, True)}
    hands: list[tuple[list[int], list[int]]] = [([], []) for _ in range(num_processes)]
    for group, seconds, i, is_muon in sorted(jobs, reverse=True):
        rank = loads[group].index(min(loads[group]))
        loads[group][rank] += seconds
        hands[rank][0 if is_muon else 1].append(i)
    return hands


def _seconds(shape: torch.Size) -> float:
    """About what Muon costs: the products of the iterations, and reading the matrix."""
    short, long = min(shape), max(shape)
    return 40 * short**2 * long / 2e11 + 1e-9 * prod(shape)
