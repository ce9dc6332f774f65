"""A run: a trace goes through replicas, each with caches, a scheduler and a device of its own.

Owns the clock and the order of arrivals. A request goes to the replica with the least predicted work that is not over;
there it is refused or let in by the rules of a server, at the moment when it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tapetum.bench.simulate.baseline import FirstCome
from tapetum.bench.simulate.coefficients import Coefficients
from tapetum.bench.simulate.device import Device
from tapetum.bench.simulate.outcome import Outcome, Watch
from tapetum.bench.simulate.prompts import Prompts
from tapetum.bench.simulate.quality import Quality
from tapetum.bench.simulate.replica import Policy, Replica
from tapetum.bench.simulate.trace import Arrival
from tapetum.core.config import GIB, CacheConfig, EngineConfig, ScheduleConfig
from tapetum.core.errors import Overloaded, TapetumError
from tapetum.core.model import ModelFacts
from tapetum.sched import build_scheduler

_KV_BYTES = 4 * GIB
_MAX_MODEL_LEN = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is simulated. Every text token is drawn alike, so nothing is guessed."""

    coefficients: Coefficients
    schedule: ScheduleConfig
    num_replicas: int = 1
    kv_bytes: int = _KV_BYTES  # of a replica
    cache: CacheConfig = field(default_factory=CacheConfig)
    max_queue_s: float | None = None
    noise: float = 0.0
    seed: int = 0
    is_leaping: bool = True

    @property
    def num_blocks(self) -> int:
        return self.kv_bytes // (self.coefficients.memory.kv_bytes_per_token * self.cache.block_size)


class Simulation:
    """`build` makes the policy of a replica; `keep` gets what comes of requests in place of `outcomes`."""

    def __init__(
        self,
        setup: Setup,
        build: Callable[[Setup], Policy],
        keep: Callable[[Outcome], None] | None = None,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.watch = Watch(keep or self.outcomes.append)
        cost = setup.coefficients.cost_model()
        self.replicas = [
            Replica(
                build(setup),
                Device(cost, noise=setup.noise, seed=setup.seed + number),
                self.watch,
                is_leaping=setup.is_leaping,
            )
            for number in range(setup.num_replicas)
        ]
        self._prompts = Prompts(setup.coefficients)
        self._max_queue_s = setup.max_queue_s
        # a plain engine has no ladder
        target_s = setup.schedule.quality_ladder_s if build is tapetum else None
        self._quality = None if target_s is None else Quality(target_s, self._prompts)

    @property
    def busy_s(self) -> float:
        return sum(replica.busy_s for replica in self.replicas)

    @property
    def end_s(self) -> float:
        """When the last of the outcomes came."""
        return max((outcome.end_s for outcome in self.outcomes), default=0.0)

    def run(self, trace: Iterable[Arrival]) -> None:
        """To the end of the last request; arrivals in the order of time."""
        for number, arrival in enumerate(trace):
            self._advance(arrival.at_s)
            self._arrive(number, arrival)
        self._advance(float("inf"))

    def _advance(self, until_s: float) -> None:
        for each in self.replicas:
            each.advance(until_s)

    def _arrive(self, number: int, arrival: Arrival) -> None:
        replica = min(self.replicas, key=lambda each: each.load_s)
        queue_s = replica.policy.backlog.seconds
        rung = self._quality.rung(arrival, queue_s) if self._quality else "high"
        request = self._prompts.request(arrival, number, rung)
        try:
            self._check_queue(queue_s)
            replica.add(request, arrival.at_s, self._prompts.unloaded(arrival.shape, rung).seconds)
        except TapetumError as error:
            self.watch.refuse(number, arrival, error.code)
            return
        self.watch.begin(request.request_id, number, arrival, rung)

    def _check_queue(self, queue_s: float) -> None:
        """The rule of --max-queue-seconds."""
        if self._max_queue_s is not None and queue_s > self._max_queue_s:
            raise Overloaded(
                f"the queue is {queue_s:.1f} s long, limit {self._max_queue_s:g} s; come back later"
            )


def tapetum(setup: Setup) -> Policy:
    """The scheduler of the engine, which knows the device's costs as if it had measured them at its start."""
    coefficients = setup.coefficients
    facts = ModelFacts(
        model_type="simulated",
        dtype="bfloat16",
        device="none",
        vocab_size=1,
        max_model_len=_MAX_MODEL_LEN,
        num_blocks=setup.num_blocks,
        block_size=setup.cache.block_size,
        kv_bytes_per_token=coefficients.memory.kv_bytes_per_token,
        feature_bytes_per_token=coefficients.memory.feature_bytes_per_token,
        weights_fingerprint=b"weights",
        encoder_fingerprint=b"encoder",
    )
    schedule = replace(setup.schedule, speculate="off")
    config = EngineConfig(cache=setup.cache, schedule=schedule)
    return build_scheduler(config, facts, coefficients.cost_model())


def first_come(setup: Setup) -> Policy:
    return FirstCome(setup.schedule, setup.num_blocks * setup.cache.block_size)
