"""Expected terms come from Lucene itself (tests/data, which names its version), Porter's paper,
Snowball's page and the tests of SIRA's released code; none from this project's own output."""

import gc
import gzip
import json
import pickle
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.needs import cases

from soundingline.pipelines.lexical import analyzers as analyzer_module
from soundingline.pipelines.lexical import word_break
from soundingline.pipelines.lexical.analyzers import (
    SEPARATOR,
    SIRA_STOP_WORDS,
    STOP_WORDS,
    make_analyzer,
    porter_stem,
)
from soundingline.pipelines.lexical.index import LexicalIndex

needs_snowball = pytest.mark.skipif(
    not find_spec("snowballstemmer"), reason="the stemmer of sira is optional"
)

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
    again = pickle.loads(pickle.dumps(analyzer))
    assert again.fingerprint == analyzer.fingerprint
    for row in rows:
        terms = again.terms(row["text"])
        assert terms == row[name] and all(terms)
        of_words = map(analyzer.term, analyzer.words(row["text"]))
        assert terms == [term for term in of_words if term is not None]


def test_the_slow_specification_finds_the_same_words_as_the_fast_patterns(lucene):
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


def test_words_of_ascii_text_do_not_depend_on_other_text_around_it(lucene):
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
    assert porter_stem(word) == expected


def test_fingerprints_tell_analyzers_and_their_data_apart(monkeypatch):
    prints = {make_analyzer(name).fingerprint for name in NAMES}
    assert len(prints) == len(NAMES)
    assert make_analyzer().fingerprint == make_analyzer("english").fingerprint
    before = make_analyzer().fingerprint
    monkeypatch.setattr(analyzer_module, "VERSION", "unicode-99")
    assert make_analyzer().fingerprint != before


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


def test_pairs_stand_on_terms_and_span_stop_words():
    analyzer = make_analyzer("english:3")
    assert analyzer.terms("The keepers of the old lamps") == [
        *("keeper", "old", "lamp"),
        *("keeper old", "old lamp"),
        "keeper old lamp",
    ]
    assert analyzer.terms("keepers") == ["keeper"]
    assert analyzer.terms("") == []


LETTERS = "ab9 _.,'\"\u202f\u200d\u0301\u05d0\u30a2\u4e00\u0e01\U0001f600\U0001f1e6\u2014\u00e9"


@pytest.mark.parametrize(
    "name", ["english", "standard", "whitespace", "sira", "english:3", "english:2:hashed", "sira:2"]
)
@settings(max_examples=cases(60), deadline=None)
@given(parts=st.lists(st.text() | st.text(LETTERS) | st.just("a _" * 90), max_size=4))
@example(parts=['\u05d0\u202f"', "\u05d0"])
def test_no_term_spans_a_separator(name, parts):
    if name.startswith("sira"):
        pytest.importorskip("snowballstemmer")
    if name.endswith("hashed"):
        pytest.importorskip("sklearn.utils")
    analyzer = make_analyzer(name)
    apart = [
        term for part in parts for piece in part.split(SEPARATOR) for term in analyzer.terms(piece)
    ]
    assert analyzer.terms(SEPARATOR.join(parts)) == apart


def test_an_index_with_pairs_counts_words_alone_in_lengths(tmp_path):
    units = [{"docno": "d1", "text": "old lamp, old lamp"}, {"docno": "d2", "text": "lamp"}]
    index = LexicalIndex.build(units, tmp_path / "index", analyzer="english:2")
    assert list(index.vocabulary) == ["lamp", "lamp old", "old", "old lamp"]
    assert index._arrays.lengths.tolist() == [4, 1]
    assert index.statistics.tokens == 5
    numbers, frequencies = index.postings("old lamp")
    assert (numbers.tolist(), frequencies.tolist()) == ([0], [2])
    assert index.bm25().search("old lamp")["docno"].tolist() == ["d1", "d2"]
    plain = LexicalIndex.build(units, tmp_path / "plain")
    assert plain._arrays.lengths.tolist() == index._arrays.lengths.tolist()
    assert plain.analyzer.fingerprint != index.analyzer.fingerprint


