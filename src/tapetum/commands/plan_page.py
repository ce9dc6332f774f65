"""What `tapetum plan` has found, as a page in a terminal and as JSON: the ledger of a device, and kinds of requests."""

from __future__ import annotations

from dataclasses import dataclass

import click

from tapetum.commands import page
from tapetum.core.footprint import Budget, Footprint, shown_bytes, shown_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of request: what it is about, how long it is, and what an engine does for it."""

    name: str
    visual_tokens: int
    tokens: int
    encode_bytes: int  # activations of its largest picture, until that is encoded
    ttft_s: float | None  # on an idle engine with nothing cached; None where nobody said what steps cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    model: str
    dtype: str
    footprint: Footprint
    kinds: tuple[Kind, ...]
    budget: Budget | None  # of a device; None where none was named
    max_model_len: int  # the longest that fits
    block_size: int
    costs: str  # whose costs times are predicted by; empty = nobody's

    def at_once(self, kind: Kind) -> int | None:
        """Requests whose keys and values fit together."""
        if self.budget is None:
            return None
        return self.budget.num_requests(kind.tokens, self.footprint.token_bytes, self.block_size)


def show(found: Found) -> None:
    budget, footprint = found.budget, found.footprint
    note = f"{shown_count(footprint.num_parameters)} parameters in {found.dtype}"
    page.title(found.model, note, is_good=budget is None or budget.kv_bytes > 0)
    page.section("memory")
    _show_memory(footprint, budget)
    if budget is not None:
        page.row("context", f"{found.max_model_len:,} tokens", "--max-model-len")
    page.section("requests")
    heads = ["with", "visual tokens", "tokens", "features", "encode", "keys and values"]
    rows = [_cells(found, kind) for kind in found.kinds]
    if budget is not None:
        heads.append("fit at once")
    if found.costs:
        heads.append("first token")
    page.table(heads, rows)
    if found.costs:
        page.row("times", found.costs, "on an idle engine, nothing cached")
    click.echo()


def _cells(found: Found, kind: Kind) -> list[str]:
    footprint, at_once = found.footprint, found.at_once(kind)
    cells = [
        kind.name,
        f"{kind.visual_tokens:,}",
        f"{kind.tokens:,}",
        shown_bytes(kind.visual_tokens * footprint.feature_bytes),
        shown_bytes(kind.encode_bytes),
        shown_bytes(kind.tokens * footprint.token_bytes),
    ]
    if at_once is not None:
        cells.append(f"{at_once:,}")
    if kind.ttft_s is not None:
        cells.append(f"{kind.ttft_s:.3g} s")
    return cells


def _show_memory(footprint: Footprint, budget: Budget | None) -> None:
    if budget is None:
        page.row("weights", shown_bytes(footprint.weight_bytes))
        page.row("keys, values", f"{shown_bytes(footprint.token_bytes)} a token")
        page.row("features", f"{shown_bytes(footprint.feature_bytes)} a visual token")
        return
    kv_bytes = max(0, budget.kv_bytes)
    tokens = f"{kv_bytes // footprint.token_bytes:,} tokens of {shown_bytes(footprint.token_bytes)}"
    start = 0
    for label, size, note in (
        ("weights", budget.weight_bytes, ""),
        ("largest step", budget.working_bytes, "--max-num-batched-tokens, --encoder-budget-tokens"),
        ("features", budget.feature_bytes, "--feature-cache-gib"),
        ("keys, values", kv_bytes, tokens),
        ("left free", budget.spared_bytes, "--gpu-memory-utilization"),
    ):
        page.share(label, size, start, budget.memory_bytes, note)
        start += size
    if budget.visual_kv_bytes:
        visual = f"{budget.visual_kv_bytes // footprint.token_bytes:,} visual tokens"
        page.row("of pictures", f"{visual} before theirs go first", "--visual-kv-share")


def as_json(found: Found) -> dict[str, object]:
    budget, footprint = found.budget, found.footprint
    shared = {} if budget is None else {
        "max_model_len": found.max_model_len,
        "memory_bytes": budget.memory_bytes, "working_bytes": budget.working_bytes,
        "feature_cache_bytes": budget.feature_bytes, "spared_bytes": budget.spared_bytes,
        "kv_bytes": max(0, budget.kv_bytes), "visual_kv_bytes": budget.visual_kv_bytes,
    }  # fmt: skip
    return {
        "model": found.model,
        "dtype": found.dtype,
        "num_parameters": footprint.num_parameters,
        "weight_bytes": footprint.weight_bytes,
        "kv_bytes_per_token": footprint.token_bytes,
        "feature_bytes_per_token": footprint.feature_bytes,
        **shared,
        "requests": [
            {
                "name": kind.name,
                "visual_tokens": kind.visual_tokens,
                "tokens": kind.tokens,
                "feature_bytes": kind.visual_tokens * footprint.feature_bytes,
                "encode_bytes": kind.encode_bytes,
                "kv_bytes": kind.tokens * footprint.token_bytes,
                "at_once": found.at_once(kind),
                "ttft_s": kind.ttft_s,
            }
            for kind in found.kinds
        ],
    }
