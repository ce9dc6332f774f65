"""What makes the contents of a KV block: its token ids and the parts of pictures that lie in it.

Pure functions. Placeholder ids are the same for all pictures, so the ids alone never identify a block: the key also
says which picture, from where in it, placed how. Keys are plain tuples: a dictionary narrows by their hash and
decides by comparing every field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tapetum.cache.blocks import Tag
from tapetum.core.media import Span


class SpanPart(NamedTuple):
    """The tokens `[first, last)` of a block that belong to one picture, which has `offset` tokens before them."""

    first: int
    last: int
    media_key: bytes
    offset: int
    placement: tuple[float, ...]
    position: int = 0  # of the picture's first token, which what stands before it decides


class BlockKey(NamedTuple):
    token_ids: tuple[int, ...]
    parts: tuple[SpanPart, ...]


def span_parts(spans: Sequence[Span], num_tokens: int, block_size: int) -> list[tuple[SpanPart, ...]]:
    """The picture parts of each block of a prompt, the last partial block included."""
    blocks: list[tuple[SpanPart, ...]] = [()] * -(-num_tokens // block_size)
    for span in spans:
        for index in range(span.start // block_size, -(-span.end // block_size)):
            origin = index * block_size
            first, last = max(span.start, origin), min(span.end, origin + block_size)
            part = SpanPart(
                first - origin, last - origin, span.key, first - span.start, span.placement, span.position
            )
            blocks[index] = (*blocks[index], part)
    return blocks


def tag_of(parts: Sequence[SpanPart], block_size: int) -> Tag:
    if not parts:
        return "text"
    covered = sum(part.last - part.first for part in parts)
    return "visual" if covered == block_size else "mixed"
