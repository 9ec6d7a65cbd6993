"""The oracle: judged evidence first, in the units that are indexed, and the base behind it."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pyterrier as pt
import pytest

from soundingline.pipelines import OracleRetriever
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.pipelines.retrieve import RM3
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

QUERIES = pd.DataFrame({"qid": ["1", "2", "3"], "query": ["a", "b", "c"], "note": ["x", "y", "z"]})
JUDGEMENTS = {
    "evidence": {"1": {"d1": 1, "d2": 2, "d9": 0, "gone": 3}, "2": {"d5": 1}},
    "gold": {"1": {"d2": 1}},
}


def texts(known):
    def units(unit_ids):
        for unit_id in unit_ids:
            if unit_id not in known:
                raise KeyError(unit_id)
        return [Unit(unit_id, "", "text") for unit_id in unit_ids]

    return units


DOCUMENTS = Collection("c", texts=texts([f"d{n}" for n in range(1, 10)]), qrels=JUDGEMENTS)
PASSAGES = replace(DOCUMENTS, texts=texts([f"d{n}%p{p}" for n in range(1, 10) for p in range(3)]))


def ranking(docnos):
    """A base that ranks the same for every query."""

    def rows(queries):
        each = [
            {**row, "docno": docno, "score": 9.0 - place, "rank": place}
            for row in queries.to_dict("records")
            for place, docno in enumerate(docnos)
        ]
        return pd.DataFrame(each)

    return pt.apply.generic(rows, required_columns=["qid", "query"])


def by_qid(oracle, collection):
    found = oracle.bind(collection).transform(QUERIES)
    assert (found.groupby("qid")["score"].diff().dropna() < 0).all(), "scores must fall"
    assert found["rank"].tolist() == found.groupby("qid").cumcount().tolist()
    return {qid: rows["docno"].tolist() for qid, rows in found.groupby("qid")}


def test_evidence_comes_by_grade_and_alone_without_a_base():
    assert by_qid(OracleRetriever(), DOCUMENTS) == {"1": ["d2", "d1"], "2": ["d5"]}


def test_the_base_comes_behind_it_each_unit_once():
    oracle = OracleRetriever(ranking(["d7", "d1", "d9"]))
    assert by_qid(oracle, DOCUMENTS) == {
        "1": ["d2", "d1", "d7", "d9"],
        "2": ["d5", "d7", "d1", "d9"],
        "3": ["d7", "d1", "d9"],
    }


def test_a_passage_is_the_one_that_the_base_ranks_best_or_the_first():
    oracle = OracleRetriever(ranking(["d7%p1", "d1%p2", "d1%p0"]))
    assert by_qid(oracle, PASSAGES)["1"] == ["d2%p0", "d1%p2", "d7%p1", "d1%p0"]


def test_depth_and_tier_are_kept():
    assert by_qid(OracleRetriever(ranking(["d7", "d8"]), depth=2), DOCUMENTS)["2"] == ["d5", "d7"]
    assert by_qid(OracleRetriever(tier="gold"), DOCUMENTS) == {"1": ["d2"]}


def test_columns_of_the_queries_stay():
    found = OracleRetriever().bind(DOCUMENTS).transform(QUERIES)
    assert found["note"].tolist() == ["x", "x", "y"]


def test_what_cannot_work_is_told():
    with pytest.raises(InputError, match=r"the tier 'expert'. valid: evidence, gold"):
        OracleRetriever(tier="expert").bind(DOCUMENTS)
    with pytest.raises(InputError, match="no judgements"):
        OracleRetriever().bind(Collection("c"))
    with pytest.raises(InputError, match="not bound"):
        OracleRetriever().transform(QUERIES)
    with pytest.raises(InputError, match="depth"):
        OracleRetriever(depth=0)
    OracleRetriever(RM3()).check(LexicalEngine())
