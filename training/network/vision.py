"""The vision tower of Qwen2-VL: patches to features, one per 2 x 2 patches.

Names of parameters are those of published checkpoints. N pictures of one grid (w, h) in cells, P = 4 * w * h patches.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.network.attention import attend_without_bias, rotate
from training.network.config import NetworkConfig

_SLOPE = 1.702  # of the quick GELU: x * sigmoid(1.702 x)


class _PatchEmbed(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        size = (config.temporal_patch_size, config.patch_size, config.patch_size)
        self.proj = nn.Conv3d(3, config.vision_size, size, stride=size, bias=False)  # holds the weight only

    def forward(self, patches: Tensor) -> Tensor:
        weight = self.proj.weight
        if patches.shape[-1] == weight[0, :, 0].numel():  # a still picture: both times see the same patch
            weight = weight[:, :, 0] + weight[:, :, 1]
        return F.linear(patches, weight.reshape(weight.shape[0], -1))


class _Attention(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.heads = config.vision_heads
        self.qkv = nn.Linear(config.vision_size, 3 * config.vision_size)
        self.proj = nn.Linear(config.vision_size, config.vision_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        N, P, width = x.shape
        qkv = self.qkv(x).view(N, P, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, N * self.heads, P, width // self.heads).unbind(0)
        out = attend_without_bias(rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self.proj(out.view(N, self.heads, P, -1).transpose(1, 2).reshape(N, P, width))


class _FeedForward(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.vision_size, config.vision_ratio * config.vision_size)
        self.fc2 = nn.Linear(config.vision_ratio * config.vision_size, config.vision_size)

    def forward(self, x: Tensor) -> Tensor:
        # silu(1.702 x) / 1.702, with the factors in the weights: one pass over the wide states instead of three
        x = F.silu(F.linear(x, self.fc1.weight * _SLOPE, self.fc1.bias * _SLOPE))
        return F.linear(x, self.fc2.weight / _SLOPE, self.fc2.bias)


class _Block(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.vision_size, 1e-6)
        self.norm2 = nn.LayerNorm(config.vision_size, 1e-6)
        self.attn = _Attention(config)
        self.mlp = _FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class _Merger(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        merged = config.merge_size**2 * config.vision_size
        self.ln_q = nn.LayerNorm(config.vision_size, 1e-6)
        self.mlp = nn.ModuleList(
            [nn.Linear(merged, merged), nn.GELU(), nn.Linear(merged, config.hidden_size)]
        )

    def forward(self, states: Tensor, num_cells: int) -> Tensor:
        x = states.view(states.shape[0], num_cells, -1)
        for layer in self.mlp:
            x = layer(x)
        return x


class VisionTower(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = _PatchEmbed(config)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.vision_depth))
        self.merger = _Merger(config)

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """[N, P, values] -> features [N, P / 4, hidden] and, for the trainer, patch states [N, P, vision]."""
        x = self.patch_embed(patches)
        cos, sin = self._angles(grid, x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        states = self.merger.ln_q(x)
        return self.merger(states, grid[0] * grid[1]), states

    def _angles(self, grid: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rotary angles of rows, then of columns, in the order of the patches: [P, head width / 2]."""
        width, height = grid
        count = self.config.vision_size // self.config.vision_heads // 4
        frequencies = 10000.0 ** (-torch.arange(count).float() / count)
        rows = torch.arange(height * 2)[:, None].expand(height * 2, width * 2)
        columns = torch.arange(width * 2)[None].expand(height * 2, width * 2)
        angles = torch.cat([_merge_order(axis, grid)[:, None] * frequencies for axis in (rows, columns)], 1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def _merge_order(values: Tensor, grid: tuple[int, int]) -> Tensor:
    """[2h, 2w] -> [P], the 2 x 2 patches of a cell together."""
    width, height = grid
    return values.reshape(height, 2, width, 2).permute(0, 2, 1, 3).reshape(-1)
