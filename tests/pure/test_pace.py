"""When steps have a thread of their own: where that takes no core from the kernels."""

from __future__ import annotations

import os

import pytest

from tapetum.engine.pace import has_core_to_spare


@pytest.mark.parametrize(
    ("device", "threads", "is_spare"),
    [
        ("cpu", None, False),  # the kernels use all cores
        ("cpu", 4, False),
        ("cpu", 5, False),
        ("cpu", 3, True),
        ("cuda:0", None, True),
    ],
)
def test_a_core_is_spare_that_no_kernel_uses(
    monkeypatch: pytest.MonkeyPatch, device: str, threads: int | None, is_spare: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert has_core_to_spare(device, threads) == is_spare
