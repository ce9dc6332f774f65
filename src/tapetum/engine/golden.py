"""The golden request: the shortest way through every stage, to see that a server can answer at all."""

from __future__ import annotations

from PIL import Image

from tapetum.core.chat import ChatInput, MediaPart, Message
from tapetum.core.request import SamplingParams

GOLDEN_SAMPLING = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)


def golden_prompt() -> ChatInput:
    """A small grey picture and a word: media, encoder, prefill and a decode have work."""
    picture = MediaPart(kind="image", source=Image.new("RGB", (64, 64), (128, 128, 128)), is_trusted=True)
    return ChatInput(messages=(Message(role="user", content=(picture, "Hello")),))
