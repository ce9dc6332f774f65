"""The page of `tapetum doctor --tiers`: each place with what it holds, how quick it is and what is wrong with it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tapetum.cache.entries import VERSION
from tapetum.commands import page
from tapetum.core.footprint import shown_bytes

if TYPE_CHECKING:
    from tapetum.engine.examine_tiers import Kept, Probe, TierExamination

_SERVES = {"features": "encoded pictures and what their files are known by", "kv": "keys and values"}
_NAMES = {"features": "pictures", "kv": "keys, values", "alias": "known files"}


def show_tiers(found: tuple[TierExamination, ...]) -> None:
    usable = sum(not tier.problem for tier in found)
    note = "usable" if usable == len(found) else f"{usable} of {len(found)} usable"
    page.title(f"{len(found)} tier{'s' * (len(found) > 1)}", note, is_good=usable == len(found))
    for tier in found:
        page.section(tier.url.shown)
        page.row("for", ", ".join(_SERVES[kind] for kind in tier.serves))
        if tier.problem:
            page.fault("problem", tier.problem.removeprefix(f"{tier.url.shown} "))
            continue
        page.row("state", "reachable, writable", f"given up on after {tier.url.timeout_s:g} s")
        _show_kept(tier)
        if tier.probe:
            page.row("speed", *_speed(tier.probe))
        for remark in tier.remarks:
            page.fault("but", remark)
    click.echo()


def _show_kept(tier: TierExamination) -> None:
    limit = f"of {shown_bytes(tier.url.max_bytes)}" if tier.url.max_bytes else "no limit of ours"
    page.row(
        "holds",
        f"{shown_bytes(tier.num_bytes)} {limit}",
        _entries(sum(each.num_entries for each in tier.kept)),
    )
    for each in tier.kept:
        page.row(
            f"  {_NAMES[each.kind]}",
            f"{shown_bytes(each.num_bytes):<9}{_entries(each.num_entries)}",
            _versions(each),
        )


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def _versions(kept: Kept) -> str:
    """Nothing to say where all that were looked at are of ours."""
    if set(kept.versions) <= {VERSION}:
        return VERSION.removeprefix("tapetum entry ").join(("format ", ""))
    looked = sum(kept.versions.values())
    parts = (
        f"{count:,} {version.replace('tapetum entry', 'format')}" for version, count in kept.versions.items()
    )
    return f"of {looked:,} looked at: {', '.join(parts)}"


def _speed(probe: Probe) -> tuple[str, str]:
    from tapetum.engine.examine_tiers import PROBE_BYTES

    times = (probe.write_s, probe.read_s, probe.remove_s)
    words = (
        f"{word} {1000 * seconds:.3g} ms"
        for word, seconds in zip(("write", "read", "remove"), times, strict=True)
    )
    return ", ".join(words), f"an entry of {shown_bytes(PROBE_BYTES)}, checksum included"


def tiers_as_json(found: tuple[TierExamination, ...]) -> list[dict[str, object]]:
    return [
        {
            "url": tier.url.shown, "serves": tier.serves, "reachable": tier.is_reachable,
            "num_bytes": tier.num_bytes, "max_bytes": tier.url.max_bytes,
            "entries": [asdict(each) for each in tier.kept],
            "probe": asdict(tier.probe) if tier.probe else None,
            "problem": tier.problem, "remarks": tier.remarks,
        }
        for tier in found
    ]  # fmt: skip
