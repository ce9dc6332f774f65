"""PromptBlocks: what the blocks of one request are made of, what they take to compute again, and what they are called.

Worked out as far as somebody asks, once. Owns no block.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from tapetum.cache.blocks import Tag
from tapetum.cache.keys import BlockKey, SpanPart, span_parts, tag_of
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.request import Request
from tapetum.core.tenant import account_of


class PromptBlocks:
    """`fingerprints` = all that KV depends on besides tokens and tenant."""

    def __init__(
        self, request: Request, block_size: int, fingerprints: tuple[Hashable, ...], cost: CostModel
    ) -> None:
        self.root = (request.tenant, *fingerprints)
        self.account = account_of(request.tenant)  # that its blocks are counted under
        self._prompt = request.prompt
        self._size = block_size
        self._cost = cost
        self._parts = span_parts(self._prompt.spans, len(self._prompt.token_ids), block_size)
        self._keys: list[BlockKey] = []
        self._encode_s: dict[bytes, float] = {}  # by media key, of one token

    @property
    def num_reusable(self) -> int:
        """Full blocks strictly below the last token of the prompt."""
        return (len(self._prompt.token_ids) - 1) // self._size

    def keys(self, num_blocks: int, output_token_ids: Sequence[int] = ()) -> list[BlockKey]:
        """Of the first so many blocks, which must be full."""
        prompt, size = self._prompt.token_ids, self._size
        num_prompt = len(prompt)
        for index in range(len(self._keys), num_blocks):
            start, end = index * size, (index + 1) * size
            token_ids = prompt[start:end]
            if end > num_prompt:
                first = start - num_prompt if start > num_prompt else 0
                token_ids = (*token_ids, *output_token_ids[first : end - num_prompt])
            self._keys.append(BlockKey(token_ids, self.parts(index)))
        return self._keys[:num_blocks]

    def parts(self, index: int) -> tuple[SpanPart, ...]:
        return self._parts[index] if index < len(self._parts) else ()

    def tag(self, index: int) -> Tag:
        return tag_of(self._parts[index], self._size) if index < len(self._parts) else "text"

    def cost_s(self, index: int, encoded: Collection[bytes] = ()) -> float:
        """Predicted seconds to compute a block again: its tokens behind those before it, its share of encodes.

        `encoded`: media keys of pictures that need no encode.
        """
        *_, per_token, per_pair = self._cost.step_coefficients
        prefill_s = per_token * self._size + per_pair * chunk_context(index * self._size, self._size)
        parts = self.parts(index)
        if not parts:  # as nearly all
            return prefill_s
        if not self._encode_s:
            for span in self._prompt.spans:
                geometry = span.item.geometry
                whole_s = self._cost.encode_seconds(geometry.num_patches, geometry.squares)
                self._encode_s[span.key] = whole_s / (span.end - span.start)
        return prefill_s + sum(
            self._encode_s[part.media_key] * (part.last - part.first)
            for part in parts
            if part.media_key not in encoded
        )
