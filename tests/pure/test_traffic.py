"""KV blocks out to a tier and back: what leaves, what comes back in time, and that no row ever reads anything else.

The scripted device fails on a row that reads other contents than its tokens give, so every answer here is checked.
"""

from __future__ import annotations

from random import Random

import pytest

from tapetum.cache.names import block_name, kv_root_name
from tapetum.cache.traffic import Traffic
from tapetum.core.cost import CostModel
from tapetum.core.errors import EngineError
from tapetum.core.media import MediaItem
from tapetum.core.plan import BatchPlan, Payload
from tapetum.core.request import Request
from tests.pure.stage import SIZE, Stage
from tests.pure.test_prefix import KEYS
from tests.scripted import hashed_token, make_item, make_request

STEP, ENCODE, FREE = (1e-3, 1e-4, 0.0, 1e-4, 0.0), (1e-3, 1e-3, 0.0), (0.0, 1e-12)
Tier = dict[bytes, Payload]
Segments = list[int | MediaItem]


class Place:
    """A stage with a tier behind it. Another one with the same tier is the same server after a restart."""

    def __init__(
        self, tier: Tier, *, load_s: float = 0.0, move: tuple[float, float] = FREE, **options
    ) -> None:
        options = {"num_blocks": 64, "max_model_len": 400, "feature_tokens": 200, **options}
        cost = CostModel(STEP, ENCODE, move)
        self.stage = Stage(cost=cost, load_s=lambda count: count * load_s, **options)
        self.tier = tier

    @property
    def traffic(self) -> Traffic:
        return self.stage.scheduler.traffic

    def save(self) -> None:
        self.tier |= {exported.name: exported.payload for exported in self.traffic.take_exported()}

    def drain(self) -> None:
        self.stage.drain()
        self.save()

    def evict(self) -> None:
        self.stage.scheduler.reset_caches()

    def land(self, request: Request) -> int:
        """What an engine does before it adds a request; as many blocks as have come back."""
        blocks = self.traffic.blocks_of(request)
        first, payloads = None, []
        for index, name in self.traffic.names(blocks):
            if name not in self.tier:
                break
            first = index if first is None else first
            payloads.append(self.tier[name])
        num_landed = 0
        while payloads and first is not None:
            is_alone = not self.stage.scheduler.num_running
            count = self.traffic.land(blocks, first, payloads, is_alone=is_alone)
            num_landed, first, payloads = num_landed + count, first + count, payloads[count:]
            if not self.traffic.is_full(is_alone=is_alone):
                break
            self.stage.step()
        return num_landed

    def ask(self, name: str, segments: Segments, **options) -> list[int]:
        request = make_request(name, segments, **options)
        self.land(request)
        self.stage.add(request)
        self.drain()
        assert self.stage.reasons()[name] == "length"
        return self.stage.tokens[name]

    def computed(self, name: str) -> int:
        return self.stage.executor.computed[name]


PHOTO = make_item("photo", 30)
OPENING: Segments = [1, 2, PHOTO, 3, 4, 5]


def _second_turn(place: Place, first: list[int]) -> Segments:
    return [*OPENING, *first, 6, 7, 8]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_conversation_goes_on_without_an_encode_or_a_full_prefill(is_restarted: bool) -> None:
    tier: Tier = {}
    place = Place(tier)
    first = place.ask("one", OPENING)
    assert len(tier) == (35 + 3) // SIZE == place.stage.scheduler.stats().num_exported_blocks
    place.evict()
    if is_restarted:
        place = Place(tier)
    num_encodes = place.stage.executor.encoded.total()
    second = _second_turn(place, first)
    place.ask("two", second)
    assert place.stage.executor.encoded.total() == num_encodes
    length = 35 + 4 + 3
    assert place.computed("two") == length - 36 + 3  # tokens behind the last full block, and decodes
    stats = place.stage.ends["two"].stats
    assert stats is not None and stats.num_cached_tokens == 36 and stats.media_sources == ("prefix",)
    assert place.stage.scheduler.stats().num_arrived_blocks == 9
    place.stage.assert_clean()


