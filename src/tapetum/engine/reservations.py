"""Reservations: pictures that the front need not decode, since the engine has their features or can load them.

The front asks with what a picture was called before it was decoded. What the engine has, or finds in the tiers in less
time than an encode would take, it keeps within reach for the request until that ends (cache/reserve.py), and the
request may come without pixels. What it has not the front decodes. Belongs to the thread of the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from tapetum.cache.reserve import Landed
from tapetum.cache.visual import VisualCache
from tapetum.core.cost import CostModel
from tapetum.engine.feature_tiers import FeatureTiers
from tapetum.engine.mailbox import Mailbox
from tapetum.engine.searches import LEAST_LOAD_S
from tapetum.engine.tiers import Load

Reserved = tuple[bytes | None, ...]  # media keys, None for what has to be decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A picture or clip that has not been decoded."""

    alias: bytes
    key: bytes | None  # of the media item, where that is known
    num_tokens: int  # visual ones
    segments: tuple[int, ...]  # patches of each attention segment


@dataclass(slots=True, eq=False)
class _Question:
    request_id: str
    wanted: tuple[Wanted, ...]
    answer: Future[Reserved]
    keys: dict[bytes, bytes]  # media keys by alias
    until_s: float = 0.0
    reserved: set[bytes] = field(default_factory=set)
    load: Load | None = None


class Reservations:
    def __init__(
        self, tiers: FeatureTiers | None, visual: VisualCache, cost: CostModel, mailbox: Mailbox
    ) -> None:
        self._tiers = tiers
        self._visual = visual
        self._cost = cost
        self._mailbox = mailbox
        self._open: dict[str, _Question] = {}  # by request id

    @property
    def is_searching(self) -> bool:
        return bool(self._open)

    def begin(
        self, request_id: str, wanted: tuple[Wanted, ...], answer: Future[Reserved], now: float
    ) -> None:
        """The answer may come at once. Who gets one adds the request, or has it forgotten."""
        self.drop(request_id)
        keys = {each.alias: each.key for each in wanted if each.key is not None}
        question = self._open[request_id] = _Question(request_id, wanted, answer, keys)
        question.until_s = now + max(LEAST_LOAD_S, sum(map(self._encode_s, wanted)))
        unknown = [each.alias for each in wanted if each.key is None]
        if self._tiers is not None and unknown:
            question.load = self._tiers.load_keys(
                unknown, lambda keys: self._mailbox.put(partial(self._named, question, keys))
            )
        else:
            self._named(question, {}, now)

    def drop(self, request_id: str) -> None:
        """Nobody waits for the answer any more, or it takes too long; nothing to do without a question."""
        if question := self._open.get(request_id):
            self._close(question)

    def expire(self, now: float) -> None:
        for question in [question for question in self._open.values() if now >= question.until_s]:
            self._close(question)

    def close(self) -> None:
        """Answer all questions with what there is."""
        for question in list(self._open.values()):
            self._close(question)

    def _named(self, question: _Question, keys: Mapping[bytes, bytes], now: float) -> None:
        """Media keys are known as far as they can be: reserve what is here, and look for the rest."""
        if self._open.get(question.request_id) is not question:
            return
        question.load = None
        question.keys.update(keys)
        absent: dict[bytes, int] = {}
        for each in question.wanted:
            key = question.keys.get(each.alias)
            if key is None:
                continue
            if self._visual.whereabouts(key) in ("resident", "landed"):
                self._reserve(question, key, each.num_tokens)
            elif self._pays(key, each):
                absent[key] = each.num_tokens
        if self._tiers is not None and absent:
            question.load = self._tiers.load(
                absent, lambda found: self._mailbox.put(partial(self._loaded, question, found))
            )
        else:
            self._close(question)

    def _loaded(self, question: _Question, found: Mapping[bytes, Landed], now: float) -> None:
        if self._open.get(question.request_id) is not question:
            return
        question.load = None
        for key, landed in found.items():
            num_tokens = landed.payload.shape[0]
            if self._visual.whereabouts(key) != "encoding" and self._reserve(question, key, num_tokens):
                self._visual.reserve.land(key, landed)
        self._close(question)

    def _close(self, question: _Question) -> None:
        del self._open[question.request_id]
        if question.load is not None:
            question.load.cancel()
        keys = (question.keys.get(each.alias) for each in question.wanted)
        question.answer.set_result(tuple(key if key in question.reserved else None for key in keys))

    def _reserve(self, question: _Question, key: bytes, num_tokens: int) -> bool:
        if self._visual.try_reserve(key, num_tokens, question.request_id):
            question.reserved.add(key)
        return key in question.reserved

    def _pays(self, key: bytes, wanted: Wanted) -> bool:
        """Whether a load may find it, and sooner than an encode would make it."""
        if self._tiers is None or not self._tiers.may_have(key):
            return False
        return self._tiers.seconds(key, wanted.num_tokens) <= self._encode_s(wanted)

    def _encode_s(self, wanted: Wanted) -> float:
        sizes = wanted.segments
        return self._cost.encode_seconds(sum(sizes), sum(size * size for size in sizes))
