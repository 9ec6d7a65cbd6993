"""Batches of texts by their tokens, and texts split into windows."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soundingline.pipelines.models import by_tokens, cut, fitting, taken_off
from soundingline.toolkit.errors import InputError


@given(
    text=st.text(alphabet="ab ", min_size=1, max_size=60),
    size=st.integers(1, 7),
    repeated=st.integers(1, 3),
)
def test_pieces_are_the_text_and_hold_no_more_tokens_than_asked(text, size, repeated):
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
def test_cuts_stand_between_words_where_one_begins(size, pieces):
    text = "the old mill"
    letters = [match.start() for match in re.finditer(r"\S", text)]
    assert cut(text, letters, size) == pieces


def test_pieces_taken_off_the_front_leave_out_white_space_alone():
    assert taken_off("  the old  mill ", lambda rest: rest[:3]) == ["the", "old", "mil", "l"]
    assert taken_off(" \n ", lambda rest: rest[:3]) == [""]


def test_pieces_that_have_more_tokens_by_themselves_are_cut_again():
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


LENGTHS = st.lists(st.integers(0, 600), max_size=60)


def test_texts_of_like_length_share_a_batch_and_the_longest_come_first():
    assert by_tokens([10, 500, 20, 490, 15], max_tokens=1000) == [[1, 3], [2, 4, 0]]


def test_a_text_longer_than_a_batch_is_one_by_itself():
    assert by_tokens([5, 2000, 1500, 5], max_tokens=1000) == [[1], [2], [0, 3]]


def test_a_batch_holds_no_more_texts_than_it_may():
    assert by_tokens([1] * 5, max_tokens=1000, max_items=2) == [[0, 1], [2, 3], [4]]


def test_equal_lengths_keep_their_order():
    assert by_tokens([7] * 6, max_tokens=21) == [[0, 1, 2], [3, 4, 5]]


def test_texts_without_a_token_are_batched_too():
    assert by_tokens([0, 0, 3], max_tokens=2) == [[2], [0, 1]]


def test_no_texts_are_no_batches():
    assert by_tokens([], max_tokens=10) == []


@given(LENGTHS, st.integers(1, 2000), st.none() | st.integers(1, 9))
def test_every_text_is_in_one_batch_that_fits(lengths, max_tokens, max_items):
    batches = by_tokens(lengths, max_tokens, max_items)
    assert sorted(position for batch in batches for position in batch) == [*range(len(lengths))]
    for batch in batches:
        longest = max(lengths[position] for position in batch)
        assert len(batch) == 1 or len(batch) * longest <= max_tokens
        assert len(batch) <= (max_items or len(batch))
        assert lengths[batch[0]] == longest


@given(LENGTHS, st.integers(1, 2000))
def test_no_two_neighbouring_batches_would_fit_into_one(lengths, max_tokens):
    batches = by_tokens(lengths, max_tokens)
    for first, second in pairwise(batches):
        assert (len(first) + 1) * max(1, lengths[first[0]]) > max_tokens
        assert lengths[first[-1]] >= lengths[second[0]]


@pytest.mark.parametrize(("tokens", "items"), [(0, None), (-5, 3), (10, 0)])
def test_impossible_sizes_are_refused(tokens, items):
    with pytest.raises(InputError, match=r"valid: 1 or more of each"):
        by_tokens([1], tokens, items)
