"""The locator of evidence, against BM25 of the whole index cut to the document."""

from __future__ import annotations

import pytest

from soundingline.pipelines import LexicalIndex
from soundingline.pipelines.evidence import LexicalLocator
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.corpus import Passages
from soundingline.toolkit.data import Unit, parent
from soundingline.toolkit.errors import InputError

REQUIREMENTS = ["The river drove between 20 and 150 mills.", "It is built of red brick", "zzzz"]


@pytest.fixture(scope="module")
def documents():
    world = FictionalWorld(documents=64, questions="sets:4", median_words=300, p90_words=900)
    return list(world.documents())


@pytest.fixture(scope="module")
def units(documents):
    return [unit for document in documents for unit in Passages(60).units(document)]


@pytest.fixture(scope="module")
def index(units, tmp_path_factory):
    return LexicalIndex.build(units, tmp_path_factory.mktemp("evidence") / "index")


def test_passages_and_scores_are_those_of_a_search_of_the_whole_index(index, documents, units):
    docids = [document.docid for document in documents[5:40:3]]
    located = LexicalLocator(index).locate(docids, REQUIREMENTS, most=4)
    for number, requirement in enumerate(REQUIREMENTS):
        numbers, scores = index.search(index.analyzer.terms(requirement), depth=len(units))
        ranked = [(units[n].unit_id, score) for n, score in zip(numbers, scores, strict=True)]
        for docid, rows in zip(docids, located, strict=True):
            expected = [row for row in ranked if parent(row[0]) == docid][:4]
            assert [passage.unit_id for passage in rows[number]] == [row[0] for row in expected]
            found = [passage.score for passage in rows[number]]
            assert found == pytest.approx([score for _, score in expected], rel=1e-5)
    assert any(rows[0] for rows in located)
    assert not any(rows[2] for rows in located)


def test_a_frequency_that_one_byte_does_not_hold_counts(tmp_path):
    units = [Unit("a%p0", "", "tide " * 300), Unit("a%p1", "", "tide mill"), Unit("b%p0", "", "x")]
    index = LexicalIndex.build(units, tmp_path / "index")
    ((located,),) = LexicalLocator(index).locate(["a"], ["tide"])
    numbers, scores = index.search(["tide"])
    assert [passage.score for passage in located] == pytest.approx(scores.tolist())
    assert [passage.unit_id for passage in located] == [units[n].unit_id for n in numbers]


def test_a_whole_document_is_its_own_evidence(tmp_path):
    units = [Unit("a", "", "the tide"), Unit("b", "", "a mill")]
    index = LexicalIndex.build(units, tmp_path / "index")
    assert LexicalLocator(index).locate(["b", "a"], ["mill"])[0][0][0].unit_id == "b"


def test_an_unknown_document_is_a_key_error(index):
    with pytest.raises(KeyError, match="ghost"):
        LexicalLocator(index).locate(["ghost"], ["mill"])
    with pytest.raises(InputError, match="most"):
        LexicalLocator(index).locate([], ["mill"], most=0)
    assert LexicalLocator(index).locate([], ["mill"]) == []
