"""Two engines over one place, with everything that can go wrong in any order: the same tokens, and nothing left."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tapetum.cache.tiers import Entry
from tapetum.core.request import Request
from tests.pure.test_reservations import reserved, wanted
from tests.scripted import hashed_token, make_item, make_request
from tests.scripted_tiers import Ask, Place, Scene, ScriptedTiers

ITEMS = [make_item(name, size) for name, size in {"a": 3, "b": 5, "c": 8, "d": 12}.items()]
Index = st.integers(0, 1)


class PromotionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.place = Place()
        self.scenes = [Scene(ScriptedTiers(self.place), feature_tokens=14) for _ in range(2)]
        self.requests: dict[str, Request] = {}
        self.promised: list[tuple[int, str, int]] = []  # scene, request id, item: reserved and not added

    @rule(index=Index, chosen=st.lists(st.integers(0, 3), min_size=1, max_size=3), length=st.integers(1, 6))
    def add(self, index: int, chosen: list[int], length: int) -> None:
        name = f"{index}-{len(self.requests)}"
        request = make_request(name, [1, *(ITEMS[each] for each in chosen), 2], max_tokens=length)
        self.requests[name] = request
        self.scenes[index].add(request)

    @rule(index=Index, chosen=st.integers(0, 3))
    def reserve(self, index: int, chosen: int) -> None:
        scene, name = self.scenes[index], f"{index}-r{len(self.requests)}-{len(self.promised)}"
        near = [place for place, item in enumerate(ITEMS) if item.key in scene.engine.media_keys]
        chosen = near[chosen % len(near)] if near else chosen
        answer = scene.engine.reserve(name, (wanted(ITEMS[chosen]),))
        for ask in list(scene.tiers.open):
            if ask in scene.tiers.open and not answer.done():
                scene.tiers.answer(ask)
        if not answer.done() or answer.result() == (None,):
            scene.engine.let_go(name)
        else:
            self.promised.append((index, name, chosen))

    @precondition(lambda self: self.promised)
    @rule(is_added=st.booleans(), data=st.data())
    def fulfil(self, is_added: bool, data: st.DataObject) -> None:
        index, name, chosen = self.promised.pop(data.draw(st.integers(0, len(self.promised) - 1)))
        if not is_added:
            self.scenes[index].engine.let_go(name)
            return
        self.requests[name] = make_request(name, [1, reserved(ITEMS[chosen]), 2], max_tokens=3)
        self.scenes[index].add(self.requests[name])

    @rule(index=Index, number=st.integers(0, 20), is_lost=st.booleans())
    def answer(self, index: int, number: int, is_lost: bool) -> None:
        asks: list[Ask] = self.scenes[index].tiers.open
        if asks:
            self.scenes[index].tiers.answer(asks[number % len(asks)], is_lost=is_lost)

    @rule(number=st.integers(0, 20))
    def lose_an_entry(self, number: int) -> None:
        if self.place.entries:
            del self.place.entries[sorted(self.place.entries)[number % len(self.place.entries)]]

    @rule(number=st.integers(0, 20))
    def spoil_an_entry(self, number: int) -> None:
        """What a checksum would not find: an entry of another form."""
        names = sorted(name for name in self.place.entries if name[0] == "features")
        if names:
            name = names[number % len(names)]
            old: Entry = self.place.entries[name]
            self.place.entries[name] = replace(old, shape=(old.shape[1], old.shape[0]))

    @rule()
    def a_lease_runs_out(self) -> None:
        self.place.leases.clear()

    @rule(index=Index, seconds=st.sampled_from((0.001, 0.1, 0.3, 3.0)))
    def turn(self, index: int, seconds: float) -> None:
        scene = self.scenes[index]
        if scene.engine.has_work:
            scene.turn(seconds)

    @rule(index=Index)
    def crowd(self, index: int) -> None:
        """Whatever is not in use makes room for what is larger."""
        self.add(index, [3], 1)
        self.add(index, [2, 0], 1)
        self.run(index, 15)

    @rule(index=Index, num_turns=st.integers(5, 15))
    def run(self, index: int, num_turns: int) -> None:
        scene = self.scenes[index]
        for _ in range(num_turns):
            scene.tiers.answer_all()
            if scene.engine.has_work:
                scene.turn(0.01)

    @rule(index=Index, number=st.integers(0, 20))
    def abort(self, index: int, number: int) -> None:
        names = [name for name in self.requests if name.startswith(f"{index}-")]
        if names:
            self.scenes[index].engine.abort(names[number % len(names)])

    @rule(index=Index)
    def reset(self, index: int) -> None:
        self.scenes[index].engine.reset_caches()

    @invariant()
    def reserves_are_bounded(self) -> None:
        for scene in self.scenes:
            visual = scene.engine._scheduler.visual
            assert visual.reserve.num_bytes <= visual.capacity_bytes
            assert visual.num_bytes <= visual.capacity_bytes

    def teardown(self) -> None:
        for index, name, _ in self.promised:
            self.scenes[index].engine.let_go(name)
        for scene in self.scenes:
            scene.drain()
            scene.assert_at_rest()
        for name, request in self.requests.items():
            scene = self.scenes[int(name[0])]
            delta = scene.whole[name]
            got = scene.tokens(name)
            start = request.num_prompt_tokens
            assert got == tuple(hashed_token(name, start + place) for place in range(len(got)))
            assert delta.finish_reason in ("length", "abort"), delta
            assert delta.finish_reason == "abort" or len(got) == request.max_tokens


TestPromotion = PromotionMachine.TestCase
TestPromotion.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
