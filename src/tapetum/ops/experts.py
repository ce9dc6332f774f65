"""A mixture of experts: a router sends each token to a few of many gated MLPs.

Tokens of one expert go through it together; what an expert gives a token is added in the order of the experts, in
float32, so that a token's bits do not depend on its neighbours.

T tokens, k chosen experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from tapetum.ops.parts import GatedMlp, Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    router: Linear  # hidden -> a score for each expert
    mlps: Sequence[GatedMlp]
    num_chosen: int
    is_normalised: bool  # the shares of the chosen add to 1

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """x [T, hidden] -> [T, hidden]"""
        shares, chosen = self._route(x)
        order = chosen.flatten().argsort(stable=True)  # pairs of token and expert, by expert
        tokens, shares = order // self.num_chosen, shares.flatten()[order, None]
        counts = torch.bincount(chosen.flatten(), minlength=len(self.mlps)).tolist()
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        start = 0
        for mlp, count in zip(self.mlps, counts, strict=True):
            if count:
                part = slice(start, start + count)
                total.index_add_(0, tokens[part], mlp(x[tokens[part]]).float().mul_(shares[part]))
                start += count
        return (total if residual is None else total.add_(residual)).to(x.dtype)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The share and the number of each chosen expert [T, k], from the best down; shares rounded as x."""
        shares, chosen = self.router(x).float().softmax(-1).topk(self.num_chosen, -1)
        if self.is_normalised:  # added one by one: the order of a sum may depend on how many rows it has
            shares = shares / reduce(torch.add, shares.unbind(-1))[:, None]
        return shares.to(x.dtype).float(), chosen
