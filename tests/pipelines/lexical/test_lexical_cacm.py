"""The default BM25 on a public collection, against the figures that Anserini publishes for it."""

from __future__ import annotations

import json

import ir_measures
import pandas as pd
import pytest
from ir_measures import AP, P, Qrel

from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.data import Unit

PUBLISHED = {AP: (0.3123, 0.001), P @ 30: (0.1942, 0.002)}


def test_cacm_scores_as_anserini_publishes(data_root, tmp_path):
    folder = data_root / "cacm"
    corpus, queries = (
        [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]
        for name in ("corpus.jsonl", "queries.jsonl")
    )
    judged = [line.split("\t") for line in (folder / "qrels/test.tsv").read_text().splitlines()]
    qrels = [Qrel(qid, docid, int(grade)) for qid, docid, grade in judged[1:]]
    units = (Unit(row["_id"], row.get("title", ""), row["text"]) for row in corpus)
    index = LexicalIndex.build(units, tmp_path / "index")
    topics = pd.DataFrame([(row["_id"], row["text"]) for row in queries], columns=["qid", "query"])
    run = index.bm25(k1=0.9, b=0.4, depth=1000)(topics)
    run = run.rename(columns={"qid": "query_id", "docno": "doc_id"})
    values = ir_measures.calc_aggregate(PUBLISHED, qrels, run)
    assert len({qrel.query_id for qrel in qrels}) == 52
    for measure, (published, tolerance) in PUBLISHED.items():
        assert values[measure] == pytest.approx(published, abs=tolerance)
