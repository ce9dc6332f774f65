"""Makes the tables of docs/models.md: what is supported, and what the tests have measured of it.

python tools/models.py            write them again
python tools/models.py --check    end with an error where the page is not what code and measurements say

Words about a family are here; its model types, media and sizes come from the code, and from the config files of
tests/data/configs; errors from tests/families/measured.json, which test_families.py writes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tapetum.core.footprint import shown_bytes, shown_count
from tapetum.engine.paper import Paper, read_paper
from tapetum.models.table import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "models.md"
CONFIGS = ROOT / "tests" / "data" / "configs"
MEASURED = ROOT / "tests" / "families" / "measured.json"
SIZE = (1920, 1080)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row: models that share a tower and a way of laying out pictures."""

    name: str
    model_types: tuple[str, ...]
    tower: str
    projector: str
    decoder: str
    is_atomic: bool = False


ROWS = (
    Family(
        name="Qwen2-VL",
        model_types=("qwen2_vl",),
        tower="its own, any size",
        projector="patch merger",
        decoder="Qwen2, M-RoPE",
    ),
    Family(
        name="Qwen2.5-VL",
        model_types=("qwen2_5_vl",),
        tower="its own, any size, windows",
        projector="patch merger",
        decoder="Qwen2, M-RoPE",
    ),
    Family(
        name="Qwen3-VL",
        model_types=("qwen3_vl", "qwen3_vl_moe"),
        tower="its own, any size",
        projector="patch mergers, one for each deep level",
        decoder="Qwen3, dense or experts, M-RoPE",
    ),
    Family(
        name="InternVL 2, 2.5, 3",
        model_types=("internvl", "internvl_chat"),
        tower="InternViT, tiles",
        projector="pixel shuffle, MLP",
        decoder="Qwen2, Qwen3, Llama, InternLM2",
    ),
    Family(
        name="LLaVA-1.5",
        model_types=("llava",),
        tower="CLIP",
        projector="MLP",
        decoder="Llama, Mistral, Qwen2",
    ),
    Family(
        name="LLaVA-NeXT",
        model_types=("llava_next",),
        tower="CLIP, tiles",
        projector="MLP",
        decoder="Llama, Mistral, Qwen2",
    ),
    Family(
        name="LLaVA-OneVision",
        model_types=("llava_onevision",),
        tower="SigLIP, tiles",
        projector="MLP",
        decoder="Qwen2",
    ),
    Family(
        name="Idefics3, SmolVLM",
        model_types=("idefics3", "smolvlm"),
        tower="SigLIP, tiles",
        projector="pixel shuffle, linear",
        decoder="Llama",
    ),
    Family(
        name="Gemma 3",
        model_types=("gemma3",),
        tower="SigLIP",
        projector="pooling, linear",
        decoder="Gemma 3, windows",
        is_atomic=True,
    ),
    Family(name="Llama", model_types=("llama",), tower="", projector="", decoder="Llama"),
    Family(name="Mistral", model_types=("mistral",), tower="", projector="", decoder="Mistral, windows"),
    Family(name="Qwen2, Qwen2.5", model_types=("qwen2",), tower="", projector="", decoder="Qwen2"),
    Family(
        name="Qwen3",
        model_types=("qwen3", "qwen3_moe"),
        tower="",
        projector="",
        decoder="Qwen3, dense or experts",
    ),
    Family(
        name="Gemma 3, text alone",
        model_types=("gemma3_text",),
        tower="",
        projector="",
        decoder="Gemma 3, windows",
    ),
)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args(words)
    _check_rows()
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    papers = {path.name: read_paper(path) for path in sorted(CONFIGS.iterdir())}
    old = arguments.page.read_text(encoding="utf-8")
    new = _put(old, "families", families(papers.values(), measured))
    new = _put(new, "parity", parity(measured))
    new = _put(new, "checkpoints", checkpoints(papers))
    if arguments.check:
        if new != old:
            print(f"{arguments.page.name}: not what code and tests say; run tools/models.py")
        return int(new != old)
    arguments.page.write_text(new, encoding="utf-8")
    return 0


def families(papers: Iterable[Paper], measured: Mapping[str, Mapping[str, object]]) -> str:
    """What each family is made of and takes."""
    media = {paper.blueprint.model_type: tuple(paper.processor.media_tokens) for paper in papers}
    rows = []
    for family in ROWS:
        kinds = {kind for model_type in family.model_types for kind in media.get(model_type, ())}
        takes = (
            "text",
            *(("pictures",) if "image" in kinds else ()),
            *(("clips",) if "video" in kinds else ()),
        )
        rows.append(
            (
                family.name,
                ", ".join(f"`{model_type}`" for model_type in family.model_types),
                ", ".join(takes),
                family.tower or "-",
                family.projector or "-",
                family.decoder,
                "yes" if family.is_atomic else "-",
                "yes"
                if all(_is_whole(measured.get(model_type)) for model_type in family.model_types)
                else "in part",
            )
        )
    heads = ("family", "`model_type`", "takes", "tower", "projector", "decoder", "atomic spans", "compared")
    return _table(heads, rows)


def parity(measured: Mapping[str, Mapping[str, object]]) -> str:
    """What the comparison with transformers has shown."""
    order = [model_type for family in ROWS for model_type in family.model_types if model_type in measured]
    rows = [
        (
            f"`{name}`",
            str(measured[name].get("num_prompts", "-")),
            str(measured[name].get("num_tokens", "-")),
            _error(measured[name].get("max_pixel_error")),
            _error(measured[name].get("max_logit_error")),
            f"`{measured[name]['test']}`",
        )
        for name in order
    ]
    return _table(("`model_type`", "prompts", "equal tokens", "pixels", "logits", "test"), rows)


def checkpoints(papers: Mapping[str, Paper]) -> str:
    """Sizes of published models, from their config files."""
    rows = []
    for name, paper in papers.items():
        footprint = paper.footprint(2)
        geometry = paper.geometry(*SIZE) if paper.takes_pictures else None
        rows.append(
            (
                name,
                f"`{paper.blueprint.model_type}`",
                shown_count(footprint.num_parameters),
                shown_bytes(footprint.weight_bytes),
                shown_bytes(footprint.token_bytes),
                f"{paper.blueprint.decoder.max_position_embeddings:,}",
                f"{geometry.num_tokens:,}" if geometry else "-",
            )
        )
    heads = (
        "checkpoint", "`model_type`", "parameters", "weights in bfloat16", "keys and values a token", "context",
        f"tokens of {SIZE[0]}x{SIZE[1]}",
    )  # fmt: skip
    return _table(heads, rows)


def _check_rows() -> None:
    told = [model_type for family in ROWS for model_type in family.model_types]
    if sorted(told) != sorted(FAMILIES):
        sys.exit(f"tools/models.py tells of {sorted(told)}, the code has {sorted(FAMILIES)}; make them equal")


def _is_whole(measurement: Mapping[str, object] | None) -> bool:
    return measurement is not None and {"num_prompts", "num_tokens", "max_logit_error"} <= measurement.keys()


def _error(value: object) -> str:
    return "-" if value is None else "0" if not value else f"{float(str(value)):.0e}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _put(page: str, name: str, text: str) -> str:
    """The page with this text between the marks of its name."""
    first, last = f"<!-- {name}: made by tools/models.py -->\n", f"<!-- {name}: end -->\n"
    before, found, rest = page.partition(first)
    _, ended, after = rest.partition(last)
    if not (found and ended):
        sys.exit(f"the page lacks the marks of {name}: {first.strip()} and {last.strip()}")
    return before + first + text + last + after


if __name__ == "__main__":
    sys.exit(main())
