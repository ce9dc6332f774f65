"""What is remembered of references that were loaded before, by their aliases.

Owns three memories, each of which forgets what was used least recently: the finished items, up to a number of bytes;
the keys of those and of many more; and whether a picture is there to be read. Not safe for several threads at once:
the caller holds a lock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from tapetum.core.media import MediaItem

T = TypeVar("T")
MAX_REMEMBERED = 2**14  # references of which little is kept, some hundred bytes each


class Kept:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: OrderedDict[bytes, tuple[MediaItem, int]] = OrderedDict()
        self._keys: _Recent[bytes] = _Recent()
        self.is_dense: _Recent[bool] = _Recent()
        self.num_bytes = 0  # of patches

    def item(self, alias: bytes) -> MediaItem | None:
        found = self._items.get(alias)
        if found is None:
            return None
        self._items.move_to_end(alias)
        return found[0]

    def key(self, alias: bytes) -> bytes | None:
        """The media key of what was made before, be the item still there or not."""
        return self._keys.get(alias)

    def learn(self, alias: bytes, key: bytes) -> None:
        """What it is, though nobody has made it here."""
        self._keys.put(alias, key)

    def put(self, alias: bytes, item: MediaItem) -> None:
        self._keys.put(alias, item.key)
        size = memoryview(item.patches).nbytes  # type: ignore[arg-type]
        if size > self._max_bytes:
            return
        self._items[alias] = (item, size)
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            _, (_, freed) = self._items.popitem(last=False)
            self.num_bytes -= freed

    def clear(self) -> None:
        self._items.clear()
        self._keys.clear()
        self.is_dense.clear()
        self.num_bytes = 0


class _Recent(Generic[T]):
    """The values of the aliases that were used last."""

    def __init__(self) -> None:
        self._values: OrderedDict[bytes, T] = OrderedDict()

    def get(self, alias: bytes) -> T | None:
        if alias in self._values:
            self._values.move_to_end(alias)
        return self._values.get(alias)

    def put(self, alias: bytes, value: T) -> None:
        self._values[alias] = value
        self._values.move_to_end(alias)
        if len(self._values) > MAX_REMEMBERED:
            self._values.popitem(last=False)

    def clear(self) -> None:
        self._values.clear()
