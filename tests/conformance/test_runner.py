"""The conformance runner against a made-up server: every kind of step, and faults that it must find."""

from __future__ import annotations

import asyncio
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from tests.conformance import public_faults
from tests.conformance.cases import CasesError, load
from tests.conformance.fleet import Fleet
from tests.conformance.runner import Outcome, outcomes_of

MADE_UP = [sys.executable, "-m", "tests.conformance.made_up_server"]
ROOT = Path(__file__).resolve().parent.parent.parent
BAD = {"messages": [{"role": "user", "content": "bad"}]}


def chat(content: object = "hello", **fields: object) -> dict:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}


@dataclass(frozen=True)
class Made:
    """A case as a file of cases has it."""

    built: dict
    expect: dict = field(default_factory=dict)
    id: str = "X01"
    title: str = "made up"

    def build(self) -> dict:
        return self.built


CONTROL = Made(chat(), {"status": 200}, id="C00")


def post(body: dict, save: str = "r", **entries: object) -> dict:
    return {"do": "post", "body": body, "save": save, **entries}


def scenario(*steps: dict, checks: Sequence[dict] = (), config: dict | None = None, **expect: object) -> Made:
    built = {"scenario": "made up", "config": config or {}, "steps": list(steps)}
    return Made(built, {"checks": list(checks), **expect})


def outcomes(
    *chosen: Made, fault: str = "", url: str | None = None, others: Sequence[Made] = ()
) -> list[Outcome]:
    """The verdicts on a server with a fault."""
    listed = [CONTROL, *others, *chosen]
    cases = SimpleNamespace(
        CASES=listed,
        BY_ID={case.id: case for case in listed},
        CONTROL="C00",
        iter_bodies=lambda step: iter(chat(f"picture {index}") for index in range(step["args"]["n"])),
    )

    async def collect() -> list[Outcome]:
        fleet = Fleet(None if url else [*MADE_UP, "--fault", fault], url)
        return [outcome async for outcome in outcomes_of(cases, chosen, fleet)]

    return asyncio.run(collect())


def problems(case: Made, fault: str = "", others: Sequence[Made] = ()) -> str:
    [outcome] = outcomes(case, fault=fault, others=others)
    assert (outcome.verdict == "passed") == (not outcome.problems)
    return "; ".join(outcome.problems)


ALIVE = {"server_alive_after": True}
SIGNALLED = scenario(
    {"do": "poll", "path": "/health", "every_ms": 20, "for_s": 1.5, "save": "h", "background": True},
    {"do": "signal", "target": "worker", "sig": "KILL", "after_s": 0.1},
    checks=[{"status_within_s": ["h", 503, 1]}, {"no_orphan_process": True}],
)
ENDED = scenario(
    {"do": "signal", "target": "server", "sig": "TERM"},
    checks=[{"exit_within_s": 3}, {"exit_code": 0}, {"no_orphan_process": True}],
)
MEMORY = scenario(
    *(
        {"do": "measure", "what": "rss", "save": "m"} if index % 2 else post(chat("picture"))
        for index in range(8)
    ),
    checks=[{"rss_growth_second_half_percent_max": ["m", 5]}],
    rss_growth_mb_max=30,
)
SECRET = "QUJD" * 60

