"""Geometries for tests that have patches and no picture."""

from __future__ import annotations

from collections.abc import Sequence

from tapetum.core.media import Geometry


def bare(grids: Sequence[tuple[int, int, int]]) -> list[Geometry]:
    """Of pictures of which only the patch grid matters."""
    return [
        Geometry(
            kind="image",
            original=(0, 0),
            used=(0, 0),
            frames=1,
            grid_thw=grid,
            num_tokens=0,
            segments=(),
        )
        for grid in grids
    ]
