"""Lone surrogates in the frames and documents that a user gives: replaced, or refused in an id."""

import pandas as pd
import pyterrier as pt
import pytest
from support.assertions import refused
from support.odd_texts import LONE

from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.rerank.reranker import RerankTop, Scorer
from soundingline.pipelines.rewrite import Rewriter, RewrittenQuery
from soundingline.toolkit.data import Unit

lone = pytest.mark.parametrize(("text", "valid"), LONE.values(), ids=LONE)
CORPUS = [Unit("d1", "Mill", "The old mill."), Unit("d2", "", "A mill by the river.")]


class Echo(Rewriter):
    def rewrite(self, queries):
        return [RewrittenQuery(query.text) for query in queries]


class Lengths(Scorer):
    def score(self, queries, texts):
        return [len(f"{query} {text}".encode()) for query, text in zip(queries, texts, strict=True)]


def frame(**columns):
    return pd.DataFrame(columns, dtype=object)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return LexicalIndex.build(CORPUS, tmp_path_factory.mktemp("lone") / "index")


@lone
def test_a_query_and_a_text_are_read_as_valid_ones(text, valid, index, tmp_path):
    scorer = Lengths(cache=tmp_path / "caches")
    stages = {
        "retriever": index.bm25(),
        "feedback": index.bm25().rm3(),
        "rewriter": Echo(),
        "pipeline": Echo() >> index.bm25() >> RerankTop(scorer, texts=index.texts),
    }
    query = f"old {text} mill"
    for stage in stages.values():
        given = stage.transform(frame(qid=["1"], query=[query]))
        expected = stage.transform(frame(qid=["1"], query=[query.replace(text, valid)]))
        assert len(given)
        pd.testing.assert_frame_equal(given, expected)
    rows = {"qid": ["1", "1"], "docno": ["d1", "d2"], "score": [2.0, 1.0]}
    (given, expected) = (
        scorer.transform(frame(**rows, query=[each, each], text=[each, "x"])).drop(columns="text")
        for each in (text, valid)
    )
    pd.testing.assert_frame_equal(given, expected)


@lone
def test_documents_are_indexed_as_valid_ones(text, valid, tmp_path):
    def built(name, words):
        rows = [{"docno": "d1", "title": words, "text": f"mill {words} town"}, CORPUS[1]]
        index = LexicalIndex.build(rows, tmp_path / name)
        return index.manifest["files"], index.texts(["d1"])

    assert built("a", text) == built("b", valid)
    as_unit = LexicalIndex.build([Unit("d1", "", text)], tmp_path / "c")
    assert as_unit.texts(["d1"]) == [Unit("d1", "", valid)]


@pytest.mark.parametrize("stage", [pt.Transformer.identity(), Echo()], ids=["first", "second"])
def test_an_id_that_no_file_can_hold_is_refused(stage, index, tmp_path):
    row = {"qid": ["1"], "query": ["mill"], "score": [1.0], "text": ["a mill"]}
    odd = frame(**row, docno=["\ud83d"])
    refused("a docno has a lone surrogate", (stage >> Lengths()).transform, odd)
    refused("a docno has a lone surrogate", (stage >> index.bm25()).transform, odd)
    refused(
        "document 1 has a lone surrogate in its docno",
        LexicalIndex.build,
        [{"docno": "\ud83d", "text": "x"}],
        tmp_path / "index",
    )
