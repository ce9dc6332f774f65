"""Requests that begin as others did whose keys and values have left the device, on their way to the scheduler.

A request whose prompt goes on in the tiers where the tree ends waits here until those blocks have landed, no longer
than it would take to compute them. The longest run from the front counts: what is behind a gap is of no use. Blocks
land while others decode, some with each step. What requests leave behind is saved. Belongs to the thread of the loop;
without a tier for keys and values nothing is held here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tapetum.cache.prompt_blocks import PromptBlocks
from tapetum.core.errors import TapetumError
from tapetum.core.plan import Payload
from tapetum.core.request import Request
from tapetum.engine.kv_tiers import KvTiers
from tapetum.engine.mailbox import Mailbox
from tapetum.engine.searches import LEAST_LOAD_S
from tapetum.engine.tiers import Load
from tapetum.sched.limits import late_among
from tapetum.sched.scheduler import Scheduler

_PART = 32  # blocks that are loaded together


@dataclass(slots=True, eq=False)
class _Held:
    request: Request
    blocks: PromptBlocks
    first: int  # index of the first block that is not in the tree
    until_s: float
    parts: list[tuple[bytes, ...]]  # names of blocks, not landed from the first on
    loads: list[Load] = field(default_factory=list)
    found: dict[int, Mapping[bytes, Payload]] = field(default_factory=dict)  # by part
    next_part: int = 0
    payloads: list[Payload] = field(default_factory=list)  # one behind the other, not landed yet

    def gather(self) -> None:
        """Put what was found behind what came before, up to the first gap."""
        while self.next_part in self.found:
            found = self.found.pop(self.next_part)
            for name in self.parts[self.next_part]:
                if name not in found:
                    self.end()
                    return
                self.payloads.append(found[name])
            self.next_part += 1

    def end(self) -> None:
        """Nothing more will come."""
        self.next_part = len(self.parts)
        self.found.clear()
        for load in self.loads:
            load.cancel()

    @property
    def is_over(self) -> bool:
        return self.next_part == len(self.parts)


class Resumption:
    def __init__(
        self, tiers: KvTiers | None, scheduler: Scheduler, mailbox: Mailbox, num_blocks: int
    ) -> None:
        """`num_blocks` of the pool: that many are loaded at a time, for all requests together."""
        self._tiers = tiers
        self._scheduler = scheduler
        self._traffic = scheduler.traffic
        self._mailbox = mailbox
        self._max_blocks = num_blocks
        self._held: dict[str, _Held] = {}  # by request id

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def try_hold(self, request: Request, now: float) -> bool:
        """Begin to load what continues the tree; it comes back from `take_ready`. False where that does not pay."""
        if self._tiers is None or request.request_id in self._held:
            return False
        blocks = self._traffic.blocks_of(request)
        first, names, compute_s = self._known(self._tiers, blocks)
        if not names or self._num_loading(names) > self._max_blocks:
            return False
        if self._tiers.seconds(len(names), names[0]) >= compute_s:
            return False
        is_sure = self._tiers.knows(names[0])
        parts = _parts(names, first_size=_PART if is_sure else 1)
        held = _Held(request, blocks, first, now + max(LEAST_LOAD_S, compute_s), parts)
        self._held[request.request_id] = held
        self._begin(held, parts if is_sure else parts[:1])
        return True

    def take_ready(self, now: float) -> Iterator[Request]:
        """Requests that have got what there was, or have waited long enough."""
        for request_id, held in list(self._held.items()):
            if now >= held.until_s:
                held.end()
            self._land(held)
            if held.is_over and not held.payloads:
                del self._held[request_id]
                yield held.request

    def drop(self, request_id: str) -> bool:
        """Forget a request that is held; False if it is not."""
        held = self._held.pop(request_id, None)
        if held is not None:
            held.end()
        return held is not None

    def drop_late(self, now: float) -> Mapping[str, TapetumError]:
        """Forget the requests whose deadline has passed meanwhile, and say so."""
        late = late_among((held.request for held in self._held.values()), now)
        for request_id in late:
            self.drop(request_id)
        return late

    def drop_all(self) -> list[str]:
        """Forget all requests that are held."""
        held = list(self._held)
        for request_id in held:
            self.drop(request_id)
        return held

    def keep(self) -> None:
        """Save the blocks that were copied out. What was saved before and used again keeps its place in the tiers, or
        leaves once more where they have lost it."""
        if self._tiers is None:
            return
        for exported in self._traffic.take_exported():
            self._tiers.save(exported)
        used = self._traffic.take_used()
        for node in used:
            if self._tiers.knows(node.name) is False:
                self._traffic.leave(node)
        if used:
            self._tiers.use([node.name for node in used])

    def _known(self, tiers: KvTiers, blocks: PromptBlocks) -> tuple[int, list[bytes], float]:
        """The run that the tiers may have: index of the first block, their names, seconds to compute them."""
        first, compute_s, encoded = 0, 0.0, frozenset(self._scheduler.media_keys)
        names: list[bytes] = []
        for index, name in self._traffic.names(blocks):
            if tiers.knows(name) is False:
                break
            first = first if names else index
            names.append(name)
            compute_s += blocks.cost_s(index, encoded)
        return first, names, compute_s

    def _num_loading(self, names: Sequence[bytes]) -> int:
        """Blocks that are on their way, with these; several answers to one prompt wait for the same."""
        parts = (part for held in self._held.values() for part in held.parts)
        return len(set(names).union(*parts))

    def _begin(self, held: _Held, parts: Sequence[tuple[bytes, ...]]) -> None:
        """Load the next parts."""
        assert self._tiers is not None, "nothing is held without tiers"
        for part in parts:
            held.loads.append(self._tiers.load(part, partial(self._tell, held, len(held.loads))))

    def _tell(self, held: _Held, part: int, found: Mapping[bytes, Payload]) -> None:
        """On the thread of the tiers."""
        self._mailbox.put(partial(self._loaded, held, part, found))

    def _loaded(self, held: _Held, part: int, found: Mapping[bytes, Payload], now: float) -> None:
        """Where nobody could tell, the first block says whether the others are worth asking for."""
        if not held.is_over:
            held.found[part] = found
            held.gather()
        if not held.is_over:
            self._begin(held, held.parts[len(held.loads) :])

    def _land(self, held: _Held) -> None:
        """As much as the next step may bring; what there is no room for is computed."""
        is_alone = not self._scheduler.num_running
        if not held.payloads or self._traffic.is_full(is_alone=is_alone):
            return
        count = self._traffic.land(held.blocks, held.first, held.payloads, is_alone=is_alone)
        held.first += count
        del held.payloads[:count]
        if held.payloads and not self._traffic.is_full(is_alone=is_alone):
            held.end()
            held.payloads.clear()


def _parts(names: Sequence[bytes], first_size: int) -> list[tuple[bytes, ...]]:
    """In order: one of `first_size`, and others of the usual size."""
    starts = (0, *range(first_size, len(names), _PART))
    return [tuple(names[start:end]) for start, end in zip(starts, (*starts[1:], len(names)), strict=True)]
