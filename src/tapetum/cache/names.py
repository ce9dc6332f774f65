"""What features, aliases and KV blocks are called in stores that outlive this process and may be shared with others.

A name says everything that its entry depends on: whoever has another encoder, or would decode otherwise, looks
elsewhere and finds nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable
from hashlib import blake2b

from tapetum.cache.keys import BlockKey


def feature_name(media_key: bytes, encoder_fingerprint: bytes) -> bytes:
    """Of what an encoder makes of a picture or clip."""
    return _digest(b"features 1", media_key, encoder_fingerprint)


def alias_name(alias: bytes, encoder_fingerprint: bytes) -> bytes:
    """Of the media key behind an alias, for those whose features it may lead to."""
    return _digest(b"alias 1", alias, encoder_fingerprint)


def kv_root_name(root: Iterable[Hashable], block_size: int) -> bytes:
    """Of all that keys and values depend on beside tokens: tenant, weights, number format, layout."""
    fields = [b"bytes " + field if isinstance(field, bytes) else f"text {field}".encode() for field in root]
    return _digest(b"kv 1", *fields, struct.pack("<I", block_size))


def block_name(parent: bytes, key: BlockKey) -> bytes:
    """Of the block behind that of the name `parent`, or behind the root: of all tokens and pictures up to its end."""
    parts = (
        struct.pack(
            f"<QQQq{len(part.placement)}d", part.first, part.last, part.offset, part.position, *part.placement
        )
        for part in key.parts
    )
    pictures = (part.media_key for part in key.parts)
    return _digest(parent, struct.pack(f"<{len(key.token_ids)}q", *key.token_ids), *pictures, *parts)


def _digest(*fields: bytes) -> bytes:
    hasher = blake2b(digest_size=32)
    for field in fields:
        hasher.update(struct.pack("<Q", len(field)) + field)
    return hasher.digest()
