"""The golden request: the shortest way through every stage, to see that a server can answer at all."""

from __future__ import annotations

from collections.abc import Collection

from PIL import Image

from tapetum.core.chat import ChatInput, MediaPart, Message
from tapetum.core.media import MediaKind
from tapetum.core.request import SamplingParams

GOLDEN_SAMPLING = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)


def golden_prompt(kinds: Collection[MediaKind]) -> ChatInput:
    """A small grey picture, where the model takes `kinds` of which it is one, and a word: media, encoder, prefill and a
    decode have work."""
    picture = MediaPart(kind="image", source=Image.new("RGB", (64, 64), (128, 128, 128)), is_trusted=True)
    pictures = (picture,) if picture.kind in kinds else ()
    return ChatInput(messages=(Message(role="user", content=(*pictures, "Hello")),))
