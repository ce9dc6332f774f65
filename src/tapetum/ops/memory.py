"""Memory for what is read in every step, in huge pages where the system gives them.

A decode reads all weights; with pages of 4 KiB the processor spends a quarter of that time looking up addresses.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor

HUGE_PAGE = 2 * 1024**2


def allocate(num_bytes: int) -> Tensor:
    """Zeroes in a mapping of their own that begins at a huge page, uint8 [num_bytes]; untouched it costs nothing."""
    mapping = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advise_huge(mapping)
    whole = torch.frombuffer(mapping, dtype=torch.uint8)  # which keeps the mapping
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + num_bytes]


def advise_huge(mapping: mmap.mmap) -> None:
    """Ask for huge pages; a system that has none goes on with small ones."""
    with suppress(OSError, AttributeError):
        mapping.madvise(mmap.MADV_HUGEPAGE)
