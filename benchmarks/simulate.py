"""How well scheduling keeps its promises, by the simulator: one figure each, with what it must be.

    python benchmarks/simulate.py [--coefficients NAME|FILE] [--num-prompts 300] [--seed 0] [--only mixed,tenants]

Deterministic: the same seed gives the same figures on any machine. Exit code 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
import time

from tapetum.bench.simulate.coefficients import read_coefficients
from tapetum.bench.simulate.goals import GOALS


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--coefficients", default="qwen2vl-mini-cpu")
    parser.add_argument("--num-prompts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(GOALS))
    arguments = parser.parse_args()
    coefficients, num_missed = read_coefficients(arguments.coefficients), 0
    print(
        f"{coefficients.name}, {coefficients.note}; {arguments.num_prompts} requests, seed {arguments.seed}"
    )
    for name in arguments.only.split(","):
        goal, began = GOALS[name], time.perf_counter()
        value = goal.figure(coefficients, arguments.num_prompts, arguments.seed)
        num_missed += not goal.is_reached(value)
        sign, word = ">=" if goal.is_more_better else "<=", "reached" if goal.is_reached(value) else "MISSED"
        took = f"{time.perf_counter() - began:.1f} s"
        print(
            f"{name:10} {value:8.3f} {sign} {goal.must:g} (aim {goal.aim:g})  {word:8} {goal.what} ({took})",
            flush=True,
        )
    return 1 if num_missed else 0


if __name__ == "__main__":
    sys.exit(main())
