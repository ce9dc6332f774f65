"""Ledger: all or nothing, what may be shared, what is given back."""

from __future__ import annotations

import pytest

from tapetum.cache.blocks import BlockPool
from tapetum.cache.ledger import Ledger
from tapetum.cache.prefix import PrefixTree
from tapetum.core.media import Span
from tapetum.core.request import Prompt, Request, RequestState
from tests.scripted import make_item, make_request

SIZE = 4


def _ledger(num_blocks: int = 16, *, is_caching: bool = True, fingerprint: bytes = b"weights") -> Ledger:
    pool = BlockPool(num_blocks)
    return Ledger(pool, PrefixTree(pool) if is_caching else None, SIZE, (fingerprint,))


def _state(segments, request_id: str = "r", **options) -> RequestState:
    return RequestState(make_request(request_id, segments, **options))


def _compute(ledger: Ledger, state: RequestState, upto: int | None = None) -> None:
    state.num_computed_tokens = state.num_tokens if upto is None else upto
    ledger.publish(state)


def _cached(ledger: Ledger, segments, **options) -> int | None:
    """Tokens that a new request of these segments would find."""
    state = _state(segments, "probe", **options)
    found = ledger.admit(state)
    ledger.release(state)
    return found


def test_admit_reserves_the_whole_prompt_or_nothing() -> None:
    ledger = _ledger(5)
    first, second = _state(range(10), "a"), _state(range(100, 112), "b")
    assert ledger.admit(first) == 0
    assert len(first.block_ids) == 3 and ledger.pool.num_held == 3
    assert ledger.admit(second) is None
    assert second.block_ids == () and ledger.pool.num_held == 3
    ledger.release(first)
    assert ledger.admit(second, spare=3) is None
    assert ledger.admit(second, spare=2) == 0


@pytest.mark.parametrize(("length", "found"), [(4, 0), (5, 4), (8, 4), (9, 8), (12, 8)])
def test_a_match_stays_below_the_last_token(length: int, found: int) -> None:
    ledger = _ledger()
    state = _state(range(12))
    ledger.admit(state)
    _compute(ledger, state)
    assert _cached(ledger, range(length)) == found


def test_only_computed_full_blocks_are_found() -> None:
    ledger = _ledger()
    state = _state(range(14))
    ledger.admit(state)
    for computed, found in ((3, 0), (4, 4), (11, 8), (14, 12)):
        _compute(ledger, state, computed)
        assert _cached(ledger, range(30)) == found


def test_outputs_are_part_of_the_prefix() -> None:
    ledger = _ledger()
    state = _state(range(6))
    ledger.admit(state)
    for token in (50, 51, 52, 53):
        state.output_token_ids.append(token)
        assert ledger.extend(state)
    _compute(ledger, state, 9)
    assert _cached(ledger, [*range(6), 50, 51, 52]) == 8
    assert _cached(ledger, [*range(6), 50, 99, 52]) == 4


PICTURE = make_item("picture", 5)
PROMPT = [1, 2, PICTURE, 3, 4, 5, 6]  # 12 tokens with the last below


def _mutated(span: Span, **changes) -> Prompt:
    base = make_request("x", [*PROMPT, 8]).prompt
    fields = {"start": span.start, "end": span.end, "item": span.item, "placement": span.placement, **changes}
    return Prompt(token_ids=base.token_ids, spans=(Span(**fields),), position_ids=None, position_delta=0)


def test_changing_any_one_thing_misses() -> None:
    """Token, media key, offset in the media, placement, tenant and fingerprint, one at a time."""
    ledger = _ledger()
    state = _state([*PROMPT, 8])
    ledger.admit(state)
    _compute(ledger, state)
    span = state.request.prompt.spans[0]
    assert _cached(ledger, [*PROMPT, 8]) == _cached(ledger, [*PROMPT, 9]) == 8
    assert _cached(ledger, [9, *PROMPT[1:], 8]) == 0
    assert _cached(ledger, [1, 2, make_item("other", 5), 3, 4, 5, 6, 8]) == 0
    assert _cached(ledger, [*PROMPT, 8], tenant="other") == 0
    for prompt in (
        _mutated(span, placement=(1.0, 5.0, 1.0)),
        _mutated(span, start=3, end=7),
        _mutated(span, start=1),
    ):
        probe = RequestState(_with_prompt(state.request, prompt))
        assert ledger.admit(probe) == 0
        ledger.release(probe)
    assert _cached(_ledger(fingerprint=b"other"), [*PROMPT, 8]) == 0


