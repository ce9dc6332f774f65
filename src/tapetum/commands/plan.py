"""`tapetum plan`: what a model needs of a device, and how many requests fit at once, before any is rented.

Owns the page and its JSON; the arithmetic is core.footprint's, the peak of a step the one that an engine reserves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tapetum.command_help import FlagsCommand
from tapetum.commands import page
from tapetum.core.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from tapetum.core.errors import ConfigError
from tapetum.core.footprint import Budget, Footprint, read_bytes, shown_bytes, shown_count
from tapetum.flags import COUNT, model_option, one_model, option

if TYPE_CHECKING:
    from tapetum.engine.paper import Paper

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_TEXT = 512  # tokens of a question and its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of request: what it is about, and how long it is."""

    name: str
    visual_tokens: int
    tokens: int


@click.command(cls=FlagsCommand)
@click.argument("model_argument", required=False, metavar="[MODEL]")
@model_option
@option("--memory", "memory", help="Of the device, such as 24GiB.")
@option("--image", "images", multiple=True, help="Size of a picture, such as 1920x1080; several.")
@option(
    "--text-tokens", "text_tokens", type=COUNT, default=_TEXT, show_default=True, help="Beside a picture."
)
@option("--context", "context", type=COUNT, help="Tokens of a long request.  [default: what the model says]")
@option(
    "--dtype",
    "dtype",
    type=click.Choice(list(_BYTES)),
    default="bfloat16",
    show_default=True,
    help="Of weights.",
)
@option("--revision", "revision", help="Branch, tag or commit of a hub id.  [default: the newest]")
@option("--offline", "is_offline", is_flag=True, help="Ask the hub nothing.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def plan(
    model_argument: str | None,
    memory: str | None,
    images: tuple[str, ...],
    dtype: str,
    as_json: bool,
    **options: object,
) -> None:
    """Tell what memory a model takes, and how many requests fit into it.

    Reads config and processor files only.
    """
    from tapetum.engine.find import find_model
    from tapetum.engine.paper import read_paper

    model = one_model(model_argument, options)
    config = ModelConfig(
        model=model,
        revision=None if options["revision"] is None else str(options["revision"]),
        is_offline=bool(options["is_offline"]),
    )
    paper = read_paper(find_model(config, has_weights=False))
    footprint = paper.footprint(_BYTES[dtype])
    kinds = _kinds(paper, images, int(str(options["text_tokens"])), options["context"])
    budget = None if memory is None else _budget(paper, footprint, dtype, read_bytes(memory))
    if as_json:
        click.echo(json.dumps(_as_json(model or "tapetum-mini", dtype, footprint, kinds, budget)))
    else:
        _show(model or "tapetum-mini", dtype, footprint, kinds, budget)
    if budget is not None and budget.kv_bytes <= 0:
        raise ConfigError(
            f"the model does not fit: it takes {shown_bytes(budget.memory_bytes - budget.kv_bytes)} with "
            f"{shown_bytes(budget.spared_bytes)} left free, --memory is {shown_bytes(budget.memory_bytes)}"
        )


def _kinds(paper: Paper, images: tuple[str, ...], text_tokens: int, context: object) -> tuple[Kind, ...]:
    limit = paper.blueprint.decoder.max_position_embeddings
    longest = limit if context is None else int(str(context))
    if longest > limit:
        raise ConfigError(f"--context is {longest}, the model was made for at most {limit} tokens")
    found = []
    for image in images:
        tokens = _visual_tokens(paper, image)
        found.append(Kind(name=f"a picture of {image}", visual_tokens=tokens, tokens=tokens + text_tokens))
    name = "the whole context" if longest == limit else "as --context says"
    return (*found, Kind(name=name, visual_tokens=0, tokens=longest))


