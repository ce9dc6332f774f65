"""The trainer: packing is exact, looks lie where they should, training trains, what it exports loads.

Oracles: transformers with the same weights, and the bundled files.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from math import log
from pathlib import Path
from random import Random

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import Qwen2VLForConditionalGeneration

from tapetum.assets import MODEL_DIR
from training import plot
from training.export import export
from training.generator import EXTRA_TASKS, GRIDS, TASKS, sample
from training.generator.fonts import default_faces
from training.generator.labels import IGNORED, MAX_ORDER, NO_WORD, label
from training.generator.vocabulary import known_words
from training.network import Network, NetworkConfig
from training.network.attention import rotate
from training.tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, Tokenizer, build_tokenizer
from training.train import Settings, load_weights, train
from training.train.batch import BLOCKED, Batch, Conversation, make_batch
from training.train.cell_losses import flags_loss
from training.train.looks import SINK, Look, Looks
from training.train.losses import Report, loss_of
from training.train.optimizer import Optimizer, orthogonalise, takes_muon
from training.train.pack import PackOptions, pack
from training.train.schedule import (
    FIRST_LETTERS,
    Kind,
    StepPlan,
    averaging,
    draw_task,
    guidance,
    learning_rate,
    plan_step,
)
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


def joint_batch(
    seed: str = "3", kind: Kind = "single", grid: tuple[int, int] = (9, 6), dtype: torch.dtype = torch.float32
) -> Batch:
    plan = StepPlan(kind=kind, grid=grid, num_samples=2, level=1.0, is_joint=True)
    return make_batch(seed, plan, TOKENIZER, faces=default_faces(), max_text=130, dtype=dtype)


def conversation_of(batch: Batch) -> Conversation:
    assert batch.conversation is not None
    return batch.conversation


@pytest.fixture(scope="module")
def network() -> Network:
    """The bundled weights; the heads of training are not among them."""
    network = Network().eval()
    weights = load_file(MODEL_DIR / "model.safetensors")
    missing = network.load_state_dict({k: v.float() for k, v in weights.items()}, strict=False)
    assert not missing.unexpected_keys
    assert all(key.startswith("heads.") for key in missing.missing_keys)
    return network


@pytest.fixture(scope="module")
def oracle() -> Qwen2VLForConditionalGeneration:
    return Qwen2VLForConditionalGeneration.from_pretrained(MODEL_DIR, dtype=torch.float32).eval()


@pytest.mark.parametrize(
    ("seed", "kind", "grid", "holds"),
    [
        ("1", "single", (10, 6), "/talk"),
        ("7", "single", (10, 6), "turns/turn"),
        ("8", "single", (10, 6), "receipt/"),
        ("3", "pair", (6, 5), "pair/"),
        ("3", "clip", (6, 5), "clip/"),
    ],
)
@torch.no_grad()
def test_packed_questions_give_the_losses_of_separate_conversations_in_transformers(
    network: Network,
    oracle: Qwen2VLForConditionalGeneration,
    seed: str,
    kind: Kind,
    grid: tuple[int, int],
    holds: str,
) -> None:
    batch = joint_batch(seed, kind, grid)
    talk = conversation_of(batch)
    assert len(talk.answers) > 5
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
    """Logits of one conversation with the pictures or the clip of sequence b; a still picture is two equal frames."""
    kinds = torch.zeros_like(token_ids)
    kinds[token_ids == oracle.config.image_token_id] = 1
    kinds[token_ids == oracle.config.video_token_id] = 2
    arguments = {"input_ids": token_ids[None], "mm_token_type_ids": kinds[None]}
    if not kinds.any():  # small talk sees no picture
        return oracle(**arguments).logits[0]
    count = len(batch.patches) // len(conversation_of(batch).token_ids)  # pictures or frame pairs of a sample
    patches = batch.patches[b * count : (b + 1) * count]
    width, height = batch.grid
    if 2 in kinds:
        arguments["pixel_values_videos"] = patches.flatten(0, 1)
        arguments["video_grid_thw"] = torch.tensor([[count, 2 * height, 2 * width]])
    else:
        stills = patches.reshape(-1, 3, 1, 196).expand(-1, -1, 2, -1)
        arguments["pixel_values"] = stills.reshape(-1, 1176)
        arguments["image_grid_thw"] = torch.tensor([[1, 2 * height, 2 * width]] * count)
    return oracle(**arguments).logits[0]


@pytest.mark.parametrize("task", TASKS)
def test_every_look_lies_in_the_pictures_and_follows_the_text(task: str) -> None:
    num_looks = 0
    for seed in range(12):
        random = Random(seed)
        grid = random.choice([grid for grid in GRIDS if TASKS[task].fits(grid)])
        drawn = sample(seed, task, grid)
        looks = Looks(drawn, [label(canvas) for canvas in drawn.canvases], grid)
        depth = len(drawn.images) // 2 if task == "clip" else len(drawn.images)
        num_cells = depth * grid[0] * grid[1]
        for question in drawn.questions:
            encoding = TOKENIZER.encode(question.text)
            for number, look in looks.question(question, question.text, encoding.offsets):
                ends = [question.text.find(phrase) + len(phrase) for phrase, _ in question.keys]
                begin, end = encoding.offsets[number]
                assert any(begin < last <= end for last in ends), "the token in which a phrase ends"
                num_looks += _check(look, num_cells)
            token_ids, offsets = TOKENIZER.pieces(question.answer)
            seen = looks.answer(question, offsets)
            assert len(seen.field) == len(seen.place) == len(token_ids)
            for whole, place in zip(seen.field, seen.place, strict=True):
                if question.how == "print":
                    assert whole and place and set(place.cells) <= set(whole.cells)
                    assert place.rank == IGNORED or 0 <= place.rank <= MAX_ORDER
                num_looks += sum(_check(look, num_cells) for look in (whole, place) if look)
    assert num_looks > 200


def _check(look: Look, num_cells: int) -> bool:
    shown = [cell for cell in look.cells if cell != SINK]
    assert look.cells and len(set(shown)) == len(shown)
    assert all(0 <= cell < num_cells for cell in shown)
    return True


def test_a_branch_sees_what_is_shared_and_itself() -> None:
    drawn = sample("0", "table", (8, 6))
    looks = Looks(drawn, [label(drawn.canvases[0])], (8, 6))
    options = PackOptions(max_text=200, system_prompt="Answer briefly.", has_talk=True)
    packed = pack(drawn, looks, TOKENIZER, Random(1), (8, 6), options)
    text = TOKENIZER.fast.decode(packed.token_ids[: packed.num_open], skip_special_tokens=False)
    assert text == "<|im_start|>system\nAnswer briefly.<|im_end|>\n<|im_start|>user\n"
    assert len(packed.visual) == 48
    assert {packed.token_ids[i] for i in packed.visual} == {TOKENIZER.special["<|image_pad|>"]}
    shared = packed.branches.count(0)
    first = max(packed.position_ids[shared - 1]) + 1
    branches = {branch for branch in packed.branches if branch > 0}
    assert len(branches) > 2 and min(packed.branches) < 0, "questions, and a talk that sees no picture"
    for branch in branches:
        assert packed.position_ids[packed.branches.index(branch)] == (first,) * 3


def test_answers_in_a_batch_end_and_weigh_less_than_their_tokens() -> None:
    talk = conversation_of(joint_batch())
    sizes = [count for _, count in talk.answers]
    assert sum(sizes) == len(talk.rows) == len(talk.targets) == len(talk.weights)
    end = TOKENIZER.special["<|im_end|>"]
    for targets, weights in zip(talk.targets.split(sizes), talk.weights.split(sizes), strict=True):
        assert targets[-1] == end and end not in targets[:-1]
        assert weights.sum() == pytest.approx(len(targets) ** 0.5, rel=1e-5)
    assert set(talk.bias.unique().tolist()) == {0.0, BLOCKED}
    assert torch.equal(talk.bias.diagonal(dim1=1, dim2=2), torch.zeros(talk.token_ids.shape))
    assert (talk.bias.triu(1)[talk.bias.triu(1) != 0] == BLOCKED).all()


def test_exporting_the_bundled_weights_writes_the_bundled_files(tmp_path: Path) -> None:
    weights = load_file(MODEL_DIR / "model.safetensors")
    export(weights, MODEL_DIR / "tokenizer.json", tmp_path, NetworkConfig())
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {path.name for path in MODEL_DIR.iterdir()} - {"MODEL_CARD.md"}
    for name in written:
        assert (tmp_path / name).read_bytes() == (MODEL_DIR / name).read_bytes(), name


def test_two_processes_train_a_checkpoint_that_transformers_loads(tmp_path: Path) -> None:
    settings = Settings(
        folder=tmp_path / "run",
        max_steps=2,
        start=0.6,  # of the schedule, so that all parts of the loss are there
        seed=2,
        visual_tokens=60,
        text_tokens=60,
        vision_seconds=0.0,
        log_steps=1,
        network=TINY,
    )
    assert any(plan_step(settings, step, 0.6, True).is_joint for step in range(2))
    torch.manual_seed(settings.seed)
    before = Network(TINY).state_dict()
    content = torch.load(train(settings), weights_only=True)
    assert content["step"] == 2 and 0.6 < content["progress"] < 0.7
    changed = {name for name, value in content["masters"].items() if not torch.equal(value, before[name])}
    assert {"visual.patch_embed.proj.weight", "visual.blocks.0.attn.qkv.weight"} <= changed
    assert "model.layers.4.mlp.up_proj.weight" in changed
    records = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2]
    plot.plot(records, tmp_path / "run.png")
    assert Image.open(tmp_path / "run.png").format == "PNG"

    export(content["averages"], MODEL_DIR / "tokenizer.json", tmp_path / "model", TINY)
    loaded, report = Qwen2VLForConditionalGeneration.from_pretrained(
        tmp_path / "model", dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    wanted = content["averages"]["model.layers.4.mlp.up_proj.weight"].float()
    assert torch.equal(loaded.model.language_model.layers[4].mlp.up_proj.weight, wanted)

    again = Network(TINY)
    assert load_weights(again, tmp_path / "run" / "last.pt") == 2
    assert torch.equal(again.heads.words.weight, content["masters"]["heads.words.weight"])
    assert load_weights(again, tmp_path / "model" / "model.safetensors") == 0
    assert torch.equal(again.model.layers[4].mlp.up_proj.weight, wanted)


def test_a_log_becomes_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vision = {"step": 25, "progress": 0.1, "characters": 2.5, "characters_right": 0.3, "exact": {}}
    joint = {
        "step": 50,
        "progress": 0.2,
        "language": 0.9,
        "exact": {"text": (0.5, 4), "text/read": (0.25, 4)},
    }
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(record) + "\n" for record in (vision, joint)), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["plot", str(log), str(tmp_path / "run.png")])
    plot.main()
    with Image.open(tmp_path / "run.png") as picture:
        assert picture.format == "PNG" and picture.width > 500
        assert len(picture.convert("RGB").getcolors(2**20)) > 20, "something is drawn"


def test_a_network_learns_a_batch_by_heart() -> None:
    torch.manual_seed(0)
    network = Network(TINY)
    shared = SharedWeights(network, 1)
    shared.bind(network, 0)
    optimizer = Optimizer(shared, 0, 1, 0.02, 0.003)
    batch = joint_batch(dtype=torch.bfloat16)
    words = torch.tensor([TOKENIZER.word(word) for word in known_words()])
    figures = []
    for _ in range(25):
        shared.gradients[0].zero_()
        loss, report = loss_of(network, batch, words, guidance=1.0)
        loss.backward()
        optimizer.step(1.0, averaging=0.9)
        figures.append(report.figures)
    assert len(report.answers) == len(conversation_of(batch).answers)
    for name in ("language", "position", "match", "traits"):
        assert figures[-1][name] < 0.6 * figures[0][name], name
    for name in ("characters", "field", "look", "flags"):
        assert figures[-1][name] < 0.9 * figures[0][name], name


def test_relations_and_guidance_are_parts_that_can_be_left_out() -> None:
    torch.manual_seed(0)
    network = Network(TINY)
    words = torch.tensor([TOKENIZER.word(word) for word in known_words()])
    batch = joint_batch()
    _, whole = loss_of(network, batch, words, guidance=1.0)
    _, bare = loss_of(network, batch, words, guidance=0.0, relations=0.0)
    left_out = whole.figures.keys() - bare.figures.keys()
    assert {"match", "field", "look", "position", "values", "rank"} <= left_out
    assert {"word", "row", "column", "flags", "line", "place", "ordinal"} <= left_out
    assert {"language", "characters", "patch_characters", "traits"} <= bare.figures.keys()


def test_flags_are_a_choice_among_the_cells_of_a_picture() -> None:
    torch.manual_seed(0)
    shown = joint_batch(grid=(9, 6)).shown
    assert shown is not None
    flags = torch.zeros_like(shown.flags)
    num_pictures = len(flags) // 54
    flags[[7, 8], 0] = 1  # two cells of the first picture are equally right
    flags[54 + 3, 2] = 1
    shown = replace(shown, flags=flags)
    report = Report()
    at_random = torch.zeros(flags.shape)
    assert flags_loss(at_random, shown, num_pictures, "flags", report).item() == pytest.approx(log(54))
    right = torch.zeros(flags.shape)
    right[[7, 8], 0] = right[57, 2] = 30.0
    loss = flags_loss(right, shown, num_pictures, "flags", report)
    assert loss.item() == pytest.approx(log(2) / 2), "one of two, and the one"
    assert report.figures["flags_right"] == 1.0


def test_what_a_question_about_a_table_asks_for_is_what_the_labels_of_its_cells_say() -> None:
    """The lesson `asked` takes row and column label of the first cell that a look at a field begins with."""
    words, num_asked = known_words(), 0
    for seed in range(12):
        drawn = sample(seed, "table", (12, 8))
        shown = label(drawn.canvases[0])
        looks = Looks(drawn, [shown], (12, 8))
        for question in drawn.questions:
            if question.kind != "cell":
                continue
            column, row = (phrase for phrase, _ in question.keys)
            _, offsets = TOKENIZER.pieces(question.answer)
            [cell] = {look.cells[0] for look in looks.answer(question, offsets).field if look}
            for name, asked in (("row", row), ("column", column)):
                number = getattr(shown, name)[cell]
                assert number != NO_WORD
                if number != IGNORED:
                    assert words[number] == asked
                    num_asked += 1
    assert num_asked > 30


def test_a_new_vision_tower_looks_at_neighbours() -> None:
    """The first heads of the first block: the patch to the left, the one to the right, the one below."""
    torch.manual_seed(0)
    config, grid = NetworkConfig(), (5, 4)
    tower = Network(config).visual
    block = tower.blocks[0]
    size = config.vision_size // config.vision_heads
    queries, keys, _ = block.attn.qkv.bias.detach().view(3, config.vision_heads, 1, size)
    cos, sin = tower._angles(grid, torch.float32)
    places = tower._angles((grid[0], grid[1]), torch.float32)[0]
    rows, columns = _places(grid)
    for head, (down, right) in enumerate([(0, -1), (0, 1), (1, 0)]):
        scores = rotate(queries[head], cos, sin) @ rotate(keys[head], cos, sin).T
        inner = [
            p
            for p in range(len(places))
            if 0 < rows[p] < 2 * grid[1] - 1 and 0 < columns[p] < 2 * grid[0] - 1
        ]
        for p in inner:
            found = int(scores[p].argmax())
            assert (rows[found] - rows[p], columns[found] - columns[p]) == (down, right)


def _places(grid: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Row and column of each patch, the four of a cell together."""
    width, height = grid
    cells = [(y, x) for y in range(height) for x in range(width)]
    patches = [(2 * y + i, 2 * x + j) for y, x in cells for i in range(2) for j in range(2)]
    return [row for row, _ in patches], [column for _, column in patches]


