"""`tapetum doctor`: what Tapetum makes of a checkpoint, from its small files alone, or of tiers.

Owns the page and its JSON. What is found is engine.examine's; a checkpoint that cannot run is one sentence and exit
code 2, as everywhere.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tapetum.command_help import FlagsCommand
from tapetum.commands import page
from tapetum.core.config import ModelConfig, TierConfig
from tapetum.core.errors import CheckpointError, ConfigError
from tapetum.core.footprint import shown_bytes, shown_count
from tapetum.flags import model_option, one_model, option, tier_flags

if TYPE_CHECKING:
    from tapetum.core.footprint import Footprint
    from tapetum.engine.examine import Examination, Picture, Tensors, Text
    from tapetum.engine.paper import Paper

_BYTES = 2  # of a value in bfloat16
_MANY = 4  # names are told one by one up to here


@click.command(cls=FlagsCommand)
@click.argument("model_argument", required=False, metavar="[MODEL]")
@model_option
@option("--revision", "revision", help="Branch, tag or commit of a hub id.  [default: the newest]")
@option("--offline", "is_offline", is_flag=True, help="Ask the hub nothing.")
@option(
    "--tiers", "of_tiers", is_flag=True, help="Tell how the tiers are instead: --feature-tier, --kv-tier."
)
@option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@tier_flags
def doctor(
    model_argument: str | None,
    revision: str | None,
    is_offline: bool,
    of_tiers: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Tell whether and how a checkpoint runs, or with --tiers how each tier is.

    Reads its config, tokenizer and processor files, and of its weights the names and shapes. Of a tier, lists what
    is there, and writes, reads and removes one entry.
    """
    tiers = {name: options.pop(name) for name in ("feature_tiers", "kv_tiers")}
    if of_tiers:
        _tell_of_tiers(TierConfig(**tiers), as_json=as_json)  # type: ignore[arg-type]
        return
    from tapetum.engine.examine import examine
    from tapetum.engine.find import find_model

    model = one_model(model_argument, options)
    name = model or "tapetum-mini"
    config = ModelConfig(model=model, revision=revision, is_offline=is_offline)
    try:
        found = examine(find_model(config, has_weights=False))
    except CheckpointError as error:
        if as_json:
            click.echo(json.dumps({"model": name, "problem": error.message}))
        else:
            page.title(name, "does not run", is_good=False)
        raise
    problem = found.tensors.problem if found.tensors else ""
    if as_json:
        click.echo(json.dumps({"model": name, "problem": problem, **_as_json(found)}, ensure_ascii=False))
    else:
        _show(name, found, problem)
    if problem:
        raise CheckpointError(problem)


def _tell_of_tiers(config: TierConfig, *, as_json: bool) -> None:
    from tapetum.commands.doctor_tiers import show_tiers, tiers_as_json
    from tapetum.engine.examine_tiers import examine_tiers

    found = examine_tiers(config)
    if not found:
        raise ConfigError("no tier is named; add --feature-tier or --kv-tier, such as disk:PATH?max=20GiB")
    if as_json:
        click.echo(json.dumps({"tiers": tiers_as_json(found)}, ensure_ascii=False))
    else:
        show_tiers(found)
    for tier in found:
        if tier.problem:
            raise ConfigError(tier.problem)


def _show(name: str, found: Examination, problem: str) -> None:
    paper, footprint = found.paper, found.paper.footprint(_BYTES)
    page.title(
        name, "does not run" if problem else f"runs as {paper.blueprint.model_type}", is_good=not problem
    )
    page.section("model")
    _show_parts(paper)
    page.section("text")
    _show_text(found.text, paper)
    if found.pictures:
        page.section("pictures")
        _show_pictures(found.pictures, footprint)
    page.section("memory in bfloat16")
    context = paper.blueprint.decoder.max_position_embeddings
    _show_memory(footprint, context, has_pictures=paper.takes_pictures)
    page.section("files")
    _show_tensors(found.tensors)
    for sentence in paper.unused_keys or ("none",):
        page.row("unread keys", sentence.replace(" has keys that are not used: ", ": "))
    click.echo()


def _show_parts(paper: Paper) -> None:
    notes = {"vision tower": tower_note(paper), "decoder": decoder_note(paper)}
    notes["embedding"] = f"{paper.blueprint.decoder.vocab_size:,} tokens" + (
        ", the head too" if paper.blueprint.decoder.is_tied else ""
    )
    for part, count in paper.parameters.items():
        page.row(part, _numbers(count), notes.get(part, ""))
    page.row("together", click.style(_numbers(sum(paper.parameters.values())), bold=True))


def _numbers(count: int) -> str:
    return f"{shown_count(count):>7}{shown_bytes(count * _BYTES):>11}"


def tower_note(paper: Paper) -> str:
    words = {"depth": "{} layers", "width": "{} wide", "num_heads": "{} heads", "patch_size": "patches of {}"}
    return ", ".join(words[name].format(f"{value:,}") for name, value in paper.tower.items())