def _visual_tokens(paper: Paper, image: str) -> int:
    width, _, height = image.lower().partition("x")
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise ConfigError(f"--image is {image!r}, must be width and height such as 1920x1080")
    if not paper.takes_pictures:
        raise ConfigError(
            f"--image is {image}, but {paper.blueprint.model_type} reads text only; leave it out"
        )
    geometry = paper.geometry(int(width), int(height))
    if geometry is None:
        raise ConfigError(f"--image is {image}, a shape that {paper.blueprint.model_type} does not take")
    return geometry.num_tokens


def _budget(paper: Paper, footprint: Footprint, dtype: str, memory_bytes: int) -> Budget:
    import torch

    from tapetum.models.composed import make_spec
    from tapetum.processing.extent import extent
    from tapetum.runtime.executor import DTYPES
    from tapetum.runtime.memory import largest_step_bytes

    spec = make_spec(paper.blueprint, DTYPES[dtype], torch.device("cpu"))
    config = EngineConfig()
    sizes = extent(paper.processor, config.media.max_pixels, config.media.max_frames)
    return Budget(
        memory_bytes=memory_bytes,
        share=DeviceConfig().gpu_memory_utilization,
        weight_bytes=footprint.weight_bytes,
        working_bytes=largest_step_bytes(spec, config, sizes, spec.max_model_len, is_native=False),
        feature_bytes=CacheConfig().feature_cache_bytes if paper.takes_pictures else 0,
    )


def _show(
    model: str, dtype: str, footprint: Footprint, kinds: tuple[Kind, ...], budget: Budget | None
) -> None:
    note = f"{shown_count(footprint.num_parameters)} parameters in {dtype}"
    page.title(model, note, is_good=budget is None or budget.kv_bytes > 0)
    page.section("memory")
    _show_memory(footprint, budget)
    page.section("requests")
    heads = ["with", "visual tokens", "tokens", "keys and values"]
    rows = [
        [
            kind.name,
            f"{kind.visual_tokens:,}",
            f"{kind.tokens:,}",
            shown_bytes(kind.tokens * footprint.token_bytes),
        ]
        for kind in kinds
    ]
    if budget is not None:
        heads.append("fit at once")
        for cells, kind in zip(rows, kinds, strict=True):
            cells.append(f"{_fitting(budget, kind, footprint):,}")
    page.table(heads, rows)
    click.echo()


def _show_memory(footprint: Footprint, budget: Budget | None) -> None:
    if budget is None:
        page.row("weights", shown_bytes(footprint.weight_bytes))
        page.row("keys, values", f"{shown_bytes(footprint.token_bytes)} a token")
        return
    kv_bytes = max(0, budget.kv_bytes)
    tokens = f"{kv_bytes // footprint.token_bytes:,} tokens of {shown_bytes(footprint.token_bytes)}"
    start = 0
    for label, size, note in (
        ("weights", budget.weight_bytes, ""),
        ("largest step", budget.working_bytes, ""),
        ("features", budget.feature_bytes, "--feature-cache-gib"),
        ("keys, values", kv_bytes, tokens),
        ("left free", budget.spared_bytes, "--gpu-memory-utilization"),
    ):
        page.share(label, size, start, budget.memory_bytes, note)
        start += size


def _fitting(budget: Budget, kind: Kind, footprint: Footprint) -> int:
    return budget.num_requests(kind.tokens, footprint.token_bytes, CacheConfig().block_size)


def _as_json(
    model: str, dtype: str, footprint: Footprint, kinds: tuple[Kind, ...], budget: Budget | None
) -> dict[str, object]:
    shared = {} if budget is None else {
        "memory_bytes": budget.memory_bytes, "working_bytes": budget.working_bytes,
        "feature_cache_bytes": budget.feature_bytes, "spared_bytes": budget.spared_bytes,
        "kv_bytes": max(0, budget.kv_bytes),
    }  # fmt: skip
    return {
        "model": model,
        "dtype": dtype,
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
                "kv_bytes": kind.tokens * footprint.token_bytes,
                "at_once": None if budget is None else _fitting(budget, kind, footprint),
            }
            for kind in kinds
        ],
    }
