"""From the bytes of a 12 MP JPEG to patches and their key: ours, exact and fast, beside transformers. One core.

    python benchmarks/preprocess.py [--seconds 20]

The peer is its Pillow processor, the picture a smooth one with some grain, 4000x3000 at quality 90, to at most
1344x1008 pixels. The ways take turns, and each figure is a median, so that other work on the machine falls on all
alike. That the exact patches are those of the peer is checked before anything is timed. Below: the parts of ours.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from io import BytesIO

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tapetum.assets import MODEL_DIR
from tapetum.core.config import MediaConfig
from tapetum.core.media import Geometry, ProcessorMode
from tapetum.media.image import decode
from tapetum.media.keys import media_key
from tapetum.native.library import load
from tapetum.processing import load_processor
from tapetum.processing.options import ProcessorOptions
from tapetum.processing.pixels import bands

WIDTH, HEIGHT = 4000, 3000
MAX_PIXELS = 1344 * 1008 + 1
MUST = {"exact": 0.75, "fast": 0.35}


def jpeg() -> bytes:
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(np.int16)
    grain = rng.integers(-6, 7, smooth.shape, dtype=np.int16)
    out = BytesIO()
    Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


class Ours:
    """What a media worker does for a picture, by its steps."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.processor = load_processor(MODEL_DIR)
        options = ProcessorOptions(max_pixels=MAX_PIXELS)
        self.geometry: Geometry = self.processor.geometry("image", WIDTH, HEIGHT, options=options)

    def decoded(self, mode: ProcessorMode) -> Image.Image:
        used = self.geometry.used if mode == "fast" else None
        return decode(self.data, MediaConfig(), used=used)

    def key(self, patches: np.ndarray, mode: ProcessorMode) -> bytes:
        parameters = self.processor.parameters
        return media_key(patches, self.geometry, parameters=parameters, tenant="", processor=mode)

    def run(self, mode: ProcessorMode) -> np.ndarray:
        patches = self.processor.patches([self.decoded(mode)], self.geometry)
        self.key(patches, mode)
        return patches


def medians(ways: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """In milliseconds; the ways take turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times[next(iter(ways))]) < 3:
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    seconds = parser.parse_args().seconds
    data = jpeg()
    ours = Ours(data)
    peer = Qwen2VLImageProcessorPil(size={"shortest_edge": 3136, "longest_edge": MAX_PIXELS})

    def reference() -> np.ndarray:
        picture = Image.open(BytesIO(data)).convert("RGB")
        return peer(images=[picture], return_tensors="np")["pixel_values"]

    check(ours, reference(), peer)
    library = load()
    how = "without the native library" if library is None else library.tpt_isa().decode()
    print(f"{len(data) / 1e6:.1f} MB JPEG {WIDTH}x{HEIGHT} to {ours.geometry.used}, {how}, one core")
    found = medians(
        {"transformers": reference, "exact": lambda: ours.run("exact"), "fast": lambda: ours.run("fast")},
        seconds,
    )
    for name, value in found.items():
        goal = f", must be {MUST[name]}" if name in MUST else ""
        print(f"  {name:13} {value:7.1f} ms  {value / found['transformers']:.2f} of transformers{goal}")
    print_parts(ours, seconds / 4)


def check(ours: Ours, reference: np.ndarray, peer: Qwen2VLImageProcessorPil) -> None:
    expected = reference.reshape(-1, 3, 2, 14 * 14)[:, :, 0]
    pixels = (expected * np.array(peer.image_std)[:, None] + np.array(peer.image_mean)[:, None]) * 255
    patches = ours.run("exact").reshape(pixels.shape)
    if not np.array_equal(patches, np.rint(pixels)):
        raise SystemExit("exact patches are not those of transformers")


def print_parts(ours: Ours, seconds: float) -> None:
    modes: tuple[ProcessorMode, ...] = ("exact", "fast")
    for mode in modes:
        picture = ours.decoded(mode)
        patches = ours.processor.patches([picture], ours.geometry)
        parts: dict[str, Callable[[], object]] = {
            "decode": lambda mode=mode: ours.decoded(mode),
            "resize and cut": lambda picture=picture: ours.processor.patches([picture], ours.geometry),
            "of it: read": lambda picture=picture: sum(len(band) for band in bands(picture)),
            "key": lambda patches=patches, mode=mode: ours.key(patches, mode),
        }
        print(
            f"  {mode}: "
            + ", ".join(f"{name} {value:.1f}" for name, value in medians(parts, seconds).items())
        )


if __name__ == "__main__":
    main()
