"""Questions about pictures that changed a little: the answers are those of an engine that has never seen the first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tapetum import LLM, SamplingParams
from tapetum.models.tiled import TiledTower
from tests.cpu.parts_kit import noise
from tests.families.kit import Messages, user
from tests.families.table import FAMILIES

SIZES = {"internvl": (168, 224), "smolvlm": (122, 183), "llava_next": (28, 84), "qwen2_5_vl": (224, 336)}
EXACT = {"dtype": "float32", "device": "cpu", "threads": 1, "kv_cache_bytes": 64 << 20}


def asked(pixels: np.ndarray) -> Messages:
    text = {"type": "text", "text": "What is the total?"}
    return [user({"type": "image", "image": Image.fromarray(pixels)}, text)]


def answer(llm: LLM, *pictures: np.ndarray) -> list[tuple[int, ...]]:
    """One after the other."""
    options = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    outputs = [llm.chat(asked(pixels), options, use_tqdm=False)[0] for pixels in pictures]
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("family", SIZES)
def test_answers_do_not_depend_on_what_was_seen_before(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles: list[int] = []
    pack = TiledTower.pack

    def counted(self, patches, geometries, counts):
        tiles.append(sum(counts))
        return pack(self, patches, geometries, counts)

    path = str(FAMILIES[family].write(tmp_path, 0))
    first = noise(1, *SIZES[family])
    changed = first.copy()
    changed[-20:, -20:] = 255 - changed[-20:, -20:]
    wanted = []
    for picture in (first, changed):
        with LLM(path, **EXACT) as llm:
            wanted += answer(llm, picture)
    monkeypatch.setattr(TiledTower, "pack", counted)
    with LLM(path, **EXACT) as llm:
        assert answer(llm, first, changed) == wanted
    tiles = [count for count in tiles if count]
    if family != "qwen2_5_vl":
        assert tiles[-1] == 2 < tiles[-2], "the changed tile and the overview"
