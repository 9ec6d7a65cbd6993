"""Sentences by rules and by spaCy, lines, the units of segmenters, and counting and cutting of
tokens."""

import pickle
import random
import re
from importlib.util import find_spec
from itertools import islice, pairwise
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.assertions import refused
from support.benchmarks import WordBackend, store_of
from support.checkpoints import write_tokenizer

from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.corpus import segmentation
from soundingline.toolkit.corpus.segmentation import (
    LINE_WIDTH,
    DocumentHead,
    Passages,
    WholeDocument,
    last_sentence_start,
    line_spans,
    pack,
    rule_spans,
    without_break,
)
from soundingline.toolkit.data import Document, parent
from soundingline.toolkit.search import RankedBrowsing, TopK
from soundingline.toolkit.tokens import (
    WORDS,
    count_tokens,
    load_tokenizer,
    token_starts,
    truncate,
    without_format_characters,
)

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
        ("One two. Three Mr. Four. Five. End.", 30, ["One two. Three Mr. Four. ", "Five. End."]),
        ("alpha beta gamma delta", 12, ["alpha beta ", "gamma delta"]),
        ("a" * 25, 10, ["a" * 10, "a" * 10, "a" * 5]),
        ("Short one. " + "Word " * 300, 1000, ["Short one. ", "Word " * 200, "Word " * 100]),
    ],
)
def test_a_long_line_is_wrapped_after_a_sentence_or_a_word(text, width, expected):
    assert lines(text, width) == expected


INSTALLED = find_spec(segmentation.MODEL) is not None


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
    monkeypatch.setattr(segmentation, "_spacy_model", HalvingModel)
    monkeypatch.setattr(segmentation, "spacy_version", lambda: "1")
    monkeypatch.setattr(segmentation, "_LONGEST_PARSED", longest)
    text = " a b;\n\nc d; e e e e e; f;  g\n\nh "
    expected = ["a b;\n\nc d;", "e e e e e;", "f;  g\n\nh"]
    units = Passages(4, splitter="spacy").units(Document("d", "T", text))
    assert [unit.text for unit in units] == expected
    assert Passages(4, splitter="spacy").spans(Document("d", "T", " \n")) == [(0, 0)]


@pytest.mark.skipif(INSTALLED, reason="the model is installed here")
def test_an_absent_model_is_reported_with_the_command_that_installs_it():
    segmentation._spacy_model.cache_clear()
    refused(r"pip install -e '\.\[spacy\]'", segmentation.spacy_sentences, "One. Two.")
    refused(r"spacy download en_core_web_sm", lambda: Passages(splitter="spacy").fingerprint)


def published_passages(text, size=250):
    """The published rule, written down again: sentences by `senter` alone, lengths in tokens; a
    sentence of `size` tokens or more is a passage, others are joined while their sum is at most
    `size`. White space is left out, because the published code joins sentences by spaces."""
    import spacy

    model = spacy.load(segmentation.MODEL, disable=["parser"])
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


# Segmenters.

TEXTS = st.text(st.sampled_from("aB1_ .!?\n\u00a0,'É—𝔘"), max_size=300) | st.text(max_size=200)

# The first call in a process makes a table.
unhurried = settings(deadline=None)


def document(text, title="T"):
    return Document("d", title, text)


@unhurried
@given(TEXTS, st.integers(1, 30))
def test_passages_cover_all_visible_text_and_are_packed_greedily(text, limit):
    spans, sentences = Passages(limit).spans(document(text)), rule_spans(text)
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    assert edges == sorted(edges)
    assert not "".join(text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)).strip()
    for span in spans:
        assert count_tokens(text[slice(*span)]) <= limit or span in sentences
    ends = dict(sentences)
    for (start, _), (next_start, _) in pairwise(spans):
        assert count_tokens(text[start : ends[next_start]]) > limit


def test_a_sentence_beyond_the_budget_stands_alone():
    text = "One. " + "Word " * 9 + "end. Two. Three."
    units = list(Passages(5).units(document(text)))
    assert [unit.text for unit in units] == ["One.", "Word " * 9 + "end.", "Two. Three."]


