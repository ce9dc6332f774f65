"""One sample as one sequence: its pictures once, then all its questions as branches beside each other.

Each branch sees the shared part and itself only, at the positions it would have alone, so that the loss is that of
separate conversations. The loss counts answers only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Literal

from tokenizers import Encoding

from training.conversation import TALK
from training.generator import Question, Sample
from training.tokenizer import Tokenizer
from training.train.printed import NOWHERE, PRINTED, Offsets, Place, PrintedText

SHARED = 0  # branch that all others see
_WEIGHT_OF_TURN = 6  # tokens of the template around a question and its answer, about

# plain: pictures first, every question its own branch. follow: the first question and answer are shared, the others
# are second turns. question_first: as follow, with that question before the pictures.
Mode = Literal["plain", "follow", "question_first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    max_text: int  # tokens of questions and answers, about
    system_prompt: str | None
    has_talk: bool  # a branch of small talk that does not see the pictures
    mode: Mode


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
    question_looks: list[tuple[int, int]] = field(default_factory=list)  # from, to
    answer_looks: list[tuple[int, int, int]] = field(default_factory=list)  # from, to, rank in the cell

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


def pack(
    sample: Sample,
    printed: PrintedText | None,
    tokenizer: Tokenizer,
    random: Random,
    grid: tuple[int, int],
    options: PackOptions,
) -> Packed:
    packer = _Packer(sample, printed, tokenizer, random, grid)
    packer.fill(options)
    return packer.packed


class _Packer:
    def __init__(
        self,
        sample: Sample,
        printed: PrintedText | None,
        tokenizer: Tokenizer,
        random: Random,
        grid: tuple[int, int],
    ) -> None:
        self.sample, self.printed, self.tokenizer = sample, printed, tokenizer
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
        used = 0
        if options.mode == "plain":
            self._pictures()
            if options.has_talk:
                questions.insert(0, Question("talk", *self.random.choice(TALK)))
        else:
            used = self._first_turn(questions.pop(0), options.mode)
        self._branches(questions, used, options)

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

    def _first_turn(self, question: Question, mode: Mode) -> int:
        """A question and its answer as shared part; returns about how many tokens they are."""
        text, encoding = self._vary(question.text)
        if mode == "question_first":
            self._question(text, encoding, SHARED, None)
            self._pictures()
        else:
            self._pictures()
            self._question(text, encoding, SHARED, None)
        self.packed.append(self.reply, SHARED)
        name = "question_first" if mode == "question_first" else self.sample.task
        self._answer(question, text, self.tokenizer.encode(question.answer), SHARED, name)
        return len(encoding.ids) + len(question.answer) // 2

    def _branches(self, questions: list[Question], used: int, options: PackOptions) -> None:
        packed = self.packed
        first, branch, can_follow = packed.next_position, SHARED, False
        for question in questions:
            text, encoding = self._vary(question.text)
            answer = self.tokenizer.encode(question.answer)
            size = len(encoding.ids) + len(answer.ids)
            if used and used + size + _WEIGHT_OF_TURN > options.max_text:
                continue
            if question.kind == "talk":
                branch += 1
                packed.append((*encoding.ids, *self.reply), -branch - 1, packed.num_open)
                self._answer(question, text, answer, -branch - 1, self.sample.task)
                can_follow = False
            else:
                if can_follow and self.random.random() < 0.06:  # a second turn in the same branch
                    packed.append(self.turn, branch)
                    self._question(text, encoding, branch, None)
                else:
                    branch += 1
                    if options.mode != "plain":
                        packed.append(self.turn, branch, first)
                    self._question(text, encoding, branch, first if options.mode == "plain" else None)
                packed.append(self.reply, branch)
                self._answer(question, text, answer, branch, self.sample.task)
                can_follow = True
            used += size + _WEIGHT_OF_TURN - 1

    def _vary(self, text: str) -> tuple[str, Encoding]:
        """Now and then all lower case or without its question mark."""
        if self.random.random() < 0.07:
            is_lower = self.random.random() < 0.5 and '"' not in text
            text = text.lower() if is_lower else text.rstrip("?.")
        return text, self.tokenizer.encode(text)

    def _question(self, text: str, encoding: Encoding, branch: int, position: int | None) -> None:
        packed, first = self.packed, len(self.packed.token_ids)
        packed.append(encoding.ids, branch, position)
        if self.printed and packed.visual:
            cells = self.printed.question(text, encoding.offsets)
            looks = [(first + i, packed.visual[cell]) for i, cell in enumerate(cells) if cell != NOWHERE]
            packed.question_looks.extend(looks)

    def _answer(self, question: Question, text: str, encoding: Encoding, branch: int, name: str) -> None:
        packed = self.packed
        token_ids, offsets = list(encoding.ids), list(encoding.offsets)
        if question.kind in PRINTED:
            token_ids, offsets = self._by_character(question.answer)
        before = len(packed.token_ids) - 1  # the position that predicts the first token
        if self.printed and question.kind != "talk":
            asked = question._replace(text=text)
            self._look(self.printed.answer(asked, offsets), before, question.kind in PRINTED)
        token_ids.extend(self.end)
        packed.targets.extend((before + i, token) for i, token in enumerate(token_ids))
        packed.answers.append((f"{name}/{question.kind}", len(token_ids)))
        packed.append(token_ids, branch)

    def _by_character(self, text: str) -> tuple[list[int], Offsets]:
        """Printed text is answered character by character: reading, not guessing words."""
        token_ids: list[int] = []
        offsets: Offsets = []
        for i, character in enumerate(text):
            pieces = self.tokenizer.ids(character)
            token_ids.extend(pieces)
            offsets.extend([(i, i + 1)] * len(pieces))
        return token_ids, offsets

    def _look(self, places: list[Place], before: int, is_printed: bool) -> None:
        """From the position that predicts a token, and from a printed token itself, to where it is printed."""
        packed = self.packed
        for i, place in enumerate(places):
            if place.cell == NOWHERE:
                continue
            target = packed.visual[place.cell]
            packed.answer_looks.append((before + i, target, place.rank))
            if is_printed:
                packed.question_looks.append((before + 1 + i, target))


def _in_order(random: Random, questions: list[Question]) -> list[Question]:
    """Shuffled, with the transcription among the first: it is the densest lesson and must not be cut."""
    shuffled = list(questions)
    random.shuffle(shuffled)
    reading = [question for question in shuffled if question.kind == "read"]
    others = [question for question in shuffled if question.kind != "read"]
    at = random.randint(0, 2)
    others[at:at] = reading
    if random.random() < 0.3:
        random.shuffle(others)
    return others
