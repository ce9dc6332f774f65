"""A bf16 linear layer with its weight packed once against torch's own, which packs it at every call.

    python benchmarks/linear.py

Prints milliseconds (medians) for the layers of qwen2vl-mini, by number of tokens, and whether the values agree.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from tapetum.ops.linear import PackedLinear
from tapetum.ops.reference import Linear

LAYERS = (("head", 151_936, 512), ("gate and up", 4096, 512), ("down", 512, 2048), ("q, k and v", 768, 512))
SECONDS = 0.5


def milliseconds(work: Callable[[], object]) -> float:
    work()
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times) < 5:
        started = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


@torch.inference_mode()
def main() -> None:
    print(
        f"{'layer':12} {'tokens':>6} {'torch':>8} {'packed':>8}  equal   ({torch.get_num_threads()} threads)"
    )
    for name, rows, columns in LAYERS:
        weight = torch.randn(rows, columns).bfloat16()
        plain, packed = Linear(weight), PackedLinear(weight, None, "none")
        for tokens in (1, 8, 64):
            x = torch.randn(tokens, columns).bfloat16()
            is_equal = torch.equal(plain(x), packed(x))
            before, after = milliseconds(lambda: plain(x)), milliseconds(lambda: packed(x))  # noqa: B023
            print(f"{name:12} {tokens:6} {before:8.3f} {after:8.3f}  {is_equal}")


if __name__ == "__main__":
    main()
