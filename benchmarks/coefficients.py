"""Measure what the simulator needs of a checkpoint on this machine, and write it as one JSON.

    python benchmarks/coefficients.py CHECKPOINT --name NAME --out FILE [--repeats 3]

Pictures whole, prefill chunks at several depths and decodes of several widths and contexts go through the real
executor on one thread. Each is run a few times, and the least CPU time counts: so it hardly matters who else is at work
on the machine. The cost model of the engine is fitted to them, and its coefficients are written with the sizes of the
model and the numbers of its processor. `tapetum bench simulate --coefficients FILE` reads them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

from tapetum.bench.record import processor_name
from tapetum.bench.simulate.coefficients import Coefficients, Encoder, Memory, write_coefficients
from tapetum.core.config import GIB
from tapetum.core.cost import CostModel
from tapetum.core.media import MediaItem
from tapetum.core.plan import BatchPlan, EncodeJob, Executor, Row
from tapetum.core.request import Request, SamplingParams
from tapetum.engine.files import ModelFiles
from tapetum.engine.options import config_from
from tapetum.engine.profile import observe
from tapetum.processing.options import ProcessorOptions
from tapetum.processing.qwen_vl import QwenVLProcessor
from tapetum.processing.text import TextProcessor
from tapetum.runtime.executor import load_executor

SIDES = (112, 224, 448, 672, 896, 1120, 1344)
CHUNKS = (16, 64, 256, 512, 1024, 512, 2048, 256, 1024, 64, 2048)  # one behind the other
WIDTHS = (1, 2, 4, 8, 16, 32)
CONTEXTS = (128, 1024, 4096)
MAX_MODEL_LEN = 8192


class Probe:
    def __init__(self, executor: Executor, repeats: int) -> None:
        self.cost = CostModel()
        self._executor = executor
        self._repeats = repeats
        self._steps = count(-100_000)

    def execute(self, **parts: object) -> None:
        self._executor.execute(BatchPlan(step=next(self._steps), **parts))  # type: ignore[arg-type]

    def measure(self, name: str, **parts: object) -> None:
        """Observe the shortest of a few executions of the same plan."""
        times = []
        for _ in range(self._repeats):
            plan = BatchPlan(step=next(self._steps), **parts)  # type: ignore[arg-type]
            began = time.process_time()
            result = self._executor.execute(plan)
            times.append(time.process_time() - began)
            if plan.encodes:
                self.execute(dropped_features=tuple(job.item.key for job in plan.encodes))
        predicted, took = self._predicted(plan), min(times)
        observe(self.cost, plan, replace(result, encode_s=took, forward_s=took))
        print(f"{name:32} {took:8.4f} s, was thought to take {predicted:8.4f} s", flush=True)

    def _predicted(self, plan: BatchPlan) -> float:
        if plan.encodes:
            geometry = plan.encodes[0].item.geometry
            return self.cost.encode_seconds(geometry.num_patches, geometry.squares)
        decodes = [row for row in plan.rows if row.is_decode]
        chunk = sum(row.length for row in plan.rows if not row.is_decode)
        pairs = sum(row.length * (row.start + row.length / 2) for row in plan.rows if not row.is_decode)
        return self.cost.step_seconds(len(decodes), sum(row.start + 1 for row in decodes), chunk, pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES, help="of the pictures, in pixels")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    options = {"device": "cpu", "threads": 1, "max_model_len": MAX_MODEL_LEN}
    config = config_from(arguments.checkpoint, options | {"max_num_seqs": max(WIDTHS), "kv_cache_bytes": GIB})
    files = ModelFiles.load(arguments.checkpoint)
    assert isinstance(files.processor, QwenVLProcessor), "the simulator lays pictures out as Qwen2-VL does"
    executor = load_executor(arguments.checkpoint, config)
    probe = Probe(executor, arguments.repeats)
    encodes(probe, files.processor, arguments.sides)
    rows(probe, executor.facts.block_size)
    facts = executor.facts
    write_coefficients(
        Coefficients(
            name=arguments.name,
            note=f"measured in {facts.dtype} on one thread of {processor_name(Path('/proc/cpuinfo'))}",
            step=probe.cost.step_coefficients,
            encode=probe.cost.encode_coefficients,
            memory=Memory(
                kv_bytes_per_token=facts.kv_bytes_per_token,
                feature_bytes_per_token=facts.feature_bytes_per_token,
            ),
            encoder=Encoder(
                patch_size=files.processor.patch_size,
                merge_size=files.processor.merge_size,
                temporal_patch_size=files.processor.temporal_patch_size,
                image_pixels=(
                    files.processor.bounds["image"].min_pixels,
                    files.processor.bounds["image"].max_pixels,
                ),
                video_pixels=(
                    files.processor.bounds["video"].min_pixels,
                    files.processor.bounds["video"].max_pixels,
                ),
            ),
        ),
        arguments.out,
    )


def encodes(probe: Probe, processor: QwenVLProcessor, sides: Iterable[int]) -> None:
    for side in sides:
        geometry = processor.geometry("image", side, side, options=ProcessorOptions())
        width, height = geometry.used
        picture = np.full((height, width, 3), 128, np.uint8)
        item = MediaItem(key=b"%d" % side, geometry=geometry, patches=processor.patches([picture], geometry))
        probe.measure(f"picture of {width}x{height}", encodes=(EncodeJob(item=item),))


def rows(probe: Probe, block_size: int) -> None:
    length = sum(CHUNKS)
    probe.execute(admitted=(request("chunks", length + 1),))
    start = 0
    for chunk in CHUNKS:
        probe.measure(f"chunk of {chunk} behind {start}", rows=(row("chunks", start, chunk, block_size),))
        start += chunk
    for context in CONTEXTS:
        names = tuple(f"{context} tokens, row {number}" for number in range(max(WIDTHS)))
        probe.execute(admitted=tuple(request(name, context) for name in names))
        for width in WIDTHS:
            decodes = tuple(row(name, context - 1, 1, block_size) for name in names[:width])
            probe.measure(f"{width} decodes over {context}", rows=decodes)
        probe.execute(released=names)


def request(name: str, length: int) -> Request:
    sampling = SamplingParams(temperature=0.0).resolved(SamplingParams())
    prompt = TextProcessor().layout([(1,) * length])
    return Request(
        request_id=name, prompt=prompt, sampling=sampling, max_tokens=1024, stop_token_ids=frozenset()
    )


def row(name: str, start: int, length: int, block_size: int) -> Row:
    """All requests read the blocks of the first. A decode samples, a chunk does not."""
    blocks = tuple(range(-(-(start + length) // block_size)))
    return Row(request_id=name, start=start, length=length, block_ids=blocks, has_sample=length == 1)


if __name__ == "__main__":
    main()
