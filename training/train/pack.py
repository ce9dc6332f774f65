"""One sample as one sequence: its pictures once, then all its questions as branches beside each other.

Each branch sees the shared part and itself only, at the positions it would have alone, so that the loss is that of
separate conversations. The loss counts answers only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from training.conversation import TALK
from training.generator import Question, Sample
from training.tokenizer import Tokenizer
from training.train.looks import SINK, Look, Looks

SHARED = 0  # branch that all others see
_WEIGHT_OF_TURN = 6  # tokens of the template around a question and its answer, about


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    max_text: int  # tokens of questions and answers, about
    system_prompt: str | None
    has_talk: bool  # a branch of small talk that does not see the pictures


class PackedLook(NamedTuple):
    """A look in positions of the sequence."""

    query: int
    keys: tuple[int, ...]
    is_spread: bool
    rank: int


@dataclass(slots=True)
class Packed:
    """A sequence under construction. Positions in it are indices; position_ids are rotary (time, row, column)."""

    token_ids: list[int] = field(default_factory=list)
    position_ids: list[tuple[int, int, int]] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)  # negative: sees nothing from `num_open` on but itself
    num_open: int = 0  # tokens before the pictures
    visual: list[int] = field(default_factory=list)  # where the visual tokens are, cell by cell
    targets: list[tuple[int, int]] = field(default_factory=list)  # position that predicts, token
    answers: list[tuple[str, int]] = field(default_factory=list)  # task/kind, number of tokens
    match_looks: list[PackedLook] = field(default_factory=list)
    field_looks: list[PackedLook] = field(default_factory=list)
    place_looks: list[PackedLook] = field(default_factory=list)

    @property
    def next_position(self) -> int:
        return max(self.position_ids[-1]) + 1 if self.position_ids else 0

    def append(
        self, token_ids: tuple[int, ...] | list[int], branch: int, position: int | None = None
    ) -> None:
        position = self.next_position if position is None else position
        self.token_ids.extend(token_ids)
        self.branches.extend([branch] * len(token_ids))
        self.position_ids.extend((position + i,) * 3 for i in range(len(token_ids)))

    def look(self, query: int, look: Look) -> PackedLook:
        """The sink is the mark before the pictures."""
        keys = tuple(self.num_open if cell == SINK else self.visual[cell] for cell in look.cells)
        return PackedLook(query, keys, look.is_spread, look.rank)


def pack(
    sample: Sample,
    looks: Looks,
    tokenizer: Tokenizer,
    random: Random,
    grid: tuple[int, int],
    options: PackOptions,
) -> Packed:
    packer = _Packer(sample, looks, tokenizer, random, grid)
    packer.fill(options)
    return packer.packed


class _Packer:
    def __init__(
        self,
        sample: Sample,
        looks: Looks,
        tokenizer: Tokenizer,
        random: Random,
        grid: tuple[int, int],
    ) -> None:
        self.sample, self.looks, self.tokenizer = sample, looks, tokenizer
        self.random, self.grid = random, grid
        self.packed = Packed()
        special, ids = tokenizer.special, tokenizer.ids
        self.start, self.end = (special["<|im_start|>"],), (special["<|im_end|>"],)
        self.reply = self.end + ids("\n") + self.start + ids("assistant\n")
        self.user = self.start + ids("user\n")
        self.turn = ids("\n") + self.user

    def fill(self, options: PackOptions) -> None:
        questions = _in_order(self.random, self.sample.questions)
        self._open(options.system_prompt)
        self._pictures()
        if options.has_talk:
            questions.insert(0, Question("talk", *self.random.choice(TALK)))
        self._branches(questions, options)

    def _open(self, system_prompt: str | None) -> None:
        ids = self.tokenizer.ids
        if system_prompt:
            self.packed.append(self.start + ids("system\n" + system_prompt) + self.end + ids("\n"), SHARED)
        self.packed.append(self.user, SHARED)
        self.packed.num_open = len(self.packed.token_ids)

    def _pictures(self) -> None:
        special, packed = self.tokenizer.special, self.packed
        width, height = self.grid
        is_clip = self.sample.task == "clip"
        count = len(self.sample.images)
        placeholder = special["<|video_pad|>" if is_clip else "<|image_pad|>"]
        for depth in [count // 2] if is_clip else [1] * count:  # two frames of a clip are one step of time
            packed.append((special["<|vision_start|>"],), SHARED)
            first = packed.next_position
            for time in range(depth):
                size = width * height
                packed.visual.extend(range(len(packed.token_ids), len(packed.token_ids) + size))
                packed.token_ids.extend([placeholder] * size)
                packed.branches.extend([SHARED] * size)
                packed.position_ids.extend(
                    (first + time, first + cell // width, first + cell % width) for cell in range(size)
                )
            packed.append((special["<|vision_end|>"],), SHARED, first + max(width, height, depth))

    def _branches(self, questions: list[Question], options: PackOptions) -> None:
        packed = self.packed
        first, branch, can_follow = packed.next_position, SHARED, False
        used = 0
        for question in questions:
            size = self._size(question)
            if used and used + size > options.max_text:
                continue
            used += size
            if question.kind == "talk":
                branch += 1
                ids = self.tokenizer.ids(question.text)
                packed.append((*ids, *self.reply), -branch - 1, packed.num_open)
                self._answer(question, -branch - 1)
                can_follow = False
                continue
            is_second = can_follow and question.before is None and self.random.random() < 0.12
            if not is_second:
                branch += 1
            turns = [question.before, question] if question.before else [question]
            for number, turn in enumerate(turns):
                follows = is_second or number > 0
                if follows:
                    packed.append(self.turn, branch)
                self._question(turn, branch, None if follows else first)
                packed.append(self.reply, branch)
                self._answer(turn, branch)
            can_follow = True

    def _size(self, question: Question) -> int:
        """Tokens that a question and its answer take, about; an earlier turn counts too."""
        own = len(self.tokenizer.encode(question.text).ids) + len(self._answer_pieces(question)[0])
        earlier = self._size(question.before) if question.before else 0
        return own + _WEIGHT_OF_TURN + earlier

    def _question(self, question: Question, branch: int, position: int | None) -> None:
        """Now and then without its question mark."""
        packed, first = self.packed, len(self.packed.token_ids)
        text = question.text.rstrip("?.") if self.random.random() < 0.06 else question.text
        encoding = self.tokenizer.encode(text)
        packed.append(encoding.ids, branch, position)
        looks = self.looks.question(question, text, encoding.offsets)
        packed.match_looks.extend(packed.look(first + number, look) for number, look in looks)

    def _answer_pieces(self, question: Question) -> tuple[list[int], list[tuple[int, int]]]:
        if question.how == "print" or question.kind == "neg":
            return self.tokenizer.pieces(question.answer)
        encoding = self.tokenizer.encode(question.answer)
        return list(encoding.ids), list(encoding.offsets)

    def _answer(self, question: Question, branch: int) -> None:
        packed = self.packed
        token_ids, offsets = self._answer_pieces(question)
        before = len(packed.token_ids) - 1  # the position that predicts the first token
        seen = self.looks.answer(question, offsets)
        for i, (whole, place) in enumerate(zip(seen.field, seen.place, strict=True)):
            if whole is not None:
                packed.field_looks.append(packed.look(before + i, whole))
            if place is not None:
                packed.place_looks.append(packed.look(before + i, place))
                if (
                    question.how == "print" and offsets[i][1] - offsets[i][0] > 1
                ):  # a word, once it is written
                    packed.match_looks.append(packed.look(before + 1 + i, place))
        token_ids.extend(self.end)
        packed.targets.extend((before + i, token) for i, token in enumerate(token_ids))
        packed.answers.append((f"{self.sample.task}/{question.kind}", len(token_ids)))
        packed.append(token_ids, branch)


def _in_order(random: Random, questions: list[Question]) -> list[Question]:
    """Shuffled, with the transcription among the first: it is the densest lesson and must not be cut."""
    shuffled = list(questions)
    random.shuffle(shuffled)
    reading = [question for question in shuffled if question.kind == "read"]
    others = [question for question in shuffled if question.kind != "read"]
    at = random.randint(0, 2)
    others[at:at] = reading
    return others
