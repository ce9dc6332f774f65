"""Pictures that change a little: what an encode takes that leaves out the tiles or windows that were encoded before.

    python benchmarks/parts.py [CHECKPOINT | internvl | qwen2_5_vl] [--side 1344] [--repeats 5] [--dtype bfloat16]

Without a checkpoint, a tower of random weights: InternVL with 24 layers of width 512 over tiles of 448 pixels, or
Qwen2.5-VL with 32 of width 384, of which four are global. Every picture is new to the features; the times are those of
the encode in the executor, and every result is compared with that of an executor that has seen nothing before.

    whole        nothing is known
    one changed  a pixel of one tile or window is another (of tiles, the overview too)
    half         every other tile or window is another
    scrolled     by one tile, or by one window
    none changed the same picture again, its features gone: tiles have gone with them, windows have not
    keys         what the media front takes to tell tiles or windows apart
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    InternVLConfig,
    InternVLForConditionalGeneration,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from tapetum.assets import MODEL_DIR
from tapetum.cache.visual import VisualCache
from tapetum.core.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from tapetum.core.media import MediaItem
from tapetum.core.plan import BatchPlan
from tapetum.media.keys import media_key
from tapetum.media.parts import keyed_parts
from tapetum.processing import load_processor
from tapetum.processing.options import ProcessorOptions
from tapetum.runtime.executor import LocalExecutor, load_executor

Pixels = NDArray[np.uint8]
MIB = 2**20
TEXT = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "vocab_size": 1024,
}


def write(family: str, directory: Path) -> Path:
    """A checkpoint without a tokenizer, which the executor does not read."""
    model, pixels = make_internvl() if family == "internvl" else make_qwen()
    with torch.no_grad():
        for values in model.parameters():
            values.normal_(0, 0.02)
    model.to(torch.bfloat16).save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(pixels))
    shutil.copy(MODEL_DIR / "video_preprocessor_config.json", directory)
    return directory


def make_internvl() -> tuple[PreTrainedModel, dict[str, object]]:
    vision = {
        "hidden_size": 512,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "attention_bias": True,
    }
    text = TEXT | {"model_type": "qwen2"}
    config = InternVLConfig(text_config=text, vision_config=vision, image_token_id=7)
    pixels = {"size": {"height": 448, "width": 448}, "max_patches": 12, "min_patches": 1}
    return InternVLForConditionalGeneration(config), pixels


def make_qwen() -> tuple[PreTrainedModel, dict[str, object]]:
    vision = {
        "depth": 32,
        "hidden_size": 384,
        "num_heads": 6,
        "intermediate_size": 1024,
        "out_hidden_size": 512,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "window_size": 112,
    }
    text = TEXT | {"rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12]}}
    ids = {"image_token_id": 7, "video_token_id": 8, "vision_start_token_id": 9, "vision_end_token_id": 10}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids)
    pixels = json.loads((MODEL_DIR / "preprocessor_config.json").read_text())
    pixels |= {"max_pixels": 2**24, "size": {"shortest_edge": 3136, "longest_edge": 2**24}}
    return Qwen2_5_VLForConditionalGeneration(config), pixels


class Desk:
    """A feature cache over an executor, without a scheduler."""

    def __init__(self, directory: Path, options: argparse.Namespace) -> None:
        config = EngineConfig(
            model=ModelConfig(model=str(directory), dtype=options.dtype, pack_cache=""),
            cache=CacheConfig(kv_cache_bytes=256 * MIB, window_cache_bytes=options.window_mib * MIB),
            device=DeviceConfig(device="cpu", threads=options.threads),
        )
        self.executor: LocalExecutor = load_executor(directory, config)
        self.keys_s = 0.0
        self._processor = load_processor(directory)
        facts = self.executor.facts
        self._visual = VisualCache(
            config.cache.feature_cache_bytes, facts.feature_bytes_per_token, has_parts=facts.has_exact_parts
        )

    def item(self, pixels: Pixels) -> MediaItem:
        height, width, _ = pixels.shape
        geometry = self._processor.geometry("image", width, height, options=ProcessorOptions())
        patches = self._processor.patches([pixels], geometry)
        words = {"parameters": self._processor.parameters, "tenant": ""}
        key = media_key(patches, geometry, **words)
        began = time.perf_counter()
        parts = keyed_parts(patches, self._processor.parts(geometry), **words)
        self.keys_s = time.perf_counter() - began
        return MediaItem(key=key, geometry=geometry, patches=patches, parts=parts)

    def encode(self, pixels: Pixels) -> tuple[float, float, torch.Tensor]:
        """Of a picture whose features are not there: seconds, the share of the work that was done, what it gave."""
        item = self.item(pixels)
        self._visual.fail(self._visual.key_of(item))
        job = self._visual.begin(item)
        plan = BatchPlan(step=1, encodes=(job,), dropped_features=self._visual.take_dropped())
        result = self.executor.execute(plan)
        self._visual.complete(self._visual.key_of(item))
        share = job.num_patches / item.geometry.num_patches * (1 - result.spared[item.key])
        return result.encode_s, share, self.executor.features_of(item.key)

    def forget(self) -> None:
        self._visual.clear()
        dropped = self._visual.take_dropped()
        self.executor.execute(BatchPlan(step=1, dropped_features=dropped, drops_windows=True))


def changed(pixels: Pixels, cell: int, every: int) -> Pixels:
    """A pixel of one cell, or of every so many."""
    copy = pixels.copy()
    rows, columns = pixels.shape[0] // cell, pixels.shape[1] // cell
    for place in range(0, rows * columns if every else 1, every or 1):
        row, column = divmod(place, columns)
        copy[row * cell + 5, column * cell + 5 + row % 2] ^= 255
    return copy


def time_all(fresh: Desk, desk: Desk, options: argparse.Namespace) -> None:
    side = options.side
    cell = 448 if desk.item(np.zeros((64, 64, 3), np.uint8)).geometry.grid_thw[1] * 14 == 448 else 112
    kinds: dict[str, Callable[[Pixels], Pixels]] = {
        "whole": lambda page: page[::-1, :side],
        "one changed": lambda page: changed(page[:side, :side], cell, 0),
        "half": lambda page: changed(page[:side, :side], cell, 2),
        "scrolled": lambda page: page[cell : side + cell, :side],
        "none changed": lambda page: page[:side, :side],
    }
    whole_s = 0.0
    for name, change in kinds.items():
        seconds, share = [], 1.0
        for seed in range(options.repeats):
            page = np.random.default_rng(seed).integers(0, 256, (side + cell, side, 3), np.uint8)
            second = np.ascontiguousarray(change(page)[:side])
            desk.forget()
            desk.encode(np.ascontiguousarray(page[:side]))
            taken, share, features = desk.encode(second)
            seconds.append(taken)
            if seed == 0 and not torch.equal(features, fresh.encode(second)[2]):
                raise SystemExit(f"{name}: the features are not those of a full encode")
        median = statistics.median(seconds)
        whole_s = whole_s or median
        print(f"{name:13} {median * 1e3:8.1f} ms  {median / whole_s:5.2f} of whole, {share:5.2f} of its work")
    print(
        f"keys          {desk.keys_s * 1e3:8.1f} ms   kept of windows {desk.executor.window_bytes / MIB:.1f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", nargs="?", default="internvl")
    parser.add_argument("--side", type=int, default=1344)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--window-mib", type=int, default=128)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(options.checkpoint)
        if options.checkpoint in ("internvl", "qwen2_5_vl"):
            directory = write(options.checkpoint, Path(folder))
        fresh, desk = (Desk(directory, options) for _ in range(2))
        if not desk.executor.facts.has_exact_parts:
            raise SystemExit(f"no native kernels for {options.dtype} here: nothing is left out")
        time_all(fresh, desk, options)


if __name__ == "__main__":
    main()
