"""What scenarios write in `config`, and the flags it becomes; what answers become longer."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tapetum.cli import main as cli
from tests.conformance import public_faults, settings
from tests.conformance.lengthen import lengthened
from tests.conformance.settings import Figures, UnknownSetting, flags_of

FIGURES = Figures(context=2048, prompt_tokens={"C00": 58}, visual_tokens=80, feature_bytes=81_920)


@pytest.mark.parametrize(
    ("config", "flags"),
    [
        ({}, []),
        (
            {"allow_media_hosts": ["http://a:1", "http://b:2"]},
            ["--allowed-media-domains", "http://a:1", "--allowed-media-domains", "http://b:2"],
        ),
        ({"remote_media": "public hosts only"}, ["--allowed-media-domains", "*"]),
        ({"remote_media": "off"}, []),
        ({"local_media": "off (the default)"}, []),
        ({"local_media": "pictures"}, ["--allowed-local-media-path", "pictures"]),
        ({"prefix_cache": True, "encoder_cache": True}, []),
        ({"prefix_cache": False}, ["--no-enable-prefix-caching"]),
        ({"encoder_cache": "room for 2 pictures"}, ["--feature-cache-gib", f"{2.25 * 81_920 / 2**30:.12f}"]),
        ({"encoder_budget_tokens": "half of this picture"}, ["--encoder-budget-tokens", "40"]),
        ({"encoder_budget_tokens": "1.5 of one picture"}, ["--encoder-budget-tokens", "120"]),
        ({"prefill_chunk": "0.7 of one picture"}, ["--max-num-batched-tokens", "56"]),
        ({"prefill_chunk": 64}, ["--max-num-batched-tokens", "64"]),
        ({"prefill_chunk": "unlimited"}, ["--max-num-batched-tokens", "2048"]),
        ({"context": "tokens of C00 plus 8"}, ["--max-model-len", "66"]),
        ({"context": 262144}, ["--max-model-len", "262144"]),
        ({"max_images_per_request": 64}, ["--limit-mm-per-prompt", '{"image": 64}']),
        ({"max_pixels": 12_845_056}, ["--mm-processor-kwargs", '{"max_pixels": 12845056}']),
        ({"memory_mb": 2048}, ["--kv-cache-memory", "2"]),
        ({"memory_mb": 512}, ["--kv-cache-memory", "0.5"]),
        ({"max_media_bytes": 1024**2}, ["--media-max-mb", "1"]),
        ({"caches": "default sizes"}, []),
        ({"api_keys": ["a", "b"]}, ["--api-key", "a", "--api-key", "b"]),
        ({"max_queue": 4, "max_running": 2}, ["--max-num-seqs", "2", "--max-queue-len", "4"]),
    ],
)
def test_settings_become_flags(config: dict, flags: list[str]) -> None:
    assert list(flags_of(config, FIGURES)) == flags


@pytest.mark.parametrize(
    "config",
    [
        {"colour": "red"},
        {"caches": "tiny"},
        {"remote_media": "some"},
        {"prefill_chunk": "a bit of one picture"},
    ],
)
def test_settings_that_nobody_knows_are_told(config: dict) -> None:
    with pytest.raises(UnknownSetting):
        flags_of(config, FIGURES)


def flags_that(key: str) -> set[str]:
    """Every flag that some value of a setting gives."""
    found = set()
    for value in (1, "on", False):
        with contextlib.suppress(UnknownSetting, ValueError):
            found |= {
                flag.partition("=")[0] for flag in flags_of({key: value}, FIGURES) if flag.startswith("--")
            }
    return found


def test_every_flag_of_the_table_is_one_of_the_server() -> None:
    options = cli.commands["serve"].params
    known = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    for key in settings.TABLE:
        assert flags_that(key) <= known
        assert flags_that(key) or key in ("caches", "debug")


def test_the_settings_of_the_public_cases_are_in_the_table() -> None:
    for case in public_faults.CASES:
        if case.kind in ("transport", "api", "caching", "scheduling", "server"):
            built = case.build()
            for config in [
                built.get("config", {}),
                *(step.get("args", {}) for step in built.get("steps", ()) if step["do"] == "start"),
            ]:
                flags_of(config, FIGURES)


def test_what_is_measured_is_what_settings_are_told_in() -> None:
    assert settings.needs_picture({"encoder_cache": "room for 1 picture"})
    assert not settings.needs_picture({"remote_media": "public hosts only", "context": 9})
    assert settings.named_cases({"context": "tokens of C00 plus 8", "max_queue": 1}) == ["C00"]
    assert settings.needs_context({"prefill_chunk": "unlimited"})


def lengthen(step: dict, room: int | None = 100) -> dict:
    async def room_for(body: dict) -> int | None:
        return room

    return asyncio.run(lengthened([step], room_for))[0]


def test_a_long_answer_goes_on_to_the_end_of_the_context() -> None:
    step = {"do": "post", "body": {"max_tokens": 2000}, "abort_after_chunks": 2}
    assert lengthen(step)["body"] == {"max_tokens": 100, "ignore_eos": True}
    assert lengthen({"do": "parallel", "steps": [step]})["steps"] == [lengthen(step)]
    assert lengthen({"do": "post", "body": {"max_tokens": 48}})["body"] == {
        "max_tokens": 48,
        "ignore_eos": True,
    }
    assert lengthen(step, room=None)["body"]["max_tokens"] == 2000


@pytest.mark.parametrize(
    "step",
    [
        {"do": "post", "body": {"max_tokens": 8}},
        {"do": "post", "body": {}},
        {"do": "post", "body": {"max_tokens": "64"}},
        {"do": "post", "body": {"max_tokens": 64, "response_format": {"type": "json_object"}}},
        {"do": "post_raw", "body": b"{}"},
        {"do": "sleep", "s": 1},
    ],
)
def test_other_steps_stay_as_they_are(step: dict) -> None:
    assert lengthen(step) == step
