"""Pictures that are not decoded: what the engine says it has within reach it has, whatever happens meanwhile."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from tapetum.cache.names import alias_name
from tapetum.cache.tiers import Entry
from tapetum.core.errors import EngineError
from tapetum.core.media import MediaItem
from tapetum.core.request import Request
from tapetum.engine.reservations import Wanted
from tests.pure.test_promotion import A, B, ask, expected, filled
from tests.scripted import make_item
from tests.scripted_tiers import Place, Scene, ScriptedTiers

OTHERS = [make_item(f"o{index}", 8) for index in range(4)]


def wanted(item: MediaItem, *, is_known: bool = True) -> Wanted:
    return Wanted(
        alias=b"alias of " + item.key[:1],
        key=item.key if is_known else None,
        num_tokens=item.geometry.num_tokens,
        segments=item.geometry.segments,
    )


def reserved(item: MediaItem) -> MediaItem:
    return replace(item, is_reserved=True)


def with_alias(place: Place, item: MediaItem, names: MediaItem | None = None) -> Place:
    """The place with an alias that leads to an item; a test may have it called as another one."""
    alias = alias_name(wanted(names or item).alias, b"encoder")
    place.entries["alias", alias] = Entry(
        kind="alias", key=alias, dtype="uint8", shape=(32,), data=item.key, cost_s=0.1
    )
    return place


def test_nothing_is_promised_that_is_nowhere():
    scene = Scene(ScriptedTiers())
    answer = scene.engine.reserve("r", (wanted(A), wanted(B, is_known=False)))
    while scene.tiers.open:
        scene.tiers.answer_all()
    assert answer.result(0) == (None, None)
    scene.engine.let_go("r")
    scene.assert_at_rest()


def test_what_is_on_the_device_is_promised_at_once_and_stays_within_reach():
    scene = Scene(None, feature_tokens=20)
    scene.add(ask("first", A))
    scene.drain()
    assert scene.engine.reserve("r", (wanted(A),)).result(0) == (A.key,)
    scene.add(*(ask(f"o{index}", item) for index, item in enumerate(OTHERS)))
    scene.drain()
    visual = scene.engine._scheduler.visual
    assert visual.whereabouts(A.key) == "landed", "it was evicted, and copied out before"
    request = ask("r", reserved(A))
    scene.add(request)
    scene.drain()
    assert scene.tokens("r") == expected(request) and scene.source("r") == ("host",)
    assert scene.num_encodes(A) == 1
    scene.assert_at_rest()


def test_what_tiers_hold_is_found_by_its_alias():
    scene = Scene(ScriptedTiers(with_alias(filled(A), A), tier="disk"))
    answer = scene.engine.reserve("r", (wanted(A, is_known=False), wanted(B, is_known=False)))
    while scene.tiers.open:
        scene.tiers.answer_all()
    assert answer.result(0) == (A.key, None)
    request = ask("r", reserved(A), B)
    scene.add(request)
    scene.drain()
    assert scene.tokens("r") == expected(request) and scene.source("r") == ("disk", "miss")
    assert scene.num_encodes(A) == 0
    scene.assert_at_rest()


def test_an_alias_whose_features_are_gone_promises_nothing():
    scene = Scene(ScriptedTiers(with_alias(Place(), A)))
    answer = scene.engine.reserve("r", (wanted(A, is_known=False),))
    while scene.tiers.open:
        scene.tiers.answer_all()
    assert answer.result(0) == (None,)
    scene.engine.let_go("r")
    scene.assert_at_rest()


def test_an_alias_that_leads_to_something_of_another_size_promises_nothing():
    scene = Scene(ScriptedTiers(with_alias(filled(A), A, names=B)))
    answer = scene.engine.reserve("r", (wanted(B, is_known=False),))
    while scene.tiers.open:
        scene.tiers.answer_all()
    assert answer.result(0) == (None,)
    scene.engine.let_go("r")
    scene.assert_at_rest()


def test_who_is_tired_of_waiting_holds_nothing_whatever_comes_later():
    scene = Scene(ScriptedTiers(with_alias(filled(A), A)))
    answer = scene.engine.reserve("r", (wanted(A, is_known=False),))
    scene.engine.let_go("r")
    while scene.tiers.open:
        scene.tiers.answer_all()
    assert answer.cancelled()
    scene.assert_at_rest()


def test_a_request_that_is_aborted_lets_go_of_what_it_has_reserved():
    for num_turns in range(4):
        scene = Scene(None, feature_tokens=20)
        scene.add(ask("first", A))
        scene.drain()
        assert scene.engine.reserve("r", (wanted(A),)).result(0) == (A.key,)
        scene.add(ask("r", reserved(A), max_tokens=50))
        for _ in range(num_turns):
            scene.turn()
        scene.engine.abort("r")
        scene.drain()
        scene.assert_at_rest()


def test_a_picture_without_patches_that_nobody_has_reserved_is_refused():
    scene = Scene(None)
    scene.add(ask("r", reserved(A)))
    scene.drain()
    delta = scene.whole["r"]
    assert delta.finish_reason == "error" and isinstance(delta.error, EngineError)
    scene.assert_at_rest()


def test_what_is_promised_to_other_threads_holds_while_steps_evict():
    scene = Scene(None, feature_tokens=20)
    added: dict[str, Request] = {}

    def client(index: int) -> None:
        for number in range(60):
            name, item = f"{index}-{number}", (A, B, *OTHERS)[(index + number) % 6]
            is_promised = scene.engine.reserve(name, (wanted(item),)).result(0) == (item.key,)
            time.sleep(0.002)  # in which it may be evicted
            if is_promised and number % 3 == 0:
                scene.engine.let_go(name)
                continue
            added[name] = ask(name, reserved(item) if is_promised else item, max_tokens=1)
            scene.engine.add(added[name])

    threads = [threading.Thread(target=client, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or scene.engine.has_work:
        scene.turn()
    assert scene.whole.keys() == added.keys()
    assert all(scene.tokens(name) == expected(request) for name, request in added.items())
    scene.assert_at_rest()


def test_no_more_is_reserved_than_there_is_room_for():
    scene = Scene(ScriptedTiers(filled(*OTHERS), tier="disk"), feature_tokens=20)
    answers = [scene.engine.reserve(f"r{index}", (wanted(item),)) for index, item in enumerate(OTHERS)]
    while scene.tiers.open:
        scene.tiers.answer_all()
    kept = [answer.result(0)[0] is not None for answer in answers]
    assert kept == [True, True, False, False]
    for index, (item, is_kept) in enumerate(zip(OTHERS, kept, strict=True)):
        scene.add(ask(f"r{index}", reserved(item) if is_kept else item))
    scene.drain()
    assert all(scene.tokens(f"r{index}") == expected(ask(f"r{index}", A)) for index in range(4))
    scene.assert_at_rest()
