"""Tokens: counts, heads, and the array path against the expression that defines a token."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soundingline.toolkit.tokens import (
    count_tokens,
    token_spans,
    token_starts,
    truncate,
    without_format_characters,
)


def test_words_and_visible_marks_are_tokens():
    assert count_tokens("It cost $3.50, didn't it?") == 12
    assert count_tokens("") == 0
    assert count_tokens(" \n\t ") == 0


@given(st.text(max_size=900))
def test_array_path_finds_the_tokens_of_the_expression(text):
    starts = [start for start, _ in token_spans(text)]
    assert token_starts(text).tolist() == starts
    assert count_tokens(text) == len(starts)


@given(st.text(max_size=200), st.integers(0, 60))
def test_head_is_the_shortest_prefix_with_that_many_tokens(text, limit):
    cut = truncate(text, limit)
    total = count_tokens(text)
    assert text.startswith(cut)
    assert count_tokens(cut) == min(limit, total)
    if limit > total:
        assert cut == text
    elif limit:
        assert count_tokens(cut[:-1]) <= limit and not cut[-1:].isspace()


@pytest.mark.parametrize("length", [0, 399, 401, 3000])
def test_the_head_of_a_text_ends_with_its_last_token_whatever_its_length(length):
    draw = random.Random(length)
    for _ in range(200):
        pieces = ["word" * draw.randint(1, 300), *"ab é字.,\n_ ", "\u200d", "\ud83d", "😀"]
        text = "".join(draw.choice(pieces) for _ in range(length))[:length]
        spans = list(token_spans(text))
        for limit in (1, len(spans) // 2, len(spans) - 1, len(spans), len(spans) + 1):
            whole = limit > len(spans)
            expected = text if whole else text[: spans[limit - 1][1]] if limit > 0 else ""
            assert truncate(text, limit) == expected


def test_format_characters_are_dropped_and_no_others():
    # The general category Cf of the Unicode Character Database, by name.
    dropped = "\u200b\u200d\ufeff\u00ad\u202e\u2066\U000e0041"
    visible = "a é\u0301\u00a0\u20e3漢\U0001f600\ud800"
    for _ in range(2):
        assert without_format_characters(dropped.join(visible)) == visible
        assert without_format_characters(dropped) == ""
