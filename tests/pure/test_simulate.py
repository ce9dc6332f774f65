"""The simulator: time passes as it would step by step, nothing is lost, and the same seed gives the same bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tapetum.bench.simulate.baseline import FirstCome
from tapetum.bench.simulate.coefficients import read_coefficients
from tapetum.bench.simulate.device import Device
from tapetum.bench.simulate.outcome import Gaps, Outcome
from tapetum.bench.simulate.plot import plot
from tapetum.bench.simulate.presets import PRESETS, arrivals
from tapetum.bench.simulate.prompts import Prompts
from tapetum.bench.simulate.simulation import Setup, Simulation, first_come, tapetum
from tapetum.bench.simulate.study import capacity_of, study, write_study
from tapetum.bench.simulate.trace import Arrival, Medium, Shape
from tapetum.core.config import GIB, ScheduleConfig
from tapetum.core.cost import chunk_context
from tapetum.core.errors import PromptTooLong
from tapetum.core.media import PARTS
from tapetum.core.plan import BatchPlan, EncodeJob, Row
from tests.scripted import make_item, make_request

MINI = read_coefficients("qwen2vl-mini-cpu")
SMALL = (
    Medium(width=224, height=224),
    Medium(width=448, height=336),
    Medium(kind="video", width=224, height=224, frames=4),
)


def setup_of(**options: object) -> Setup:
    return Setup(coefficients=MINI, schedule=ScheduleConfig(itl_target_ms=30.0), **options)  # type: ignore[arg-type]


def random_trace(seed: int, count: int) -> list[Arrival]:
    rng, at_s, trace = random.Random(seed), 0.0, []
    for _ in range(count):
        at_s += rng.choice([0.0, rng.expovariate(2.0), 3.0])
        media = tuple(rng.choices(SMALL, k=rng.randint(0, 2))) if rng.random() < 0.4 else ()
        if media and rng.random() < 0.3:
            media = (replace(media[0], content="seen often"),)
        shape = Shape(
            name="pictures" if media else "text",
            prompt_tokens=rng.choice([1, 30, 700]),
            output_tokens=rng.choice([1, 2, 40, 90]),
            media=media,
        )
        trace.append(
            Arrival(
                at_s=at_s,
                shape=shape,
                tenant=rng.choice(["", "b"]),
                priority=rng.choice([-1, 0, 0, 2]),
                timeout_s=rng.choice([None, None, 0.5, 4.0]),
            )
        )
    return trace


def told(simulation: Simulation) -> list[Outcome]:
    return sorted(simulation.outcomes, key=lambda outcome: outcome.number)


def assert_clean(simulation: Simulation) -> None:
    assert not simulation.watch.live
    for replica in simulation.replicas:
        assert not replica.policy.has_work and replica.load_s == 0
        if not isinstance(replica.policy, FirstCome):
            stats = replica.policy.stats()
            assert stats.num_held_blocks == stats.num_running == stats.num_waiting == 0


@pytest.mark.parametrize("build", [tapetum, first_come])
@pytest.mark.parametrize("seed", range(12))
def test_steps_taken_as_one_change_nothing(seed: int, build: object) -> None:
    rng = random.Random(seed)
    setup = setup_of(
        num_replicas=rng.choice([1, 1, 3]),
        noise=rng.choice([0.0, 0.3]),
        kv_bytes=rng.choice([MINI.memory.kv_bytes_per_token * 2400, GIB]),  # preemptions, or none
        max_queue_s=rng.choice([None, 1.0]),
        seed=seed,
    )
    trace = random_trace(seed, 40)
    leaping, stepping = (
        Simulation(replace(setup, is_leaping=is_leaping), build) for is_leaping in (True, False)
    )
    for simulation in (leaping, stepping):
        simulation.run(trace)
        assert_clean(simulation)
    assert told(leaping) == told(stepping)
    assert [outcome.number for outcome in told(leaping)] == list(range(len(trace)))
    for name, gaps in stepping.watch.gaps.items():
        assert leaping.watch.gaps[name].quantile(0.99) == gaps.quantile(0.99)
    steps = [sum(replica.num_steps for replica in each.replicas) for each in (leaping, stepping)]
    plans = [sum(replica.num_plans for replica in each.replicas) for each in (leaping, stepping)]
    assert steps[0] == steps[1] == plans[1] > plans[0]


def test_a_request_alone_takes_what_its_device_takes() -> None:
    shape = Shape(name="text", prompt_tokens=200, output_tokens=50)
    unloaded = Prompts(MINI).unloaded(shape)
    for build in (tapetum, first_come):
        simulation = Simulation(setup_of(), build)
        simulation.run([Arrival(at_s=3.0, shape=shape)])
        (outcome,) = simulation.outcomes
        assert outcome.ttft_s == pytest.approx(unloaded.ttft_s)
        assert outcome.itl_s == pytest.approx(unloaded.itl_s)
        assert simulation.busy_s == pytest.approx(unloaded.seconds)


def test_pictures_have_the_size_that_the_family_gives_them() -> None:
    prompts = Prompts(MINI)
    geometry = prompts.geometry(Medium(width=1920, height=1080))
    assert (geometry.used, geometry.num_tokens) == ((1932, 1092), 69 * 39)
    clip = prompts.geometry(Medium(kind="video", width=640, height=360, frames=32))
    assert clip.num_tokens == 16 * 23 * 13 and len(clip.segments) == 16


def test_the_same_content_is_encoded_once() -> None:
    shape = Shape(
        name="picture", prompt_tokens=5, output_tokens=2, media=(Medium(width=672, height=672, content="x"),)
    )
    alone = Prompts(MINI).unloaded(shape)
    simulation = Simulation(setup_of(), tapetum)
    simulation.run([Arrival(at_s=0.0, shape=shape), Arrival(at_s=100.0, shape=shape)])
    first, second = told(simulation)
    assert first.ttft_s == pytest.approx(alone.ttft_s, rel=0.05)
    assert second.ttft_s == pytest.approx(alone.prefill_s)


def test_the_ladder_makes_pictures_smaller_while_others_wait_and_no_others() -> None:
    shape = Shape(name="picture", prompt_tokens=5, output_tokens=2, media=(Medium(width=896, height=896),))
    known = replace(shape, media=(replace(shape.media[0], content="x"),))
    text = Shape(name="text", prompt_tokens=50, output_tokens=2)
    trace = [Arrival(at_s=0.01 * number, shape=(shape, known, text)[number % 3]) for number in range(30)]
    schedule = ScheduleConfig(itl_target_ms=30.0, quality_ladder_s=20.0)
    simulation = Simulation(replace(setup_of(), schedule=schedule), tapetum)
    simulation.run(trace)
    rungs = {
        name: [outcome.rung for outcome in told(simulation) if outcome.arrival.shape is wanted]
        for name, wanted in (("picture", shape), ("known", known), ("text", text))
    }
    assert rungs["picture"][0] == "high" and rungs["picture"][-1] == "thumbnail"
    assert set(rungs["text"]) == {"high"} == set(rungs["known"][1:])
    plain = Simulation(setup_of(), tapetum)
    plain.run(trace)
    assert simulation.end_s < plain.end_s / 2 and all(outcome.rung == "high" for outcome in plain.outcomes)


def test_rungs_are_parts_of_the_area() -> None:
    prompts, medium = Prompts(MINI), Medium(width=1920, height=1080)
    tokens = [prompts.geometry(medium, rung).num_tokens for rung in PARTS]
    assert tokens == [pytest.approx(tokens[0] / part, rel=0.1) for part in PARTS.values()]


def test_requests_go_to_the_replica_with_the_least_to_do() -> None:
    long = Shape(name="long", prompt_tokens=2000, output_tokens=50)
    short = Shape(name="short", prompt_tokens=10, output_tokens=2)
    simulation = Simulation(setup_of(num_replicas=2), tapetum)
    simulation.run(
        [Arrival(at_s=0.0, shape=long)] + [Arrival(at_s=0.1 + 0.3 * n, shape=short) for n in range(3)]
    )
    assert all(outcome.ttft_s < 0.1 for outcome in told(simulation)[1:])


def test_a_long_queue_refuses() -> None:
    shape = Shape(name="text", prompt_tokens=4000, output_tokens=2)
    trace = [Arrival(at_s=0.001 * number, shape=shape) for number in range(100)]
    simulation = Simulation(setup_of(max_queue_s=2.0), tapetum)
    simulation.run(trace)
    refused = [outcome for outcome in simulation.outcomes if outcome.reason == "refused"]
    assert refused and all(outcome.error == "overloaded" for outcome in refused)
    assert all(outcome.end_s == outcome.arrival.at_s for outcome in refused)
    assert_clean(simulation)


def test_a_prompt_that_can_never_fit_is_refused_by_both() -> None:
    shape = Shape(name="text", prompt_tokens=3000, output_tokens=10)
    for build in (tapetum, first_come):
        simulation = Simulation(setup_of(kv_bytes=MINI.memory.kv_bytes_per_token * 2048), build)
        simulation.run([Arrival(at_s=0.0, shape=shape)])
        assert simulation.outcomes[0].error == PromptTooLong.code


def test_the_device_takes_what_the_cost_model_says() -> None:
    cost, device = MINI.cost_model(), Device(MINI.cost_model())
    item = make_item("a", 100)
    rows = (row("d", 40, 1), row("e", 9, 1), row("c", 32, 64))
    result = device.execute(
        BatchPlan(step=1, rows=rows, encodes=(EncodeJob(item=item, start=0.25, end=0.5),))
    )
    assert result.encode_s == cost.encode_seconds(100, 400**2 / 4)
    assert result.forward_s == cost.step_seconds(2, 41 + 10, 64, chunk_context(32, 64))
    assert result.encoded == {item.key: 0.5}


def row(name: str, start: int, length: int) -> Row:
    return Row(request_id=name, start=start, length=length, block_ids=(), has_sample=True)


def test_noise_scatters_around_the_predicted_time() -> None:
    device, exact = Device(MINI.cost_model(), noise=0.2, seed=3), Device(MINI.cost_model())
    plan = BatchPlan(step=1, rows=(row("a", 10, 1),))
    times = [device.execute(plan).forward_s / exact.execute(plan).forward_s for _ in range(1000)]
    assert 0.97 < sum(times) / len(times) < 1.07 and min(times) < 0.8 and max(times) > 1.2


class TestFirstCome:
    def test_prompts_are_whole_and_come_before_decodes(self) -> None:
        policy = FirstCome(ScheduleConfig(max_num_batched_tokens=10, max_num_seqs=3), 100)
        for name, length in (("a", 4), ("b", 6), ("c", 5), ("d", 2)):
            policy.add(make_request(name, range(length), max_tokens=3), 0.0)
        steps = [self.lengths(policy) for _ in range(3)]
        assert steps == [{"a": 4, "b": 6}, {"c": 5}, {"a": 1, "b": 1, "c": 1}]

    def test_pictures_are_encoded_whole_beside_nothing_else(self) -> None:
        policy = FirstCome(ScheduleConfig(), 1000)
        policy.add(make_request("a", [1, make_item("x", 50), make_item("y", 50)], max_tokens=2), 0.0)
        plan = policy.schedule(0.0)
        assert [job.item.key[:1] for job in plan.encodes] == [b"x", b"y"]
        assert all(job.is_whole for job in plan.encodes) and len(plan.rows) == 1

    def test_nobody_passes_who_waits_for_memory(self) -> None:
        policy = FirstCome(ScheduleConfig(), 12)
        for name, length in (("a", 6), ("b", 9), ("c", 1)):
            policy.add(make_request(name, range(length), max_tokens=2), 0.0)
        order = [self.lengths(policy) for _ in range(4)]
        assert order == [{"a": 6}, {"a": 1}, {"b": 9}, {"b": 1}]

    @staticmethod
    def lengths(policy: FirstCome) -> dict[str, int]:
        plan = policy.schedule(0.0)
        policy.commit(plan, Device(MINI.cost_model()).execute(plan), 0.0)
        return {each.request_id: each.length for each in plan.rows}


def test_capacity_is_the_rate_that_first_come_first_served_keeps_up_with() -> None:
    preset, setup = PRESETS["text"], setup_of()
    capacity = capacity_of(preset, setup, 300)
    waits = []
    for load in (0.8, 1.5):
        simulation = Simulation(setup, first_come)
        simulation.run(arrivals(preset, load * capacity, 300, 0))
        waits.append(max(outcome.ttft_s for outcome in simulation.outcomes))
    assert waits[0] < 3 < 20 < waits[1]


@pytest.mark.parametrize("name", PRESETS)
def test_the_same_seed_gives_the_same_bytes(name: str, tmp_path: object) -> None:
    def bytes_of(seed: int, folder: str) -> Sequence[bytes]:
        setup = setup_of(seed=seed, noise=0.1, num_replicas=2)
        trace = arrivals(PRESETS[name], 0.1, 12, seed)
        found = study(name, trace, setup)
        path = tmp_path / f"{folder}.json"  # type: ignore[operator]
        write_study(found, path)
        return path.read_bytes(), plot(found).encode()

    assert bytes_of(1, "a") == bytes_of(1, "b") != bytes_of(2, "c")


def test_gaps_are_told_within_a_fifth_of_a_percent() -> None:
    gaps = Gaps()
    for milliseconds in range(1, 1001):
        gaps.add(milliseconds / 1e3)
    gaps.add(5.0, count=0)
    assert gaps.quantile(0.99) == pytest.approx(0.99, rel=2e-3)
    assert gaps.quantile(0.5) == pytest.approx(0.5, rel=4e-3)
    assert Gaps().quantile(0.5) is None
