"""From a plan to tensors: draws samples, cuts patches, packs questions.

N pictures (or frame pairs), C cells of a picture, B sequences, S positions, A answer tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor

from training.conversation import SYSTEM_PROMPTS
from training.generator import TASKS, Sample, sample
from training.generator.fonts import Face
from training.generator.labels import NUM_TRAITS, SLOTS, Labels, label
from training.network import Watch
from training.patches import clip_patches, still_patches
from training.tokenizer import Tokenizer
from training.train.pack import SHARED, Mode, Packed, PackOptions, pack
from training.train.printed import PrintedText
from training.train.schedule import MIXTURE, StepPlan

BLOCKED = -1e4  # added to scores that must not count
_MODES: list[Mode] = ["plain", "follow", "question_first"]
_PADDING = 10**6  # branch of the positions past a sequence's end


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the pictures show, by cell: see `generator.labels`."""

    characters: Tensor  # [N, C, SLOTS]
    traits: Tensor  # [N, C, 2 * NUM_TRAITS]
    order: Tensor  # [N, C, MAX_ORDER]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    token_ids: Tensor  # [B, S]
    position_ids: Tensor  # [3, B, S]
    is_visual: Tensor  # [B, S]
    bias: Tensor  # [B, S, S]: 0 where a position may look, BLOCKED elsewhere
    rows: Tensor  # [A] in B * S: the positions that predict
    targets: Tensor  # [A]
    weights: Tensor  # [A]: an answer of n tokens weighs sqrt(n) in all
    answers: list[tuple[str, int]]  # task/kind and number of tokens, in the order of the targets
    question_watch: Watch | None
    answer_watch: Watch | None
    ranks: Tensor | None  # of the characters that answer_watch looks for


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    grid: tuple[int, int]
    patches: Tensor  # [N, 4 * C, values]
    shown: Shown | None  # None for clips
    conversation: Conversation | None  # None while vision trains alone


def make_batch(
    seed: str,
    plan: StepPlan,
    tokenizer: Tokenizer,
    *,
    faces: tuple[Face, ...],
    max_text: int,
    dtype: torch.dtype,
) -> Batch:
    random = Random(seed)
    samples = _draw_samples(random, plan, faces)
    is_clip = plan.kind == "clip"
    labels = [[] if is_clip else [label(canvas) for canvas in drawn.canvases] for drawn in samples]
    patches = [array for drawn in samples for array in _patches(drawn, plan.grid)]
    conversation = None
    if plan.is_joint:
        packed = _pack_all(random, plan, samples, labels, tokenizer, max_text)
        conversation = _collate(packed, dtype)
    return Batch(
        grid=plan.grid,
        patches=torch.from_numpy(np.stack(patches)).to(dtype),
        shown=None if is_clip else _shown([one for many in labels for one in many]),
        conversation=conversation,
    )


def _draw_samples(random: Random, plan: StepPlan, faces: tuple[Face, ...]) -> list[Sample]:
    tasks = [task for task in MIXTURE if TASKS[task].fits(plan.grid)]
    frames = random.choice([4, 4, 6, 8]) if plan.kind == "clip" else None
    samples = []
    for _ in range(plan.num_samples):
        if not plan.is_joint and random.random() < 0.75:
            task = "page" if random.random() < 0.65 else "shapes"
        elif plan.kind == "single":
            task = random.choices(tasks, [MIXTURE[task] for task in tasks])[0]
        else:
            task = plan.kind
        seed = random.getrandbits(60)
        samples.append(sample(seed, task, plan.grid, level=plan.level, faces=faces, frames=frames))
    return samples


def _patches(drawn: Sample, grid: tuple[int, int]) -> list[np.ndarray]:
    if drawn.task == "clip":
        return clip_patches(drawn.images, grid)
    return [still_patches(image, grid) for image in drawn.images]


def _shown(labels: list[Labels]) -> Shown:
    return Shown(
        characters=torch.from_numpy(np.stack([one.characters.reshape(-1, SLOTS) for one in labels])),
        traits=torch.from_numpy(np.stack([one.traits.reshape(-1, 2 * NUM_TRAITS) for one in labels])),
        order=torch.from_numpy(np.stack([one.order for one in labels])),
    )


def _pack_all(
    random: Random,
    plan: StepPlan,
    samples: list[Sample],
    labels: list[list[Labels]],
    tokenizer: Tokenizer,
    max_text: int,
) -> list[Packed]:
    system_prompt = random.choice(SYSTEM_PROMPTS) if random.random() < 0.1 else None
    mode: Mode = "plain"
    if plan.level > 0.3:
        mode = random.choices(_MODES, [0.92, 0.03, 0.05])[0]
    packed = []
    for drawn, shown in zip(samples, labels, strict=True):
        options = PackOptions(
            max_text=max_text,
            system_prompt=system_prompt,
            has_talk=random.random() < 0.04,
            mode=mode,
        )
        printed = PrintedText(drawn, shown, plan.grid) if shown else None
        packed.append(pack(drawn, printed, tokenizer, random, plan.grid, options))
    return packed


def _collate(packed: list[Packed], dtype: torch.dtype) -> Conversation:
    B, S = len(packed), -(-max(len(one.token_ids) for one in packed) // 16) * 16
    token_ids = np.zeros((B, S), np.int64)
    position_ids = np.zeros((3, B, S), np.int64)
    is_visual = np.zeros((B, S), bool)
    bias = np.full((B, S, S), BLOCKED, np.float32)
    for b, one in enumerate(packed):
        length = len(one.token_ids)
        token_ids[b, :length] = one.token_ids
        position_ids[:, b, :length] = np.array(one.position_ids).T
        is_visual[b, one.visual] = True
        bias[b][_may_look(one, S)] = 0
    answers = [answer for one in packed for answer in one.answers]
    weights = np.concatenate([np.full(count, count**-0.5, np.float32) for _, count in answers])
    question_watch, _ = _watch([[(*look, 0) for look in one.question_looks] for one in packed], every=2)
    answer_watch, ranks = _watch([one.answer_looks for one in packed], every=1)
    return Conversation(
        token_ids=torch.from_numpy(token_ids),
        position_ids=torch.from_numpy(position_ids),
        is_visual=torch.from_numpy(is_visual),
        bias=torch.from_numpy(bias).to(dtype),
        rows=torch.tensor([b * S + row for b, one in enumerate(packed) for row, _ in one.targets]),
        targets=torch.tensor([token for one in packed for _, token in one.targets]),
        weights=torch.from_numpy(weights),
        answers=answers,
        question_watch=question_watch,
        answer_watch=answer_watch,
        ranks=ranks,
    )


def _may_look(one: Packed, length: int) -> np.ndarray:
    """[S, S]: back in the same branch, and at the shared part; talk sees of that only what precedes the pictures."""
    index = np.arange(length)
    branches = np.array(one.branches + [_PADDING] * (length - len(one.branches)))
    is_same = branches[:, None] == branches[None]
    sees_shared = (branches[None] == SHARED) & ((branches[:, None] >= 0) | (index[None] < one.num_open))
    return (index[None] <= index[:, None]) & (is_same | sees_shared)


def _watch(looks: list[list[tuple[int, int, int]]], every: int) -> tuple[Watch | None, Tensor | None]:
    """The looks (from, to, rank) of all sequences as tensors; None if there are none."""
    rows = [(b, *look) for b, found in enumerate(looks) for look in found]
    if not rows:
        return None, None
    b, query, key, ranks = torch.tensor(rows).T.contiguous()
    return Watch(b, query, key, every), ranks
