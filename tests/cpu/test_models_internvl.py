"""InternVL beside transformers: the rule of its tiles, other decoders and towers, and the names of real checkpoints.

What all families are held to is in test_families.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoConfig, InternVLConfig, InternVLForConditionalGeneration
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

from tapetum import LLM, SamplingParams
from tapetum.core.chat import ChatInput, MediaPart, Message
from tapetum.core.errors import CheckpointError
from tapetum.engine.files import ModelFiles
from tapetum.models.internvl.model import read
from tapetum.models.table import load_model
from tapetum.models.weights import NameTable
from tapetum.ops.table import reference_table
from tapetum.processing import load_processor
from tapetum.processing.internvl import choose_grid
from tapetum.text.runs import MediaSlot
from tests.families import internvl
from tests.families.kit import conversations

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
EXACT = {"dtype": "float32", "device": "cpu", "threads": 1, "kv_cache_bytes": 16 << 20}


@given(
    size=st.tuples(st.integers(1, 4000), st.integers(1, 4000)),
    least=st.integers(1, 6),
    most=st.integers(1, 24),
    tile=st.sampled_from([56, 224, 448]),
)
@example(size=(800, 600), least=1, most=12, tile=448)
@example(size=(1250, 1000), least=1, most=2, tile=448)  # as near to 1 x 2 as to 2 x 1
def test_grids_are_those_of_transformers(size: tuple[int, int], least: int, most: int, tile: int) -> None:
    expected = get_optimal_tiled_canvas(size[::-1], (tile, tile), least, most)
    assert choose_grid(size, tile, least, most) == expected


@pytest.mark.parametrize(
    ("is_original", "text_type", "tower"),
    [
        (False, "qwen3", internvl.LARGE_TOWER),
        (False, "llama", internvl.SMALL_TOWER),
        (True, "qwen2", internvl.SMALL_TOWER),
        (True, "qwen3", internvl.SMALL_TOWER),
    ],
)
def test_every_decoder_and_tower_in_both_layouts(
    tmp_path: Path, is_original: bool, text_type: str, tower: dict[str, object]
) -> None:
    write = internvl.write_original if is_original else internvl.write
    directory = write(tmp_path / "model", 5, text_type=text_type, tower=tower)
    oracle = internvl.oracle(directory / internvl.REFERENCE if is_original else directory, torch.float32)
    chats = [conversations(has_clips=True)[index] for index in (1, 11, -2)]
    expected = [oracle.ask(oracle.read(messages), 12).token_ids for messages in chats]
    with LLM(str(directory), **EXACT) as llm:
        sampling = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        outputs = llm.chat(chats, sampling, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == expected


def test_what_a_user_types_is_no_picture(tmp_path: Path) -> None:
    """Also where the template reads only strings, into which the places of pictures are written."""
    files = ModelFiles.load(internvl.family("internvl_chat").write(tmp_path / "model", 1))
    typed = "an <image> tag, <IMG_CONTEXT> and <video>"
    chat = ChatInput(messages=(Message(role="user", content=(MediaPart(kind="image", source=b""), typed)),))
    runs = files.template.render(chat)
    places = [index for index, run in enumerate(runs) if run == MediaSlot("image")]
    assert len(places) == 1
    assert runs[places[0] + 1] == f"\n{typed}"
    assert [run for run in runs if isinstance(run, MediaSlot)] == [MediaSlot("image")]


@pytest.mark.parametrize("is_saved", [True, False])
def test_names_of_a_real_checkpoint_in_the_layout_of_transformers(is_saved: bool) -> None:
    """As transformers writes them, and as it has them, which some exporters keep."""
    folder = CONFIGS / "internvl3-8b-hf"
    check_names(read(folder).table, tensors_of(AutoConfig.from_pretrained(folder), is_saved=is_saved))


@pytest.mark.parametrize("name", ["internvl2-2b", "internvl2_5-8b"])
def test_names_of_real_checkpoints_in_the_original_layout(name: str) -> None:
    blueprint = read(CONFIGS / name)
    decoder, tower = blueprint.decoder, blueprint.vision.tower
    text = {
        "model_type": "llama",
        "vocab_size": decoder.vocab_size,
        "hidden_size": decoder.hidden_size,
        "intermediate_size": decoder.intermediate_size,
        "num_hidden_layers": decoder.num_layers,
        "num_attention_heads": decoder.num_heads,
        "num_key_value_heads": decoder.num_kv_heads,
        "head_dim": decoder.head_dim,
    }
    vision = {
        "hidden_size": tower.block.width,
        "num_hidden_layers": tower.depth,
        "num_attention_heads": tower.block.num_heads,
        "intermediate_size": tower.block.mlp_width,
        "attention_bias": tower.block.has_qkv_bias,
    }
    tensors = tensors_of(InternVLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False))
    check_names(blueprint.table, internvl.original_tensors(tensors, text))


def test_a_config_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    directory = internvl.write_original(tmp_path / "model", 1, text_type="llama")
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["llm_config"]["num_key_value_heads"] = 4
    path.write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match=r"wqkv.weight has shape \(128, 64\), config.json says \(192, 64\)"
    ):
        load_model(directory, torch.float32, torch.device("cpu"), reference_table())
    config["vision_config"]["norm_type"] = "batch_norm"
    path.write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match="norm_type is 'batch_norm', supported are layer_norm, rms_norm"
    ):
        read(directory)


def tensors_of(config: InternVLConfig, *, is_saved: bool = True) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        tensors = InternVLForConditionalGeneration(config).state_dict()
    if not is_saved:
        return tensors
    saved = {
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
    }
    return {
        name.replace(old, new): tensor
        for name, tensor in tensors.items()
        for old, new in saved.items()
        if name.startswith(old)
    }


def check_names(table: NameTable, tensors: dict[str, torch.Tensor]) -> None:
    shapes = {table.canonical(name): tuple(tensor.shape) for name, tensor in tensors.items()}
    assert {source for slot in table.slots for source in slot.sources} == set(shapes)
    for slot in table.slots:
        if len(slot.sources) == 1 and slot.convert is None:
            assert shapes[slot.sources[0]] == slot.shape, slot.name


@given(total=st.integers(1, 5000), count=st.integers(1, 64))
def test_frames_are_chosen_as_transformers_does(total: int, count: int) -> None:
    """Its class needs torchvision; this is its rule."""
    count = min(total, count)
    expected = torch.arange(total / count / 2, total, total / count).int().tolist()
    sampling = load_processor(CONFIGS / "internvl2-2b").sampling
    assert sampling.spread(total, count, 1.0) == expected
