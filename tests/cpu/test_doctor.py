"""`tapetum doctor` and the page of `tapetum plan`: what they say of checkpoints that are well."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tapetum import LLM
from tapetum.assets import MODEL_DIR
from tapetum.cli import main
from tests.gguf_files import smollm_file
from tests.mini import CONFIG


def tapetum(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def report(*words: str) -> dict:
    done = tapetum("doctor", *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_bundled_model_is_well() -> None:
    found = report()
    assert (found["model"], found["model_type"], found["problem"]) == ("tapetum-mini", "qwen2_vl", "")
    assert list(found["parameters"]) == ["vision tower", "projector", "embedding", "decoder"]
    assert 2 * sum(found["parameters"].values()) < found["bytes"]["weights"]  # what meets raw pixels is wider
    vision = CONFIG["vision_config"]
    assert found["vision_tower"] == {
        "depth": vision["depth"],
        "width": vision["embed_dim"],
        "num_heads": vision["num_heads"],
        "patch_size": vision["patch_size"],
    }
    tensors = found["tensors"]
    assert (tensors["missing"], tensors["unknown"], tensors["misshapen"], tensors["unreadable"]) == ([],) * 4
    assert found["text"]["end_tokens"] == ["<|endoftext|>", "<|im_end|>"]
    assert found["text"]["chat_refusal"] == found["text"]["picture_refusal"] == ""
    assert found["unused_keys"] == []


def test_what_it_says_of_memory_and_pictures_is_what_an_engine_does() -> None:
    found = report()
    with LLM(threads=1) as llm:
        facts = llm.facts
        scale = {"bfloat16": 1, "float32": 2}[facts.dtype]
        assert facts.kv_bytes_per_token == scale * found["bytes"]["kv_per_token"]
        assert facts.feature_bytes_per_token == scale * found["bytes"]["features_per_token"]
        assert facts.max_model_len == found["decoder"]["max_model_len"]
        (output,) = llm.chat([{"role": "user", "content": [{"type": "image", "image": picture()}]}])
    (expected,) = (each for each in found["pictures"] if each["size"] == [640, 480])
    assert output.media[0].visual_tokens == expected["visual_tokens"]
    assert list(output.media[0].used) == expected["used"]


def picture():
    from PIL import Image

    return Image.new("RGB", (640, 480))


def test_its_page_tells_the_same() -> None:
    done = tapetum("doctor")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[1] == "✓ tapetum-mini  runs as qwen2_vl"
    for part in ("model", "text", "pictures", "memory in bfloat16", "files"):
        assert part in lines
    assert max(map(len, lines)) <= 120
    assert "\x1b" not in done.stdout, "no colours where the output is no terminal"


def test_a_checkpoint_without_weights_and_with_odd_keys_is_looked_at(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(MODEL_DIR, directory)
    (directory / "model.safetensors").unlink()
    (directory / "chat_template.jinja").unlink()
    for name in ("chat_template.json", "tokenizer_config.json"):
        values = json.loads((directory / name).read_text())
        values.pop("chat_template", None)
        (directory / name).write_text(json.dumps(values))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "flux_capacitor": 1.21}))
    found = report(str(directory))
    assert found["tensors"] is None
    assert found["unused_keys"] == ["config.json has keys that are not used: flux_capacitor"]
    assert "no chat template" in found["text"]["chat_refusal"]
    done = tapetum("doctor", str(directory))
    assert "unread keys     config.json: flux_capacitor" in done.stdout
    assert "not here" in done.stdout
    assert done.stderr == "", "what nobody reads is on the page, not in the log"


def test_a_gguf_file_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = smollm_file()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = report(str(path))
    assert (found["model_type"], found["pictures"]) == ("llama", [])
    assert sum(found["parameters"].values()) == 134_515_008
    assert found["tensors"]["kinds"] == ["F32", "Q4_1", "Q8_0"]
    assert found["tensors"]["num_stored"] == 272


def test_parts_of_a_device_stand_one_behind_the_other() -> None:
    done = tapetum("plan", "--memory", "2GiB", "--image", "640x480")
    assert done.exit_code == 0, done.output
    bars = [line for line in done.stdout.splitlines() if "█" in line]
    edges = [(bar.find("█"), bar.rfind("█")) for bar in bars]
    assert all(before[1] + 1 == after[0] for before, after in pairwise(edges))
    assert "a picture of 640x480" in done.stdout and "visual tokens before theirs go first" in done.stdout
    assert "keys, values" in tapetum("plan").stdout
