"""Task `pair`: two pictures of a sort, what they have in common, and what is seen in the one that is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from training.generator.brief import Brief, Drawing, Question, chance
from training.generator.canvas import Canvas, Run
from training.generator.receipts import draw_receipt
from training.generator.shapes import Scene, ask_about, draw_scene, with_article
from training.generator.tables import draw_table
from training.generator.text import draw_text
from training.generator.vocabulary import ORDINALS

UNFIT = re.compile(r"\b(this|here|it|picture)\b")  # in questions that speak of the only picture
READ = ["What does the {} image say?", "Read the text in the {} image.", "What is written in the {} image?"]


def draw_pair(brief: Brief) -> Drawing:
    width, height = brief.grid
    random = brief.random
    if width >= 8 and height >= 5 and chance(random, 0.35):
        return _two_documents(brief, draw_receipt if height >= 6 and chance(random, 0.6) else draw_table)
    return _two_texts(brief) if width >= 6 and chance(random, 0.45) else _two_scenes(brief)


def _which(in_first: bool, in_second: bool) -> str:
    if in_first and in_second:
        return "Both images."
    return "The first image." if in_first else "The second image."


def _about_each(random: Random, asked: list[list[Question]], most: int) -> list[Question]:
    """Questions about either picture, each with the number of that picture in its text."""
    found = []
    for ordinal, questions in zip(ORDINALS, asked, strict=False):
        texts = {question.text: question for question in questions}
        named = [(question, _name(text, ordinal)) for text, question in texts.items()]
        fit = [replace(question, text=text) for question, text in named if text]
        found += random.sample(fit, min(most, len(fit)))
    return found


def _name(text: str, ordinal: str) -> str | None:
    """The question with its picture named, None where that would not be English."""
    if UNFIT.search(text) or text[-1] not in "?.":
        return None
    if "the image" in text:
        return text.replace("the image", f"the {ordinal} image")
    return f"{text[:-1]} in the {ordinal} image{text[-1]}" if " " in text else None


def _two_scenes(brief: Brief) -> Drawing:
    random = brief.random
    first = draw_scene(brief, max_figures=3)
    second = _copy(brief, first) if chance(random, 0.3) else draw_scene(brief, max_figures=3)
    scenes = (first, second)
    questions = [
        *_is_same(random, first, second),
        *_which_shows(random, first, second),
        *_about_each(random, [ask_about(random, scene) for scene in scenes], 3),
    ]
    counts = [len(scene.things) for scene in scenes]
    if counts[0] != counts[1]:
        answer = _which(counts[0] > counts[1], counts[0] < counts[1])
        everything = scenes[0].of() + scenes[1].of()
        keys = (("shapes", everything),)
        questions.append(Question("more", "Which image has more shapes?", answer, "look", everything, keys))
    return Drawing(canvases=[first.canvas, second.canvas], questions=questions)


def _copy(brief: Brief, scene: Scene) -> Scene:
    """The same figures again, upright and in slightly other tints."""
    model = scene.canvas
    canvas = Canvas(brief.random, brief.grid, model.ground, oversample=model.oversample)
    canvas.ground_name = model.ground_name
    canvas.resize(model.width, model.height)
    for figure, thing in zip(scene.figures, model.things, strict=True):
        canvas.shape(*figure).flags.update(thing.flags)
    return replace(scene, canvas=canvas)


def _is_same(random: Random, first: Scene, second: Scene) -> list[Question]:
    if not chance(random, 0.8):
        return []
    wordings = [
        "Are the two images the same?",
        "Do both images show the same?",
        "Are both images the same?",
    ]
    answer = "Yes" if first.kinds == second.kinds else "No"
    return [Question("same", random.choice(wordings), answer, "look", first.of() + second.of())]


def _which_shows(random: Random, first: Scene, second: Scene) -> list[Question]:
    questions = []
    figures = first.figures + second.figures
    for figure in random.sample(figures, min(2, len(figures))):
        shape, color = figure.shape, figure.color
        name = with_article(f"{color} {shape}")
        wordings = [
            f"Which image shows {name}?",
            f"Which image contains {name}?",
            f"In which image is there {name}?",
        ]
        found = [scene.of(shape=shape, color=color) for scene in (first, second)]
        keys = (
            (color, first.of(color=color) + second.of(color=color)),
            (shape, first.of(shape=shape) + second.of(shape=shape)),
        )
        answer = _which(bool(found[0]), bool(found[1]))
        text = random.choice(wordings)
        questions.append(Question("which", text, answer, "look", found[0] + found[1], keys))
    return list({question.text: question for question in questions}.values())


def _two_texts(brief: Brief) -> Drawing:
    random = brief.random
    drawings = _draw_two(brief, draw_text)
    canvases = [drawing.canvases[0] for drawing in drawings]
    questions = []
    for ordinal, drawing in zip(ORDINALS, drawings, strict=False):
        for question in drawing.questions:
            if question.kind == "read":
                questions.append(replace(question, text=random.choice(READ).format(ordinal)))
                break
    others = [[question for question in drawing.questions if question.kind != "read"] for drawing in drawings]
    texts = [_words(canvas) for canvas in canvases]
    if chance(random, 0.6):
        answer = "Yes" if texts[0] == texts[1] else "No"
        wordings = ["Do both images show the same text?", "Do both images say the same?"]
        runs = (*canvases[0].runs, *canvases[1].runs)
        questions.append(Question("same", random.choice(wordings), answer, "look", runs))
    questions += _which_contains(random, canvases)
    return Drawing(canvases=canvases, questions=questions + _about_each(random, others, 2))


def _draw_two(brief: Brief, draw: Callable[[Brief], Drawing]) -> tuple[Drawing, Drawing]:
    """Two drawings, a fifth of them the same twice."""
    random = brief.random
    seed = random.getrandbits(32)
    other = seed if chance(random, 0.2) else random.getrandbits(32)
    first, second = (draw(replace(brief, random=Random(s), level=0.4)) for s in (seed, other))
    return first, second


def _words(canvas: Canvas) -> list[str]:
    return [word for run in canvas.runs for word in _split(run)]


def _split(run: Run) -> list[str]:
    return [word.rstrip(":") for word in run.text.split()]


def _which_contains(random: Random, canvases: list[Canvas]) -> list[Question]:
    """A word that is printed in one picture or in both."""
    questions = []
    words = sorted({word for canvas in canvases for word in _words(canvas) if len(word) > 2})
    for word in random.sample(words, min(2, len(words))):
        runs: list[list[Run]] = [[run for run in canvas.runs if word in _split(run)] for canvas in canvases]
        wordings = [
            f'Which image contains "{word}"?',
            f'Which image says "{word}"?',
            f"Which image shows {word}?",
        ]
        spots = (*runs[0], *runs[1])
        answer = _which(bool(runs[0]), bool(runs[1]))
        questions.append(Question("which", random.choice(wordings), answer, "look", spots, ((word, spots),)))
    return questions


def _two_documents(brief: Brief, draw: Callable[[Brief], Drawing]) -> Drawing:
    drawings = _draw_two(brief, draw)
    canvases = [drawing.canvases[0] for drawing in drawings]
    questions = _about_each(brief.random, [drawing.questions for drawing in drawings], 4)
    questions += _which_contains(brief.random, canvases)
    return Drawing(canvases=canvases, questions=questions)
