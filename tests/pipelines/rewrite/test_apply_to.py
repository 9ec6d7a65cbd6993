"""Who sees which query: the retriever, the re-ranker, both."""

from __future__ import annotations

import pandas as pd
import pyterrier as pt
import pytest

from pipelines.aggregation import MaxP
from pipelines.backend import PipelineBackend
from pipelines.composition import WithQuery, compose
from pipelines.rewrite.stage import Rewriter, RewriteRequest, RewrittenQuery
from toolkit.contracts import SearchRequest
from toolkit.errors import InputError

RAW, NEW = "king spain", "Who is king of Spain?"


class Fixed:
    fingerprint = "fixed"
    counts: dict[str, int] = {}  # noqa: RUF012

    def rewrite(self, asks: list[RewriteRequest]) -> list[RewrittenQuery]:
        return [
            RewrittenQuery(NEW if ask.query == RAW else f"What is {ask.query}?") for ask in asks
        ]


def rewriter(apply_to: str) -> Rewriter:
    return Rewriter(Fixed(), apply_to=apply_to)  # type: ignore[arg-type]


class Recording(pt.Transformer):
    """Remembers the queries it is asked. Gives documents or, as a re-ranker, what it is given."""

    def __init__(self, reranks: bool = False, keeps: bool = True, found: int = 2) -> None:
        self.reranks, self.keeps, self.found = reranks, keeps, found
        self.queries: list[str] = []

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        self.queries += list(dict.fromkeys(inp["query"]))
        if self.reranks:
            return inp.assign(score=-inp["score"])
        kept = inp if self.keeps else inp[["qid", "query"]]
        rows = [kept.assign(docno=f"d{n}%p0", score=float(n)) for n in range(self.found)]
        return pd.concat(rows or [kept.iloc[:0].assign(docno=[], score=[])], ignore_index=True)


MATRIX = [
    ("both", True, NEW, NEW),
    ("retriever", True, NEW, RAW),
    ("reranker", True, RAW, NEW),
    ("both", False, NEW, None),
    ("retriever", False, NEW, None),
]


@pytest.mark.parametrize("aggregate", [False, True])
@pytest.mark.parametrize("keeps", [True, False], ids=["keeps", "drops"])
@pytest.mark.parametrize(("apply_to", "reranks", "first", "second"), MATRIX)
def test_each_stage_sees_the_query_that_is_for_it_and_the_ranking_keeps_both(
    apply_to: str, reranks: bool, first: str, second: str | None, keeps: bool, aggregate: bool
) -> None:
    retriever, reranker = Recording(keeps=keeps), Recording(reranks=True)
    pipeline = compose(
        retriever,
        rewriter=rewriter(apply_to),
        reranker=reranker if reranks else None,
        aggregate=aggregate,
    )
    ranking = pipeline(pd.DataFrame({"qid": ["7"], "query": [RAW], "reasoning": ["so"]}))
    assert retriever.queries == [first]
    assert reranker.queries == ([second] if reranks else [])
    assert len(ranking) == 2
    assert set(ranking["query"]) == {NEW} and set(ranking["query_0"]) == {RAW}


def test_a_rewriter_for_the_re_ranker_needs_one() -> None:
    with pytest.raises(InputError, match=r"for the re-ranker, and there is none.*apply_to"):
        compose(Recording(), rewriter=rewriter("reranker"))


def test_without_a_rewriter_stages_stand_as_they_are() -> None:
    retriever, reranker = Recording(), Recording(reranks=True)
    assert compose(retriever) is retriever
    ranking = compose(retriever, reranker=reranker)(pd.DataFrame({"qid": ["7"], "query": [RAW]}))
    assert retriever.queries == reranker.queries == [RAW]
    assert "query_0" not in ranking.columns


def test_any_pyterrier_rewriter_will_do_and_is_for_both() -> None:
    retriever, reranker = Recording(), Recording(reranks=True)
    other = pt.apply.query(lambda row: row["query"].upper())
    compose(retriever, rewriter=other, reranker=reranker)(
        pd.DataFrame({"qid": ["7"], "query": [RAW]})
    )
    assert retriever.queries == reranker.queries == [RAW.upper()]