def test_a_new_patch_embedding_is_made_of_waves_that_do_not_overlap() -> None:
    torch.manual_seed(0)
    weight = Network().visual.patch_embed.proj.weight.detach()
    assert torch.equal(weight[:, :, 0], weight[:, :, 1]), "a still picture is two equal frames"
    rows = torch.nn.functional.normalize(weight[:152, :, 0].flatten(1), dim=1)
    assert (rows @ rows.T - torch.eye(152)).abs().max() < 1e-4
    flat = torch.ones(3, 14, 14)
    answers = (weight.sum(2) * flat).flatten(1).sum(1)
    assert answers.abs().argmax() == 0 and answers[1:].abs().max() < 1e-4, "grey has no colour and no edge"


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


def test_a_schedule_is_the_same_for_all_and_stays_within_its_limits() -> None:
    settings = Settings(folder=Path())
    kinds = set()
    for step in range(400):
        progress = step / 400
        plan = plan_step(settings, step, progress, is_joint=progress > 0.2)
        assert plan == plan_step(settings, step, progress, is_joint=progress > 0.2)
        assert plan.is_joint <= (progress > 0.2)
        assert (plan.relations == 0) == (progress <= FIRST_LETTERS)
        assert 2 <= plan.num_samples <= 16
        task = draw_task(Random(step), plan)
        assert task == plan.kind or (plan.kind == "single" and task not in ("pair", "clip", "easyvqa"))
        assert task in EXTRA_TASKS or TASKS[task].fits(plan.grid)
        kinds.add(plan.kind)
        assert 0 < learning_rate(settings, step, progress) <= 1
        assert 0 <= averaging(settings, step, progress) <= settings.averaging
    assert kinds == {"single", "pair", "clip", "easyvqa"}
    assert learning_rate(settings, 4000, 0.99) < 0.02
    assert [guidance(settings, progress) for progress in (0.5, 1.0)] == [1.0, 0.0]