@pytest.mark.parametrize("name", ["english:2", "english:4", "english:3:hashed"])
def test_vectors_of_documents_have_all_terms_and_n_grams(tmp_path, name):
    if name.endswith("hashed"):
        pytest.importorskip("sklearn.utils")
    # Hardly a word comes twice, so that a document has more terms than words.
    texts = [" ".join(f"word{(7 * n + d) % 23}" for n in range(20)) for d in range(40)]
    units = [{"docno": f"d{d}", "text": text} for d, text in enumerate(texts)]
    index = LexicalIndex.build(units, tmp_path / "index", analyzer=name)
    vectors = index.vectors(np.arange(len(texts)))
    for text, (terms, frequencies) in zip(texts, vectors, strict=True):
        names = [index.vocabulary[int(term)] for term in terms]
        held = dict(zip(names, frequencies.tolist(), strict=True))
        assert held == Counter(make_analyzer(name).terms(text))


def test_pairs_in_slots_are_numbers_below_the_number_of_slots():
    murmur = pytest.importorskip("sklearn.utils").murmurhash3_32
    analyzer = make_analyzer("english:2:hashed")
    slot = murmur(b"old lamp", positive=True) % 2**23
    assert analyzer.terms("old lamps") == ["old", "lamp", f" {slot}"]


# From the examples of Snowball's English stemmer: snowballstem.org/algorithms/english/stemmer.html
STEMS = {
    **dict.fromkeys(("consign", "consigned", "consigning", "consignment"), "consign"),
    **dict.fromkeys(("consist", "consistency", "consistently", "consists"), "consist"),
    **{"consolation": "consol", "consolidate": "consolid", "conspicuously": "conspicu"},
    **{"knackeries": "knackeri", "knavish": "knavish", "kneeling": "kneel", "knightly": "knight"},
}


@needs_snowball
@pytest.mark.parametrize(("word", "expected"), STEMS.items())
def test_stems_are_those_of_snowballs_page(word, expected):
    assert make_analyzer("sira").terms(word.upper()) == [expected]


@needs_snowball
@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("the cats are running quickly", ["cat", "run", "quick"]),
        ("caf\u00e9 r\u00e9sum\u00e9s na\u00efvely", ["cafe", "resum", "naiv"]),
        ("\uff28\uff45\uff4c\uff4c\uff4f", ["hello"]),  # full width
        ("hello, world! how's it going?", ["hello", "world", "go"]),
        ("3.14 of 1,000", ["3", "14", "1", "000"]),
        # The released code drops what is not ASCII before it cuts: marks of Unicode join words.
        ("harbour\u2014tide", ["harbourtid"]),
        ("tide\u00a0table", ["tide", "tabl"]),
        ("\u041c\u043e\u0441\u043a\u0432\u0430 1147", ["1147"]),
        ("", []),
        (" ".join(SIRA_STOP_WORDS | STOP_WORDS), []),
    ],
)
def test_sira_folds_text_before_it_is_cut(text, terms):
    assert make_analyzer("sira").terms(text) == terms


@needs_snowball
def test_an_index_is_of_its_analyzer_and_takes_pairs(tmp_path):
    units = [{"docno": "d1", "text": "The r\u00e9sum\u00e9s of both knightly houses"}]
    path = tmp_path / "index"
    index = LexicalIndex.build(units, path, analyzer="sira:2")
    assert list(index.vocabulary) == ["hous", "knight", "knight hous", "resum", "resum knight"]
    assert index.bm25().search("resume knights")["docno"].tolist() == ["d1"]
    assert index.analyzer.fingerprint != make_analyzer("english:2").fingerprint
    copy = pickle.loads(pickle.dumps(make_analyzer("sira")))
    assert copy.fingerprint == make_analyzer("sira").fingerprint


@needs_snowball
def test_threads_may_share_sira():
    words = [f"{word}{number}ing" for number in range(300) for word in ("consist", "knight")]
    alone = [make_analyzer("sira").term(word) for word in words]
    shared = make_analyzer("sira")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(shared.term, words)) == alone
