"""What was done for whom, and who waits, as told to the outside."""

from __future__ import annotations

import pytest

from tapetum.core.cost import CostModel
from tapetum.core.priority import class_of
from tapetum.core.tenant import salted
from tapetum.sched.charges import Charged
from tests.pure.stage import Stage
from tests.scripted import make_item, make_request

STEP, ENCODE = (1e-3, 1e-3, 1e-6, 1e-3, 1e-7), (1e-3, 1e-2, 1e-6)


def test_each_account_is_charged_for_its_work_whatever_its_salt() -> None:
    stage = Stage(cost=CostModel(step=STEP, encode=ENCODE), max_num_batched_tokens=64, speculate="off")
    for number in range(4):
        prompt = range(10 * number + 100, 10 * number + 108)
        stage.add(make_request(f"a{number}", prompt, max_tokens=3, tenant=salted("ann", f"salt{number}")))
    stage.add(make_request("b", range(8), max_tokens=3, tenant="bob"))
    stage.add(make_request("c", [1, make_item("cat", 8), 2], max_tokens=1, tenant="cleo"))
    stage.drain()
    charged = stage.scheduler.charged_s
    # 8 tokens of a prompt see 32 pairs; the two decodes behind them see 8 and 9 tokens, and half of their own
    bob = 8 * STEP[3] + 32 * STEP[4] + 2 * STEP[1] + (8.5 + 9.5) * STEP[2]
    assert charged.keys() == {"ann", "bob", "cleo"}
    assert charged["bob"] == pytest.approx(bob)
    assert charged["ann"] == pytest.approx(4 * bob)
    assert charged["cleo"] > make_item("cat", 8).geometry.num_patches * ENCODE[1]


def test_what_is_cached_is_not_charged_again() -> None:
    stage = Stage(cost=CostModel(step=STEP, encode=ENCODE), max_num_batched_tokens=64)
    for name in ("first", "again"):
        stage.add(make_request(name, range(33), max_tokens=1, tenant="ann"))
        stage.drain()
        stage.now += 1.0
    first = 33 * STEP[3] + 33 * 16.5 * STEP[4]
    assert first < stage.scheduler.charged_s["ann"] < 1.1 * first


def test_of_very_many_those_are_remembered_that_have_had_most() -> None:
    charged = Charged()
    for number in range(10_000):
        charged.add({f"t{number}": 1.0, "large": 1.0})
        assert len(charged.seconds) <= 2049
    assert charged.seconds["large"] == 10_000


def test_those_that_wait_are_told_by_class() -> None:
    stage = Stage(max_num_seqs=1)
    for number, priority in enumerate((-9, 0, -7, -1, 0, 1, 2, 9)):
        stage.add(make_request(f"r{number}", [1], max_tokens=9, priority=priority))
    everyone = {"interactive": 3, "standard": 2, "economy": 1, "background": 2}
    assert stage.scheduler.stats().waiting_by_class == everyone
    stage.step()
    assert stage.scheduler.stats().waiting_by_class == {**everyone, "interactive": 2}
    stage.drain()
    assert stage.scheduler.stats().waiting_by_class == dict.fromkeys(everyone, 0)


def test_a_number_counts_to_the_last_class_that_is_no_later() -> None:
    found = [class_of(priority) for priority in (-100, -1, 0, 1, 2, 100)]
    assert found == ["interactive", "interactive", "standard", "economy", "background", "background"]
