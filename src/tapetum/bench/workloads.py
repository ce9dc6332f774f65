"""What is asked: five workloads of pictures and one of text, made from a seed alone.

    T1  a question of 26 words, one at a time
    W1  the same with a picture of 448x448
    W2  eight clients at once, each with pictures of its own
    W3  four users, each with a conversation of four turns about one picture that all share
    W4  questions without pictures, about one a second, while pictures of 1344x1344 are asked about one after another
    W5  windows of 16 frames of 224x224, of which the next window keeps 12

Everything is built before a clock runs. Answers are of a fixed length, and what an assistant is said to have answered
is drawn as well, so all servers read the same prompts.
"""

from __future__ import annotations

import io
import random
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from PIL import Image, ImageDraw

Content = str | list[dict[str, object]]
Message = Mapping[str, object]

_WORDS = (
    *("amber", "barrel", "candle", "desert", "eagle", "feather", "glacier", "hammer", "island", "jacket"),
    *("kettle", "ladder", "magnet", "needle", "ocean", "pepper", "quartz", "ribbon", "saddle", "timber"),
)
_SIDE, _LARGE_SIDE, _FRAME_SIDE = 448, 1344, 224
_NUM_CLIENTS = 8
_NUM_USERS, _NUM_TURNS = 4, 4
_NUM_WINDOWS, _WINDOW_FRAMES, _NEW_FRAMES = 4, 16, 4
_JITTER = 0.3  # of a pause between paced questions, to either side


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How long a workload is. The defaults are those that the goals are set for."""

    num_requests: int = 4  # of T1 and W1
    per_client: int = 2  # of W2
    num_large: int = 2  # pictures of W4
    num_turns: int = _NUM_TURNS  # of W3
    max_tokens: int = 32
    max_paced_tokens: int = 64
    max_large_tokens: int = 16
    pause_s: float = 1.0  # between the paced questions of W4
    max_paced: int = 40


@dataclass(frozen=True, slots=True)
class Ask:
    """One question, and of how many tokens its answer is."""

    messages: tuple[Message, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Paced:
    """A question, and the pause after it, answered or not."""

    ask: Ask
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Lanes run at once, the questions of a lane one after another.

    Paced questions begin at once and are sent until all lanes have ended, all of them where there are no lanes; lanes
    begin after `lead_s`.
    """

    lanes: tuple[tuple[Ask, ...], ...]
    paced: tuple[Paced, ...] = ()
    lead_s: float = 0.0


def script_of(workload: str, seed: str, sizes: Sizes) -> Script:
    return WORKLOADS[workload](seed, sizes)


def warm_up(seed: str) -> Script:
    """A question with a picture and one without: what a server does only once is done after them."""
    asks = (_ask(_seen(_picture(seed, _SIDE), "warm up"), 4), _ask("warm up", 4))
    return Script(lanes=(asks,))


def first_token() -> Ask:
    """The shortest question, for the time from start to first token."""
    return _ask("go", 1)


def _text_alone(seed: str, sizes: Sizes) -> Script:
    names = [f"{seed}-{number}" for number in range(sizes.num_requests)]
    return Script(lanes=(tuple(_ask(_text(name, 26), sizes.max_tokens) for name in names),))


def _one_picture(seed: str, sizes: Sizes) -> Script:
    names = [f"{seed}-{number}" for number in range(sizes.num_requests)]
    return Script(lanes=(tuple(_look(name, sizes.max_tokens) for name in names),))


def _eight_clients(seed: str, sizes: Sizes) -> Script:
    lanes = [
        tuple(_look(f"{seed}-{client}-{number}", sizes.max_tokens) for number in range(sizes.per_client))
        for client in range(_NUM_CLIENTS)
    ]
    return Script(lanes=tuple(lanes))


def _conversations(seed: str, sizes: Sizes) -> Script:
    url = _picture(f"{seed}-shared", _SIDE)
    return Script(lanes=tuple(_conversation(url, f"{seed}-user{user}", sizes) for user in range(_NUM_USERS)))


