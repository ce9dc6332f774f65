"""Reservations: pictures that the front need not decode, since the engine has their features or can load them.

The front asks with what a picture was called before it was decoded. What the engine has, or the tiers are predicted to
bring before an encode would, is kept within reach for the request until that ends (cache/reserve.py), and the request
may come without pixels. What it has not the front decodes. All methods may be called from any thread: nobody waits for
a step.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from tapetum.cache.reserve import Landed
from tapetum.cache.visual import VisualCache
from tapetum.core.cost import CostModel
from tapetum.engine.feature_tiers import FeatureTiers

Reserved = tuple[bytes | None, ...]  # media keys, None for what has to be decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A picture or clip that has not been decoded."""

    alias: bytes
    key: bytes | None  # of the media item, where that is known
    num_tokens: int  # visual ones
    segments: tuple[int, ...]  # patches of each attention segment


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    request_id: str
    wanted: tuple[Wanted, ...]
    answer: Future[Reserved]


class Reservations:
    def __init__(self, tiers: FeatureTiers | None, visual: VisualCache, cost: CostModel) -> None:
        self._tiers = tiers
        self._visual = visual
        self._cost = cost
        self._lock = threading.Lock()
        self._open: dict[str, _Question] = {}  # by request id

    @property
    def num_open(self) -> int:
        """Questions that are not answered."""
        return len(self._open)

    def ask(self, request_id: str, wanted: tuple[Wanted, ...]) -> Future[Reserved]:
        """Who asks adds the request then, or calls `let_go`, also when tired of waiting."""
        question = _Question(request_id, wanted, Future())
        with self._lock:
            self._open[request_id] = question
        unknown = [each.alias for each in wanted if each.key is None]
        if self._tiers is not None and unknown:
            self._tiers.load_keys(unknown, partial(self._named, question))
        else:
            self._named(question, {})
        return question.answer

    def let_go(self, request_id: str) -> None:
        """Of what a request has reserved that will not be added; an open question gets no answer."""
        with self._lock:
            question = self._open.pop(request_id, None)
            self._visual.reserve.let_go(request_id)
        if question is not None:
            question.answer.cancel()

    def _named(self, question: _Question, keys: Mapping[bytes, bytes]) -> None:
        """Media keys are known as far as they can be: reserve what is here, and look for the rest."""
        known = {each.alias: each.key or keys.get(each.alias) for each in question.wanted}
        absent: dict[bytes, int] = {}
        for each in question.wanted:
            key = known[each.alias]
            if (
                key is not None
                and not self._try_keep(question, key, each.num_tokens)
                and self._pays(key, each)
            ):
                absent[key] = each.num_tokens
        if self._tiers is not None and absent:
            self._tiers.load(absent, partial(self._loaded, question, known))
        else:
            self._close(question, known)

    def _loaded(
        self, question: _Question, known: Mapping[bytes, bytes | None], found: Mapping[bytes, Landed]
    ) -> None:
        for key, landed in found.items():
            self._try_keep(question, key, landed.payload.shape[0], landed)
        self._close(question, known)

    def _try_keep(
        self, question: _Question, key: bytes, num_tokens: int, landed: Landed | None = None
    ) -> bool:
        """Reserve what is on the device or has landed; False if it has not, or nobody waits for it any more."""
        with self._lock:
            if self._open.get(question.request_id) is not question:
                return False
            if not self._visual.try_reserve(key, num_tokens, question.request_id):
                return False
            if landed is not None:
                self._visual.reserve.land(key, landed)
            # asked only now: what is evicted from here on is kept
            is_near = self._visual.whereabouts(key) in ("resident", "landed")
            if not is_near:
                self._visual.reserve.let_go_of(key, question.request_id)
            return is_near

    def _close(self, question: _Question, known: Mapping[bytes, bytes | None]) -> None:
        with self._lock:
            if self._open.get(question.request_id) is not question:
                return
            del self._open[question.request_id]
        keys = (known[each.alias] for each in question.wanted)
        reserve = self._visual.reserve
        question.answer.set_result(
            tuple(
                key if key is not None and reserve.is_held(key, question.request_id) else None for key in keys
            )
        )

    def _pays(self, key: bytes, wanted: Wanted) -> bool:
        """Whether a load may find it, and sooner than an encode would make it."""
        if self._tiers is None or not self._tiers.may_have(key):
            return False
        sizes = wanted.segments
        encode_s = self._cost.encode_seconds(sum(sizes), sum(size * size for size in sizes))
        return self._tiers.seconds(key, wanted.num_tokens) <= encode_s
