"""Links: when they are tried, what they bring, and what they leave to others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapetum.core.errors import EngineError
from tapetum.core.media import MediaItem, Reuse
from tapetum.core.plan import BatchPlan, Link
from tapetum.core.request import Request
from tests.pure.stage import SIZE, Stage
from tests.scripted import ScriptedExecutor, hashed_token, make_item, make_request

MOVED = Reuse(position_independent=True)
A, B, C = (make_item(name, 16) for name in "abc")
Segments = list[int | MediaItem]


def make_stage(*, error: float | None = 0.0, share: float = 0.25, **options: object) -> Stage:
    """A stage whose links are all so far from fitting, with a tolerance of 0.5."""
    executor = ScriptedExecutor(SIZE, link_error=lambda link: error)
    settings = {"link_share": share, "link_tokens": 1, "link_tolerance": 0.5, "speculate": "off"}
    return Stage(executor=executor, **{**settings, **options})  # type: ignore[arg-type]


def moved(name: str, segments: Segments, **options: object) -> Request:
    return make_request(name, segments, reuse=MOVED, **options)  # type: ignore[arg-type]


def ask(stage: Stage, *requests: Request) -> list[Link]:
    """Until all is answered -> the links of the plans."""
    before = len(stage.plans)
    stage.add(*requests)
    stage.drain()
    return [link for plan in stage.plans[before:] for link in plan.links]


def outcome(stage: Stage) -> tuple[int, int, int]:
    stats = stage.scheduler.stats()
    return stats.num_linked, stats.num_rejected_links, stats.num_linked_tokens


def test_a_picture_that_has_moved_is_computed_at_its_front_only() -> None:
    stage = make_stage()
    ask(stage, make_request("first", [1, 2, A, 3, 4]))
    (link,) = ask(stage, moved("second", [5, 6, 7, A, 8, 9, 10], max_tokens=1))
    assert (link.first, link.start, link.end, link.shift) == (3, 7, 19, 1)
    assert outcome(stage) == (1, 0, 12)
    assert stage.executor.computed["second"] == 22 - 12
    assert stage.ends["second"].stats is not None and stage.ends["second"].stats.are_linked == (True,)
    stage.assert_clean()


def test_without_the_wish_nothing_is_linked() -> None:
    stage = make_stage()
    ask(stage, make_request("first", [1, 2, A, 3, 4]))
    assert not ask(stage, make_request("second", [5, 6, 7, A, 8], max_tokens=1))
    assert stage.executor.computed["second"] == 20 and outcome(stage) == (0, 0, 0)


def test_an_equal_prefix_is_taken_exactly() -> None:
    stage = make_stage()
    ask(stage, make_request("first", [1, 2, A, 3, 4, 5, 6]))
    assert not ask(stage, moved("second", [1, 2, A, 3, 4, 9], max_tokens=1))
    assert stage.executor.computed["second"] == 21 - 20


def test_with_a_share_of_one_all_is_computed() -> None:
    stage = make_stage(share=1.0)
    ask(stage, make_request("first", [1, 2, A, 3, 4]))
    assert not ask(stage, moved("second", [5, A, 8], max_tokens=1))
    assert stage.executor.computed["second"] == 18


@pytest.mark.parametrize("error", [0.6, float("nan"), None])
def test_what_does_not_fit_is_computed(error: float | None) -> None:
    stage = make_stage(error=error)
    ask(stage, make_request("first", [1, 2, A, 3, 4]))
    assert len(ask(stage, moved("second", [5, A, B, 8, 9], max_tokens=1))) == 1
    assert outcome(stage) == (0, 0 if error is None else 1, 0)
    assert stage.executor.computed["second"] == 35
    assert ask(stage, make_request("third", [5, A, B, 8, 7], max_tokens=1)) == []
    assert stage.executor.computed["third"] == 35 - 32, "and its blocks are as good as any"
    assert stage.ends["second"].stats is not None and stage.ends["second"].stats.are_linked == (False, False)


def test_what_rests_on_a_link_is_nobody_elses() -> None:
    stage = make_stage()
    ask(stage, make_request("first", [1, 2, A, 3, 4]))
    ask(stage, moved("second", [5, 6, 7, 8, 9, A, B, 8, 9, 10], max_tokens=8))
    (link,) = (link for plan in stage.plans for link in plan.links)
    ask(stage, make_request("third", [5, 6, 7, 8, 9, A, B, 8, 9, 10], max_tokens=1))
    exact = link.start // SIZE * SIZE
    assert stage.firsts["third"].stats is not None
    assert stage.firsts["third"].stats.num_cached_tokens == exact
    assert stage.executor.computed["third"] == 40 - exact
    links = ask(stage, moved("fourth", [11, B, 12, 13, 14, 15], max_tokens=1))
    sources = {block for link in links for block in link.source_ids}
    assert len(links) == 1 and sources, "the third has published it"


def test_a_picture_behind_a_link_is_no_source() -> None:
    stage = make_stage()
    ask(stage, make_request("first", [1, 2, A, 3, 4]))
    ask(stage, moved("second", [5, A, B, 8, 9, 10, 11]))
    assert ask(stage, moved("third", [6, B, 8, 9, 10, 11])) == []


def test_three_pictures_in_another_order() -> None:
    stage = make_stage()
    ask(stage, make_request("first", [1, 2, A, B, C, 3, 4, 5]))
    links = ask(stage, moved("second", [5, 6, 7, C, A, 9, B, 8, 9], max_tokens=1))
    assert [link.first for link in links] == [3, 19, 36]
    assert [link.shift for link in links] == [3 - 34, 19 - 2, 36 - 18]
    assert outcome(stage) == (3, 0, 36) and stage.executor.computed["second"] == 54 - 36
    stage.assert_clean()


def test_the_same_picture_twice_links_to_itself() -> None:
    stage = make_stage(max_num_batched_tokens=20)
    (link,) = ask(stage, moved("first", [1, 2, A, 3, 4, 5, A, 6], max_tokens=1))
    assert (link.first, link.shift) == (21, 19)


def test_of_several_places_the_nearest_is_taken() -> None:
    stage = make_stage()
    for name, before in (("near", range(8)), ("far", range(20)), ("farther", range(40))):
        ask(stage, make_request(name, [*before, A, 3, 4, 5, 6]))
    (link,) = ask(stage, moved("again", [*range(50, 60), A, 3, 4, 5, 6], max_tokens=1))
    assert link.shift == 2


def test_another_tenant_never_links() -> None:
    stage = make_stage()
    ask(stage, make_request("first", [1, 2, A, 3, 4], tenant="x"))
    assert not ask(stage, moved("second", [5, A, 8], tenant="y"))
    assert ask(stage, moved("third", [5, A, 8], tenant="x"))


def test_the_last_token_of_a_prompt_is_computed() -> None:
    stage = make_stage()
    ask(stage, make_request("first", [1, 2, A, 3, 4]))
    (link,) = ask(stage, moved("second", [5, 6, A], max_tokens=2))
    assert link.end == 17


def test_tokens_that_see_each_other_both_ways_are_computed() -> None:
    stage = make_stage(max_num_batched_tokens=100)
    ask(stage, make_request("first", [1, 2, A, 3, 4], is_atomic=True))
    assert not ask(stage, moved("second", [5, A, 8], is_atomic=True))


def test_no_more_is_linked_than_is_published() -> None:
    stage = make_stage()
    ask(stage, make_request("first", [1, A], max_tokens=1))  # 16 of 17 tokens in full blocks
    (link,) = ask(stage, moved("second", [5, 6, A, 8, 9], max_tokens=1))
    assert (link.start, link.end) == (6, 17)
    assert stage.executor.computed["second"] == 20 - 11


def test_without_a_tree_nothing_is_linked() -> None:
    stage = make_stage(is_caching=False)
    ask(stage, make_request("first", [1, 2, A, 3, 4]))
    assert not ask(stage, moved("second", [5, A, 8]))


def test_a_front_that_comes_in_chunks() -> None:
    stage = make_stage(share=0.5, max_num_batched_tokens=5)
    ask(stage, make_request("first", [1, 2, A, 3, 4]))
    (link,) = ask(stage, moved("second", [5, 6, 7, A, 8, 9], max_tokens=1))
    assert (link.start, link.end) == (11, 19) and outcome(stage) == (1, 0, 8)
    assert stage.executor.computed["second"] == 21 - 8


def test_sources_are_kept_while_they_are_read() -> None:
    stage = make_stage(num_blocks=14)
    ask(stage, make_request("first", [1, 2, A, 3, 4, 5], max_tokens=1))
    stage.add(moved("second", [5, 6, 7, A, 8, 9], max_tokens=1))
    plan = stage.scheduler.schedule(stage.now)
    (link,) = plan.links
    stage.scheduler.reset_caches()
    pool = stage.scheduler._ledger.pool
    assert all(pool.references(block) for block in link.source_ids)
    stage.finish_step(plan)
    assert not any(pool.references(block) for block in link.source_ids)
    stage.drain()
    stage.assert_clean()


@pytest.mark.parametrize("how", ["abort", "fail", "abandon", "close"])
def test_an_end_in_the_middle_frees_everything(how: str) -> None:
    stage = make_stage()
    ask(stage, make_request("first", [1, 2, A, 3, 4]))
    stage.add(moved("second", [5, 6, 7, A, 8, 9]))
    plan = stage.scheduler.schedule(stage.now)
    assert plan.links
    error = EngineError("broken")
    if how == "abandon":
        stage.tell(stage.scheduler.abandon(plan, error, stage.now))
    else:
        if how == "abort":
            event = stage.scheduler.abort("second", stage.now)
            assert event is not None
            stage.tell([event])
        elif how == "close":
            stage.tell(stage.scheduler.close(stage.now))
        else:
            stage.executor.fail_requests["second"] = error
        stage.finish_step(plan)
    stage.drain()
    assert stage.reasons()["second"] in ("abort", "error") and outcome(stage) == (0, 0, 0)
    stage.assert_clean()


@pytest.mark.parametrize("num_host_slots", [0, 100])
def test_who_is_preempted_behind_a_link_starts_from_what_is_exact(num_host_slots: int) -> None:
    stage = make_stage(num_blocks=16, num_host_slots=num_host_slots, max_num_seqs=4)
    ask(stage, make_request("first", [1, 2, A, 3, 4, 5], max_tokens=1))
    stage.add(make_request("older", range(20, 40), max_tokens=30))
    stage.step()
    stage.add(moved("second", [5, 6, 7, A, 8, 9], max_tokens=12))
    for _ in range(60):
        if stage.scheduler.has_work:
            stage.step()
    stage.drain()
    assert stage.ends["second"].stats is not None and stage.ends["second"].stats.num_preemptions
    assert stage.reasons() == {"first": "length", "older": "length", "second": "length"}
    assert outcome(stage)[0] >= 1
    stage.assert_clean()


def test_plans_of_others_hold_no_links() -> None:
    assert BatchPlan(step=1).links == ()


PICTURES = [make_item("p", 9), make_item("q", 14)]
PROMPTS = st.tuples(
    st.lists(st.integers(10, 11), min_size=1, max_size=6),
    st.lists(st.sampled_from(PICTURES), min_size=1, max_size=3),
    st.lists(st.integers(10, 11), min_size=1, max_size=6),
).map(lambda parts: [segment for part in parts for segment in part])


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    num_blocks=st.sampled_from([20, 28, 80]),
    num_host_slots=st.sampled_from([0, 6, 100]),
    tokens=st.sampled_from([7, 40]),
    errors=st.lists(st.sampled_from([0.0, 0.0, 0.4, 0.7, None]), min_size=1, max_size=5),
)
def test_whatever_happens_links_take_the_right_tokens_and_leave_nothing(
    data: st.DataObject, num_blocks: int, num_host_slots: int, tokens: int, errors: list[float | None]
) -> None:
    """The device checks what each row reads and each link copies; here requests come, go and give way."""
    stage = make_stage(num_blocks=num_blocks, num_host_slots=num_host_slots, max_num_batched_tokens=tokens)
    stage.executor = ScriptedExecutor(
        SIZE, link_error=lambda link: errors[(link.first + link.shift) % len(errors)]
    )
    lengths: dict[str, int] = {}
    for number in range(data.draw(st.integers(2, 9), label="requests")):
        prompt, tenant = data.draw(PROMPTS), data.draw(st.sampled_from(["", "", "x"]))
        may_link = data.draw(st.sampled_from([True, True, False]))
        reuse = Reuse(position_independent=may_link)
        request = make_request(f"r{number}", prompt, max_tokens=12, tenant=tenant, reuse=reuse)
        lengths[request.request_id] = request.num_prompt_tokens
        stage.add(request)
        for _ in range(data.draw(st.integers(0, 12), label="steps")):
            stage.step()
        live = sorted(stage.tokens.keys() - stage.ends.keys())
        if live and data.draw(st.booleans(), label="abort"):
            event = stage.scheduler.abort(data.draw(st.sampled_from(live)), stage.now)
            stage.tell([event] if event else [])
    stage.drain()
    for name, reason in stage.reasons().items():
        start = lengths[name]
        wanted = [hashed_token(name, start + place) for place in range(len(stage.tokens[name]))]
        assert stage.tokens[name] == wanted
        assert reason == "abort" or len(wanted) == 12
    stage.assert_clean()
