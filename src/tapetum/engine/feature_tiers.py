"""The tiers behind the device as the engine sees them: features and aliases by the keys of media.

Owns the translation to entries and their names, and the check that an entry is what the encoder would have made, as far
as its form tells. Nothing here waits; answers come on the thread of the tiers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from tapetum.cache.names import alias_name, feature_name
from tapetum.cache.reserve import FeatureSource, Landed
from tapetum.cache.tiers import Entry, TierName
from tapetum.core.config import TierConfig
from tapetum.core.media import MediaItem
from tapetum.core.model import ModelFacts
from tapetum.core.plan import Payload
from tapetum.engine.tiers import Found, Load, Tiers

SOURCES: Mapping[TierName, FeatureSource] = {
    "host": "host",
    "disk": "disk",
    "redis": "remote",
    "s3": "remote",
}
_KEY_BYTES = 32
_MAX_KNOWN = 4096
OnFeatures = Callable[[Mapping[bytes, Landed]], None]  # by media key, those that are there
OnKeys = Callable[[Mapping[bytes, bytes]], None]  # media keys by alias, those that are known


def feature_tiers(tiers: Tiers | None, facts: ModelFacts, config: TierConfig) -> FeatureTiers | None:
    """None where features go nowhere."""
    if tiers is None or not tiers.has("features"):
        return None
    is_shared = any(url.scheme != "host" for url in config.urls()["features"])
    return FeatureTiers(tiers, facts, is_shared=is_shared)


class FeatureTiers:
    """`is_shared`: other processes may use them too."""

    def __init__(self, tiers: Tiers, facts: ModelFacts, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self._tiers = tiers
        self._facts = facts
        self._aliases: OrderedDict[bytes, None] = OrderedDict()  # saved not long ago
        self._seen: OrderedDict[bytes, FeatureSource] = (
            OrderedDict()
        )  # media keys, where they were found last

    def may_have(self, media_key: bytes) -> bool:
        """False where they are sure not to be."""
        return self._tiers.knows("features", self._name(media_key)) is not False

    def source(self, media_key: bytes) -> FeatureSource | None:
        """Where they are, as far as that is known without asking; else where they were found last."""
        tier = self._tiers.nearest("features", self._name(media_key))
        return self._seen.get(media_key) if tier is None else SOURCES[tier]

    def seconds(self, media_key: bytes, num_tokens: int) -> float:
        """Predicted for a load from where they lie, or else from where somebody would put them."""
        name = self._name(media_key)
        num_bytes = num_tokens * self._facts.feature_bytes_per_token
        is_known = self._tiers.knows("features", name)
        return self._tiers.seconds("features", num_bytes, name if is_known else None)

    def load(self, wanted: Mapping[bytes, int], on_done: OnFeatures, *, patience_s: float = 0.0) -> Load:
        """Visual tokens by media key -> the features of these, once; with patience those too that are still made."""
        names = {self._name(key): key for key in wanted}

        def tell(found: Mapping[bytes, Found]) -> None:
            entries = {names[name]: entry for name, entry in found.items()}
            landed = {
                key: _landed(entry) for key, entry in entries.items() if self._is_right(entry, wanted[key])
            }
            self._note(wanted, landed)
            on_done(landed)

        return self._tiers.load("features", names, tell, patience_s=patience_s)

    def save(self, media_key: bytes, payload: Payload, cost_s: float) -> None:
        self._tiers.save(
            Entry(
                kind="features",
                key=self._name(media_key),
                dtype=payload.dtype,
                shape=payload.shape,
                data=memoryview(payload.data),  # type: ignore[arg-type]
                cost_s=cost_s,
            )
        )

    def claim(self, media_key: bytes, seconds: float, on_done: Callable[[bool], None]) -> None:
        """Tell whether this process is the one to encode, for so long."""
        self._tiers.claim("features", self._name(media_key), seconds, on_done)

    def release(self, media_key: bytes) -> None:
        """Give the claim back, behind a save of the features if there is one."""
        self._tiers.release("features", self._name(media_key))

    def load_keys(self, aliases: Sequence[bytes], on_done: OnKeys) -> Load:
        names = {alias_name(alias, self._facts.encoder_fingerprint): alias for alias in aliases}

        def tell(found: Mapping[bytes, Found]) -> None:
            keys = {names[name]: bytes(entry.entry.data) for name, entry in found.items()}
            for alias in names.values():
                if alias not in keys:  # what the tiers have lost is saved again
                    self._aliases.pop(alias, None)
            on_done({alias: key for alias, key in keys.items() if len(key) == _KEY_BYTES})

        return self._tiers.load("alias", names, tell)

    def save_alias(self, item: MediaItem) -> None:
        """What the item was before it was decoded leads to it from now on."""
        if not item.alias or item.alias in self._aliases:
            return
        self._aliases[item.alias] = None
        if len(self._aliases) > _MAX_KNOWN:
            self._aliases.popitem(last=False)
        self._tiers.save(
            Entry(
                kind="alias",
                key=alias_name(item.alias, self._facts.encoder_fingerprint),
                dtype="uint8",
                shape=(len(item.key),),
                data=item.key,
                cost_s=item.decode_s + item.resize_s,
            )
        )

    def _note(self, wanted: Iterable[bytes], landed: Mapping[bytes, Landed]) -> None:
        """On the thread of the tiers alone."""
        for key in wanted:
            self._seen.pop(key, None)
            if key in landed and landed[key].source == "remote":  # others know by themselves what they have
                self._seen[key] = "remote"
        while len(self._seen) > _MAX_KNOWN:
            self._seen.popitem(last=False)

    def _name(self, media_key: bytes) -> bytes:
        return feature_name(media_key, self._facts.encoder_fingerprint)

    def _is_right(self, found: Found, num_tokens: int) -> bool:
        """An entry of another form is thrown away."""
        entry = found.entry
        is_right = (
            entry.dtype == self._facts.dtype
            and entry.shape[:1] == (num_tokens,)
            and memoryview(entry.data).nbytes == num_tokens * self._facts.feature_bytes_per_token
        )
        if not is_right:
            self._tiers.reject(found)
        return is_right


def _landed(found: Found) -> Landed:
    entry = found.entry
    return Landed(Payload(dtype=entry.dtype, shape=entry.shape, data=entry.data), SOURCES[found.tier])