GOOD = {
    "post": scenario(
        post(chat()), post(chat()), checks=[{"every_equal": "r.text"}, {"repeats_equal": "r"}], **ALIVE
    ),
    "post_raw": scenario(
        {"do": "post_raw", "body": b'{"temperature": NaN}', "save": "r"},
        checks=[{"every_status": "r", "in": [400]}],
    ),
    "post_each": scenario(
        {"do": "post_each", "gen": "any", "args": {"n": 6}, "concurrency": 3, "save": "r"},
        checks=[
            {"distinct_image_keys": ["r", 6]},
            {"not_all_equal": "r.text"},
            {"sample_equal_to_cold": ["r", 3]},
        ],
    ),
    "parallel": scenario(
        post(chat("a"), "a"),
        post(chat("b"), "b"),
        {"do": "parallel", "stagger_ms": 5, "steps": [post(chat("a")), post(chat("b"))]},
        checks=[{"pairwise_equal": ["r.text", ["a.text", "b.text"]]}, {"differ": ["a.text", "b.text"]}],
    ),
    "poll": scenario(
        {"do": "poll", "path": "/health", "every_ms": 5, "for_s": 30, "save": "h", "background": True},
        {"do": "sleep", "s": 0.05},
        checks=[{"every_status": "h", "in": [200]}, {"p95_ms_of": "h", "ms": 2000}],
        max_seconds=20,
    ),
    "stop": scenario(
        post(chat(max_tokens=40), "full"),
        {"do": "derive_stop", "from": "full", "at": [4, 6]},
        post(chat(max_tokens=40, stream=True, stop="{STOP}"), "s"),
        checks=[
            {"stream_text_equals_prefix_of": ["s", "full", "{STOP}"]},
            {"no_suffix_is_prefix_of_stop": "s"},
        ],
    ),
    "abort": scenario(
        {"do": "get", "path": "/metrics", "save": "before"},
        *(post(chat(max_tokens=4000, stream=True), "x", abort_after_chunks=2) for _ in range(2)),
        post(chat(max_tokens=60, stream=True), "x", abort_after_s=0.05),
        post(chat()),
        {"do": "sleep", "s": 0.3},
        {"do": "get", "path": "/metrics", "save": "after"},
        checks=[
            {"counter_delta": ["aborted", 3]},
            {"counter_delta": ["finished", 1]},
            {"gauge": ["running", 0]},
        ],
    ),
    "start": scenario(
        {"do": "start", "args": {"context": 99, "api_keys": ["k"]}},
        post(chat()),
        post(chat(), headers={"authorization": "Bearer k"}, save="keyed"),
        {"do": "reset_caches"},
        checks=[{"status_of": "r", "in": [401]}, {"same_output_as_case": ["keyed", "C00"]}],
        **ALIVE,
    ),
    "signal": SIGNALLED,
    "end": ENDED,
    "measure": MEMORY,
}


@pytest.fixture(scope="module")
def good() -> dict[str, Outcome]:
    """All of them in one run."""
    named = [Made(case.built, case.expect, id=name) for name, case in GOOD.items()]
    return {outcome.case.id: outcome for outcome in outcomes(*named)}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_server_passes(name: str, good: dict[str, Outcome]) -> None:
    assert (good[name].verdict, good[name].problems) == ("passed", [])


FAULTY = {
    "forgets": (GOOD["post"], "r.text"),
    "dies": (Made(BAD, {"status": 400, **ALIVE}), "/health"),
    "500": (Made(BAD, {"status": [400, 422]}), "seen: 500 this is bad"),
    "leaks": (MEMORY, "memory grows by at most 5 %"),
    "logs": (Made(chat(SECRET), {"reply_and_log_without_base64": True}), "in the log"),
    "orphan": (ENDED, "tapetum.engine.process"),
    "hangs": (scenario(post(BAD, abort_after_s=0.2), checks=[{"max_seconds_each": 0.1}]), "within 0.1 s"),
    "stubborn": (ENDED, "it still runs"),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_a_fault_is_found(fault: str) -> None:
    case, said = FAULTY[fault]
    if fault == "stubborn":
        case = scenario(case.built["steps"][0], checks=[{"exit_within_s": 0.3}])
    assert said in problems(case, fault)


def test_a_leak_is_seen_at_its_peak() -> None:
    assert "grows by at most 30 MB" in problems(MEMORY, "leaks")


def test_a_server_that_does_not_start_has_an_outcome() -> None:
    checks = [{"start_outcome": ["exits within 60 s naming the option"]}, {"status_or_refused": ["r", []]}]
    starting = scenario({"do": "start", "args": {"context": 7}}, post(chat()), checks=checks)
    broken = {"do": "start", "args": {"model": "absent"}}
    assert "the start ends in one of" in problems(starting)
    assert not problems(scenario(broken, post(chat()), checks=checks))


UNKNOWN = [
    (Made(chat(), {"statos": 200}), "unknown key statos"),
    (Made(chat(), {"any_of": [{"checks": [{"every_smile": "r"}]}]}), "every_smile"),
    (Made(chat(), {"same_output_as": "X99"}), "no case X99"),
    (Made({"prompt": "x"}), "neither a request nor a scenario"),
    (scenario({"do": "dance"}), "no step dance"),
    (scenario(post(chat(), within=3)), "unknown entry within"),
    (scenario({"do": "parallel", "steps": [{"do": "dance"}]}), "no step dance"),
    (scenario(post(chat()), config={"colour": "red"}), "no flag is known for the setting colour"),
    (
        scenario(post(chat()), config={"encoder_budget_tokens": "half of this picture"}),
        "no request of the scenario has one",
    ),
    (scenario({"do": "start", "args": {"colour": "red"}}), "colour"),
    (scenario({"do": "measure", "what": "joy"}), "joy"),
]


def test_what_nobody_knows_is_a_failure_of_the_case() -> None:
    named = [Made(case.built, case.expect, id=f"X{index}") for index, (case, _) in enumerate(UNKNOWN)]
    found = {outcome.case.id: outcome for outcome in outcomes(*named)}
    for index, (_, said) in enumerate(UNKNOWN):
        assert said in "; ".join(found[f"X{index}"].problems)


def test_a_server_of_somebody_else_is_not_touched() -> None:
    with subprocess.Popen(
        [*MADE_UP, "--port", (port := _free_port())], cwd=ROOT, start_new_session=True
    ) as process:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url)
        try:
            chosen = [GOOD["post"], GOOD["start"], GOOD["signal"], GOOD["measure"], FAULTY["logs"][0]]
            named = [Made(case.built, case.expect, id=f"X{index}") for index, case in enumerate(chosen)]
            verdicts = {outcome.case.id: outcome.verdict for outcome in outcomes(*named, url=url)}
        finally:
            process.terminate()
    assert verdicts == {"X0": "passed", "X1": "skipped", "X2": "skipped", "X3": "skipped", "X4": "skipped"}


