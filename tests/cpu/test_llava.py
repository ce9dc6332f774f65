"""LLaVA beside transformers where tests/families does not look: every size, every layer, every spelling of names."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoTokenizer,
    LlavaOnevisionProcessor,
    LlavaProcessor,
)
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
from transformers.image_utils import ChannelDimension
from transformers.models.llava_onevision.modeling_llava_onevision import unpad_image

from tapetum import LLM, SamplingParams
from tapetum.core.errors import CheckpointError
from tapetum.core.media import Geometry
from tapetum.models.base import VisionLanguageModel
from tapetum.models.table import load_model, read_blueprint
from tapetum.ops.table import choose_table
from tapetum.processing import load_processor
from tapetum.processing.anyres import best_field, scaled_into, unpadded
from tapetum.processing.base import Processor
from tapetum.processing.options import ProcessorOptions
from tests.cpu.test_tokenizer_oracle import sentencepiece
from tests.cpu.test_tokenizer_oracle import write as write_tokenizer
from tests.families import llava

CPU = torch.device("cpu")
CONFIGS = Path(__file__).parents[1] / "data" / "configs"
SIZES = st.tuples(st.integers(1, 5000), st.integers(1, 5000))
FIELDS = {
    "five": [(672, 336), (336, 672), (672, 672), (336, 1008), (1008, 336)],
    "all": [(384 * columns, 384 * rows) for rows in range(1, 7) for columns in range(1, 7)],
}


def turned(size: tuple[int, int]) -> tuple[int, int]:
    return size[1], size[0]


@given(size=SIZES, fields=st.sampled_from(sorted(FIELDS)))
def test_fields_and_scales_are_those_of_transformers(size: tuple[int, int], fields: str) -> None:
    field = best_field(size, FIELDS[fields])
    assert turned(field) == select_best_resolution(turned(size), [turned(f) for f in FIELDS[fields]])
    picture = np.broadcast_to(np.uint8(0), (3, size[1], size[0]))
    wanted = get_patch_output_size(picture, turned(field), ChannelDimension.FIRST)
    assert turned(scaled_into(size, field)) == wanted


@given(size=SIZES, cells=st.tuples(st.integers(1, 200), st.integers(1, 200)))
def test_what_is_cut_away_is_what_transformers_cuts_away(
    size: tuple[int, int], cells: tuple[int, int]
) -> None:
    numbers = torch.arange(cells[0] * cells[1]).view(1, cells[1], cells[0])
    wanted = unpad_image(numbers, turned(size))[0]
    columns, rows = unpadded(cells, size)
    left, top = (cells[0] - columns) // 2, (cells[1] - rows) // 2
    assert torch.equal(numbers[0, top : top + rows, left : left + columns], wanted)


@given(size=SIZES)
@settings(max_examples=200)
def test_onevision_counts_tokens_as_transformers_does(size: tuple[int, int]) -> None:
    directory = CONFIGS / "llava-onevision-qwen2-0.5b-ov-hf"
    fields = json.loads((directory / "preprocessor_config.json").read_text())["image_grid_pinpoints"]
    rules = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=fields),
        num_image_tokens=729,
        vision_aspect_ratio="anyres_max_9",
    )
    rules._get_unpadded_features = partial(LlavaOnevisionProcessor._get_unpadded_features, rules)
    wanted = LlavaOnevisionProcessor._get_number_of_features(rules, size[1], size[0], 384, 384)
    found = load_processor(directory).geometry("image", *size, options=ProcessorOptions())
    assert found.num_tokens == wanted


KINDS = llava.KINDS | {  # SigLIP without a field of tiles, as LLaVA-Interleave has it
    "llava with SigLIP": replace(
        llava.KINDS["llava"],
        image_processor="SiglipImageProcessor",
        tile=24,
        text="qwen2",
        vision="siglip_vision_model",
    )
}


@pytest.fixture(scope="module", params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llava.write(tmp_path_factory.mktemp("checkpoint"), KINDS[request.param], 5)


def load(directory: Path) -> VisionLanguageModel:
    return load_model(directory, torch.float32, CPU, choose_table(CPU, torch.float32))


def picture(width: int, height: int) -> Image.Image:
    values = np.random.default_rng((width, height)).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values)


def prepared(processor: Processor, image: Image.Image) -> tuple[torch.Tensor, Geometry]:
    geometry = processor.geometry("image", *image.size, options=ProcessorOptions())
    return torch.from_numpy(processor.patches([image], geometry)), geometry


def features(directory: Path, *images: Image.Image) -> list[torch.Tensor]:
    processor = load_processor(directory)
    pairs = [prepared(processor, image) for image in images]
    return load(directory).begin_encode(*map(list, zip(*pairs, strict=True))).finish()


def configured(directory: Path, target: Path, **values: object) -> Path:
    """A copy whose config.json says something else."""
    shutil.copytree(directory, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | values))
    return target


@pytest.mark.parametrize("layer", [-3, -2, -1, 1, 3])
@torch.inference_mode()
def test_features_of_any_layer_equal_those_of_transformers(
    directory: Path, layer: int, tmp_path: Path
) -> None:
    directory = configured(directory, tmp_path / "copy", vision_feature_layer=layer)
    pictures = [picture(90, 61), picture(20, 300), picture(28, 28)]
    theirs = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32).eval()
    inputs = AutoImageProcessor.from_pretrained(directory)(images=pictures, return_tensors="pt")
    wanted = theirs.model.get_image_features(**inputs).pooler_output
    for ours, expected in zip(features(directory, *pictures), wanted, strict=True):
        torch.testing.assert_close(ours, expected, rtol=2e-4, atol=2e-4)


SPELLINGS = {
    "nested": {"vision_tower.": "vision_tower.vision_model."},
    "flat": {
        "language_model.model.": "model.language_model.",
        "language_model.lm_head.": "lm_head.",
        "vision_tower.": "model.vision_tower.vision_model.",
        "multi_modal_projector.": "model.multi_modal_projector.",
        "image_newline": "model.image_newline",
    },
    "flatter": {
        "language_model.model.": "model.language_model.",
        "language_model.lm_head.": "lm_head.",
        "vision_tower.": "model.vision_tower.",
        "multi_modal_projector.": "model.multi_modal_projector.",
        "image_newline": "model.image_newline",
    },
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@torch.inference_mode()
def test_names_of_every_exporter(directory: Path, spelling: str, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    renamed = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        for old, new in SPELLINGS[spelling].items():
            if name.startswith(old):
                name = new + name.removeprefix(old)
                break
        renamed[name] = tensor
    # what older versions of transformers wrote too
    if spelling == "nested":
        renamed["vision_tower.vision_model.embeddings.position_ids"] = torch.arange(17)[None]
    save_file(renamed, tmp_path / "model.safetensors")
    ours, other = load(directory), load(tmp_path)
    token_ids = torch.arange(40)
    assert torch.equal(ours.embed(token_ids), other.embed(token_ids))
    hidden = torch.randn(2, ours.spec.hidden_size)
    assert torch.equal(ours.head(hidden)[0], other.head(hidden)[0])
    images = picture(90, 61), picture(28, 28)
    for one, two in zip(features(directory, *images), features(tmp_path, *images), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vision_feature_layer": [-2, -1]}, r"vision_feature_layer is \[-2, -1\], must be an integer"),
        ({"vision_feature_layer": 4}, "vision_feature_layer is 4, the vision tower has 3 layers"),
        ({"vision_feature_layer": 0}, "vision_feature_layer is 0, the vision tower has 3 layers"),
        ({"vision_feature_select_strategy": "cls"}, "vision_feature_select_strategy is 'cls', only"),
        ({"projector_hidden_act": "relu"}, "projector_hidden_act is 'relu', supported are"),
    ],
)
def test_what_is_not_supported_is_one_sentence(
    directory: Path, values: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_blueprint(configured(directory, tmp_path / "copy", **values))


def test_another_tower_is_refused(directory: Path, tmp_path: Path) -> None:
    vision = json.loads((directory / "config.json").read_text())["vision_config"]
    other = configured(directory, tmp_path / "copy", vision_config={**vision, "model_type": "pixtral"})
    with pytest.raises(CheckpointError, match="model_type is 'pixtral', supported are"):
        read_blueprint(other)


# As LLaVA-1.5 is published: pictures first, no token that begins a prompt.
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% if message['role'] != 'assistant' %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' ' }}{% endfor %}"
    "{% else %}{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ part['text'] + ' ' }}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


@pytest.mark.parametrize("kind", ["first", "prepended"])
def test_prompts_of_a_llama_tokenizer_are_those_of_the_combined_processor(kind: str, tmp_path: Path) -> None:
    directory = llava.write(tmp_path / "written", llava.KINDS["llava"], 5)
    directory = configured(
        directory, tmp_path / "copy", image_token_index=sentencepiece(kind).token_to_id("<image>")
    )
    write_tokenizer(directory, kind)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    images = AutoImageProcessor.from_pretrained(directory)
    theirs = LlavaProcessor(
        images,
        tokenizer,
        patch_size=llava.PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )
    hello = {"role": "user", "content": [{"type": "text", "text": "hi a"}]}
    shown = {"type": "image", "image": picture(40, 50)}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "a dog"}]}
    chats = [
        [hello],
        [{"role": "user", "content": [*hello["content"], shown]}],
        [{"role": "user", "content": [shown, *hello["content"], shown]}, answer, hello],
    ]
    with LLM(str(directory), dtype="float32", device="cpu", kv_cache_bytes=1 << 24) as llm:
        outputs = llm.chat(chats, SamplingParams(max_tokens=1), use_tqdm=False)
    for chat, output in zip(chats, outputs, strict=True):
        wanted = theirs.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=True)
        assert list(output.prompt_token_ids) == list(wanted["input_ids"][0])
