"""What a step of a model takes of memory beside weights and caches, from the sizes in its config files.

An upper bound that is close: of every tensor that lives at the same time, by what the operations allocate, those of
torch where they take more than the native ones. Tests hold it against what the allocator saw, in every family.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch

from tapetum.core.footprint import StepMemory
from tapetum.models.decoder_config import DecoderConfig
from tapetum.models.encoding import MAX_ROWS
from tapetum.models.vit import BlockConfig

_WIDE = 4  # bytes of a float32
_CHOICE_BYTES = 9 * _WIDE  # of a token that a random choice looks at: copies, their order, and sums
_INDEX_BYTES = 96  # of a patch: where it lies, and the shares of learned positions around it
_SIDES = ("merge_size", "pool_size")  # what families call the side of the square that becomes a visual token


def step_memory(decoder: DecoderConfig, vision: object, feature_size: int, dtype: torch.dtype) -> StepMemory:
    """`vision` = the frozen numbers of a tower, as a blueprint holds them; None for a model of text."""
    size = dtype.itemsize
    block = next(_blocks(vision), None)
    return StepMemory(
        token_bytes=_token_bytes(decoder, size),
        score_bytes=decoder.vocab_size * size,
        choice_bytes=decoder.vocab_size * _CHOICE_BYTES,
        patch_bytes=0 if block is None else _patch_bytes(block, size),
        visual_token_bytes=0 if block is None else feature_size * size,
        slice_bytes=0 if block is None else MAX_ROWS * _row_bytes(block, vision, feature_size, size),
    )


def _token_bytes(decoder: DecoderConfig, size: int) -> int:
    """Of a token on its way through a layer: the residual, norms in float32, queries to values, and the MLP."""
    hidden = decoder.hidden_size
    heads = decoder.num_heads * decoder.head_dim
    joined = heads + 2 * decoder.num_kv_heads * decoder.head_dim
    inner = decoder.intermediate_size
    if decoder.experts is not None:
        inner = max(inner, decoder.experts.intermediate_size + hidden)
    attend = size * (2 * joined + 2 * heads)
    feed = size * 3 * inner
    turns = 2 * len(decoder.ropes) * decoder.head_dim * _WIDE
    return size * 3 * hidden + 2 * _WIDE * hidden + max(attend, feed) + turns


def _patch_bytes(block: BlockConfig, size: int) -> int:
    """Kept from the first slice of an encode to its last: values, queries to values, packed keys, raw bytes."""
    head = -(-block.width // block.num_heads // 16) * 16  # as wide as packed keys are
    return size * (4 * block.width + 2 * head * block.num_heads + 2 * head) + _INDEX_BYTES


def _row_bytes(block: BlockConfig, vision: object, feature_size: int, size: int) -> int:
    """Of a row of a slice in a layer or, where that is more, of a visual token in the projector."""
    layer = size * (block.in_width + block.mlp_width + 4 * block.width) + 2 * _WIDE * block.width
    side = max(int(getattr(vision, name, 1)) for name in _SIDES)
    return max(layer, side**2 * block.width * (2 * size + _WIDE) + 2 * feature_size * size)


def _blocks(record: object) -> Iterator[BlockConfig]:
    if isinstance(record, BlockConfig):
        yield record
    elif is_dataclass(record):
        for item in fields(record):
            yield from _blocks(getattr(record, item.name))
