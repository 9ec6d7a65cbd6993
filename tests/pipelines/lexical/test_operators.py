"""Quoted phrases and exclusions against a brute-force reading of every text."""

import re

import numpy as np
import pandas as pd
import pytest

from soundingline.pipelines import BM25, LexicalIndex
from soundingline.pipelines.compose import compose
from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.enrich.enrichment import Enrichment
from soundingline.pipelines.enrich.feedback import FeedbackPhrases
from soundingline.pipelines.lexical.operators import parse
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

STOP = {"of", "the"}
WORDS = ["tide", "mill", "harbour", "pier", *STOP]


def units():
    random = np.random.default_rng(5)
    texts = [" ".join(random.choice(WORDS, random.integers(1, 9))) for _ in range(150)]
    return [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]


@pytest.fixture(scope="module", params=["english", "english:2"])
def index(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "index"
    return LexicalIndex.build(units(), path, analyzer=request.param, keep_texts=True)


def words(text):
    return [word for word in re.findall("[a-z]+", text.lower()) if word not in STOP]


def occurs(phrase, text):
    """Whether the words of a phrase are adjacent, by strings instead of lists of terms."""
    return f" {' '.join(words(phrase))} " in f" {' '.join(words(text))} "


def ranked(retriever, query):
    found = retriever(pd.DataFrame({"qid": ["q"], "query": [query]}))
    return dict(zip(found["docno"], found["score"], strict=True))


# query, its words without operators, required and excluded phrases
QUERIES = [
    ('"tide mill" pier', "tide mill pier", ["tide mill"], []),
    ('"tide of the mill"', "tide mill", ["tide mill"], []),
    ('"of the" pier', "pier", [], []),
    ('"tide mill" "harbour pier"', "tide mill harbour pier", ["tide mill", "harbour pier"], []),
    ("“tide mill” pier", "tide mill pier", ["tide mill"], []),
    ("pier -mill", "pier", [], ["mill"]),
    ("pier -mill -harbour", "pier", [], ["mill", "harbour"]),
    ('pier -"tide mill"', "pier", [], ["tide mill"]),
    ('"pier tide" -"tide mill" -harbour', "pier tide", ["pier tide"], ["tide mill", "harbour"]),
    ('pier -"tide', "pier tide", [], []),
    ('pier "tide mill', "pier tide mill", [], []),
    ('"tide mill" pier "harbour', "tide mill pier harbour", ["tide mill"], []),
    ("tide-mill - pier", "tide mill pier", [], []),
    ("pier -tide-mill", "pier", [], ["tide mill"]),
    ('"" pier', "pier", [], []),
    ('"pier"', "pier", ["pier"], []),
    ('"unknown pier"', "pier", ["unknown pier"], []),
    ("pier -unknown -the", "pier", [], ["unknown"]),
    ("-mill", "", [], []),
    ('-"tide mill" -pier', "", [], []),
]


@pytest.mark.parametrize(("query", "plain", "required", "excluded"), QUERIES)
def test_phrases_and_exclusions_are_those_of_brute_force(query, plain, required, excluded, index):
    whole = ranked(index.bm25(depth=1000), plain)
    expected = {
        unit.unit_id: whole[unit.unit_id]
        for unit in units()
        if unit.unit_id in whole
        and all(occurs(phrase, unit.text) for phrase in required)
        and not any(occurs(phrase, unit.text) for phrase in excluded)
    }
    if index.analyzer.longest == 2:  # pairs of words count in scores, and not in filters
        expected = dict.fromkeys(expected)
    found = ranked(BM25(operators="phrases", index=index), query)
    if index.analyzer.longest == 1:
        assert found == expected
    else:
        assert found.keys() == expected.keys()
    assert list(found.values()) == sorted(found.values(), reverse=True)
    # A shallower ranking is the beginning of the whole one, and candidates get the same scores.
    shallow = ranked(BM25(operators="phrases", depth=3, index=index), query)
    assert list(shallow.items()) == list(found.items())[:3]
    frame = pd.DataFrame({"qid": "q", "query": query, "docno": [unit.unit_id for unit in units()]})
    scored = BM25(operators="phrases", index=index)(frame)
    positive = scored[scored["score"] > 0]
    assert dict(zip(positive["docno"], positive["score"], strict=True)) == found


def test_the_queries_of_these_tests_let_some_pass_and_stop_some(index):
    counts = [len(ranked(BM25(operators="phrases", index=index), query)) for query, *_ in QUERIES]
    plain = [len(ranked(index.bm25(), query)) for query, *_ in QUERIES]
    assert sum(0 < left < whole for left, whole in zip(counts, plain, strict=True)) >= 8


def test_operators_are_ignored_unless_they_are_chosen(index):
    default = ranked(index.bm25(), '"tide mill" -pier')
    assert default == ranked(index.bm25(), "tide mill pier")


def test_the_text_without_operators_keeps_its_other_words():
    parsed = parse('who built the "tide mill" -pier in 1900')
    assert parsed.text.split() == ["who", "built", "the", "tide", "mill", "in", "1900"]
    assert (parsed.phrases, parsed.excluded) == (("tide mill",), ("pier",))


def test_texts_come_from_the_collection_if_the_index_has_none(tmp_path):
    made = LexicalIndex.build(units(), tmp_path / "index", keep_texts=False)
    by_id = {unit.unit_id: unit for unit in units()}
    collection = Collection("c", made, texts=lambda ids: [by_id[name] for name in ids])
    found = ranked(BM25(operators="phrases").bind(collection), '"tide mill"')
    assert found.keys() == {name for name, u in by_id.items() if occurs("tide mill", u.text)}
    with pytest.raises(InputError, match="stores no texts"):
        ranked(BM25(operators="phrases", index=made), '"tide mill"')


def test_operators_without_meaning_are_refused():
    with pytest.raises(InputError, match="operators is 'quotes'"):
        BM25(operators="quotes")
    with pytest.raises(InputError, match="knows no retriever"):
        BM25(operators="phrases").validate(PisaEngine())
    enrichment = Enrichment(query=FeedbackPhrases())
    with pytest.raises(InputError, match="enriched query"):
        compose(BM25(operators="phrases"), enrichment=enrichment)
