"""`tapetum plan`: the ledger of an engine on paper: what a model needs of a device, and what requests take of it.

Owns the questions; the arithmetic is core.footprint's, the largest step the one that an engine leaves room for, and
times come from the cost model with the coefficients that are named. The page is plan_page's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import click

from tapetum.command_help import FlagsCommand
from tapetum.commands.plan_page import Found, Kind, as_json, show
from tapetum.core.config import GIB, EngineConfig
from tapetum.core.cost import CostModel, chunk_context
from tapetum.core.errors import ConfigError
from tapetum.core.footprint import Budget, read_bytes, shown_bytes
from tapetum.core.media import Geometry
from tapetum.flags import COUNT, engine_config, model_option, one_model, option

if TYPE_CHECKING:
    from tapetum.engine.paper import Paper
    from tapetum.models.base import ModelSpec

_DTYPES = ("float32", "bfloat16", "float16")
_TEXT = 512  # tokens of a question and its answer
_LEAST_CONTEXT = 2048  # tokens; nobody means a shorter one
# what of an engine's configuration decides who gets memory
_BUDGETS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "encoder_budget_tokens",
    "gpu_memory_utilization",
    "visual_kv_share",
)


@click.command(cls=FlagsCommand)
@click.argument("model_argument", required=False, metavar="[MODEL]")
@model_option
@option("--memory", "memory", help="Of the device, such as 24GiB.")
@option("--image", "images", multiple=True, help="Size of a picture, such as 1920x1080; several.")
@option("--pictures", "pictures", type=COUNT, default=1, show_default=True, help="Of each size in a request.")
@option(
    "--text-tokens", "text_tokens", type=COUNT, default=_TEXT, show_default=True, help="Beside the pictures."
)
@option("--context", "context", type=COUNT, help="Tokens of a long request.  [default: what the model says]")
@option(
    "--coefficients",
    "coefficients",
    help="What steps cost, a file or a name as of `tapetum bench simulate`: predicts the time to the first token.",
)
@option("--max-num-seqs", "max_num_seqs", type=COUNT, help="As of `tapetum serve`.")
@option("--max-num-batched-tokens", "max_num_batched_tokens", type=COUNT, help="As of `tapetum serve`.")
@option("--encoder-budget-tokens", "encoder_budget_tokens", type=COUNT, help="As of `tapetum serve`.")
@option("--feature-cache-gib", "feature_cache_gib", type=click.FLOAT, help="As of `tapetum serve`.")
@option("--visual-kv-share", "visual_kv_share", type=click.FLOAT, help="As of `tapetum serve`.")
@option("--gpu-memory-utilization", "gpu_memory_utilization", type=click.FLOAT, help="As of `tapetum serve`.")
@option(
    "--dtype", "dtype", type=click.Choice(_DTYPES), default="bfloat16", show_default=True, help="Of weights."
)
@option("--revision", "revision", help="Branch, tag or commit of a hub id.  [default: the newest]")
@option("--offline", "is_offline", is_flag=True, help="Ask the hub nothing.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def plan(model_argument: str | None, **options: object) -> None:
    """Tell what memory a model takes, how many requests fit into it, and when their answers begin.

    Reads config and processor files only.
    """
    import torch

    from tapetum.engine.find import find_model
    from tapetum.engine.paper import read_paper
    from tapetum.models.composed import make_spec
    from tapetum.runtime.executor import DTYPES

    config = _config(one_model(model_argument, options), options)
    paper = read_paper(find_model(config.model, has_weights=False))
    dtype, memory = str(options["dtype"]), options["memory"]
    spec = make_spec(paper.blueprint, DTYPES[dtype], torch.device("cpu"))
    cost, costs = _cost(options["coefficients"])
    kinds = _kinds(paper, spec, config, cost, options)
    longest, budget = kinds[-1].tokens, None
    if memory is not None:
        is_fixed = options["context"] is not None
        longest, budget = _shared(paper, spec, config, longest, read_bytes(str(memory)), is_fixed=is_fixed)
    found = Found(
        model=config.model.model or "tapetum-mini",
        dtype=dtype,
        footprint=paper.footprint(spec.dtype.itemsize),
        kinds=kinds,
        budget=budget,
        max_model_len=longest,
        block_size=config.cache.block_size,
        costs=costs,
    )
    if options["as_json"]:
        click.echo(json.dumps(as_json(found)))
    else:
        show(found)
    if found.budget is not None and found.budget.kv_bytes <= 0:
        taken = found.budget.memory_bytes - found.budget.kv_bytes
        raise ConfigError(
            f"the model does not fit: it takes {shown_bytes(taken)} with {shown_bytes(found.budget.spared_bytes)} "
            f"left free, --memory is {shown_bytes(found.budget.memory_bytes)}"
        )


def _config(model: str | None, options: dict[str, object]) -> EngineConfig:
    given = {name: options[name] for name in (*_BUDGETS, "revision", "is_offline")}
    if options["feature_cache_gib"] is not None:
        given["feature_cache_bytes"] = int(float(str(options["feature_cache_gib"])) * GIB)
    return engine_config(model, given)


def _cost(source: object) -> tuple[CostModel | None, str]:
    """A cost model, and where its coefficients come from."""
    if source is None:
        return None, ""
    from tapetum.bench.simulate.coefficients import read_coefficients

    coefficients = read_coefficients(str(source))
    return coefficients.cost_model(), f"{coefficients.name}, {coefficients.note}"


def _kinds(
    paper: Paper, spec: ModelSpec, config: EngineConfig, cost: CostModel | None, options: dict[str, object]
) -> tuple[Kind, ...]:
    limit = paper.blueprint.decoder.max_position_embeddings
    longest = limit if options["context"] is None else int(str(options["context"]))
    if longest > limit:
        raise ConfigError(f"--context is {longest}, the model was made for at most {limit} tokens")
    images, number = cast("tuple[str, ...]", options["images"]), int(str(options["pictures"]))
    text_tokens = int(str(options["text_tokens"]))
    found = []
    for image in images:
        geometry = _geometry(paper, image)
        _check_fits(geometry, image, spec.step.visual_token_bytes, config)
        tokens = number * geometry.num_tokens
        found.append(
            Kind(
                name=f"a picture of {image}" if number == 1 else f"{number} pictures of {image}",
                visual_tokens=tokens,
                tokens=tokens + text_tokens,
                encode_bytes=spec.step.encode_bytes(geometry.num_patches, geometry.num_tokens),
                ttft_s=_ttft(cost, tokens + text_tokens, geometry, number),
            )
        )
    name = "the whole context" if longest == limit else "as --context says"
    whole = Kind(
        name=name, visual_tokens=0, tokens=longest, encode_bytes=0, ttft_s=_ttft(cost, longest, None, 0)
    )
    return (*found, whole)


def _ttft(cost: CostModel | None, tokens: int, geometry: Geometry | None, pictures: int) -> float | None:
    """Seconds of encodes and prefill, as an engine forecasts them."""
    if cost is None:
        return None
    encode_s = 0.0 if geometry is None else cost.encode_seconds(geometry.num_patches, geometry.squares)
    return pictures * encode_s + cost.step_seconds(0, 0, tokens, chunk_context(0, tokens))


def _geometry(paper: Paper, image: str) -> Geometry:
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
    return geometry


def _check_fits(geometry: Geometry, image: str, feature_bytes: int, config: EngineConfig) -> None:
    """What an engine with this cache would refuse of every client."""
    num_bytes, limit = geometry.num_tokens * feature_bytes, config.cache.feature_room
    if num_bytes > limit:
        raise ConfigError(
            f"--image is {image}, which has {geometry.num_tokens} visual tokens with {shown_bytes(num_bytes)} of "
            f"features, limit {shown_bytes(limit)}; raise --feature-cache-gib or take a smaller one"
        )


def _shared(
    paper: Paper, spec: ModelSpec, config: EngineConfig, longest: int, memory_bytes: int, *, is_fixed: bool
) -> tuple[int, Budget]:
    """The longest context that fits, by halves unless it is fixed, and how memory is shared out with it."""
    budget = _budget(paper, spec, config, longest, memory_bytes)
    token_bytes = paper.footprint(spec.dtype.itemsize).token_bytes
    while not is_fixed and budget.kv_bytes < longest * token_bytes and longest > _LEAST_CONTEXT:
        longest //= 2
        budget = _budget(paper, spec, config, longest, memory_bytes)
    return longest, budget


def _budget(
    paper: Paper, spec: ModelSpec, config: EngineConfig, max_model_len: int, memory_bytes: int
) -> Budget:
    from tapetum.processing.extent import extent
    from tapetum.runtime.memory import largest_step_bytes

    sizes = extent(paper.processor, config.media.max_pixels, config.media.max_frames)
    return Budget(
        memory_bytes=memory_bytes,
        share=config.device.gpu_memory_utilization,
        weight_bytes=paper.footprint(spec.dtype.itemsize).weight_bytes,
        working_bytes=largest_step_bytes(spec, config, sizes, max_model_len, is_native=False),
        feature_bytes=config.cache.feature_room if paper.takes_pictures else 0,
        visual_kv_share=config.cache.visual_kv_share if paper.takes_pictures else 0.0,
    )
