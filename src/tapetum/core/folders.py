"""Where files of this user go that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache(part: str) -> Path | None:
    """The folder for `part` by the XDG rules; None for a user without a home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # which the rules say is to be ignored
        base = os.path.expanduser("~/.cache")
    return Path(base, "tapetum", part) if os.path.isabs(base) else None
