"""Accuracy of the bundled model at each rung of the ladder of picture sizes: what `--quality-ladder` may cost.

Asks the questions of `tapetum evaluate` once for each rung, through the code that a loaded server takes, with a target
that nothing meets: every picture goes down to the rung named. Text goes too here, which on a server it does only where
the request names a rung; `read` is the share of pictures that a server would have left whole. No picture becomes
smaller than the model's `min_pixels`, which of the bundled one are a fifth of its `max_pixels`: its thumbnails are
larger than a sixteenth.

    python benchmarks/quality.py [--n 20] [--tasks text,receipt,shapes]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tapetum.core.media import PARTS, Rung
from tapetum.core.request import SamplingParams
from tapetum.engine.llm import LLM
from tapetum.engine.output import RequestOutput
from tapetum.evaluate import TASKS, draw_cases, evaluate
from tapetum.media.density import is_dense

TARGET_S = 0.001


class AtRung:
    """A model that sees every picture at one rung."""

    def __init__(self, llm: LLM, rung: Rung) -> None:
        self._llm = llm
        self._rung = rung
        self.num_pictures = self.num_tokens = 0

    def chat(
        self, messages: object, sampling_params: SamplingParams, *, use_tqdm: bool | None = None
    ) -> Sequence[RequestOutput]:
        assert isinstance(messages, list)
        for (message,) in messages:
            for part in message["content"]:
                if part["type"] != "text":
                    part["least_rung"] = self._rung
        outputs = self._llm.chat(messages, sampling_params, use_tqdm=use_tqdm)
        reports = [report for output in outputs for report in output.media]
        self.num_pictures += len(reports)
        self.num_tokens += sum(report.visual_tokens for report in reports)
        return outputs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=20, help="questions of each task")
    parser.add_argument("--tasks", default=",".join(TASKS))
    options = parser.parse_args()
    tasks = options.tasks.split(",")
    rows = []
    for rung in PARTS:
        with LLM(quality_ladder_s=TARGET_S) as llm:  # a new one, which has kept no larger picture
            model = AtRung(llm, rung)
            report = evaluate(model, draw_cases(tasks, options.n), total=options.n * len(tasks))
        shares = [report.rate(task).share for task in tasks]
        rows.append((rung, model.num_tokens / model.num_pictures, shares))
    print(
        f"{'rung':10s} {'tokens':>7s} " + " ".join(f"{task:>8s}" for task in tasks) + "   exact answers in %"
    )
    for rung, num_tokens, shares in rows:
        print(f"{rung:10s} {num_tokens:7.1f} " + " ".join(f"{100 * share:8.1f}" for share in shares))
    pictures = [(case.task, image) for case in draw_cases(tasks, options.n) for image in case.images[:1]]
    read = [[is_dense(image) for found, image in pictures if found == task] for task in tasks]
    print(f"{'read':18s} " + " ".join(f"{100 * sum(one) / len(one):8.1f}" for one in read))


if __name__ == "__main__":
    main()