def test_the_tokenizer_says_known_words_in_one_token_and_all_else_in_letters() -> None:
    for word in known_words():
        assert len(TOKENIZER.ids(word)) == len(TOKENIZER.ids(f" {word}")) == 1 or word[-1].isdigit()
    for space in ("", " "):
        assert len({TOKENIZER.word(space + word) for word in known_words()}) == len(known_words())
    for text in ("Coffee 12.50\nOlivia xqz", "AB-123 €4.99", "总 a"):
        token_ids, offsets = TOKENIZER.pieces(text)
        assert TOKENIZER.fast.decode(token_ids) == text
        assert "".join(text[a:b] for a, b in dict.fromkeys(offsets)) == text
    texts = [TOKENIZER.fast.decode([token_id]) for token_id in TOKENIZER.pieces("Coffee 12.5 Olivia xq")[0]]
    assert texts == ["Coffee", " ", "1", "2", ".", "5", " Olivia", " ", "x", "q"]


def test_a_new_tokenizer_keeps_digits_apart_and_known_words_whole(tmp_path: Path) -> None:
    build_tokenizer(tmp_path / "tokenizer.json", num_samples=60)
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.fast.get_vocab_size() <= VOCAB_SIZE
    assert sorted(tokenizer.special) == sorted(SPECIAL_TOKENS)
    assert len(tokenizer.ids("1234")) == 4
    assert len(tokenizer.ids("Olivia")) == len(tokenizer.ids(" Coffee")) == 1
    assert len(tokenizer.ids("Zanzibar")) > 1
    assert (
        tokenizer.fast.decode(tokenizer.ids("总计是多少？ What's the total?"))
        == "总计是多少？ What's the total?"
    )
