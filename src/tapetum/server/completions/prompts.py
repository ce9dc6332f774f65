"""The prompts of a completion request: a string, token ids, or a list of either.

Owns which of the four shapes it is. Which ids are tokens, and that no picture is missing for a placeholder, is
checked where the prompt is built.
"""

from __future__ import annotations

from collections.abc import Sequence

from tapetum.core.chat import TextInput
from tapetum.core.errors import InvalidParameter, PromptTooLong

MAX_PROMPTS = 1024  # of one request
MAX_ANSWERS = 2048  # to all of them together


def text_inputs(prompt: str | Sequence[object], max_tokens: int) -> list[TextInput]:
    """One input per prompt, in order; a list of integers is one prompt of at most `max_tokens` token ids."""
    if isinstance(prompt, str):
        return [TextInput(prompt=prompt)]
    if _is_tokens(prompt):
        return [TextInput(prompt=_token_ids(prompt, "prompt", max_tokens))]
    if not prompt:
        raise InvalidParameter("prompt is an empty list; send at least one word", param="prompt")
    if len(prompt) > MAX_PROMPTS:
        raise InvalidParameter(
            f"prompt has {len(prompt)} entries, limit {MAX_PROMPTS}; send several requests", param="prompt"
        )
    prompts = (_prompt(entry, f"prompt[{index}]", max_tokens) for index, entry in enumerate(prompt))
    return [TextInput(prompt=entry) for entry in prompts]


def check_answers(num_prompts: int, num_choices: int) -> None:
    """Raises InvalidParameter for more answers than can be begun at once."""
    if num_prompts * num_choices > MAX_ANSWERS:
        raise InvalidParameter(
            f"{num_prompts} prompts with n of {num_choices} have {num_prompts * num_choices} answers, "
            f"limit {MAX_ANSWERS}; send several requests",
            param="n",
        )


def _is_tokens(prompt: Sequence[object]) -> bool:
    return bool(prompt) and type(prompt[0]) is int


def _prompt(entry: object, place: str, max_tokens: int) -> str | tuple[int, ...]:
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list) and (not entry or _is_tokens(entry)):
        return _token_ids(entry, place, max_tokens)
    raise InvalidParameter(
        f"{place} is a {type(entry).__name__}, must be a string or a list of token ids", param=place
    )


def _token_ids(ids: Sequence[object], place: str, max_tokens: int) -> tuple[int, ...]:
    if len(ids) > max_tokens:
        raise PromptTooLong(
            f"{place} has {len(ids)} tokens, limit {max_tokens} with one left for the answer; "
            "shorten it or raise --max-model-len",
            param=place,
        )
    checked = tuple(token_id for token_id in ids if type(token_id) is int)
    if len(checked) < len(ids):
        raise InvalidParameter(f"{place} holds more than token ids; send integers only", param=place)
    return checked
