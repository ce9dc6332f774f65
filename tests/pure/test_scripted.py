"""The scripted device refuses plans that a real one would compute wrongly: each check, by one wrong plan."""

from __future__ import annotations

import pytest

from tapetum.core.plan import BatchPlan, EncodeJob, Row, SampledToken
from tests.scripted import PlanError, ScriptedExecutor, hashed_token, make_item, make_request

PICTURE = make_item("p", 3)
A = make_request("a", [1, 2, PICTURE, 3])  # 6 tokens, blocks of 4
B = make_request("b", [1, 2, 9, 9, 9, 9])


def _row(
    request_id: str, start: int, length: int, blocks: tuple[int, ...], *, has_sample: bool = False
) -> Row:
    return Row(request_id=request_id, start=start, length=length, block_ids=blocks, has_sample=has_sample)


def _started() -> ScriptedExecutor:
    """`a` has its first 4 tokens in block 0."""
    device = ScriptedExecutor(4)
    device.execute(
        BatchPlan(
            step=1, admitted=(A, B), encodes=(EncodeJob(item=PICTURE),), rows=(_row("a", 0, 4, (0, 1)),)
        )
    )
    return device


def test_a_right_plan_runs_and_samples() -> None:
    device = _started()
    result = device.execute(
        BatchPlan(step=2, rows=(_row("a", 4, 2, (0, 1), has_sample=True), _row("b", 0, 4, (2,))))
    )
    assert result.tokens == {"a": (SampledToken(token_id=hashed_token("a", 6)),)}
    assert device.computed == {"a": 6, "b": 4}
    result = device.execute(BatchPlan(step=3, rows=(_row("a", 6, 1, (0, 1), has_sample=True),)))
    assert result.tokens["a"] == (SampledToken(token_id=hashed_token("a", 7)),)


@pytest.mark.parametrize(
    ("what", "plan"),
    [
        ("other contents", {"rows": (_row("b", 4, 2, (0, 1), has_sample=True),)}),
        ("other contents", {"rows": (_row("a", 5, 1, (0, 1), has_sample=True),)}),
        ("other contents", {"rows": (_row("a", 4, 2, (2, 1), has_sample=True),)}),
        ("write block 1", {"rows": (_row("a", 4, 2, (0, 1), has_sample=True), _row("b", 0, 4, (1,)))}),
        ("into the past", {"rows": (_row("a", 4, 2, (0, 1), has_sample=True), _row("b", 0, 4, (0,)))}),
        ("two rows", {"rows": (_row("a", 4, 1, (0, 1)), _row("a", 5, 1, (0, 1), has_sample=True))}),
        ("of 6 tokens", {"rows": (_row("a", 4, 2, (0, 1)),)}),
        ("of 6 tokens", {"rows": (_row("a", 4, 1, (0, 1), has_sample=True),)}),
        ("of 6 tokens", {"rows": (_row("a", 4, 3, (0, 1), has_sample=True),)}),
        ("of 6 tokens", {"rows": (_row("a", 4, 0, (0, 1)),)}),
        ("missing blocks", {"rows": (_row("a", 4, 2, (0,), has_sample=True),)}),
        ("repeated", {"rows": (_row("a", 4, 2, (0, 0), has_sample=True),)}),
        (
            "features",
            {"rows": (_row("a", 4, 2, (0, 1), has_sample=True),), "dropped_features": (PICTURE.key,)},
        ),
        ("never admitted", {"rows": (_row("c", 0, 1, (3,)),)}),
        ("has ended", {"rows": (_row("a", 4, 1, (0, 1)),), "released": ("a",)}),
        ("admitted twice", {"admitted": (A,)}),
        ("encoded twice", {"encodes": (EncodeJob(item=PICTURE),)}),
        ("not there", {"dropped_features": (b"unknown",)}),
    ],
)
def test_wrong_plans_are_refused_and_change_nothing(what: str, plan: dict) -> None:
    device = _started()
    with pytest.raises(PlanError, match=what):
        device.execute(BatchPlan(step=2, **plan))
    assert device.request_ids == {"a", "b"} and device.feature_keys == {PICTURE.key}
    device.execute(BatchPlan(step=2, rows=(_row("a", 4, 2, (0, 1), has_sample=True),)))


def test_a_request_is_released_once() -> None:
    device = _started()
    device.execute(BatchPlan(step=2, released=("a",)))
    with pytest.raises(PlanError, match="released twice"):
        device.execute(BatchPlan(step=3, released=("a",)))
    device.execute(BatchPlan(step=3, admitted=(A,)))
    device.execute(BatchPlan(step=4, released=("a",)))
    assert device.request_ids == {"b"}
