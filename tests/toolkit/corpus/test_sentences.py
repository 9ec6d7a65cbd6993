import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.corpus.sentences import last_sentence_start, rule_spans

TRICKY = st.text(
    st.sampled_from("aBz1 .!?…\n\r\t\u00a0\u2003\"'”)([“。」,%-éİ𝔘"), max_size=120
) | st.text(max_size=120)


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in rule_spans(text)]


@pytest.mark.parametrize(
    "expected",
    [
        ["The ship sank.", "Nobody drowned!", "Why did it sink?", "It was old."],
        ["Mr. Olde met Dr. Ray Smith at St. Mary's.", "They talked."],
        ["J. R. R. Tolkien wrote it.", "It sold well."],
        ["She moved to the U.S. Army base.", "She left the U.S.", "The base closed."],
        ["Pi is 3.14 and e is 2.718.", "Both are irrational."],
        ["See Fig. 3 and No. 7 on pp. 12 and 13.", "They differ."],
        ["Is it true?", "No.", "It is false."],
        ["Tools, e.g. hammers, i.e. heavy ones, vs. Saws.", "All help."],
        ["He said \u201cGo away.\u201d", "Then he left."],
        ['"Who is it?" he asked.', "Nobody knew."],
        ["(He was late.)", "(She was not.)"],
        ["Well ... maybe not.", "He waited…", "Nothing came."],
        ["Acme Inc. makes tar.", "It was run by Acme Inc.", "The tar is black."],
        ["1. Heat the oven.", "2. Wait."],
        ["It ended in 1994.", "The rest is known."],
        ["It opened at 5 p.m.", "The queue was long."],
        ["Yahoo! is a firm.", "Really?!", "Yes."],
        ["Dates such as Jan. 5 matter.", "It ended in Jan.", "Nobody came."],
        ["no stop at the end"],
    ],
)
def test_sentences_end_where_a_reader_would_end_them(expected: list[str]) -> None:
    assert sentences(" ".join(expected)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A title\n\nthe text of\na poem", ["A title", "the text of", "a poem"]),
        ("It ended.\nlower case goes on", ["It ended.", "lower case goes on"]),
        ("See Mr.\r\nSmith.  \n \n", ["See Mr.", "Smith."]),
        ("雨が降った。「晴れた。」", ["雨が降った。", "「晴れた。」"]),
        ("", []),
        (" \n\t ", []),
    ],
)
def test_line_breaks_and_full_width_stops_end_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(TRICKY)
def test_spans_are_ordered_trimmed_and_cover_all_visible_characters(text: str) -> None:
    spans = rule_spans(text)
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    assert edges == sorted(edges)
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
    gaps = [text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)]
    assert all(not gap.strip() for gap in gaps)
    assert all("\n" not in text[start:end] for start, end in spans)


@given(TRICKY, st.integers(1, 119), st.integers(1, 40))
def test_the_last_start_found_backwards_is_the_last_found_forwards(
    text: str, limit: int, near: int
) -> None:
    text = text.strip() + " End"
    starts = [start for start, _ in rule_spans(text)][1:]
    limit = min(limit, len(text) - 1)
    expected = max((start for start in starts if start <= limit), default=0)
    assert last_sentence_start(text, 0, limit, near) == expected


def test_a_million_stops_take_no_more_than_linear_time() -> None:
    text = "..." * 200_000 + ")" * 100_000 + "x. " * 100_000
    assert len(rule_spans(text)) >= 1