def test_what_came_back_is_not_saved_again() -> None:
    place = Place({})
    first = place.ask("one", OPENING)
    place.evict()
    num_exported = place.stage.scheduler.stats().num_exported_blocks
    place.ask("again", OPENING)
    assert place.stage.scheduler.stats().num_exported_blocks == num_exported + 1  # another answer
    place.ask("two", _second_turn(place, first))
    assert place.stage.scheduler.stats().num_exported_blocks == num_exported + 1 + 2


def test_a_gap_ends_what_comes_back() -> None:
    place = Place({})
    place.ask("one", OPENING)
    place.evict()
    request = make_request("two", OPENING)
    names = [name for _, name in place.traffic.names(place.traffic.blocks_of(request))]
    del place.tier[names[3]]
    assert place.land(request) == 3
    place.stage.add(request)
    place.drain()
    assert place.computed("two") == 35 + 3 - 3 * SIZE


@pytest.mark.parametrize(
    ("segments", "options", "is_kept"),
    [
        (OPENING, {}, True),
        (OPENING, {"load_s": 1.0}, False),  # slower than to compute it
        (OPENING, {"move": (10.0, 1.0)}, False),
        (list(range(40)), {}, False),  # short, and without a picture
        (list(range(140)), {}, True),
    ],
)
def test_only_what_is_worth_it_leaves(segments: Segments, options: dict, is_kept: bool) -> None:
    place = Place({}, **options)
    place.ask("one", segments)
    assert bool(place.tier) == is_kept


def test_without_a_tier_nothing_leaves() -> None:
    stage = Stage(cost=CostModel(STEP, ENCODE, FREE))
    stage.add(make_request("one", OPENING))
    stage.drain()
    assert not any(plan.block_exports or plan.block_arrivals for plan in stage.plans)


def test_a_step_moves_little_beside_decodes() -> None:
    """Eight blocks take two milliseconds."""
    place = Place({}, move=(0.0, 2.5e-4 / SIZE))
    place.stage.add(make_request("talk", [1, 2, 3], max_tokens=60))
    place.stage.step()
    place.stage.add(make_request("one", list(range(100, 240))))
    while "one" not in place.stage.ends:
        place.stage.step()
    assert [_num_moved(place.stage.step()) for _ in range(6)] == [8, 8, 8, 8, 3, 0]
    place.drain()
    place.evict()
    place.stage.add(make_request("talk again", [1, 2, 3], max_tokens=60))
    place.stage.step()
    assert place.land(make_request("two", list(range(100, 240)))) == 34
    place.drain()
    assert max(len(a.block_ids) for plan in place.stage.plans for a in plan.block_arrivals) == 8


def _num_moved(plan: BatchPlan) -> int:
    return sum(len(export.block_ids) for export in plan.block_exports)


def test_blocks_leave_beside_steps_that_were_foreseen() -> None:
    place = Place({}, move=(0.0, 2.5e-4 / SIZE), speculate="off")
    stage = place.stage
    stage.add(make_request("talk", [1, 2, 3], max_tokens=60))
    stage.add(make_request("one", list(range(100, 240))))
    while "one" not in stage.ends:
        last = stage.step()
    plan, sizes = stage.scheduler.schedule(stage.now), []
    while (ahead := stage.scheduler.foresee(plan, stage.now)) is not None:
        result = stage.finish_step(plan)
        sizes.append(_num_moved(plan))
        plan = ahead.given(result)
    stage.finish_step(plan)
    assert last.rows and sizes[:6] == [8, 8, 8, 8, 3, 0]
    place.drain()
    stage.assert_clean()


def test_what_is_evicted_before_its_step_does_not_travel() -> None:
    place = Place({})
    place.ask("one", OPENING)
    place.evict()
    assert place.land(make_request("two", OPENING)) == 8
    place.evict()
    place.stage.add(make_request("three", list(range(200, 230))))
    assert not place.stage.step().block_arrivals
    place.drain()
    place.stage.assert_clean()


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_what_a_lost_step_was_to_move_the_next_one_moves(is_abandoned: bool) -> None:
    place = Place({})
    place.ask("one", OPENING)
    place.evict()
    request = make_request("two", OPENING)
    assert place.land(request) == 8
    lost = place.stage.scheduler.schedule(0.0)
    assert lost.block_arrivals and not lost.rows
    if is_abandoned:
        place.stage.tell(place.stage.scheduler.abandon(lost, EngineError("broken"), 0.0))
    else:
        place.stage.scheduler.withdraw(lost)
    place.stage.add(request)
    place.drain()
    assert place.computed("two") == 35 + 3 - 8 * SIZE
    place.stage.assert_clean()


