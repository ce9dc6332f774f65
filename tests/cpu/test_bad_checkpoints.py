"""Checkpoints that cannot run: from every command the same one sentence and exit code 2, and never a traceback."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from tapetum.assets import MODEL_DIR
from tapetum.cli import main
from tapetum.core.config import ModelConfig
from tapetum.core.errors import CheckpointError, TapetumError
from tapetum.engine.examine import examine
from tapetum.engine.files import ModelFiles
from tapetum.engine.find import find_model
from tapetum.engine.paper import read_paper
from tapetum.models.table import load_model
from tapetum.ops.table import torch_table
from tapetum.processing.options import ProcessorOptions
from tests.gguf_files import embedding, metadata, write_gguf

CPU = torch.device("cpu")
CONFIGS = Path(__file__).parents[1] / "data" / "configs"
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model in two shards."""
    directory = tmp_path_factory.mktemp("whole") / "model"
    shutil.copytree(MODEL_DIR, directory)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = (names[: len(names) // 2], names[len(names) // 2 :])
    for shard, half in zip(SHARDS, halves, strict=True):
        save_file({name: tensors[name] for name in half}, directory / shard)
    weight_map = {name: shard for shard, half in zip(SHARDS, halves, strict=True) for name in half}
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return directory


@pytest.fixture
def directory(sharded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sharded, tmp_path / "model"))


def edit(name: str, **changes: object) -> Damage:
    """Keys of a JSON file set; None takes one away. `a__b` is b in a."""

    def damage(directory: Path) -> None:
        values = json.loads((directory / name).read_text())
        for key, value in changes.items():
            place, (*outer, last) = values, key.split("__")
            for step in outer:
                place = place[step]
            if value is None:
                place.pop(last)
            else:
                place[last] = value
        (directory / name).write_text(json.dumps(values))

    return damage


def missing(name: str) -> Damage:
    return lambda directory: (directory / name).unlink()


def cut(name: str, share: float) -> Damage:
    def damage(directory: Path) -> None:
        data = (directory / name).read_bytes()
        (directory / name).write_bytes(data[: int(len(data) * share)])

    return damage


def tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Damage:
    def damage(directory: Path) -> None:
        found = load_file(directory / SHARDS[0])
        change(found)
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, directory / SHARDS[0])

    return damage


def without_tokenizer(directory: Path) -> None:
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        (directory / name).unlink()


def without_placeholder(directory: Path) -> None:
    values = json.loads((directory / "config.json").read_text())
    edit("config.json", image_token_id=values["vocab_size"] + 5)(directory)


def first(found: dict[str, torch.Tensor]) -> str:
    return next(name for name in sorted(found) if found[name].dim() == 2)


def to_int8(found: dict[str, torch.Tensor]) -> None:
    found[first(found)] = found[first(found)].to(torch.int8)


def drop(found: dict[str, torch.Tensor]) -> None:
    del found[first(found)]


def add(found: dict[str, torch.Tensor]) -> None:
    found["model.surprise.weight"] = torch.zeros(2)


def reshape(found: dict[str, torch.Tensor]) -> None:
    found[first(found)] = found[first(found)][:-1]


