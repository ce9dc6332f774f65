"""Identity of the tiles and windows of pictures and clips.

A part's key names all that decides what the encoder makes of it: its raw bytes, the parameters of the processing, its
form (processing/parts.py) and the tenant. It is made as a media key is. Two parts share no key unless they are of one
tenant and equal in all of that.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tapetum.core.media import Part, ProcessorMode
from tapetum.media.keys import digest
from tapetum.processing.parts import PartPlace


def keyed_parts(
    patches: NDArray[np.uint8],
    places: Sequence[PartPlace],
    *,
    parameters: Mapping[str, int],
    tenant: str,
    processor: ProcessorMode = "exact",
) -> tuple[Part, ...]:
    """The parts of an item whose patches are [P, C]."""
    shared = digest(
        (
            ("what", "parts 1"),
            ("tenant", tenant),
            ("processor", processor),
            ("values", patches.shape[1]),
            *sorted(parameters.items()),
        )
    )
    rows = np.ascontiguousarray(patches)
    return tuple(Part(key=_key(shared, rows, place), runs=place.runs) for place in places)


def _key(shared: bytes, rows: NDArray[np.uint8], place: PartPlace) -> bytes:
    form = struct.pack(f">{len(place.form)}q", *place.form)
    pixels = (("pixels", rows[start:end].reshape(-1).data) for start, end in place.patches)
    return digest((("shared", shared), ("form", form), *pixels))
