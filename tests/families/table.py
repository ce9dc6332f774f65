"""The model families that test_families.py holds to transformers: a module for each, a line for each. See kit.py."""

from __future__ import annotations

from tests.families import gemma3, idefics, internvl, llava, qwen3_vl, qwen_vl, text
from tests.families.kit import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        qwen_vl.family("qwen2_vl"),
        qwen_vl.family("qwen2_5_vl"),
        qwen3_vl.family("qwen3_vl"),
        qwen3_vl.family("qwen3_vl_moe"),
        idefics.family("idefics3"),
        idefics.family("smolvlm"),
        gemma3.family(),
        internvl.family("internvl"),
        internvl.family("internvl_chat"),
        *map(llava.family, llava.KINDS),
        *map(text.family, text.OWN),
    )
}
