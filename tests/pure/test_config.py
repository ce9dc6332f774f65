"""Config records and sampling parameters check themselves: nothing that exists can end a thread later."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import Any

import pytest

from tapetum.core.checks import RANGES
from tapetum.core.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    MediaConfig,
    ModelConfig,
    ScheduleConfig,
    ServerConfig,
    TierConfig,
)
from tapetum.core.errors import ConfigError, InvalidParameter
from tapetum.core.request import SamplingParams

RECORDS = (ModelConfig, CacheConfig, TierConfig, ScheduleConfig, DeviceConfig, MediaConfig, ServerConfig)
RECORD_OF = {field.name: record for record in RECORDS for field in fields(record)}
NUMBERS = {
    field.name
    for record in RECORDS
    for field in fields(record)
    if re.search(r"\b(int|float)\b", str(field.type))
} - {
    "mm_processor_kwargs",
    "media_io_kwargs",
}  # each of their options has a range of its own: test_media_options.py

HUGE = pytest.param(10**5000, id="5001 digits")  # more than Python writes out


def built(name: str, value: object) -> object:
    record: Any = RECORD_OF[name]
    return getattr(record(**{name: value}), name)


def as_field(name: str, number: float) -> object:
    """A number as the value of a field that may hold several."""
    return (0, number, 0) if name == "alpha_ground" else number


def test_every_number_has_a_range() -> None:
    assert set(RANGES) == NUMBERS


@pytest.mark.parametrize("name", sorted(RANGES))
def test_the_ends_of_a_range_are_allowed_and_nothing_beyond_them(name: str) -> None:
    label, low, high, _ = RANGES[name]
    step = 1 if isinstance(low, int) else 1e-9
    for number in (low, high):
        assert built(name, as_field(name, number)) == as_field(name, number)
    for number in (low - step, high + max(step, abs(high) * 1e-9 if step < 1 else 1)):
        with pytest.raises(ConfigError) as caught:
            built(name, as_field(name, number))
        for words in (label, str(number), f"allowed are {low} to {high}"):
            assert words in caught.value.message


@pytest.mark.parametrize("name", sorted(RANGES))
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "8", True, [8], HUGE])
def test_what_is_no_number_of_its_kind_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=RANGES[name][0]):
        built(name, value)


@pytest.mark.parametrize("name", sorted(RANGES))
def test_integers_are_integers(name: str) -> None:
    (declared,) = (field.type for field in fields(RECORD_OF[name]) if field.name == name)
    if "float" in str(declared):
        assert built(name, 1) == 1
    else:
        with pytest.raises(ConfigError, match="must be"):
            built(name, as_field(name, 16.0))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_model_len", 0, "--max-model-len is 0, allowed are 2 to 2147483647 tokens"),
        ("kv_cache_bytes", 2**60, f"--kv-cache-memory is {2**60}, allowed are 1 to {2**50} bytes"),
        ("block_size", 48, "--block-size is 48, must be a power of two"),
        ("dtype", "int3", "dtype is 'int3', must be Literal['auto', "),
        ("feature_tiers", "disk:/a", "feature_tiers is 'disk:/a', must be tuple[str, ...]"),
        ("feature_tiers", ("tape:/a",), "--feature-tier is 'tape:/a'; a tier begins with host:, disk:"),
        (
            "kv_tiers",
            ("disk:/a?max=2",),
            "--kv-tier is 'disk:/a' with max='2'; write a size such as max=20GiB",
        ),
        ("feature_tiers", ("disk:/a", "disk:/a?max=1GiB"), "--feature-tier names the same place twice"),
        ("schedule", ["balanced"], "schedule is ['balanced'], must be"),
        ("has_prefix_caching", 1, "has_prefix_caching is 1, must be bool"),
        ("served_model_names", "a", "served_model_names is 'a', must be tuple[str, ...]"),
        ("alpha_ground", (300, -1, 0), "MediaConfig.alpha_ground is 300, allowed are 0 to 255"),
        ("alpha_ground", (1, 2), "MediaConfig.alpha_ground is (1, 2), must be tuple[int, int, int]"),
        ("limit_per_prompt", {"image": -1}, "--limit-mm-per-prompt is -1"),
        ("limit_per_prompt", {"images": 1}, "--limit-mm-per-prompt is {'images': 1}, must be int | Mapping"),
        (
            "mm_processor_kwargs",
            {"max_pixels": [5]},
            "mm_processor_kwargs is {'max_pixels': [5]}, must be Mapping",
        ),
        ("media_io_kwargs", {"audio": {}}, "media_io_kwargs is {'audio': {}}, must be Mapping"),
        ("media_io_kwargs", {"video": 5}, "media_io_kwargs is {'video': 5}, must be Mapping"),
        ("allowed_domains", "a.example", "allowed_domains is 'a.example', must be tuple[str, ...]"),
        ("device", None, "device is None, must be str"),
        ("host", 5, "host is 5, must be str"),
        ("api_keys", ("a", ""), "--api-key is empty"),
        ("ssl_keyfile", "key.pem", "--ssl-keyfile is set without --ssl-certfile"),
        ("metrics_prefix", "vllm:", "--metrics-prefix is 'vllm:', must be letters, digits and _"),
        ("log_level", "loud", "log_level is 'loud', must be Literal['debug', "),
    ],
)
def test_a_message_names_the_flag_or_field_the_value_and_what_is_allowed(
    name: str, value: object, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        built(name, value)
    assert words in caught.value.message


def test_an_engine_config_holds_records() -> None:
    with pytest.raises(ConfigError, match="model is 'here', must be ModelConfig"):
        EngineConfig(model="here")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", 5),
        ("stop", 0),
        ("stop", {"a": 1}),
        ("stop", {}),
        ("stop", b"end"),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["a", 5]),
        ("stop", ["a"] * 17),
        ("stop_token_ids", 5),
        ("stop_token_ids", 0),
        ("stop_token_ids", "7"),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [1.0]),
        ("stop_token_ids", {1: 2}),
        ("ignore_eos", "no"),
        ("ignore_eos", 1),
        ("ignore_eos", None),
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("temperature", True),
        ("max_tokens", 0),
        ("max_tokens", 5.0),
        ("seed", 2**63),
        pytest.param("seed", 10**5000, id="seed of 5001 digits"),
        ("top_k", [1] * 10**6),
    ],
)
def test_sampling_parameters_are_checked(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter, match=f"^{name} ") as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert caught.value.param == name
    assert len(caught.value.message) < 250


def test_sampling_parameters_in_their_several_forms() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2]).stop == ("a", "b")
    assert SamplingParams(stop_token_ids=[1, 2]).stop_token_ids == (1, 2)
    unset = SamplingParams(stop=None, stop_token_ids=None)  # type: ignore[arg-type]  # as clients send it
    assert unset == SamplingParams()