def test_an_export_of_a_lost_step_is_made_by_the_next_one() -> None:
    place = Place({})
    place.stage.add(make_request("one", OPENING))
    while not (plan := place.stage.scheduler.schedule(0.0)).block_exports:
        place.stage.finish_step(plan)
    place.stage.tell(place.stage.scheduler.abandon(plan, EngineError("broken"), 0.0))
    place.drain()
    assert len(place.tier) == 9


def test_nothing_dearer_gives_way() -> None:
    text: Segments = list(range(100, 244))
    place = Place({}, num_blocks=64)
    place.ask("text", text)
    small = Place(place.tier, num_blocks=40)
    small.ask("photo", [PHOTO, 1])
    num_cached = small.stage.scheduler.stats().num_cached_blocks
    assert small.land(make_request("again", text)) == 40 - num_cached == 32
    assert small.stage.scheduler.has_cached(PHOTO.key)


def test_any_field_changes_the_name() -> None:
    roots = [("tenant", b"weights", "bf16"), ("other", b"weights", "bf16"), ("tenant", b"other", "bf16")]
    starts = {kv_root_name(root, size) for root in roots for size in (4, 8)}
    assert len(starts) == 6
    names = {block_name(start, key) for start in starts for key in KEYS}
    assert len(names) == 6 * len(KEYS)
    assert len({block_name(name, key) for name in names for key in KEYS}) == len(names) * len(KEYS)
    assert kv_root_name(("1", b"2"), 4) != kv_root_name((b"1", "2"), 4)


@pytest.mark.parametrize(
    ("segments", "options"),
    [
        (OPENING, {"tenant": "other"}),
        ([9, *OPENING[1:]], {}),
        ([1, 2, make_item("another", 30), 3, 4, 5], {}),
        ([1, 2, 3, PHOTO, 4, 5], {}),
    ],
)
def test_nobody_gets_what_is_not_theirs(segments: Segments, options: dict) -> None:
    place = Place({})
    place.ask("one", OPENING)
    place.evict()
    assert place.land(make_request("two", segments, **options)) == 0
    assert place.land(make_request("three", OPENING)) == 8


@pytest.mark.parametrize("seed", range(6))
def test_conversations_over_a_small_pool_and_a_leaky_tier(seed: int) -> None:
    """Turns of many talks at a time, with evictions, losses and restarts: every token is that of no cache at all."""
    random, tier = Random(seed), Tier()
    photos = [make_item(f"photo {number}", 9 + number) for number in range(3)]
    talks: list[Segments] = [[number, photos[number % 3], 7] for number in range(5)]
    place, count, num_arrived = Place(tier, num_blocks=40), 0, 0
    for _ in range(25):
        asked = {}
        for talk in random.sample(range(5), k=random.randint(1, 3)):
            name, count = f"turn {count}", count + 1
            talks[talk] += [random.randrange(10, 20) for _ in range(random.randint(1, 6))]
            request = make_request(name, talks[talk], max_tokens=random.randint(1, 9))
            place.land(request)
            place.stage.add(request)
            asked[name] = (talk, request)
            if random.random() < 0.5:
                place.stage.step()
                place.save()
        place.drain()
        for name, (talk, request) in asked.items():
            start = request.num_prompt_tokens
            assert place.stage.tokens[name] == [
                hashed_token(name, start + n) for n in range(request.max_tokens)
            ]
            talks[talk] += place.stage.tokens[name]
            if len(talks[talk]) > 70:
                talks[talk] = [talk, photos[talk % 3], 7]
        for name in random.sample(sorted(tier), k=len(tier) // 8):
            del tier[name]
        if random.random() < 0.3:
            place.stage.assert_clean()
            num_arrived += place.stage.scheduler.stats().num_arrived_blocks
            place = Place(tier, num_blocks=40)
    assert num_arrived + place.stage.scheduler.stats().num_arrived_blocks > 20
    place.stage.assert_clean()
