"""Checkpoints with vocab.json and merges.txt, but no tokenizer.json: tokens are those of transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tapetum.assets import MODEL_DIR
from tapetum.core.errors import CheckpointError
from tapetum.text.tokenizer import Tokenizer

ADDED = ("<img>", "</img>", "<IMG_CONTEXT>")
TEXTS = st.lists(
    st.one_of(
        st.sampled_from([*ADDED, "<|im_end|>", "I'LL ", "12", " \n\n x", "é", "<"]), st.text(max_size=6)
    )
).map("".join)


def write(directory: Path, **config: object) -> Path:
    """The files of the bundled tokenizer as a slow one of transformers 4 is written, with more tokens."""
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(MODEL_DIR / name, directory / name)
    made = json.loads((MODEL_DIR / "tokenizer.json").read_text())
    declared = {str(token["id"]): {**token, "id": None} for token in made["added_tokens"]}
    first = max(map(int, declared)) + 1
    declared |= {
        str(token_id): {"content": text, "special": True} for token_id, text in enumerate(ADDED, first)
    }
    values = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": declared, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(values))
    texts = {token["content"]: int(token_id) for token_id, token in declared.items()}
    (directory / "added_tokens.json").write_text(json.dumps(texts))
    return directory


@pytest.mark.parametrize(
    "config", [{}, {"added_tokens_decoder": None, "additional_special_tokens": list(ADDED)}]
)
def test_tokens_are_those_of_transformers(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, object]
) -> None:
    directory = write(tmp_path_factory.mktemp("bare"), **config)
    oracle = AutoTokenizer.from_pretrained(write(tmp_path_factory.mktemp("whole")))
    ours = Tokenizer.load(directory)

    @settings(max_examples=200, deadline=None)
    @given(TEXTS)
    def check(text: str) -> None:
        expected = oracle(text, add_special_tokens=False).input_ids
        assert list(ours.encode(text)) == expected
        assert ours.decode(expected, skip_special=False) == oracle.decode(expected)

    check()
    assert ours.token_id("<IMG_CONTEXT>") == oracle.convert_tokens_to_ids("<IMG_CONTEXT>")


def test_bad_files(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_class="InternLM2Tokenizer")
    with pytest.raises(CheckpointError, match=r"has no tokenizer.json; write one with transformers"):
        Tokenizer.load(tmp_path)
    write(tmp_path, added_tokens_decoder={"4000": {"content": "<img>", "special": True}})
    with pytest.raises(CheckpointError, match=r"token <img> is to be 4000, but is \d+ behind vocab.json"):
        Tokenizer.load(tmp_path)
    write(tmp_path)
    (tmp_path / "merges.txt").write_text("not a merge of anything")
    with pytest.raises(CheckpointError, match=r"vocab.json and merges.txt cannot be read: .* fetch"):
        Tokenizer.load(tmp_path)
