"""Words in braces, such as {MEDIA}, and what they stand for in this run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def filled(value: T, words: Mapping[str, str]) -> T:
    """The value with every word replaced, in all strings that it holds; bytes stay as they are."""
    if isinstance(value, str):
        for word, meaning in words.items():
            value = value.replace(word, meaning)
        return value
    if isinstance(value, dict):
        return {key: filled(item, words) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(filled(item, words) for item in value)
    return value
