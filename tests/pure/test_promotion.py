"""Pictures that tiers may hold: searched for before their request runs, by one process of all that want them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tapetum.core.errors import DeadlinePassed, EngineError
from tapetum.core.media import MediaItem
from tapetum.core.request import Request
from tapetum.engine.forecast import Workload
from tests.scripted import hashed_token, make_item, make_request
from tests.scripted_tiers import Place, Scene, ScriptedTiers

A, B = make_item("a", 8), make_item("b", 6)


def ask(name: str, *items: MediaItem, max_tokens: int = 3, **more: object) -> Request:
    return make_request(name, [1, 2, *items, 3], max_tokens=max_tokens, arrival_s=100.0, **more)  # type: ignore[arg-type]


def expected(request: Request) -> tuple[int, ...]:
    start = request.num_prompt_tokens
    return tuple(hashed_token(request.request_id, start + place) for place in range(request.max_tokens))


def filled(*items: MediaItem, tier: str = "disk") -> Place:
    """A place where another engine has been."""
    place = Place()
    scene = Scene(ScriptedTiers(place))
    scene.add(*(ask(f"fill-{index}", item) for index, item in enumerate(items)))
    scene.drain()
    scene.assert_at_rest()
    assert not place.leases
    return place


def test_what_is_encoded_is_saved_once_and_found_by_the_next_engine():
    place = filled(A)
    scene = Scene(ScriptedTiers(place, tier="disk"))
    request = ask("r", A)
    scene.add(request, ask("again", A))
    scene.drain()
    assert scene.source("r") == ("disk",) and scene.source("again") == ("device",)
    assert scene.tokens("r") == expected(request)
    assert scene.num_encodes(A) == 0 and scene.tiers.saved["features"] == 0
    scene.assert_at_rest()


def test_without_tiers_nothing_is_held_or_copied_out():
    scene = Scene(None)
    scene.add(ask("r", A))
    scene.drain()
    assert scene.source("r") == ("miss",)
    assert not any(plan.exports or plan.arrivals for plan in scene.executor.plans)
    scene.assert_at_rest()


def test_a_store_that_says_nothing_delays_a_request_no_longer_than_its_encode():
    scene = Scene(ScriptedTiers(filled(A)))
    scene.add(ask("r", A))
    encode_s = scene.engine._cost.encode_seconds(A.geometry.num_patches, A.geometry.squares)
    while scene.now < 100 + encode_s - 0.02:
        scene.turn(0.01)
        assert not scene.executor.plans
    while "r" not in scene.whole or scene.whole["r"].finish_reason is None:
        scene.turn(0.01)
    assert scene.source("r") == ("miss",) and scene.num_encodes(A) == 1
    scene.drain()
    scene.assert_at_rest()


def test_others_run_while_one_waits_for_its_picture():
    scene = Scene(ScriptedTiers(filled(A)))
    scene.add(ask("r", A), ask("text", max_tokens=5))
    for _ in range(12):
        scene.turn()
    assert scene.whole["text"].finish_reason == "length" and "r" not in scene.whole
    scene.drain()
    assert scene.source("r") == ("remote",)


def test_no_load_is_begun_that_takes_longer_than_the_encode():
    tiers = ScriptedTiers(filled(A))
    tiers.load_s = 1e3
    scene = Scene(tiers)
    scene.add(ask("r", A))
    scene.turn()
    assert not tiers.open and scene.executor.plans[0].encodes
    scene.drain()
    scene.assert_at_rest()


def test_features_of_another_form_are_thrown_away_and_made_anew():
    place = filled(A)
    (name,) = (name for name in place.entries if name[0] == "features")
    for wrong in (
        {"dtype": "bfloat16", "shape": (8, 6)},
        {"shape": (4, 6)},
        {"shape": (8, 2), "data": b"\0" * 64},
    ):
        scene = Scene(ScriptedTiers(Place(entries={name: replace(place.entries[name], **wrong)})))
        request = ask("r", A)
        scene.add(request)
        scene.drain()
        assert scene.source("r") == ("miss",) and scene.tokens("r") == expected(request)
        assert len(scene.tiers.rejected) == 1
        scene.assert_at_rest()


def test_of_two_engines_one_encodes():
    place = Place()
    scenes = [Scene(ScriptedTiers(place)), Scene(ScriptedTiers(place))]
    for index, scene in enumerate(scenes):
        scene.add(*(ask(f"{index}-{number}", A) for number in range(25)))
    for _ in range(1000):
        for scene in scenes:
            scene.tiers.answer_all()
            scene.turn(0.01)
    for scene in scenes:
        scene.drain()
        scene.assert_at_rest()
    assert sum(scene.num_encodes(A) for scene in scenes) == 1
    assert {scene.source(name) for scene in scenes for name in scene.whole} == {
        ("miss",),
        ("device",),
        ("remote",),
    }
    assert not place.leases


def test_who_has_waited_as_long_as_a_lease_encodes():
    place, tiers = Place(), ScriptedTiers()
    tiers.place = place
    scene = Scene(tiers)
    scene.add(ask("r", A))
    place.leases[next(iter(filled(A).entries))[1]] = "a process that has died"
    for name in filled(A).entries:
        place.leases[name[1]] = "a process that has died"
    began = scene.now
    while scene.engine.has_work and scene.now < began + 10:
        tiers.answer_all()
        scene.turn(0.05)
    assert scene.source("r") == ("miss",)
    assert began + 2 <= scene.now < began + 5


def test_a_lease_that_became_free_because_the_features_are_there_is_no_reason_to_encode():
    place = Place()
    scene = Scene(ScriptedTiers(place))
    scene.add(ask("r", A))
    scene.turn()
    scene.tiers.answer_all()  # nothing there
    place.entries.update(filled(A).entries)
    scene.drain()
    assert scene.num_encodes(A) == 0 and scene.source("r") == ("remote",)
    assert not place.leases
    scene.assert_at_rest()


@pytest.mark.parametrize("num_answers", range(4))
@pytest.mark.parametrize("how", ["abort", "deadline", "shutdown"])
def test_who_leaves_at_any_moment_of_the_search_leaves_nothing(how: str, num_answers: int):
    place = Place()
    scene = Scene(ScriptedTiers(place))
    scene.add(ask("r", A, max_tokens=50, deadline_s=100.2 if how == "deadline" else None))
    scene.turn()
    for _ in range(num_answers):
        scene.tiers.answer_all()
        scene.turn()
    if how == "abort":
        scene.engine.abort("r")
    elif how == "deadline":
        scene.now = 100.3
    else:
        scene.hear(scene.engine.abort_all())
    scene.drain()
    delta = scene.whole["r"]
    assert delta.finish_reason == ("error" if how == "deadline" else "abort")
    assert how != "deadline" or isinstance(delta.error, DeadlinePassed)
    scene.assert_at_rest()
    assert not place.leases


def test_a_picture_that_cannot_be_encoded_gives_its_lease_back():
    place = Place()
    scene = Scene(ScriptedTiers(place))
    scene.executor.fail_features[A.key] = EngineError("bad picture")
    scene.add(ask("r", A))
    scene.drain()
    assert scene.whole["r"].finish_reason == "error"
    scene.assert_at_rest()
    assert not place.leases and not any(kind == "features" for kind, _ in place.entries)


def test_a_question_whose_keys_and_values_are_cached_searches_nothing():
    scene = Scene(ScriptedTiers(), is_caching=True)
    scene.add(make_request("r", [1, 2, A, 3, 4, 5, 6, 7], arrival_s=100.0))
    scene.drain()
    scene.engine._scheduler.visual.clear()
    scene.turn()
    scene.add(make_request("again", [1, 2, A, 3, 4, 5, 6, 7], arrival_s=100.0))
    scene.turn()
    assert not scene.tiers.open
    scene.drain()
    assert scene.source("again") == ("prefix",) and scene.num_encodes(A) == 1


def test_a_forecast_knows_what_is_on_the_device_and_what_tiers_have_given_back():
    scene = Scene(ScriptedTiers(filled(A)))
    workload = Workload(num_tokens=9, segments=((32,), (24,)), media_keys=(A.key, B.key))
    assert scene.engine.forecast(workload).sources == ("miss", "miss")
    scene.add(ask("r", A))
    scene.drain()
    assert scene.engine.forecast(workload).sources == ("device", "miss")
    scene.engine._scheduler.visual.clear()
    forecast = scene.engine.forecast(workload)
    assert forecast.sources == ("remote", "miss") and forecast.is_held == (True, False)
    assert forecast.encode_s[0] == 0 < forecast.encode_s[1]


def test_a_request_waits_for_all_its_pictures():
    place = filled(A, B)
    scene = Scene(ScriptedTiers(place))
    request = ask("r", A, B, A)
    scene.add(request)
    scene.turn()
    first, second = scene.tiers.open
    scene.tiers.answer(first)
    scene.turn()
    assert not scene.executor.plans
    scene.tiers.answer(second)
    scene.drain()
    assert scene.source("r") == ("remote", "remote", "remote") and scene.tokens("r") == expected(request)
    scene.assert_at_rest()


def test_a_step_that_fails_is_done_in_pieces_with_what_arrives_and_is_copied_out():
    scene = Scene(ScriptedTiers(filled(A)))
    scene.executor.fault = lambda plan: RuntimeError("too much at once") if len(plan.rows) > 1 else None
    scene.add(ask("r", A, B), ask("other", A, max_tokens=8))
    scene.drain()
    assert scene.tokens("r") == expected(ask("r", A, B)) and scene.source("r") == ("device", "miss")
    assert scene.source("other") == ("remote",), "it has not waited for another picture"
    assert scene.tokens("other") == expected(ask("other", A, max_tokens=8))
    assert scene.tiers.saved["features"] == 1
    scene.assert_at_rest()


def test_features_that_cannot_be_brought_to_the_device_end_who_waits_for_them():
    scene = Scene(ScriptedTiers(filled(A)))
    scene.executor.fault = lambda plan: MemoryError("no room") if plan.arrivals else None
    scene.add(ask("r", A), ask("text", max_tokens=5))
    scene.drain()
    assert scene.whole["r"].finish_reason == "error" and scene.whole["text"].finish_reason == "length"
    scene.executor.fault = lambda plan: None
    scene.add(ask("again", A))
    scene.drain()
    assert scene.source("again") == ("remote",)
    scene.assert_at_rest()


@pytest.mark.parametrize("moment", ["exports", "arrivals"])
def test_a_step_that_is_broken_off_is_told_again(moment: str):
    scene = Scene(ScriptedTiers(filled(A)))
    broken: list[BaseException] = [KeyboardInterrupt()]
    scene.executor.fault = lambda plan: broken.pop() if getattr(plan, moment) and broken else None
    scene.add(ask("r", A, B, max_tokens=4))
    with pytest.raises(KeyboardInterrupt):
        scene.drain()
    scene.drain()
    assert scene.whole["r"].finish_reason == "error"
    assert scene.tiers.saved["features"] == (moment == "exports")
    scene.add(ask("again", A, B))
    scene.drain()
    assert scene.source("again") == ("device", "device" if moment == "exports" else "miss")
    scene.assert_at_rest()
