"""Task `pair`: two scenes or two texts, and what they have in common."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from training.generator.brief import Brief, Drawing, Question, chance
from training.generator.canvas import Canvas
from training.generator.shapes import Scene, describe, draw_scene, with_article
from training.generator.text import draw_text
from training.generator.vocabulary import ORDINALS


def draw_pair(brief: Brief) -> Drawing:
    return _two_scenes(brief) if chance(brief.random, 0.55) else _two_texts(brief)


def _which(in_first: bool, in_second: bool) -> str:
    if in_first and in_second:
        return "Both images."
    return "The first image." if in_first else "The second image."


def _two_scenes(brief: Brief) -> Drawing:
    random = brief.random
    first = draw_scene(brief, max_figures=3)
    second = _copy(brief, first) if chance(random, 0.3) else draw_scene(brief, max_figures=3)
    scenes = (first, second)
    questions = [
        *_is_same(random, first, second),
        *_which_shows(random, first, second),
        *_about_one(random, scenes),
    ]
    counts = [len(scene.figures) for scene in scenes]
    if counts[0] != counts[1]:
        answer = _which(counts[0] > counts[1], counts[0] < counts[1])
        questions.append(Question("more", "Which image has more shapes?", answer))
    return Drawing(canvases=[first.canvas, second.canvas], questions=questions)


def _copy(brief: Brief, scene: Scene) -> Scene:
    """The same figures again, upright and in slightly other tints."""
    model = scene.canvas
    canvas = Canvas(brief.random, brief.grid, model.ground, oversample=model.oversample)
    canvas.resize(model.width, model.height)
    for figure in scene.figures:
        canvas.shape(*figure)
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
    return [Question("same", random.choice(wordings), answer)]


def _which_shows(random: Random, first: Scene, second: Scene) -> list[Question]:
    questions = []
    for _ in range(2):
        figure = random.choice(first.figures + second.figures)
        name, kind = with_article(figure.name), (figure.shape, figure.color)
        wordings = [
            f"Which image shows {name}?",
            f"Which image contains {name}?",
            f"In which image is there {name}?",
        ]
        answer = _which(kind in first.kinds, kind in second.kinds)
        questions.append(Question("which", random.choice(wordings), answer))
    return questions


def _about_one(random: Random, scenes: tuple[Scene, Scene]) -> list[Question]:
    k = random.randrange(2)
    text = f"How many shapes are in the {ORDINALS[k]} image?"
    questions = [Question("count", text, str(len(scenes[k].figures)))]
    k = random.randrange(2)
    if scenes[k].can_be_described():
        wordings = [f"What is in the {ORDINALS[k]} image?", f"Describe the {ORDINALS[k]} image."]
        questions.append(Question("desc", random.choice(wordings), describe(scenes[k].figures)))
    return questions


def _two_texts(brief: Brief) -> Drawing:
    random = brief.random
    easy = replace(brief, level=0.4)
    drawings = (draw_text(easy), draw_text(easy))
    texts = [drawing.questions[0].answer for drawing in drawings]
    questions = []
    for ordinal, text in zip(ORDINALS, texts, strict=False):
        wordings = [
            f"What does the {ordinal} image say?",
            f"Read the text in the {ordinal} image.",
            f"What is written in the {ordinal} image?",
        ]
        questions.append(Question("read", random.choice(wordings), text))
    word = random.choice(texts[random.randrange(2)].split())
    wordings = [f'Which image contains "{word}"?', f'Which image says "{word}"?']
    answer = _which(*(word in text.split() for text in texts))
    questions.append(Question("which", random.choice(wordings), answer))
    if chance(random, 0.5):
        answer = "Yes" if texts[0] == texts[1] else "No"
        questions.append(Question("same", "Do both images show the same text?", answer))
    return Drawing(canvases=[drawing.canvases[0] for drawing in drawings], questions=questions)