def _conversation(url: str, seed: str, sizes: Sizes) -> tuple[Ask, ...]:
    messages: list[Message] = []
    asks: list[Ask] = []
    for turn in range(sizes.num_turns):
        question = _text(f"{seed}-question{turn}", 16)
        messages.append({"role": "user", "content": question if turn else _seen(url, question)})
        asks.append(Ask(tuple(messages), sizes.max_tokens))
        messages.append({"role": "assistant", "content": _text(f"{seed}-answer{turn}", 28)})
    return tuple(asks)


def _large_beside_text(seed: str, sizes: Sizes) -> Script:
    large = [
        _ask(
            _seen(_picture(f"{seed}-large{number}", _LARGE_SIDE), _text(f"{seed}-large{number}", 20)),
            sizes.max_large_tokens,
        )
        for number in range(sizes.num_large)
    ]
    pauses = random.Random(f"{seed}-pauses")
    paced = [
        Paced(
            _ask(_text(f"{seed}-paced{number}", 32), sizes.max_paced_tokens),
            pauses.uniform(1 - _JITTER, 1 + _JITTER) * sizes.pause_s,
        )
        for number in range(sizes.max_paced)
    ]
    return Script(lanes=(tuple(large),), paced=tuple(paced), lead_s=0.5)


def _windows(seed: str, sizes: Sizes) -> Script:
    num_frames = _WINDOW_FRAMES + _NEW_FRAMES * (_NUM_WINDOWS - 1)
    frames = [_picture(f"{seed}-clip", _FRAME_SIDE, moved=frame) for frame in range(num_frames)]
    asks = []
    for window in range(_NUM_WINDOWS):
        first = window * _NEW_FRAMES
        seen = [_image(url) for url in frames[first : first + _WINDOW_FRAMES]]
        question = "what changes " + _text(f"{seed}-{window}", 12)
        asks.append(_ask([*seen, {"type": "text", "text": question}], sizes.max_tokens))
    return Script(lanes=(tuple(asks),))


WORKLOADS: dict[str, Callable[[str, Sizes], Script]] = {
    "T1": _text_alone,
    "W1": _one_picture,
    "W2": _eight_clients,
    "W3": _conversations,
    "W4": _large_beside_text,
    "W5": _windows,
}


def looks(seed: str, count: int, side: int, max_tokens: int) -> tuple[Ask, ...]:
    """Questions about pictures of their own; of text alone where the side is 0."""
    names = [f"{seed}-{number}" for number in range(count)]
    return tuple(
        _look(name, max_tokens, side) if side else _ask(_text(name, 26), max_tokens) for name in names
    )


def _look(seed: str, max_tokens: int, side: int = _SIDE) -> Ask:
    return _ask(_seen(_picture(seed, side), _text(seed, 26)), max_tokens)


def _ask(content: Content, max_tokens: int) -> Ask:
    return Ask(({"role": "user", "content": content},), max_tokens)


def _seen(url: str, text: str) -> Content:
    return [_image(url), {"type": "text", "text": text}]


def _image(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def _text(seed: str, num_words: int) -> str:
    return " ".join(random.Random(f"{seed}-text").choices(_WORDS, k=num_words))


def _picture(seed: str, side: int, moved: int = 0) -> str:
    """A data: URL of a JPEG with soft colours and hard edges; `moved` shifts one red square and nothing else."""
    source = random.Random(f"{seed}-picture")
    soft = Image.frombytes("RGB", (24, 24), source.randbytes(24 * 24 * 3))
    picture = soft.resize((side, side), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    for _ in range(12):
        left, top = source.randrange(side), source.randrange(side)
        width, height = (source.randrange(8, max(9, side // 3)) for _ in range(2))
        colour = (source.randrange(256), source.randrange(256), source.randrange(256))
        draw.rectangle((left, top, left + width, top + height), fill=colour)
    corner = 5 + 3 * moved
    draw.rectangle((corner, corner, corner + 20, corner + 20), fill=(255, 0, 0))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=90)
    return "data:image/jpeg;base64," + b64encode(file.getvalue()).decode()