def test_what_is_left_of_a_token_that_a_splitter_cut_counts_as_a_token():
    text = "x x x cannot go on on on"
    packed = pack(text, [(0, 9), (9, 15), (16, 24)], 4)
    assert [text[a:b] for a, b in packed] == ["x x x can", "not go", "on on on"]


def test_passage_ids_count_from_zero_and_a_title_is_in_front_and_is_not_counted():
    units = list(Passages(2).units(document("One. Two.", title="A title of five words")))
    assert [unit.unit_id for unit in units] == ["d%p0", "d%p1"]
    assert {parent(unit.unit_id) for unit in units} == {"d"}
    title = "A title of five words"
    assert [unit.contents for unit in units] == [f"{title}\nOne.", f"{title}\nTwo."]


@pytest.mark.parametrize("text", ["", " \n "])
@pytest.mark.parametrize("segmenter", [WholeDocument(), DocumentHead(), Passages()])
def test_no_document_vanishes(segmenter, text):
    (unit,) = segmenter.units(document(text))
    assert unit.text.strip() == ""
    assert len(segmenter.spans(document(text))) == 1


@unhurried
@given(TEXTS, st.sampled_from([WholeDocument(), DocumentHead(5), Passages(5)]))
def test_units_are_the_text_at_the_spans(text, segmenter):
    spans = segmenter.spans(document(text))
    assert [unit.text for unit in segmenter.units(document(text))] == [text[a:b] for a, b in spans]


def test_a_head_and_a_complete_document_are_one_unit():
    assert list(DocumentHead(3).units(document("One, two three."))) == [("d", "T", "One, two")]
    assert list(WholeDocument().units(document(" x. y "))) == [("d", "T", " x. y ")]


def test_fingerprints_follow_the_cut_and_nothing_else():
    maxp, plain = Passages(aggregate=True), Passages()
    assert (maxp.aggregate, plain.aggregate) == (True, False)
    assert (maxp.fingerprint, maxp.name) == (plain.fingerprint, plain.name)
    segmenters = [WholeDocument(), DocumentHead(), DocumentHead(9), plain, Passages(9)]
    segmenters.append(Passages(splitter="released"))
    assert len({segmenter.fingerprint for segmenter in segmenters}) == len(segmenters)
    assert pickle.loads(pickle.dumps(maxp)) == maxp


@pytest.mark.parametrize("value", [0, -1, 2.5, "250", None, True])
@pytest.mark.parametrize("segmenter", [Passages, DocumentHead])
def test_a_budget_that_is_no_positive_integer_is_refused(segmenter, value):
    refused(r"max_tokens=.* valid: a whole number, 1 or more", segmenter, max_tokens=value)


def test_an_unknown_splitter_is_refused_with_the_known_ones():
    refused(r"splitter is 'nltk'. valid: rules, spacy, released", Passages, splitter="nltk")


# Counting and cutting by words and marks, and by the tokenizer of a model.


TOKEN = re.compile(r"\w+|[^\w\s]")
LONG = "the harbour kings antidisestablishment  \u00e9\u6f22\U0001f6a2\tx " * 400


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokens") / "tokenizer.json")