# what is wrong: how it comes about, and what the sentence must say (file, key or tensor, remedy)
FAULTS: dict[str, tuple[Damage, str]] = {
    "no config": (missing("config.json"), r"has no config\.json; name the directory"),
    "config cut short": (cut("config.json", 0.5), r"config\.json is not JSON: .*; fetch the checkpoint again"),
    "config is a list": (
        lambda directory: (directory / "config.json").write_text("[]") and None,
        r"config\.json holds a list, must hold an object",
    ),
    "no model type": (edit("config.json", model_type=None), r"config\.json .* model_type None.*supported are"),
    "model type is a list": (edit("config.json", model_type=["qwen2_vl"]), r"model_type \['qwen2_vl'\]; supported"),
    "unknown architecture": (
        edit("config.json", model_type="pixtral_next"),
        r"config\.json .* model_type 'pixtral_next'.*supported are .*qwen2_vl",
    ),
    "quantised": (
        edit("config.json", quantization_config={"quant_method": "awq", "bits": 4}),
        r"config\.json has a quantization_config of 'awq'; .*not quantised",
    ),
    "wrong type of a key": (
        edit("config.json", hidden_size="wide"),
        r"config\.json.*hidden_size is 'wide', must be an integer",
    ),
    "unknown activation": (edit("config.json", hidden_act="relu9"), r"config\.json: hidden_act is 'relu9'"),
    "unknown rotary kind": (
        edit("config.json", rope_scaling={"type": "spiral", "mrope_section": [4, 6, 6]}),
        r"config\.json.*spiral.*supported",
    ),
    "no tokenizer": (without_tokenizer, r"has no tokenizer\.json; write one"),
    "tokenizer cut short": (cut("tokenizer.json", 0.5), r"tokenizer\.json cannot be read: .*again"),
    "tokenizer without the placeholder": (without_placeholder, r"tokenizer\.json has no token \d+"),
    "no processor file": (missing("preprocessor_config.json"), r"has no .*preprocessor_config\.json; copy it"),
    "template does not compile": (
        lambda directory: (directory / "chat_template.jinja").write_text("{% for %}") and None,
        r"the chat template does not compile: .*chat_template\.jinja",
    ),
    "missing shard": (missing(SHARDS[1]), rf"shard {SHARDS[1]} named in {INDEX} is missing in .*; download"),
    "shard cut short": (cut(SHARDS[1], 0.9), rf"{SHARDS[1]} is damaged: .*; download it again"),
    "shard without a head": (cut(SHARDS[1], 0.0), rf"{SHARDS[1]} is damaged: .*; download it again"),
    "index without names": (edit(INDEX, weight_map=None), rf"{INDEX} in .* has no weight_map .*; download"),
    "whole numbers": (tensors(to_int8), rf"{SHARDS[0]}: tensor \S+ is stored as I8.*not quantised"),
    "missing tensor": (tensors(drop), r"lacks .*download it again"),
    "unknown tensor": (tensors(add), r"holds tensors that no part of the model uses.*model\.surprise\.weight"),
    "other shape": (tensors(reshape), r"shape|holds tensors of other shapes"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_checkpoint_is_one_sentence(directory: Path, fault: str) -> None:
    damage, message = FAULTS[fault]
    damage(directory)
    with pytest.raises(CheckpointError, match=message) as loading:
        load_all(directory)
    assert "\n" not in loading.value.message
    done = CliRunner().invoke(main, ["doctor", str(directory)])
    assert done.exit_code == 2
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("tapetum: ")
    for told in loading.value.message, sentence:
        assert len(told) < 500


@pytest.mark.parametrize(
    "name", ["qwen2-vl-2b-instruct", "llava-1.5-7b-hf", "smolvlm2-500m-video-instruct", "gemma-3-1b-it"]
)
def test_no_value_of_any_key_ends_in_a_traceback(tmp_path: Path, name: str) -> None:
    """What is not of the right type or out of range is a typed error, of files that users edit by hand."""
    draw, directory = random.Random(0), tmp_path / name
    shutil.copytree(CONFIGS / name, directory)
    for file in sorted(directory.glob("*.json")):
        whole = file.read_text()
        paths = list(key_paths(json.loads(whole)))
        for path in draw.sample(paths, k=min(12, len(paths))):
            for value in (-1, 0, "x", [], {}, True, 0.5, [1], None):
                edit(file.name, **{"__".join(path): value})(directory)
                try:
                    paper = read_paper(directory)
                    assert not paper.takes_pictures or paper.geometry(640, 480)
                except TapetumError as error:
                    assert "\n" not in error.message
                file.write_text(whole)


def key_paths(values: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *rest) for rest in key_paths(value))


@pytest.mark.parametrize(
    ("name", "file", "key", "value"),
    [
        ("gemma-3-1b-it", "config.json", "num_hidden_layers", 10**9),
        ("gemma-3-4b-it", "config.json", "text_config__head_dim", 10**9),
        ("gemma-3-4b-it", "config.json", "text_config__query_pre_attn_scalar", 0),
        ("llava-1.5-7b-hf", "config.json", "vision_config__num_hidden_layers", 10**9),
        ("llava-1.5-7b-hf", "config.json", "vision_config__patch_size", 10**9),
        ("llama-3.2-1b-instruct", "config.json", "rope_scaling__low_freq_factor", 0),
        ("qwen2-vl-2b-instruct", "config.json", "hidden_size", 10**9),
        ("qwen2-vl-2b-instruct", "config.json", "vision_config__depth", 10**9),
        ("qwen3-30b-a3b", "config.json", "num_experts", 10**9),
        ("internvl3-8b-hf", "config.json", "image_token_id", 10**400),
        ("internvl3-8b-hf", "config.json", "downsample_ratio", 10**400),
        ("internvl3-8b-hf", "preprocessor_config.json", "min_patches", 10**9),
        ("internvl3-8b-hf", "preprocessor_config.json", "image_mean", [float("nan")] * 3),
    ],
)
@pytest.mark.timeout(10)  # nothing is as long as such a number says
def test_an_absurd_number_is_refused_at_once(
    tmp_path: Path, name: str, file: str, key: str, value: object
) -> None:
    directory = tmp_path / name
    shutil.copytree(CONFIGS / name, directory)
    edit(file, **{key: value})(directory)
    with pytest.raises(CheckpointError, match=rf"{key.split('__')[-1]} is .*, must be ") as refused:
        read_paper(directory)
    assert len(refused.value.message) < 300


def test_an_absurd_edge_of_pictures_is_that_of_the_largest(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(CONFIGS / "smolvlm-256m-instruct", directory)
    edit("preprocessor_config.json", size={"longest_edge": 10**9})(directory)
    processor = read_paper(directory).processor
    options = ProcessorOptions(max_visual_tokens=400)
    geometry = processor.geometry("image", 4000, 3000, options=options)
    assert 64 < geometry.num_tokens <= 400


def test_a_clip_without_frames_a_second_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(CONFIGS / "smolvlm2-500m-video-instruct", directory)
    edit("preprocessor_config.json", video_sampling__fps=0)(directory)
    with pytest.raises(CheckpointError, match="take 0 frames a second of a clip, must be above 0"):
        read_paper(directory)


def load_all(directory: Path) -> None:
    """As the engine does: all files of the front, then the weights, each of which is asked for."""
    found = find_model(ModelConfig(model=str(directory)))
    ModelFiles.load(found)
    load_model(found, torch.float32, CPU, torch_table(CPU, torch.float32))


@pytest.mark.timeout(60)  # a server that starts runs on
@pytest.mark.parametrize("command", ["run", "serve"])
@pytest.mark.parametrize("fault", ["missing shard", "whole numbers", "unknown architecture", "no tokenizer"])
def test_commands_that_load_end_with_that_sentence(directory: Path, command: str, fault: str) -> None:
    damage, message = FAULTS[fault]
    damage(directory)
    words = {"run": ["run", str(directory), "What?"], "serve": ["serve", str(directory), "--port", "0"]}
    done = CliRunner().invoke(main, [*words[command], "--pack-cache", "", "--threads", "1"])
    assert done.exit_code == 2, done.output
    *_, sentence = done.stderr.splitlines()
    assert sentence.startswith("tapetum: ")
    with pytest.raises(CheckpointError, match=message):
        raise CheckpointError(sentence)
    assert "Traceback" not in done.stderr


def test_a_whole_checkpoint_in_shards_is_well(sharded: Path) -> None:
    found = examine(sharded)
    assert found.tensors is not None
    assert (found.tensors.problem, found.tensors.num_files) == ("", 2)


def test_an_index_without_its_files_says_which_names_are_there(directory: Path) -> None:
    for shard in SHARDS:
        (directory / shard).unlink()
    num_tensors = len(json.loads((directory / INDEX).read_text())["weight_map"])
    found = examine(directory).tensors
    assert found is not None
    assert (found.num_files, found.num_stored, found.problem) == (0, num_tensors, "")
    edit(INDEX, weight_map={"model.surprise": SHARDS[0]})(directory)
    found = examine(directory).tensors
    assert found is not None and found.unknown == ("model.surprise",) and len(found.missing) == num_tensors


def test_doctor_says_all_that_is_wrong_with_the_tensors(directory: Path) -> None:
    for change in (drop, add):
        tensors(change)(directory)
    done = CliRunner().invoke(main, ["doctor", str(directory), "--json"])
    report = json.loads(done.stdout)
    assert done.exit_code == 2
    assert len(report["tensors"]["missing"]) == 1
    assert report["tensors"]["unknown"] == ["model.surprise.weight"]
    assert report["problem"] and report["problem"] in done.stderr


def test_a_gguf_file_that_cannot_run_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "m.gguf", metadata(), embedding())  # the layers are missing
    done = CliRunner().invoke(main, ["doctor", str(path)])
    assert done.exit_code == 2
    assert "lacks tensors that the config asks for" in done.stderr
    path.write_bytes(path.read_bytes()[:500])
    done = CliRunner().invoke(main, ["doctor", str(path)])
    assert done.exit_code == 2
    assert done.stderr.endswith("download it again\n")
