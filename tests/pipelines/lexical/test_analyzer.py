"""Expected terms come from Lucene itself (tests/data, which names its version), or from Porter's
paper; none from this project's own output."""

from __future__ import annotations

import gc
import gzip
import json
import pickle
import time
import weakref
from pathlib import Path

import pytest

from soundingline.pipelines.lexical import analyzers as analyzer_module
from soundingline.pipelines.lexical import word_break
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.pipelines.lexical.porter import stem
from soundingline.toolkit.errors import InputError

DATA = Path(__file__).resolve().parents[2] / "data"
NAMES = ["english", "english_unstemmed", "standard", "whitespace"]


@pytest.fixture(scope="module")
def lucene():
    return json.loads((DATA / "lucene_tokens.json").read_text(encoding="utf-8"))["texts"]


@pytest.mark.parametrize("name", NAMES)
def test_terms_are_lucenes_on_tricky_and_random_unicode(name, lucene):
    analyzer = make_analyzer(name)
    rows = [row for row in lucene if name in row]
    assert len(rows) > 100
    wrong = [
        (row["text"], analyzer.terms(row["text"]), row[name])
        for row in rows
        if analyzer.terms(row["text"]) != row[name]
    ]
    assert not wrong, wrong[:3]


def test_the_slow_specification_finds_the_same_words_as_the_fast_patterns(
    lucene,
):
    for row in lucene:
        assert word_break.segment(row["text"]) == word_break.scan(row["text"])


def at_each_place(text):
    """The longest match within 255 UTF-16 units at each place, none of which is passed over."""
    words, place = [], 0
    while place < len(text):
        window = word_break._within_limit(text[place : place + word_break.MAX_LENGTH])
        matches = [kind.match(window) for kind in word_break._unicode().kinds]
        ends = [match.end() for match in matches if match]
        words += [window[: max(ends)]] if ends else []
        place += max(ends, default=1)
    return words


@pytest.mark.parametrize(
    "row", ["_", "_\u0300", "\u203f\u200d", "\u0e31", "_\u0e31", "\U0001f3fb", "\u200d\ufe0f_"]
)
@pytest.mark.parametrize("ending", ["", "a", "\u05d0", "1", "\U0001f600", "\u0e01", ". a"])
def test_a_row_that_is_passed_over_holds_no_word(row, ending):
    lengths = (word_break.MAX_LENGTH - 1, word_break.MAX_LENGTH, word_break.MAX_LENGTH + 40)
    for length in lengths:
        text = "b " + (row * length)[:length] + ending
        assert word_break.scan(text) == at_each_place(text)


def test_no_character_of_a_row_that_is_passed_over_is_a_word_alone():
    patterns = word_break._unicode()
    held = [chr(code) for code in range(0x110000) if patterns.no_token.match(chr(code)).end()]
    assert len(held) > 2000
    for character in held:
        assert not any(kind.match(character * 3) for kind in patterns.kinds)


def test_words_of_ascii_text_do_not_depend_on_other_text_around_it(
    lucene,
):
    plain = [row["text"] for row in lucene if row["text"].isascii()]
    assert len(plain) > 100
    for text in plain:
        assert word_break.segment(f"{text} \u00e9") == [*word_break.segment(text), "\u00e9"]


def test_stems_are_lucenes_on_the_vocabulary_of_three_collections():
    lines = gzip.decompress((DATA / "porter_stems.txt.gz").read_bytes()).decode().splitlines()
    assert len(lines) > 50_000
    english = make_analyzer()
    wrong = [line for line in lines if english.term(line.split()[0]) != line.split()[1]]
    assert not wrong, wrong[:5]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        # Porter 1980, examples of each step carried to the end of the algorithm.
        ("generalizations", "gener"),
        ("oscillators", "oscil"),
        ("hopping", "hop"),
        ("falling", "fall"),
        ("controll", "control"),
        ("replacement", "replac"),
        ("adoption", "adopt"),
        # The author's departures from the paper, on his page: bli and logi.
        ("possibly", "possibl"),
        ("archaeology", "archaeolog"),
        # Words of one or two letters stay.
        ("as", "as"),
        ("is", "is"),
    ],
)
def test_stem_follows_porter(word, expected):
    assert stem(word) == expected


def test_terms_are_the_kept_terms_of_the_words():
    text = "The CATs' tails, and 3.14 o’clock at Ross’s — naïve."
    for name in NAMES:
        analyzer = make_analyzer(name)
        kept = [term for word in analyzer.words(text) if (term := analyzer.term(word)) is not None]
        assert analyzer.terms(text) == kept


def test_no_term_is_empty(lucene):
    for name in NAMES:
        analyzer = make_analyzer(name)
        assert all(all(analyzer.terms(row["text"])) for row in lucene)


def test_unknown_analyzer_is_refused_with_the_valid_names():
    with pytest.raises(InputError, match=r"'englsh'.*english_unstemmed.*whitespace"):
        make_analyzer("englsh")


def test_fingerprints_tell_analyzers_and_their_data_apart(
    monkeypatch,
):
    prints = {make_analyzer(name).fingerprint for name in NAMES}
    assert len(prints) == len(NAMES)
    assert make_analyzer().fingerprint == make_analyzer("english").fingerprint
    before = make_analyzer().fingerprint
    monkeypatch.setattr(analyzer_module, "VERSION", "unicode-99")
    assert make_analyzer().fingerprint != before


@pytest.mark.parametrize("name", NAMES)
def test_an_analyzer_survives_pickling(name):
    analyzer = make_analyzer(name)
    again = pickle.loads(pickle.dumps(analyzer))
    assert again.fingerprint == analyzer.fingerprint
    assert again.terms("The running dogs'") == analyzer.terms("The running dogs'")


def test_full_caches_change_no_result(monkeypatch):
    words = [f"running{number}s é{number}" for number in range(50)]
    expected = [make_analyzer().terms(text) for text in words]
    monkeypatch.setattr(analyzer_module, "_CACHED_TERMS", 7)
    monkeypatch.setattr(word_break, "_PIECES_KEPT", 7)
    small = make_analyzer()
    assert [small.terms(text) for text in words] == expected
    assert small.terms(" ".join(words)) == [term for terms in expected for term in terms]


@pytest.mark.parametrize("name", [*NAMES, "sira", "english:2"])
def test_what_an_analyzer_remembers_goes_with_it(name):
    if name == "sira":
        pytest.importorskip("snowballstemmer")
    analyzer = make_analyzer(name)
    analyzer.terms("Sounding lines")
    gc.disable()  # it would free a circle too, but late
    try:
        reference = weakref.ref(analyzer)
        del analyzer
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("piece", ["_", "\u200d", "'", "\u0301", "a", "a_", "\u05d0'", "1,"])
def test_a_long_text_without_spaces_takes_no_quadratic_time(piece):
    started = time.process_time()
    make_analyzer().terms(piece * 100_000 + " \u00e9")
    assert time.process_time() - started < 5
