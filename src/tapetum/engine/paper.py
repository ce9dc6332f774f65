"""A checkpoint on paper: what its config and processor files say of it, without a weight being read.

Owns the division into parts with their parameters, the tokens of pictures, and the keys that nobody reads. Raises
CheckpointError, in one sentence, for what is not supported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from pathlib import Path

from tapetum.core import files
from tapetum.core.errors import MediaError
from tapetum.core.footprint import Footprint
from tapetum.core.media import Geometry
from tapetum.models.composed import Blueprint
from tapetum.models.table import read_blueprint
from tapetum.models.weights import Slot
from tapetum.processing import load_processor
from tapetum.processing.base import Processor
from tapetum.processing.options import ProcessorOptions

TOWER, PROJECTOR, EMBEDDING, DECODER, HEAD = "vision tower", "projector", "embedding", "decoder", "head"
# what names of published checkpoints call a projector
_PROJECTORS = ("merger", "projector", "connector", "mlp1.", "image_newline", "modality_projection")
_WIDE_ENDS = (".patch.weight", ".patch.bias", ".positions")  # what meets raw pixels stays in float32
_CLIP_AXES = 5  # of a patch kernel for clips, which has another one for pictures beside it
_TOWER_SIZES = ("depth", "width", "num_heads", "patch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """Everything about a checkpoint that needs neither its tokenizer nor its weights."""

    blueprint: Blueprint
    processor: Processor
    parameters: Mapping[str, int]  # of each part
    num_wide: int  # of them, kept in float32 in every number format
    num_again: int  # float32 values made of them and kept beside them
    tower: Mapping[str, int]  # sizes of the vision tower by name; empty for a text model
    unused_keys: tuple[str, ...]  # a sentence for each file

    def footprint(self, bytes_per_value: int) -> Footprint:
        decoder = self.blueprint.decoder
        return Footprint(
            num_parameters=sum(self.parameters.values()),
            num_wide=self.num_wide,
            num_again=self.num_again,
            bytes_per_value=bytes_per_value,
            num_layers=decoder.num_layers,
            num_kv_heads=decoder.num_kv_heads,
            head_dim=decoder.head_dim,
            feature_size=decoder.hidden_size * (1 + self.blueprint.deep_levels),
        )

    @property
    def takes_pictures(self) -> bool:
        return "image" in self.processor.media_tokens

    def geometry(self, width: int, height: int) -> Geometry | None:
        """Of a picture of this size; None for a shape that the family refuses."""
        try:
            return self.processor.geometry("image", width, height, options=ProcessorOptions())
        except MediaError:
            return None


def read_paper(directory: Path) -> Paper:
    with _unused_keys() as unused:
        blueprint = read_blueprint(directory)
        processor = load_processor(directory)
    parameters: dict[str, int] = {}
    for slot in blueprint.table.slots:
        part = _part_of(slot, blueprint)
        parameters[part] = parameters.get(part, 0) + prod(slot.shape)
    wide = [slot for slot in blueprint.table.slots if _is_wide(slot)]
    order = (TOWER, PROJECTOR, EMBEDDING, DECODER, HEAD)
    return Paper(
        blueprint=blueprint,
        processor=processor,
        parameters={part: parameters[part] for part in order if part in parameters},
        num_wide=sum(prod(slot.shape) for slot in wide),
        num_again=sum(prod(slot.shape) // slot.shape[2] for slot in wide if len(slot.shape) == _CLIP_AXES),
        tower=_sizes_in(blueprint.vision),
        unused_keys=tuple(dict.fromkeys(unused)),
    )


def _part_of(slot: Slot, blueprint: Blueprint) -> str:
    if slot.name in ("embed", "head"):
        return EMBEDDING if slot.name == "embed" else HEAD
    if not blueprint.vision_prefixes or not slot.sources[0].startswith(blueprint.vision_prefixes):
        return DECODER
    return PROJECTOR if any(word in slot.sources[0] for word in _PROJECTORS) else TOWER


def _is_wide(slot: Slot) -> bool:
    return slot.is_wide or slot.name.endswith(_WIDE_ENDS)


def _sizes_in(record: object) -> dict[str, int]:
    """The sizes of a tower wherever its family keeps them; the outermost of a name counts."""
    if not is_dataclass(record):
        return {}
    values = {item.name: getattr(record, item.name) for item in fields(record)}
    inner: dict[str, int] = {}
    for value in values.values():
        inner = _sizes_in(value) | inner
    own = {name: value for name, value in values.items() if name in _TOWER_SIZES and isinstance(value, int)}
    return {name: (inner | own)[name] for name in _TOWER_SIZES if name in inner | own}


@contextmanager
def _unused_keys() -> Iterator[list[str]]:
    """Collects what the readers of config files say, in place of the log."""
    found: list[str] = []
    listener = _Listener(found)
    was_heard = files.logger.propagate
    files.logger.addHandler(listener)
    files.logger.propagate = False
    try:
        yield found
    finally:
        files.logger.propagate = was_heard
        files.logger.removeHandler(listener)


class _Listener(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(record.getMessage())