def _with_prompt(request: Request, prompt: Prompt) -> Request:
    return Request(
        request_id="probe", prompt=prompt, sampling=request.sampling, max_tokens=4, stop_token_ids=frozenset()
    )


def test_equal_placeholders_of_different_pictures_never_share_a_block() -> None:
    ledger = _ledger(32)
    first, second = _state([make_item("cat", 16), 1], "a"), _state([make_item("dog", 16), 1], "b")
    for state in (first, second):
        assert ledger.admit(state) == 0
        _compute(ledger, state)
    assert first.request.prompt.token_ids == second.request.prompt.token_ids
    assert not set(first.block_ids) & set(second.block_ids)


def test_equal_blocks_computed_side_by_side_become_one() -> None:
    ledger = _ledger()
    first, second = _state(range(10), "a"), _state([*range(8), 90, 91], "b")
    assert ledger.admit(first) == ledger.admit(second) == 0
    assert not set(first.block_ids) & set(second.block_ids)
    _compute(ledger, first)
    _compute(ledger, second)
    assert first.block_ids[:2] == second.block_ids[:2]
    assert first.block_ids[2] != second.block_ids[2]
    assert ledger.pool.num_held == 4
    ledger.release(first)
    assert [ledger.pool.references(block) for block in second.block_ids] == [1, 1, 1]
    ledger.release(second)
    assert ledger.pool.num_held == 0 and ledger.pool.num_cached == 2


def test_extend_takes_a_block_only_when_one_is_needed_and_evicts_for_it() -> None:
    ledger = _ledger(3)
    old = _state(range(8), "old")
    ledger.admit(old)
    _compute(ledger, old)
    ledger.release(old)
    assert ledger.pool.num_cached == 2
    state = _state([90] * 8, "new")
    assert ledger.admit(state) == 0
    assert ledger.pool.num_cached == 1  # the deeper block went first
    assert _cached(ledger, range(8)) is None and len(state.block_ids) == 2
    state.output_token_ids.append(1)
    assert ledger.extend(state) and len(state.block_ids) == 3
    state.output_token_ids += [1] * 3
    assert ledger.extend(state) and len(state.block_ids) == 3
    state.output_token_ids.append(1)
    assert not ledger.extend(state) and len(state.block_ids) == 3


def test_asking_for_room_evicts_nothing() -> None:
    ledger = _ledger(2)
    state = _state(range(8))
    ledger.admit(state)
    _compute(ledger, state)
    ledger.release(state)
    assert ledger.has_room(2) and not ledger.has_room(3)
    assert ledger.pool.num_cached == 2


def test_admission_does_not_evict_what_it_shares() -> None:
    """The prefix of the newcomer is the oldest cached run: it must be taken before room is made."""
    ledger = _ledger(4)
    for request_id, tokens in (("a", range(8)), ("b", [90] * 8)):
        state = _state(tokens, request_id)
        ledger.admit(state)
        _compute(ledger, state)
        ledger.release(state)
    assert ledger.pool.num_free == 0
    state = _state([*range(8), *range(40, 44), 1], "c")
    assert ledger.admit(state) == 8
    assert ledger.pool.num_held == 4


def test_blocks_are_tagged_by_what_they_carry() -> None:
    ledger = _ledger(is_caching=False)
    state = _state([1, 2, make_item("p", 12), 3, 4, make_item("q", 1)])
    ledger.admit(state)  # tt vv | vvvv | vvvv | vv tt | v
    assert ledger.pool.num_by_tag == {"text": 0, "visual": 2, "mixed": 3, "cross": 0}
    ledger.release(state)
    assert not any(ledger.pool.num_by_tag.values())


def test_without_a_tree_nothing_is_kept() -> None:
    ledger = _ledger(is_caching=False)
    state = _state(range(12))
    ledger.admit(state)
    _compute(ledger, state)
    ledger.release(state)
    assert ledger.pool.num_free == 16
    assert _cached(ledger, range(12)) == 0
