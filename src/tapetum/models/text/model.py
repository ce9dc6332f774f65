"""Checkpoints that read text only: Llama, Mistral, Qwen2, Qwen3 (dense and experts), Gemma 3; by their config.json."""

from __future__ import annotations

from pathlib import Path

from tapetum.core.files import ConfigReader, require_json
from tapetum.models.composed import Blueprint
from tapetum.models.config_keys import IGNORED_KEYS
from tapetum.models.decoder import decoder_slots, ignored_slots, read_decoder
from tapetum.models.weights import NameTable


def read(directory: Path) -> Blueprint:
    reader = ConfigReader(require_json(directory / "config.json"), "config.json")
    model_type = reader.word("model_type")
    decoder = read_decoder(reader, is_tied=reader.flag("tie_word_embeddings", model_type.startswith("gemma")))
    reader.finish(IGNORED_KEYS)
    table = NameTable(decoder_slots(decoder), ignored=ignored_slots(decoder))
    return Blueprint(model_type=model_type, decoder=decoder, table=table)
