"""Sentences by rules and by spaCy, and lines."""

from importlib.util import find_spec
from itertools import islice, pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.corpus import sentences
from soundingline.toolkit.corpus.segmentation import Passages
from soundingline.toolkit.corpus.sentences import (
    LINE_WIDTH,
    last_sentence_start,
    line_spans,
    rule_spans,
    without_break,
)
from soundingline.toolkit.data import Document
from soundingline.toolkit.errors import InputError

TRICKY = st.text(
    st.sampled_from("aBz1 .!?…\n\r\t\u00a0\u2003\"'”)([“。」,%-éİ𝔘"), max_size=120
) | st.text(max_size=120)


def split(text):
    return [text[start:end] for start, end in rule_spans(text)]


def lines(text, width=LINE_WIDTH):
    return [text[start:end] for start, end in line_spans(text, width)]


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
def test_sentences_end_where_a_reader_would_end_them(expected):
    assert split(" ".join(expected)) == expected


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
def test_line_breaks_and_full_width_stops_end_sentences(text, expected):
    assert split(text) == expected


@given(TRICKY)
def test_spans_are_ordered_trimmed_and_cover_all_visible_characters(text):
    spans = rule_spans(text)
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    assert edges == sorted(edges)
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
    gaps = [text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)]
    assert all(not gap.strip() for gap in gaps)
    assert all("\n" not in text[start:end] for start, end in spans)


@given(TRICKY, st.integers(1, 119), st.integers(1, 40))
def test_the_last_start_found_backwards_is_the_last_found_forwards(text, limit, near):
    text = text.strip() + " End"
    starts = [start for start, _ in rule_spans(text)][1:]
    limit = min(limit, len(text) - 1)
    expected = max((start for start in starts if start <= limit), default=0)
    assert last_sentence_start(text, 0, limit, near) == expected


def test_a_million_stops_take_no_more_than_linear_time():
    text = "..." * 200_000 + ")" * 100_000 + "x. " * 100_000
    assert len(rule_spans(text)) >= 1


@given(TRICKY, st.integers(1, 30))
def test_lines_partition_the_text_and_none_is_too_wide_or_empty(text, width):
    assert "".join(lines(text, width)) == text
    assert all(len(without_break(line)) <= width for line in lines(text, width))
    assert all(lines(text, width)) or text == ""


@given(st.lists(st.text(st.characters(exclude_characters="\r\n"), max_size=40), min_size=1))
def test_short_lines_stay_as_they_are(written):
    text = "\n".join(written)
    shown = [without_break(line) for line in lines(text, 40)]
    assert shown == (written if written[-1] or len(written) == 1 else written[:-1])


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("", 5, [""]),
        ("abc\r\nabc", 3, ["abc\r\n", "abc"]),  # A line break does not count as width.
        (
            "One two. Three Mr. Four. Five six seven. End.",
            30,
            ["One two. Three Mr. Four. ", "Five six seven. End."],
        ),
        ("alpha beta gamma delta", 12, ["alpha beta ", "gamma delta"]),
        ("a" * 25, 10, ["a" * 10, "a" * 10, "a" * 5]),
        ("Short one. " + "Word " * 300, 1000, ["Short one. ", "Word " * 200, "Word " * 100]),
    ],
)
def test_a_long_line_is_wrapped_after_a_sentence_or_a_word(text, width, expected):
    assert lines(text, width) == expected


INSTALLED = find_spec(sentences.MODEL) is not None


class Halves(SimpleNamespace):
    def __len__(self):
        return len(self.text.split())


class HalvingModel:
    """Ends a sentence after each semicolon and the white space behind it, as `senter` may; its
    tokens are what white space separates."""

    def pipe(self, texts):
        for text in texts:
            cuts = [0, *(i + 2 for i, c in enumerate(text) if c == ";"), len(text)]
            sents = [Halves(start_char=a, end_char=b, text=text[a:b]) for a, b in pairwise(cuts)]
            yield SimpleNamespace(sents=sents)


@pytest.mark.parametrize("longest", [100, 28])
def test_passages_by_spacy_are_packed_by_its_tokens_and_trimmed(monkeypatch, longest):
    monkeypatch.setattr(sentences, "_spacy_model", HalvingModel)
    monkeypatch.setattr(sentences, "spacy_version", lambda: "1")
    monkeypatch.setattr(sentences, "_LONGEST_PARSED", longest)
    text = " a b;\n\nc d; e e e e e; f;  g\n\nh "
    expected = ["a b;\n\nc d;", "e e e e e;", "f;  g\n\nh"]
    units = Passages(4, splitter="spacy").units(Document("d", "T", text))
    assert [unit.text for unit in units] == expected
    assert Passages(4, splitter="spacy").spans(Document("d", "T", " \n")) == [(0, 0)]


@pytest.mark.skipif(INSTALLED, reason="the model is installed here")
def test_an_absent_model_is_reported_with_the_command_that_installs_it():
    sentences._spacy_model.cache_clear()
    with pytest.raises(InputError, match=r"pip install -e '\.\[spacy\]'"):
        sentences.spacy_sentences("One. Two.")
    with pytest.raises(InputError, match=r"spacy download en_core_web_sm"):
        _ = Passages(splitter="spacy").fingerprint


def published_passages(text, size=250):
    """The published rule, written down again: sentences by `senter` alone, lengths in tokens; a
    sentence of `size` tokens or more is a passage, others are joined while their sum is at most
    `size`. White space is left out, because the published code joins sentences by spaces."""
    import spacy

    model = spacy.load(sentences.MODEL, disable=["parser"])
    for name in ("tagger", "ner", "attribute_ruler", "lemmatizer", "tok2vec"):
        model.disable_pipe(name)
    model.enable_pipe("senter")
    passages, current, length = [], [], 0
    for sentence in model(text).sents:
        count = sum(1 for _ in sentence)
        if current and (count >= size or length + count > size):
            passages.append(current)
            current, length = [], 0
        current, length = [*current, sentence.text], length + count
    passages.append(current)
    joined = ("".join("".join(passage).split()) for passage in passages)
    return [passage for passage in joined if passage]


@pytest.mark.skipif(not INSTALLED, reason="spaCy's en_core_web_sm is an optional install")
@pytest.mark.parametrize("size", [40, 250])
def test_passages_by_the_real_model_are_those_of_the_published_rule(size, data_root):
    articles = islice(BeirBenchmark(data_root / "wikimix").documents(), 0, 1000, 250)
    texts = [document.text for document in articles]
    texts += ["The ship sank. Nobody\ndrowned.\n\nIt was old.", "word " * 300 + "end. Two. Three."]
    segmenter = Passages(size, splitter="spacy")
    for text in texts:
        units = segmenter.units(Document("d", "T", text))
        assert ["".join(unit.text.split()) for unit in units] == published_passages(text, size)
