"""The generator and the trainer: seeds keep their questions and pictures, packing is exact, training trains.

Oracles: digests of the generator that the bundled model was trained and measured with, and transformers.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import Qwen2VLForConditionalGeneration

from tapetum.assets import MODEL_DIR
from training.export import export
from training.generator import TASKS, make, sample
from training.generator.canvas import CELL
from training.generator.fonts import default_faces
from training.generator.labels import CHARACTER_ID, MAX_ORDER, label
from training.network import Network, NetworkConfig
from training.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, Tokenizer, build_tokenizer
from training.train import Settings, train
from training.train.batch import Batch, make_batch
from training.train.losses import loss_of
from training.train.optimizer import Optimizer, orthogonalise, takes_muon
from training.train.schedule import StepPlan
from training.train.shared import SharedWeights

TINY = NetworkConfig(
    hidden_size=64,
    num_layers=5,
    num_heads=2,
    num_kv_heads=1,
    intermediate_size=64,
    vision_size=32,
    vision_depth=1,
    vision_heads=2,
    vision_ratio=2,
)
TOKENIZER = Tokenizer(MODEL_DIR / "tokenizer.json")

# Task, seed, size of the last picture, SHA-256 of the questions, the picture's mean grey on a 6 x 4 grid. Pixels
# themselves may differ in the last bits between versions of FreeType, libjpeg and Pillow; the means may not by much.
# fmt: off
GOLDEN = [
    ("text", 1, (224, 84), "20b8480e6ea02da7", "e8dddcdbdbede6dbdae5eaefe6e0dceaf1f1e8dfe2ecf1f1"),
    ("text", 12, (232, 170), "d9014aa44bb6aa80", "f7f7f7f7f7f7f7f7f7f7f7f7eae3d5d5e2eaf7f7f7f7f7f7"),
    ("text", 5000003, (224, 84), "3ffcc928e8bc0370", "efefefefefefe5e4e3e3e3e5ccaebdbdbcc8efefefefefef"),
    ("text", 5000077, (224, 168), "41c0732500e957eb", "3f3f40403f4049484a4b484b4545434544423f40403f3f40"),
    ("receipt", 1, (168, 168), "be5dc8010a287c3a", "383c36373b32424b251744424e584b1741493439221c3234"),
    ("receipt", 12, (224, 168), "55ad4e72d3c838da", "e3ddf4fcf0e3ded9f3fbe7dcd6cfe2f4d1d3fcfcfcfcfcfc"),
    ("receipt", 5001003, (224, 280), "18bb0482430b9d07", "d6d3caccd3d6c8c7d6cfc6c7bebfcfd4c6bdd5d4d6d6d5d5"),
    ("receipt", 5001077, (241, 224), "1b910b9b4a95dcdd", "415b5c555a435c6b68425c5c5a5a4c3f585b4b50523f4c4f"),
    ("table", 1, (224, 112), "1ee5fe1d204ce9c7", "1b454e49491a344f46494a203c6937533b20364b27452a22"),
    ("table", 12, (204, 254), "1a0b9dfd999fca0f", "cfcdddd3cad2cabcc5cccaded2d4ded9cededededededede"),
    ("table", 5002003, (168, 140), "50006ac2dd30ffac", "ebe1e7e2e1ecebccf2d8d1f3f0d7f3dad9f8f3e2f7ece7fe"),
    ("table", 5002077, (170, 217), "395ad85ee25d0995", "fee5ebe4e5ffe3dcfbdcd4f8e0e0f9d6daefffffffffffff"),
    ("form", 1, (224, 112), "77c28fc30ee432b0", "cbc4d5c9e2f1cedbcdd5ddf1c6e0cee0f1f1d6dedae4f1f1"),
    ("form", 12, (204, 254), "44bd5b3439f051b4", "f6f6f6f6f6f6d9d3cfcef6f6cac7cecad3e2eeeeefedeff0"),
    ("form", 5003003, (171, 136), "2b042880cf259caa", "cacacacacacabcbebebbbbc4b4b4afb4b5cacacacacacaca"),
    ("form", 5003077, (176, 232), "b1580ee6c7b98c56", "efefefefefefe7e8e7e9e5ecd8d9d5dce4eee8e6e6e5eeef"),
    ("chart", 1, (140, 168), "19ccebf212a3d605", "fff9ffffffffc787ffffacdabe75fdfd75bedfbcd2d5bbdf"),
    ("chart", 12, (168, 224), "9316745d0c510a24", "e27f7f7fa7f6db7e7e7edeffd77ac9fcffffdee5ffffffff"),
    ("chart", 5004003, (168, 140), "87144aabde362bdb", "fcfbe2dff0fdeadfcabdc1ebf3ddc9e1fbfff7ecd6dcffff"),
    ("chart", 5004077, (196, 252), "f8dce741447f730e", "ead9b3b3c2e3dab67a7a7acce2c69f9fdfe9e1c69d9de1ea"),
    ("shapes", 1, (168, 140), "af892c37399f581e", "dabeeef5f5f5d9bdeef5f0f5d7e9f5f49bc9dcecf5f5f2f2"),
    ("shapes", 12, (279, 143), "63a28444746fa930", "a1a1a1909398a1a1a169919fa1a1a19fa1a1a1a1a1a1a1a1"),
    ("shapes", 5005003, (168, 140), "942223e85f9dc2b8", "5761625c525557575359545657352c5d68585757575b6257"),
    ("shapes", 5005077, (280, 168), "1f6e57d021d3009c", "787f818e7f7f81847a83a7b2767a687f90957e7f7e7f7f7f"),
    ("pair", 1, (140, 112), "69126ec1c0bbdac4", "f4f3f3c9e8f4f3f3b02569f3d5e8f38edff3f1f1f3f3f3f4"),
    ("pair", 12, (168, 168), "ace301083627178f", "a9a9a9a9a9a9a5a9985ca9a996a86b5090a9a9a9a9a9a9a9"),
    ("pair", 5006003, (169, 105), "6f71c814b631733f", "3a3a3a3a3b3a51585b525f4a3b3b3b3b3a3a3b3b3a3a3b3b"),
    ("pair", 5006077, (168, 168), "d478a6b0c76824ec", "393938383a393d484448423d383838383838383838383838"),
    ("clip", 1, (140, 112), "4ff4dc838db57057", "d1bbe2dfc6e2d09be2dbd8e2e2e2e2e2e2e2e2e2e2e2e2e2"),
    ("clip", 12, (168, 168), "f900ca2fa7c8097c", "efefefefefefefefefefefefefefe4ebefefefef9cc1efef"),
    ("clip", 5007003, (140, 168), "73cb4573817451c2", "0f0f0f0f0f0f0f0f0f1d210f0f0f0f1a1c0f0f0f0f0f0f0f"),
    ("clip", 5007077, (224, 140), "62075c5b0d870fc4", "e5e5e5e5e5e5e5e5dde3e5e5e5e5d3dbe5e5e5e5e5e5e5e5"),
]
# fmt: on
GREY_TOLERANCE = 6


def signature(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L").resize((6, 4), Image.Resampling.BOX), np.int64).ravel()


@pytest.mark.parametrize(("task", "seed", "size", "digest", "grey"), GOLDEN)
def test_seeds_keep_their_questions_and_pictures(
    task: str, seed: int, size: tuple[int, int], digest: str, grey: str
) -> None:
    drawn = make(seed, task)
    questions = json.dumps(drawn.questions, ensure_ascii=False)
    assert sha256(questions.encode()).hexdigest()[:16] == digest
    assert drawn.images[-1].size == size
    wanted = np.frombuffer(bytes.fromhex(grey), np.uint8).astype(np.int64)
    assert np.abs(signature(drawn.images[-1]) - wanted).max() <= GREY_TOLERANCE


def test_every_task_has_golden_seeds() -> None:
    assert {row[0] for row in GOLDEN} == set(TASKS)


def test_a_sample_is_the_same_however_many_were_drawn_before() -> None:
    first = make(5, "clip")
    make(6)
    again = make(5, "clip")
    assert first.questions == again.questions
    assert [image.tobytes() for image in first.images] == [image.tobytes() for image in again.images]


def test_labels_say_which_character_stands_where() -> None:
    drawn = sample(3, "page", (8, 6))
    canvas, labels = drawn.canvases[0], label(drawn.canvases[0])
    assert len(canvas.characters) > 20
    for character, cell, rank in zip(
        canvas.characters, labels.character_cells, labels.character_ranks, strict=True
    ):
        if rank < MAX_ORDER:
            assert labels.order[cell, rank] == CHARACTER_ID[character.text]


def test_labelled_cells_hold_ink_and_blank_cells_do_not() -> None:
    drawn = sample(8, "table", (10, 8))
    labels = label(drawn.canvases[0])
    image = drawn.images[0].convert("L").resize((10 * CELL, 8 * CELL))
    contrast = np.asarray(image, np.float32).reshape(8, CELL, 10, CELL).std(axis=(1, 3)).ravel()
    has_text = labels.order[:, 0] > 0
    assert has_text.sum() >= 10
    assert np.median(contrast[has_text]) > 3 * np.median(contrast[~has_text])


def joint_batch(seed: str = "7", dtype: torch.dtype = torch.float32) -> Batch:
    plan = StepPlan(kind="single", grid=(6, 5), num_samples=2, level=1.0, is_joint=True)
    return make_batch(seed, plan, TOKENIZER, faces=default_faces(), max_text=130, dtype=dtype)


@pytest.mark.parametrize(("seed", "holds"), [("7", ""), ("0", "question_first/"), ("16", "/talk")])
@torch.no_grad()
def test_packed_questions_give_the_losses_of_separate_conversations_in_transformers(
    seed: str, holds: str
) -> None:
    network = Network().eval()
    weights = load_file(MODEL_DIR / "model.safetensors")
    missing = network.load_state_dict({k: v.float() for k, v in weights.items()}, strict=False)
    assert not missing.unexpected_keys
    assert all(key.startswith("heads.") for key in missing.missing_keys)
    oracle = Qwen2VLForConditionalGeneration.from_pretrained(MODEL_DIR, dtype=torch.float32).eval()

    batch = joint_batch(seed)
    talk = batch.conversation
    assert talk is not None and len(talk.answers) > 5
    assert any(holds in name for name, _ in talk.answers)
    features, _ = network.visual(batch.patches, batch.grid)
    x = network.embed(talk.token_ids, features.flatten(0, 1), talk.is_visual)
    x, _ = network.model(x, talk.position_ids, talk.bias, {}, talk.rows)
    packed = torch.log_softmax(network.model.logits(x), -1)

    length, first = talk.token_ids.shape[1], 0
    for _, count in talk.answers:
        rows = talk.rows[first : first + count]
        b = int(rows[-1]) // length
        seen = talk.bias[b, rows[-1] % length] == 0
        alone = torch.log_softmax(_alone(oracle, batch, b, talk.token_ids[b][seen])[-count:], -1)
        assert torch.allclose(packed[first : first + count], alone, atol=2e-3)
        first += count


def _alone(
    oracle: Qwen2VLForConditionalGeneration, batch: Batch, b: int, token_ids: torch.Tensor
) -> torch.Tensor:
    """Logits of one conversation with the picture of sequence b; a still picture is two equal frames."""
    kinds = (token_ids == oracle.config.image_token_id).long()[None]
    if not kinds.any():  # small talk sees no picture
        return oracle(input_ids=token_ids[None], mm_token_type_ids=kinds).logits[0]
    patches = batch.patches[b].view(-1, 3, 1, 196).expand(-1, -1, 2, -1).reshape(-1, 1176)
    width, height = batch.grid
    return oracle(
        input_ids=token_ids[None],
        mm_token_type_ids=kinds,
        pixel_values=patches,
        image_grid_thw=torch.tensor([[1, 2 * height, 2 * width]]),
    ).logits[0]


def test_exporting_the_bundled_weights_writes_the_bundled_files(tmp_path: Path) -> None:
    weights = load_file(MODEL_DIR / "model.safetensors")
    export(weights, MODEL_DIR / "tokenizer.json", tmp_path, NetworkConfig())
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {path.name for path in MODEL_DIR.iterdir()} - {"MODEL_CARD.md"}
    for name in written - {"model.safetensors"}:
        assert (tmp_path / name).read_bytes() == (MODEL_DIR / name).read_bytes(), name
    again = load_file(tmp_path / "model.safetensors")
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[name], weights[name]) for name in weights)


def test_two_processes_train_a_checkpoint_that_transformers_loads(tmp_path: Path) -> None:
    settings = Settings(
        folder=tmp_path / "run",
        max_steps=2,
        visual_tokens=60,
        text_tokens=60,
        vision_seconds=0.0,
        log_steps=1,
        network=TINY,
    )
    torch.manual_seed(settings.seed)
    before = Network(TINY).state_dict()
    content = torch.load(train(settings), weights_only=True)
    assert content["step"] == 2
    changed = {name for name, value in content["masters"].items() if not torch.equal(value, before[name])}
    assert {"visual.patch_embed.proj.weight", "visual.blocks.0.attn.qkv.weight"} <= changed
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2]

    export(content["averages"], MODEL_DIR / "tokenizer.json", tmp_path / "model", TINY)
    loaded, report = Qwen2VLForConditionalGeneration.from_pretrained(
        tmp_path / "model", dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    wanted = content["averages"]["model.layers.4.mlp.up_proj.weight"].float()
    assert torch.equal(loaded.model.language_model.layers[4].mlp.up_proj.weight, wanted)


def test_a_network_learns_a_batch_by_heart() -> None:
    torch.manual_seed(0)
    network = Network(TINY)
    shared = SharedWeights(network, 1)
    shared.bind(network, 0)
    optimizer = Optimizer(shared, 0, 1, 0.02, 0.003)
    batch = joint_batch(dtype=torch.bfloat16)
    figures = []
    for _ in range(25):
        shared.gradients[0].zero_()
        loss, report = loss_of(network, batch, guidance=1.0)
        loss.backward()
        optimizer.step(1.0, averaging=0.9)
        figures.append(report.figures)
    for name in ("language", "position", "question_looks"):
        assert figures[-1][name] < 0.6 * figures[0][name], name


def test_every_parameter_has_one_process_that_updates_it() -> None:
    network = Network(TINY)
    shared = SharedWeights(network, 3)
    shares = [Optimizer(shared, rank, 3, 0.02, 0.003) for rank in range(3)]
    updated = sorted(i for share in shares for i in (*share.momenta, *share.means))
    assert updated == list(range(len(shared.names)))
    for share in shares:
        assert all(takes_muon(shared.names[i], shared.shapes[i]) for i in share.momenta)
        assert not any(takes_muon(shared.names[i], shared.shapes[i]) for i in share.means)


def test_muon_makes_matrices_nearly_orthogonal() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(2, 48, 24) * torch.linspace(0.2, 3, 24)
    values = torch.linalg.svdvals(orthogonalise(matrices).float())
    assert values.min() > 0.5 and values.max() < 1.4


def test_a_new_tokenizer_keeps_digits_and_names_in_pieces(tmp_path: Path) -> None:
    build_tokenizer(tmp_path / "tokenizer.json", num_samples=60)
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.fast.get_vocab_size() <= VOCAB_SIZE
    assert sorted(tokenizer.special) == sorted(SPECIAL_TOKENS)
    assert len(tokenizer.ids("1234")) == 4
    assert len(tokenizer.ids("Olivia")) > 1
    assert (
        tokenizer.fast.decode(tokenizer.ids("总计是多少？ What's the total?"))
        == "总计是多少？ What's the total?"
    )
    assert len(tokenizer.ids(" image")) == 1