def test_many_questions_keep_their_own_queries() -> None:
    retriever, reranker = Recording(), Recording(reranks=True)
    pipeline = compose(retriever, rewriter=rewriter("retriever"), reranker=reranker)
    queries = pd.DataFrame({"qid": ["3", "1", "2"], "query": ["c", "a", "b"]})
    ranking = pipeline(queries)
    assert reranker.queries == ["c", "a", "b"]
    pairs = set(zip(ranking["qid"], ranking["query_0"], ranking["query"], strict=True))
    assert pairs == {(qid, q, f"What is {q}?") for qid, q in zip("312", "cab", strict=True)}


@pytest.mark.parametrize("apply_to", ["both", "retriever", "reranker"])
def test_an_empty_ranking_and_an_empty_frame_pass(apply_to: str) -> None:
    pipeline = compose(
        Recording(found=0), rewriter=rewriter(apply_to), reranker=Recording(reranks=True)
    )
    for queries in (["king"], []):
        inp = pd.DataFrame({"qid": ["1"] * len(queries), "query": queries}, dtype=object)
        assert len(pipeline(inp)) == 0


@pytest.mark.parametrize("apply_to", ["both", "retriever", "reranker"])
def test_a_search_tells_both_queries_whether_it_finds_anything_or_not(apply_to: str) -> None:
    for found in (0, 2):
        pipeline = compose(
            Recording(found=found), rewriter=rewriter(apply_to), reranker=Recording(reranks=True)
        )
        result = PipelineBackend(pipeline).search(SearchRequest(RAW))
        assert len(result.hits) == found
        assert result.notes["rewrite"] == {"raw": RAW, "rewritten": NEW, "apply_to": apply_to}
        columns = {"query": NEW, "query_0": RAW} if found else {}
        assert {k: v for k, v in result.notes.items() if k != "rewrite"} == columns


class Feedback(pt.Transformer):
    """Rewrites the query of a ranking itself, and pushes it, as PyTerrier's feedback does."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        out = pt.model.push_queries(inp.drop_duplicates("qid").drop(columns=["docno", "score"]))
        return out.assign(query=out["query_0"] + " more")


@pytest.mark.parametrize(
    ("apply_to", "first", "second"),
    [("both", NEW, NEW), ("retriever", NEW, RAW), ("reranker", RAW, NEW)],
)
def test_a_retriever_that_rewrites_by_feedback_does_not_mix_up_the_queries(
    apply_to: str, first: str, second: str
) -> None:
    begin, end, reranker = Recording(), Recording(), Recording(reranks=True)
    pipeline = compose(begin >> Feedback() >> end, rewriter=rewriter(apply_to), reranker=reranker)
    ranking = pipeline(pd.DataFrame({"qid": ["7"], "query": [RAW]}))
    assert (begin.queries, end.queries) == ([first], [f"{first} more"])
    assert reranker.queries == [second]
    assert set(ranking["query_0"]) == {RAW} and set(ranking["query"]) == {NEW}


@pytest.mark.parametrize(("apply_to", "first"), [("both", NEW), ("reranker", RAW)])
def test_retrievers_that_are_fused_see_the_same_query(apply_to: str, first: str) -> None:
    left, right, reranker = Recording(), Recording(found=3), Recording(reranks=True)
    pipeline = compose(left + 2 * right, rewriter=rewriter(apply_to), reranker=reranker)
    ranking = pipeline(pd.DataFrame({"qid": ["7"], "query": [RAW]}))
    assert left.queries == right.queries == [first]
    assert reranker.queries == [NEW]
    assert len(ranking) == 3 and set(ranking["query_0"]) == {RAW}


def test_a_rewriter_that_keeps_no_query_is_told_of() -> None:
    forgetful = pt.apply.generic(lambda queries: queries.assign(query="x"))
    pipeline = compose(Recording(), rewriter=forgetful)
    with pytest.raises(InputError, match=r"is given no query_0.*as PyTerrier does"):
        pipeline(pd.DataFrame({"qid": ["7"], "query": [RAW]}))


def test_asked_stages_compare_by_what_they_are_asked() -> None:
    stage = MaxP()
    assert WithQuery(stage, "raw") == WithQuery(stage, "raw") != WithQuery(stage, "rewritten")
    assert hash(WithQuery(stage, "raw")) == hash(WithQuery(stage, "raw"))
    assert repr(WithQuery(stage, "raw")) == "WithQuery(MaxP(depth=None), 'raw')"
    with pytest.raises(InputError, match=r"query is 'both'\. valid: raw, rewritten"):
        WithQuery(stage, "both")
