"""Published models by their config files alone: names and shapes of transformers, memory, tokens of pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from tapetum.bench.simulate.coefficients import read_coefficients
from tapetum.cli import main
from tapetum.core.cost import chunk_context
from tapetum.engine.paper import read_paper
from tapetum.models.weights import NameTable

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
NAMES = sorted(path.name for path in CONFIGS.iterdir())
UNKNOWN_TO_TRANSFORMERS = ("internvl2-2b", "internvl2_5-8b")  # in a layout of their own
JOINED_BY_TRANSFORMERS = ("qwen3-30b-a3b",)  # experts, which the files have one by one
PARAMETERS = {  # as the index of the weights counts them
    "llama-3.1-8b-instruct": 8_030_261_248,
    "qwen2-vl-2b-instruct": 2_208_985_600,
    "qwen2.5-vl-7b-instruct": 8_292_166_656,
    "smollm2-135m-instruct": 134_515_008,
    "smolvlm-256m-instruct": 256_484_928,
}
# docs/techniques.md, 1.3, where it has the family; what is there for all of a family is one line here
TOKENS = {
    ("qwen2-vl-2b-instruct", "224x224"): 64,
    ("qwen2-vl-2b-instruct", "1280x720"): 1196,
    ("qwen2-vl-2b-instruct", "1920x1080"): 2691,
    ("qwen2-vl-2b-instruct", "3840x2160"): 10_549,
    ("internvl2-2b", "448x448"): 256,
    ("internvl2-2b", "800x600"): 3328,
    ("internvl2_5-8b", "1920x1080"): 2304,
    ("internvl3-8b-hf", "2480x3508"): 1792,
    ("llava-v1.6-mistral-7b-hf", "336x336"): 1176,
    ("llava-v1.6-mistral-7b-hf", "1280x720"): 1948,
    ("llava-v1.6-mistral-7b-hf", "2480x3508"): 2256,
    ("llava-1.5-7b-hf", "1920x1080"): 576,
    ("gemma-3-4b-it", "1920x1080"): 256,
    ("smolvlm-256m-instruct", "2048x2048"): 1088,  # 4 x 4 tiles and all of it, 64 each
}
KV_BYTES = {  # docs/techniques.md, 1.1
    "qwen2.5-vl-7b-instruct": 57_344,
    "llama-3.1-8b-instruct": 131_072,
    "llava-1.5-7b-hf": 524_288,
}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNKNOWN_TO_TRANSFORMERS])
def test_names_and_shapes_are_those_of_transformers(name: str) -> None:
    paper = read_paper(CONFIGS / name)
    kind = AutoModelForImageTextToText if paper.takes_pictures else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(AutoConfig.from_pretrained(CONFIGS / name))
    table = paper.blueprint.table
    theirs = {table.canonical(key): tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    if name in JOINED_BY_TRANSFORMERS:
        theirs = {key: shape for key, shape in theirs.items() if ".experts." not in key}
        table = NameTable(tuple(slot for slot in table.slots if ".experts." not in slot.name), table.ignored)
    assert table.differences(list(theirs)) == ((), ())
    for slot in table.slots:
        if slot.convert is None:
            rows = sum(theirs[source][0] for source in slot.sources)
            assert (rows, *theirs[slot.sources[0]][1:]) == slot.shape, slot.name


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_published_config_goes_unread(name: str) -> None:
    assert read_paper(CONFIGS / name).unused_keys == ()


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_counted_in_parts(name: str) -> None:
    paper = read_paper(CONFIGS / name)
    assert sum(paper.parameters.values()) == PARAMETERS[name]
    expected = {"embedding", "decoder", *(("vision tower", "projector") if paper.takes_pictures else ())}
    assert set(paper.parameters) - {"head"} == expected


@pytest.mark.parametrize("name", NAMES)
def test_plan_says_what_a_model_takes(name: str) -> None:
    paper = read_paper(CONFIGS / name)
    images = ("--image", "1920x1080", "--image", "224x224") if paper.takes_pictures else ()
    report = plan(name, "--memory", "141GiB", *images)
    in_two_bytes = 2 * sum(paper.parameters.values())  # what meets raw pixels takes four
    assert in_two_bytes <= report["weight_bytes"] < 1.02 * in_two_bytes
    assert report["kv_bytes_per_token"] == KV_BYTES.get(name, report["kv_bytes_per_token"])
    visual_share = 0.9 if paper.takes_pictures else 0.0
    assert report["visual_kv_bytes"] == int(visual_share * report["kv_bytes"])
    *pictures, whole = report["requests"]
    assert len(pictures) == len(images) // 2
    assert whole["tokens"] == paper.blueprint.decoder.max_position_embeddings
    for each in pictures:
        assert each["visual_tokens"] > 0 and each["tokens"] == each["visual_tokens"] + 512
        assert each["at_once"] >= whole["at_once"] > 0
        assert each["at_once"] * each["kv_bytes"] <= report["kv_bytes"]


@pytest.mark.parametrize(("name", "size"), TOKENS)
def test_tokens_of_pictures(name: str, size: str) -> None:
    picture, _ = plan(name, "--image", size)["requests"]
    assert picture["visual_tokens"] == TOKENS[name, size]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("qwen2-vl-2b-instruct", "--image", "big"), "--image is 'big', must be width and height such as"),
        (
            ("qwen2-vl-2b-instruct", "--image", "9x4000"),
            "--image is 9x4000, a shape that qwen2_vl does not take",
        ),
        (("qwen3-8b", "--image", "10x10"), "--image is 10x10, but qwen3 reads text only"),
        (("qwen3-8b", "--context", "9999999"), "--context is 9999999, the model was made for at most 40960"),
        (("qwen3-8b", "--memory", "lots"), "memory is 'lots', must be a size such as 24GiB"),
        (("qwen3-8b", "--memory", "8GiB"), "the model does not fit: it takes "),
        (
            ("qwen2-vl-2b-instruct", "--image", "1920x1080", "--feature-cache-gib", "0.001"),
            "--image is 1920x1080, which has 2691 visual tokens with 7.88 MiB of features, limit 1.02 MiB",
        ),
        (("qwen3-8b", "--coefficients", "nobody's"), 'coefficients "nobody\'s" are neither a file'),
    ],
)
def test_what_plan_cannot_do_is_told(words: tuple[str, ...], message: str) -> None:
    name, *flags = words
    done = CliRunner().invoke(main, ["plan", str(CONFIGS / name), *flags])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"tapetum: {message}")


def test_plan_predicts_the_first_token_by_the_coefficients_it_is_given() -> None:
    report = plan(
        "qwen2-vl-2b-instruct",
        *("--image", "1920x1080", "--image", "448x448", "--pictures", "2"),
        *("--coefficients", "qwen2vl-2b-cpu"),
    )
    cost = read_coefficients("qwen2vl-2b-cpu").cost_model()
    large, small, whole = report["requests"]
    patches, tokens = 78 * 138, 2 * 2691 + 512
    expected = 2 * cost.encode_seconds(patches, patches**2) + cost.step_seconds(
        0, 0, tokens, chunk_context(0, tokens)
    )
    assert (large["visual_tokens"], large["tokens"]) == (2 * 2691, tokens)
    assert large["ttft_s"] == pytest.approx(expected)
    assert small["ttft_s"] < large["ttft_s"] and whole["encode_bytes"] == 0
    assert large["feature_bytes"] == 2 * 2691 * 3072
    assert plan("qwen3-8b")["requests"][0]["ttft_s"] is None


def test_plan_names_the_longest_context_that_fits_and_what_smaller_budgets_give_back() -> None:
    name, memory = "qwen2.5-vl-7b-instruct", ("--memory", "24GiB")
    usual = plan(name, *memory)
    assert usual["max_model_len"] == 16_000 < 128_000
    assert usual["kv_bytes"] >= usual["max_model_len"] * usual["kv_bytes_per_token"]
    lean = plan(name, *memory, "--context", "16000", "--max-num-batched-tokens", "512")
    assert lean["working_bytes"] < usual["working_bytes"]
    parts = ("weight_bytes", "working_bytes", "feature_cache_bytes", "spared_bytes", "kv_bytes")
    assert sum(lean[part] for part in parts) == lean["memory_bytes"]


def plan(name: str, *flags: str) -> dict:
    done = CliRunner().invoke(main, ["plan", str(CONFIGS / name), "--json", *flags])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)
