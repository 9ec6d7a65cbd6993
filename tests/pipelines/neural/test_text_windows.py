"""Texts cut into windows: nothing lost, nothing too long, words whole where they can be."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.neural.text_windows import cut, fitting, taken_off


@given(
    text=st.text(alphabet="ab ", min_size=1, max_size=60),
    size=st.integers(1, 7),
    repeated=st.integers(1, 3),
)
def test_pieces_are_the_text_and_hold_no_more_tokens_than_asked(
    text: str, size: int, repeated: int
) -> None:
    # A token a character, and several at every fifth, as a tokenizer of bytes has them.
    begins = [at for at in range(len(text)) for _ in range(1 if at % 5 else repeated)]
    pieces = cut(text, begins, size)
    assert "".join(pieces) == text
    start = 0
    for piece in pieces:
        tokens = [at for at in begins if start <= at < start + len(piece)]
        assert len(tokens) <= size or len(set(tokens)) == 1
        start += len(piece)


@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (10, ["the old mill"]),
        (8, ["the old ", "mill"]),
        (4, ["the ", "old ", "mill"]),
        (2, ["th", "e ", "ol", "d ", "mi", "ll"]),
    ],
)
def test_cuts_stand_between_words_where_one_begins(size: int, pieces: list[str]) -> None:
    text = "the old mill"
    letters = [match.start() for match in re.finditer(r"\S", text)]
    assert cut(text, letters, size) == pieces


def test_pieces_taken_off_the_front_leave_out_white_space_alone() -> None:
    assert taken_off("  the old  mill ", lambda rest: rest[:3]) == ["the", "old", "mil", "l"]
    assert taken_off(" \n ", lambda rest: rest[:3]) == [""]


def test_pieces_that_have_more_tokens_by_themselves_are_cut_again() -> None:
    text = "the old mill by the river"
    # A token a character; by itself a piece has two more, and the last word one for each letter.
    pieces = fitting(
        text,
        10,
        lambda part: list(range(len(part))),
        lambda parts: [len(part) + 2 + 9 * (part == "river") for part in parts],
    )
    assert "".join(pieces) == text
    assert max(len(piece) + 2 for piece in pieces) <= 10
    assert "river" not in pieces
