"""From the bytes of a 12-megapixel JPEG to patches on one core: Tapetum's processors beside transformers'.

Run as `python -m tapetum.bench.patches WAY CHECKPOINT SEED` with one thread set by the environment, since each way is
to have a process of its own; prints the seconds of its best of several tries. Needs the extra [hf] for transformers.
"""

from __future__ import annotations

import io
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from tapetum.core.config import MediaConfig
from tapetum.core.errors import ConfigError
from tapetum.media.image import decode, read_size
from tapetum.processing.options import ProcessorOptions
from tapetum.processing.qwen_vl import QwenVLProcessor

Patches = Callable[[bytes], object]
_SIZE = (4000, 3000)
_MAX_PIXELS = 1344 * 1008  # of the picture that the patches show
_TRIES = 5


def jpeg(seed: str) -> bytes:
    """A smooth picture of 12 megapixels, of a few megabytes as cameras make them."""
    source = random.Random(seed)
    soft = Image.frombytes("RGB", (400, 300), source.randbytes(400 * 300 * 3))
    file = io.BytesIO()
    soft.resize(_SIZE, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def exact(checkpoint: Path) -> Patches:
    return _tapetum(checkpoint, is_fast=False)


def fast(checkpoint: Path) -> Patches:
    """As with `--mm-processor fast`."""
    return _tapetum(checkpoint, is_fast=True)


def pillow(checkpoint: Path) -> Patches:
    """The reference: what transformers does with Pillow."""
    try:
        from transformers import AutoImageProcessor
    except ImportError as error:
        raise ConfigError("transformers is not installed; pip install 'tapetum[hf]'") from error
    processor = AutoImageProcessor.from_pretrained(checkpoint, backend="pil", max_pixels=_MAX_PIXELS)

    def patches(data: bytes) -> object:
        with Image.open(io.BytesIO(data)) as picture:
            return processor(images=[picture.convert("RGB")], return_tensors="np")

    return patches


WAYS: dict[str, tuple[str, Callable[[Path], Patches]]] = {
    "exact": ("Tapetum exact", exact),
    "fast": ("Tapetum fast", fast),
    "pillow": ("transformers Pillow", pillow),
}


def best_s(patches: Patches, data: bytes, tries: int = _TRIES) -> float:
    times = []
    for _ in range(tries + 1):  # the first also warms up
        started_s = time.perf_counter()
        patches(data)
        times.append(time.perf_counter() - started_s)
    return min(times[1:])


def _tapetum(checkpoint: Path, *, is_fast: bool) -> Patches:
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    processor = QwenVLProcessor.load(checkpoint, config)
    options, media = ProcessorOptions(max_pixels=_MAX_PIXELS), MediaConfig()

    def patches(data: bytes) -> object:
        geometry = processor.geometry("image", *read_size(data, media), options=options)
        enough = geometry.used if is_fast else None
        return processor.patches([decode(data, media, used=enough)], geometry)

    return patches


def main() -> None:
    way, checkpoint, seed = sys.argv[1:]
    _, load = WAYS[way]
    sys.stdout.write(f"{best_s(load(Path(checkpoint)), jpeg(seed))}\n")


if __name__ == "__main__":
    main()
