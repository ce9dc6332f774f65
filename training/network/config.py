"""The sizes of tapetum-mini."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    vocab_size: int = 2896
    hidden_size: int = 256
    num_layers: int = 6
    num_heads: int = 8
    num_kv_heads: int = 4
    intermediate_size: int = 768
    rope_theta: float = 1000.0
    mrope_section: tuple[int, int, int] = (1, 3, 12)  # frequencies for time, height, width
    norm_eps: float = 1e-6
    vision_size: int = 192
    vision_depth: int = 6
    vision_heads: int = 3
    vision_ratio: int = 4  # width of the feed-forward in widths of the tower
    patch_size: int = 14
    merge_size: int = 2
    temporal_patch_size: int = 2

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def value_size(self) -> int:
        """Values of one token, all heads together."""
        return self.num_kv_heads * self.head_size

    @property
    def patch_values(self) -> int:
        """Values of a still patch."""
        return 3 * self.patch_size**2
