"""What a checkpoint says about generation: sampling defaults, ends of sequence, the default length of an answer.

Source: `generation_config.json`, read as transformers reads it: without `do_sample` the choice is greedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tapetum.core.errors import CheckpointError, InvalidParameter
from tapetum.core.files import read_json
from tapetum.core.request import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Used where a request is silent. `max_new_tokens` None = what fits the context."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    eos_token_ids: frozenset[int] = frozenset()
    max_new_tokens: int | None = None

    @classmethod
    def load(cls, directory: Path) -> GenerationDefaults:
        """From the files of a model; without a generation config the end of sequence is in config.json."""
        given = read_json(directory / "generation_config.json") or {}
        eos = given.get("eos_token_id", _configured_end(read_json(directory / "config.json") or {}))
        try:
            return cls(
                sampling=_sampling(given),
                eos_token_ids=_token_ids(eos),
                max_new_tokens=SamplingParams(max_tokens=given.get("max_new_tokens")).max_tokens,  # type: ignore[arg-type]
            )
        except InvalidParameter as error:
            raise CheckpointError(f"generation_config.json: {error.message}") from error


def _configured_end(config: Mapping[str, object]) -> object:
    """What config.json says, or its part about the decoder."""
    parts = (config, config.get("text_config"), config.get("llm_config"))
    ends = (part.get("eos_token_id") for part in parts if isinstance(part, Mapping))
    return next((end for end in ends if end is not None), None)


def _sampling(given: Mapping[str, object]) -> SamplingParams:
    names = ("top_k", "top_p", "min_p", "repetition_penalty")
    values = {name: given[name] for name in names if given.get(name) is not None}
    temperature = given.get("temperature") if given.get("do_sample") else 0.0
    values["temperature"] = 1.0 if temperature is None else temperature
    return SamplingParams(**values)  # type: ignore[arg-type]


def _token_ids(value: object) -> frozenset[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token_id) is int for token_id in ids):
        raise CheckpointError(f"eos_token_id is {value!r}, must be an integer or a list of integers")
    return frozenset(ids)