def test_servers_start_again_only_for_other_settings() -> None:
    chosen = [
        Made(scenario(post(chat()), config=config).built, id=f"X{index}")
        for index, config in enumerate([{"context": 9}, {}, {"context": 9}, {"prefix_cache": True}])
    ]
    ordered = [outcome.case.id for outcome in outcomes(*chosen)]
    assert ordered == ["X1", "X3", "X0", "X2"]


def test_a_file_without_cases_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "faults.py"
    path.write_text("CASES = []")
    with pytest.raises(CasesError, match="BY_ID"):
        load(path)


def test_a_case_that_cannot_be_built_or_judged_fails_alone() -> None:
    unbuilt = Made(chat(), id="X1")
    object.__setattr__(unbuilt, "built", None)
    unjudged = Made(chat(), {"prompt_tokens_within": [chat(), "far"]}, id="X2")
    malformed = Made(chat(), {"checks": [{"equal": ["r.text"]}]}, id="X3")
    found = outcomes(unbuilt, unjudged, malformed, Made(chat(), {"status": 200}, id="X4"))
    assert {outcome.case.id: outcome.verdict for outcome in found} == {
        "X1": "failed",
        "X2": "failed",
        "X3": "failed",
        "X4": "passed",
    }


def test_a_failed_case_leaves_its_server_to_nobody() -> None:
    dies = Made(BAD, {"status": 400, **ALIVE}, id="X1")
    found = outcomes(dies, Made(chat(), {"status": 200, **ALIVE}, id="X2"), fault="dies")
    assert [outcome.verdict for outcome in found] == ["failed", "passed"]


def test_the_command_tells_what_failed_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "faults.py"
    path.write_text(_FILE)
    command = [
        sys.executable,
        "-m",
        "tests.conformance",
        "--cases",
        str(path),
        "--serve",
        shlex.join(MADE_UP),
    ]
    whole = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert whole.stdout.splitlines()[-1] == "2 passed, 1 failed, 0 skipped"
    assert "one of [200]; seen: 400 this is bad" in whole.stdout
    assert "--only X02" in whole.stdout
    assert "speaks of joy" in whole.stderr
    assert whole.returncode == 1
    good = subprocess.run(
        [*command, "--only", "C00,X01"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (good.stdout.splitlines()[-1], good.returncode) == ("2 passed, 0 failed, 0 skipped", 0)


_FILE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Callable

@dataclass(frozen=True)
class Case:
    id: str
    title: str
    build: Callable[[], dict]
    expect: dict

def say(word): return lambda: {"messages": [{"role": "user", "content": word}], "max_tokens": 4}
CASES = [
    Case("C00", "control", say("hello"), {"status": 200}),
    Case("X01", "good", say("good"), {"status": 200, "different_output_from": "C00"}),
    Case("X02", "bad", say("bad"), {"status": 200}),
]
BY_ID = {case.id: case for case in CASES}
CONTROL = "C00"
EXPECT_KEYS = {"status", "joy"}
RELATIONS = {"equal": ""}
iter_bodies = None
"""


def test_the_public_cases_are_all_there() -> None:
    kinds = [case.kind for case in public_faults.CASES]
    assert len(public_faults.BY_ID) == len(public_faults.CASES) == 102
    assert sum(kind == "control" for kind in kinds) == 2
    assert public_faults.CONTROL in public_faults.BY_ID


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def _wait_for(url: str) -> None:
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        try:
            httpx2.get(f"{url}/health", trust_env=False)
            return
        except httpx2.ConnectError:
            time.sleep(0.02)
    raise AssertionError("the made-up server does not start")
