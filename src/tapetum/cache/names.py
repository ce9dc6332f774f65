"""What features and aliases are called in stores that outlive this process and may be shared with others.

A name says everything that its entry depends on: whoever has another encoder, or would decode otherwise, looks
elsewhere and finds nothing.
"""

from __future__ import annotations

import struct
from hashlib import blake2b


def feature_name(media_key: bytes, encoder_fingerprint: bytes) -> bytes:
    """Of what an encoder makes of a picture or clip."""
    return _digest(b"features 1", media_key, encoder_fingerprint)


def alias_name(alias: bytes, encoder_fingerprint: bytes) -> bytes:
    """Of the media key behind an alias, for those whose features it may lead to."""
    return _digest(b"alias 1", alias, encoder_fingerprint)


def _digest(*fields: bytes) -> bytes:
    hasher = blake2b(digest_size=32)
    for field in fields:
        hasher.update(struct.pack("<Q", len(field)) + field)
    return hasher.digest()
