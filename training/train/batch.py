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
from training.generator import Sample, sample
from training.generator.fonts import Face
from training.generator.labels import IGNORED, Labels, label
from training.network import PLACES, Watch
from training.patches import clip_patches, still_patches
from training.tokenizer import Tokenizer
from training.train.looks import Looks
from training.train.pack import SHARED, Packed, PackedLook, PackOptions, pack
from training.train.schedule import StepPlan, draw_task

BLOCKED = -1e4  # added to scores that must not count
_PADDING = 10**6  # branch of the positions past a sequence's end


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the pictures show, by cell: see `generator.labels`. [N * C, ...] each."""

    characters: Tensor
    traits: Tensor
    flags: Tensor  # [N * C, FLAGS]
    order: Tensor
    words: Tensor  # [N * C, 3]: its own, that of its row, that of its column
    places: dict[str, Tensor]
    ground_cells: Tensor  # [N]: of each picture one that shows the ground alone
    ground_colors: Tensor  # [N]


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
    match_watch: Watch | None
    field_watch: Watch | None
    place_watch: Watch | None
    ranked: Tensor  # [R] in B * S: positions that predict a single character
    ranks: Tensor  # [R]: which of its cell


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
    labels = [[label(canvas) for canvas in drawn.canvases] for drawn in samples]
    patches = [array for drawn in samples for array in _patches(drawn, plan.grid)]
    conversation = None
    if plan.is_joint:
        packed = _pack_all(random, plan, samples, labels, tokenizer, max_text)
        conversation = _collate(packed, dtype)
    is_clip = plan.kind == "clip"
    return Batch(
        grid=plan.grid,
        patches=torch.from_numpy(np.stack(patches)).to(dtype),
        shown=None if is_clip else _shown([one for many in labels for one in many]),
        conversation=conversation,
    )


def _draw_samples(random: Random, plan: StepPlan, faces: tuple[Face, ...]) -> list[Sample]:
    frames = random.choice([4, 4, 6, 8]) if plan.kind == "clip" else None
    samples = []
    for _ in range(plan.num_samples):
        task, seed = draw_task(random, plan), random.getrandbits(60)
        samples.append(sample(seed, task, plan.grid, level=plan.level, faces=faces, frames=frames))
    return samples


def _patches(drawn: Sample, grid: tuple[int, int]) -> list[np.ndarray]:
    if drawn.task == "clip":
        return clip_patches(drawn.images, grid)
    return [still_patches(image, grid) for image in drawn.images]


def _shown(labels: list[Labels]) -> Shown:
    def joined(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([getattr(one, name) for one in labels]))

    size = len(labels[0].word)
    return Shown(
        characters=joined("characters"),
        traits=joined("traits"),
        flags=joined("flags"),
        order=joined("order"),
        words=torch.stack([joined(name) for name in ("word", "row", "column")], 1),
        places={name: joined(name) for name in PLACES},
        ground_cells=torch.tensor([i * size + one.ground_cell for i, one in enumerate(labels)]),
        ground_colors=torch.tensor([one.ground_color for one in labels]),
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
    packed = []
    for drawn, shown in zip(samples, labels, strict=True):
        options = PackOptions(max_text=max_text, system_prompt=system_prompt, has_talk=random.random() < 0.04)
        looks = Looks(drawn, shown, plan.grid)
        packed.append(pack(drawn, looks, tokenizer, random, plan.grid, options))
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
    ranked = [
        (b * S + look.query, look.rank)
        for b, one in enumerate(packed)
        for look in one.place_looks
        if look.rank != IGNORED
    ]
    return Conversation(
        token_ids=torch.from_numpy(token_ids),
        position_ids=torch.from_numpy(position_ids),
        is_visual=torch.from_numpy(is_visual),
        bias=torch.from_numpy(bias).to(dtype),
        rows=torch.tensor([b * S + row for b, one in enumerate(packed) for row, _ in one.targets]),
        targets=torch.tensor([token for one in packed for _, token in one.targets]),
        weights=torch.from_numpy(weights),
        answers=answers,
        match_watch=_watch([one.match_looks for one in packed], every=2),
        field_watch=_watch([one.field_looks for one in packed], every=2),
        place_watch=_watch([one.place_looks for one in packed], every=1),
        ranked=torch.tensor([row for row, _ in ranked], dtype=torch.int64),
        ranks=torch.tensor([rank for _, rank in ranked], dtype=torch.int64),
    )


def _may_look(one: Packed, length: int) -> np.ndarray:
    """[S, S]: back in the same branch, and at the shared part; talk sees of that only what precedes the pictures."""
    index = np.arange(length)
    branches = np.array(one.branches + [_PADDING] * (length - len(one.branches)))
    is_same = branches[:, None] == branches[None]
    sees_shared = (branches[None] == SHARED) & ((branches[:, None] >= 0) | (index[None] < one.num_open))
    return (index[None] <= index[:, None]) & (is_same | sees_shared)


def _watch(looks: list[list[PackedLook]], every: int) -> Watch | None:
    """The looks of all sequences as tensors; None if there are none."""
    entries: list[tuple[int, int, int, int]] = []  # sequence, from, to, group
    weights: list[float] = []
    for b, found in enumerate(looks):
        for look in found:
            if look.is_spread:  # each key for itself
                for key in look.keys:
                    entries.append((b, look.query, key, len(weights)))
                    weights.append(1 / len(look.keys))
            else:
                entries.extend((b, look.query, key, len(weights)) for key in look.keys)
                weights.append(1.0)
    if not entries:
        return None
    b, query, key, group = torch.tensor(entries).T.contiguous()
    return Watch(b, query, key, group, torch.tensor(weights), every)