def decoder_note(paper: Paper) -> str:
    decoder = paper.blueprint.decoder
    words = [
        f"{decoder.num_layers} layers",
        f"{decoder.hidden_size:,} wide",
        f"{decoder.num_heads} heads of {decoder.head_dim}, {decoder.num_kv_heads} for keys and values",
    ]
    if decoder.experts is not None:
        words.append(f"{decoder.experts.num_chosen} of {decoder.experts.num_experts} experts")
    if any(decoder.windows):
        count = sum(map(bool, decoder.windows))
        words.append(f"a window of {max(decoder.windows):,} in {count} layers")
    return ", ".join(words)


def _show_text(text: Text, paper: Paper) -> None:
    page.row("context", f"{paper.blueprint.decoder.max_position_embeddings:,} tokens")
    page.row("vocabulary", f"{text.vocab_size:,} tokens", _some(text.special_tokens, "special"))
    page.row("answers end at", ", ".join(text.end_tokens) or "nothing but their length")
    if text.chat_refusal:
        page.fault("chat template", text.chat_refusal)
    else:
        page.row("chat template", ", ".join(abilities(text)))
    if text.picture_refusal and text.picture_refusal != text.chat_refusal:
        page.fault("pictures", text.picture_refusal)


def abilities(text: Text) -> list[str]:
    can = text.abilities
    tools = f"tools ({can.tool_style})" if can.has_tools else "tools told of in words"
    return ["turns", tools, *(["reasoning"] if can.has_reasoning else [])]


def _show_pictures(pictures: tuple[Picture, ...], footprint: Footprint) -> None:
    rows = []
    for each in pictures:
        size = f"{each.size[0]}x{each.size[1]}"
        if each.geometry is None:
            rows.append((size, "refused", "", "", "", ""))
            continue
        tokens, tiles = each.geometry.num_tokens, each.geometry.tiles
        rows.append(
            (
                size,
                f"{each.geometry.used[0]}x{each.geometry.used[1]}",
                f"{tiles[0]}x{tiles[1]}" if tiles else "-",
                f"{tokens:,}",
                f"{each.prompt_tokens:,}",
                shown_bytes(each.prompt_tokens * footprint.token_bytes),
            )
        )
    page.table(("size", "seen as", "tiles", "visual tokens", "in the prompt", "keys and values"), rows)


def _show_memory(footprint: Footprint, context: int, *, has_pictures: bool) -> None:
    page.row("weights", shown_bytes(footprint.weight_bytes))
    page.row(
        "keys, values",
        f"{shown_bytes(footprint.token_bytes)} a token",
        f"{shown_bytes(footprint.token_bytes * context)} for the whole context",
    )
    if has_pictures:
        page.row("features", f"{shown_bytes(footprint.feature_bytes)} a visual token")


def _show_tensors(tensors: Tensors | None) -> None:
    if tensors is None:
        page.row("weights", "not here", "only config, tokenizer and processor were looked at")
        return
    files = (
        f"{tensors.num_files} file{'s' * (tensors.num_files > 1)}" if tensors.num_files else "the index alone"
    )
    page.row("weights", f"{tensors.num_stored:,} tensors in {files}", ", ".join(tensors.kinds))
    for what, names in (
        ("missing", tensors.missing),
        ("unknown", tensors.unknown),
        ("misshapen", tensors.misshapen),
    ):
        if names:
            page.fault(what, _some(names, ""))


def _some(names: tuple[str, ...], what: str) -> str:
    rest = f" and {len(names) - _MANY:,} more" if len(names) > _MANY else ""
    return f"{len(names):,} {what}: {', '.join(names[:_MANY])}{rest}".replace(" :", ":")


def _as_json(found: Examination) -> dict[str, object]:
    paper, footprint = found.paper, found.paper.footprint(_BYTES)
    decoder = paper.blueprint.decoder
    experts = decoder.experts
    return {
        "model_type": paper.blueprint.model_type,
        "parameters": dict(paper.parameters),
        "vision_tower": dict(paper.tower),
        "decoder": {
            "num_layers": decoder.num_layers, "hidden_size": decoder.hidden_size, "num_heads": decoder.num_heads,
            "num_kv_heads": decoder.num_kv_heads, "head_dim": decoder.head_dim, "vocab_size": decoder.vocab_size,
            "max_model_len": decoder.max_position_embeddings, "num_experts": experts.num_experts if experts else 0,
            "window": max(decoder.windows, default=0),
        },
        "bytes": {
            "weights": footprint.weight_bytes, "kv_per_token": footprint.token_bytes,
            "features_per_token": footprint.feature_bytes,
        },
        "text": asdict(found.text),
        "pictures": [
            {
                "size": each.size, "used": each.geometry.used, "tiles": each.geometry.tiles,
                "visual_tokens": each.geometry.num_tokens, "prompt_tokens": each.prompt_tokens,
            }
            for each in found.pictures if each.geometry
        ],
        "tensors": asdict(found.tensors) if found.tensors else None,
        "unused_keys": paper.unused_keys,
    }  # fmt: skip
