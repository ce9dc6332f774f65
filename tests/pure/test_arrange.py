"""What media write into a prompt: joined with the text around, tokenised once, bound to spans and positions."""

from __future__ import annotations

import pytest

from tapetum.core.chat import MediaPart
from tapetum.core.media import Geometry, MediaItem, MediaKind
from tapetum.engine.arrange import TextTokens, arrange
from tapetum.processing.layout import Insert, Placement, Special, lay_out, plain_run

IMAGE = MediaPart(kind="image", source=b"")
MEDIA_TOKENS: dict[MediaKind, int] = {"image": 9}


def item() -> MediaItem:
    geometry = Geometry(
        kind="image", original=(1, 1), used=(1, 1), frames=1, grid_thw=(1, 1, 1), num_tokens=4, segments=(1,)
    )
    return MediaItem(key=bytes(32), geometry=geometry, patches=None)


class Recorder:
    """A tokenizer of one token a character, which notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.firsts: list[bool] = []

    def tokens(self) -> TextTokens:
        return TextTokens(self.encode, {"<box>": 1, "</box>": 2})

    def encode(self, text: str, *, is_first: bool) -> tuple[int, ...]:
        self.firsts.append(is_first)
        self.asked.append(text)
        return tuple(map(ord, text))


def test_words_of_an_item_join_the_text_around_it_before_it_is_tokenised() -> None:
    recorder = Recorder()
    pieces = ("\n\n", Special("<box>"), plain_run(2), Special("</box>"), "\n")
    arrangement = arrange(["a\n", IMAGE, "b", 7, "c"], [pieces], recorder.tokens())
    assert recorder.asked == ["a\n\n\n", "\nb", "c"]
    assert recorder.firsts == [True, False, False]
    assert arrangement.token_ids(MEDIA_TOKENS) == (*b"a\n\n\n", 1, 9, 9, 2, *b"\nb", 7, *b"c")
    assert (arrangement.num_tokens, arrangement.num_visual_tokens) == (12, 2)


def test_what_stands_between_placeholders_belongs_to_the_span() -> None:
    recorder = Recorder()
    pieces = (Special("<box>"), plain_run(3), "\n", Special("<box>"), plain_run(1), Special("</box>"))
    arrangement = arrange(["x", IMAGE, IMAGE, "y"], [pieces, (plain_run(2),)], recorder.tokens())
    first, second = item(), item()
    prompt = lay_out(arrangement.filled([first, second]), MEDIA_TOKENS, "plain", is_atomic=True)
    assert prompt.token_ids == arrangement.token_ids(MEDIA_TOKENS)
    assert prompt.token_ids == (*b"x", 1, 9, 9, 9, *b"\n", 1, 9, 2, 9, 9, *b"y")
    one, two = prompt.spans
    assert (one.start, one.end, one.item, one.runs, one.is_atomic) == (2, 8, first, ((0, 3), (5, 6)), True)
    assert (one.placeholders, one.num_tokens) == (((2, 5), (7, 8)), 4)
    assert (two.start, two.end, two.item, two.runs, two.placeholders) == (9, 11, second, (), ((9, 11),))
    assert prompt.position_ids.tolist() == [list(range(12))] * 3
    assert (prompt.position_delta, one.placement) == (0, ())


@pytest.mark.parametrize("runs", [[5, "a"], [IMAGE, "a"]])
def test_only_a_text_that_nothing_stands_before_is_the_first(runs: list[int | str | MediaPart]) -> None:
    recorder = Recorder()
    tokens = TextTokens(recorder.encode, {}, opening=(3, 4))
    arrangement = arrange(runs, [(plain_run(1),)] * (IMAGE in runs), tokens)
    assert arrangement.token_ids(MEDIA_TOKENS) == (3, 4, 9 if IMAGE in runs else 5, *b"a")
    assert recorder.firsts == [False]
    arrange(["b"], [], tokens)
    assert recorder.firsts == [False, True]


def test_frames_with_words_between_lie_in_boxes_of_their_own() -> None:
    frame = Placement(1, 2, 2)
    parts = (frame, (5, 6), frame)
    prompt = lay_out([(4,), Insert(item(), parts), (7,)], MEDIA_TOKENS, "mrope")
    assert prompt.position_ids.tolist() == [
        [0, 1, 1, 1, 1, 3, 4, 5, 5, 5, 5, 7],
        [0, 1, 1, 2, 2, 3, 4, 5, 5, 6, 6, 7],
        [0, 1, 2, 1, 2, 3, 4, 5, 6, 5, 6, 7],
    ]
    assert prompt.spans[0].placement == (1, 2, 2, 1.0, 1, 2, 2, 1.0)


def test_an_item_without_a_placeholder_is_a_fault_of_its_family() -> None:
    with pytest.raises(AssertionError, match="every item has a placeholder"):
        arrange([IMAGE], [("nothing to see",)], Recorder().tokens())


def test_a_special_token_that_the_tokenizer_lacks_is_text() -> None:
    recorder = Recorder()
    pieces = (Special("<box>"), Special("<row_9>"), plain_run(1), Special("<row_9>"))
    arrangement = arrange([IMAGE, "z"], [pieces], recorder.tokens())
    assert recorder.asked == ["<row_9>", "<row_9>z"]
    assert arrangement.token_ids(MEDIA_TOKENS) == (1, *b"<row_9>", 9, *b"<row_9>z")
