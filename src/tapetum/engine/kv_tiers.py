"""The tiers behind the device as the engine sees them: KV blocks by their names.

Owns the translation to entries, and the check that an entry is a block of this model, as far as its form tells. Nothing
here waits; answers come on the thread of the tiers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tapetum.cache.tiers import Entry
from tapetum.cache.traffic import Exported
from tapetum.core.model import ModelFacts
from tapetum.core.plan import Payload
from tapetum.engine.tiers import Found, Load, Tiers

_AT_ONCE = 4  # reads of a store
OnBlocks = Callable[[Mapping[bytes, Payload]], None]  # by name, those that are there


def kv_tiers(tiers: Tiers | None, facts: ModelFacts) -> KvTiers | None:
    """None where keys and values go nowhere."""
    return None if tiers is None or not tiers.has("kv") else KvTiers(tiers, facts)


class KvTiers:
    def __init__(self, tiers: Tiers, facts: ModelFacts) -> None:
        self._tiers = tiers
        self._dtype = facts.dtype
        self._block_bytes = facts.block_size * facts.kv_bytes_per_token

    def knows(self, name: bytes) -> bool | None:
        """Whether it is there; None = only a load can tell."""
        return self._tiers.knows("kv", name)

    def seconds(self, num_blocks: int, name: bytes | None = None) -> float:
        """Predicted for a load of so many, the first of them of that name, from the slowest place that may have it."""
        return self._tiers.seconds("kv", num_blocks * self._block_bytes, name) + (
            num_blocks - 1
        ) / _AT_ONCE * self._tiers.seconds("kv", 0, name)

    def load(self, names: Sequence[bytes], on_done: OnBlocks) -> Load:
        def tell(found: Mapping[bytes, Found]) -> None:
            on_done({name: _payload(one) for name, one in found.items() if self._is_right(one)})

        return self._tiers.load("kv", names, tell)

    def save(self, exported: Exported) -> None:
        payload = exported.payload
        self._tiers.save(
            Entry(
                kind="kv",
                key=exported.name,
                dtype=payload.dtype,
                shape=payload.shape,
                data=memoryview(payload.data),  # type: ignore[arg-type]
                cost_s=exported.cost_s,
            )
        )

    def use(self, names: Sequence[bytes]) -> None:
        """Blocks that were saved before were used on the device."""
        self._tiers.use("kv", names)

    def _is_right(self, found: Found) -> bool:
        """An entry of another form is thrown away."""
        entry = found.entry
        is_right = entry.dtype == self._dtype and memoryview(entry.data).nbytes == self._block_bytes
        if not is_right:
            self._tiers.reject(found)
        return is_right


def _payload(found: Found) -> Payload:
    entry = found.entry
    return Payload(dtype=entry.dtype, shape=entry.shape, data=entry.data)
