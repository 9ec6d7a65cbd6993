"""The analysis of SIRA's released code: what its own tests and Snowball's page expect."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soundingline.pipelines.lexical.analyzers import SIRA_STOP_WORDS, STOP_WORDS, make_analyzer
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.lexical.storage import to_bytes
from soundingline.pipelines.lexical.word_table import WordTable

pytest.importorskip("snowballstemmer")

# From the examples of Snowball's English stemmer: snowballstem.org/algorithms/english/stemmer.html
STEMS = {
    **dict.fromkeys(("consign", "consigned", "consigning", "consignment"), "consign"),
    **dict.fromkeys(("consist", "consistency", "consistently", "consists"), "consist"),
    **{"consolation": "consol", "consolidate": "consolid", "conspicuously": "conspicu"},
    **{"knackeries": "knackeri", "knavish": "knavish", "kneeling": "kneel", "knightly": "knight"},
}


@pytest.mark.parametrize(("word", "stem"), STEMS.items())
def test_stems_are_those_of_snowballs_page(word, stem):
    assert make_analyzer("sira").terms(word.upper()) == [stem]


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
    ],
)
def test_text_is_folded_before_it_is_cut(text, terms):
    assert make_analyzer("sira").terms(text) == terms


def test_it_leaves_out_lucenes_stop_words_and_more():
    assert STOP_WORDS < SIRA_STOP_WORDS and len(SIRA_STOP_WORDS) == 132
    assert make_analyzer("sira").terms(" ".join(SIRA_STOP_WORDS)) == []


ALPHABET = "aZs9_.'- \u00e9\u00a0\u2014\u00bd\u2026\u0301\ud800\u212a\u0130"


@given(st.text(alphabet=ALPHABET, max_size=60))
def test_terms_of_the_pieces_are_those_of_the_text(text):
    analyzer = make_analyzer("sira")
    assert analyzer.byte_classes is not None
    table = WordTable(analyzer.byte_classes)
    numbers, _ = table.numbers([to_bytes(text)])
    pieces = [table.forms(0)[number] for number in numbers.tolist()]
    parts = [term for piece in pieces for term in analyzer.terms(piece)]
    terms = analyzer.terms(text)
    assert parts == terms
    words = analyzer.words(text)
    assert [term for word in words if (term := analyzer.term(word)) is not None] == terms
    assert all(term.isascii() and term.isalnum() for term in terms)


def test_an_index_is_of_its_analyzer_and_takes_pairs(tmp_path):
    units = [{"docno": "d1", "text": "The r\u00e9sum\u00e9s of both knightly houses"}]
    path = tmp_path / "index"
    index = LexicalIndex.build(units, path, analyzer="sira:2")
    assert list(index.vocabulary) == ["hous", "knight", "knight hous", "resum", "resum knight"]
    assert index.bm25().search("resume knights")["docno"].tolist() == ["d1"]
    assert index.analyzer.fingerprint != make_analyzer("english:2").fingerprint
    copy = pickle.loads(pickle.dumps(make_analyzer("sira")))
    assert copy.fingerprint == make_analyzer("sira").fingerprint


def test_threads_may_share_it():
    words = [f"{word}{number}ing" for number in range(300) for word in ("consist", "knight")]
    alone = [make_analyzer("sira").term(word) for word in words]
    shared = make_analyzer("sira")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(shared.term, words)) == alone