@pytest.fixture(scope="module")
def reference(path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def head_of(reference, text, limit):
    ends = [end for _, end in reference.encode(text).offsets]
    return text if len(ends) < limit else text[: ends[limit - 1]] if limit else ""


def test_tokens_are_counted_as_the_library_counts_them(path, reference):
    tokens = load_tokenizer(str(path))
    assert tokens.count(LONG) == len(reference.encode(LONG).ids) != count_tokens(LONG)
    assert tokens.count("") == 0


@given(text=st.text(), limit=st.integers(min_value=0, max_value=30))
@example(text=LONG, limit=1)
@example(text=LONG, limit=100)
@example(text=LONG, limit=511)
@example(text="harbour" * 3000 + " end", limit=20)
def test_a_head_has_the_first_tokens_of_the_complete_text(path, reference, text, limit):
    assert load_tokenizer(str(path)).truncate(text, limit) == head_of(reference, text, limit)


def test_only_a_beginning_of_a_long_text_is_read_for_its_head(path, monkeypatch):
    tokens, read = load_tokenizer(str(path)), []
    encoded = tokens._encoded
    monkeypatch.setattr(tokens, "_encoded", lambda text: read.append(len(text)) or encoded(text))
    tokens.truncate(LONG * 50, 10)
    assert max(read) < 2000


def test_a_folder_and_a_name_of_the_hub_are_read_and_named(path, monkeypatch):
    import huggingface_hub

    files = []

    def download(name, file, revision=None):
        files.append((name, file))
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    named = load_tokenizer("owner/tiny-tokens")
    assert files == [("owner/tiny-tokens", "tokenizer.json")]
    content = load_tokenizer(str(path)).fingerprint.rpartition("@")[2]
    assert named.fingerprint == f"owner/tiny-tokens@{content}"
    assert load_tokenizer(str(path.parent)).count("king") == named.count("king")


@pytest.mark.parametrize("source", ["nowhere.json", "/a/b/c", "{folder}/empty", "{folder}"])
def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path, source):
    (tmp_path / "empty").write_text("{}")
    refused("no tokenizer|not a tokenizer", lambda: load_tokenizer(source.format(folder=tmp_path)))


def test_tools_and_heads_use_the_tokenizer(path, reference):
    text = "the harbour of the king " * 60
    document = Document("d1", "", text)
    backend, store = WordBackend({"d1": text}), store_of({"d1": document})
    expected = head_of(reference, text, 16)
    tool = TopK(k=1, max_tokens=16, tokenizer=str(path)).open(backend, store)
    result = tool.call("search", {"query": "king"})
    assert result.text.endswith(f"\n{expected}\n[cut after 16 tokens]")
    assert result.call.tokens == len(reference.encode(result.text).ids)
    browsing = RankedBrowsing(tokenizer=str(path)).open(backend, store)
    page = browsing.call("search", {"reason": "r", "query": "king"})
    assert page.call.tokens == len(reference.encode(page.text).ids)
    unit = DocumentHead(16, str(path))
    assert [each.text for each in unit.units(document)] == [expected]
    assert unit.fingerprint != DocumentHead(16).fingerprint


def test_without_a_tokenizer_words_and_visible_marks_count():
    assert load_tokenizer(None) is WORDS and WORDS.fingerprint == "words and marks"
    assert count_tokens("It cost $3.50, didn't it?") == 12
    assert count_tokens("") == count_tokens(" \n\t ") == 0


@given(st.text(max_size=900))
def test_the_array_path_has_the_tokens_of_the_expression(text):
    starts = [match.start() for match in TOKEN.finditer(text)]
    assert token_starts(text).tolist() == starts
    assert count_tokens(text) == len(starts)


@pytest.mark.parametrize("length", [0, 30, 399, 401, 3000])
def test_the_head_of_a_text_ends_with_its_last_token_whatever_its_length(length):
    draw = random.Random(length)
    for _ in range(100):
        pieces = ["word" * draw.randint(1, 300), *"ab é字.,\n_ ", "\u200d", "😀"]
        text = "".join(draw.choice(pieces) for _ in range(length))[:length]
        spans = [match.span() for match in TOKEN.finditer(text)]
        for limit in (0, 1, len(spans) // 2, len(spans) - 1, len(spans), len(spans) + 1):
            complete = limit > len(spans)
            expected = text if complete else text[: spans[limit - 1][1]] if limit > 0 else ""
            assert truncate(text, limit) == expected


def test_format_characters_are_dropped_and_no_others():
    # The general category Cf of the Unicode Character Database, by name.
    dropped = "\u200b\u200d\ufeff\u00ad\u202e\u2066\U000e0041"
    visible = "a é\u0301\u00a0\u20e3漢\U0001f600\ud800"
    assert without_format_characters(dropped.join(visible)) == visible
    assert without_format_characters(dropped) == ""
