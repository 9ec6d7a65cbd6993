"""The rewriter as a stage: columns, kinds of frames, and what it notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pyterrier as pt
import pytest
from question_model import QuestionModel, asking, frame, replies

from pipelines.rewrite.q2q import Q2Q
from pipelines.rewrite.stage import Rewriter, RewriteRequest, RewrittenQuery
from pipelines.search_notes import collecting
from toolkit.errors import InputError


class Shouting:
    """Rewrites without a model."""

    fingerprint = "loud"
    counts: Mapping[str, int] = {}

    def __init__(self) -> None:
        self.asks: list[RewriteRequest] = []

    def rewrite(self, asks: Sequence[RewriteRequest]) -> list[RewrittenQuery]:
        self.asks += asks
        return [RewrittenQuery(ask.query.upper(), {"of": len(ask.query)}) for ask in asks]


def test_the_query_before_it_is_query_0_and_other_columns_stay() -> None:
    inp = frame("king", "queen", reasoning=["a", "b"]).assign(other=[1, 2])
    out = Rewriter(Shouting())(inp)
    assert out.to_dict("list") == {
        "qid": ["q1", "q2"],
        "query_0": ["king", "queen"],
        "reasoning": ["a", "b"],
        "other": [1, 2],
        "query": ["KING", "QUEEN"],
    }
    assert list(inp.columns) == ["qid", "query", "reasoning", "other"]


def test_older_queries_move_on_as_pyterriers_do() -> None:
    out = (Rewriter(Shouting()) >> Rewriter(Shouting()))(frame("king"))
    expected = pt.model.push_queries(pt.model.push_queries(frame("king"), keep_original=True))
    assert {*out.columns} == {*expected.columns, "query"} == {"qid", "query", "query_0", "query_1"}
    assert out[["query_1", "query_0", "query"]].iloc[0].tolist() == ["king", "KING", "KING"]


def test_any_index_of_the_frame_is_kept_in_order() -> None:
    inp = frame("a", "b", "c").set_index(pd.Index([9, 9, 0]))
    assert Rewriter(Shouting())(inp)["query"].tolist() == ["A", "B", "C"]


def test_a_ranking_is_asked_about_once_a_query() -> None:
    ranking = pd.DataFrame(
        {"qid": ["1", "1", "2"], "query": ["a", "a", "b"], "docno": ["x", "y", "x"], "score": 1.0}
    )
    writer = Shouting()
    out = Rewriter(writer)(ranking)
    assert out["query"].tolist() == ["A", "A", "B"]
    assert out["docno"].tolist() == ["x", "y", "x"]
    assert writer.asks == [RewriteRequest("a", "", "1"), RewriteRequest("b", "", "2")]


def test_an_empty_frame_comes_back_with_the_columns_and_without_a_request() -> None:
    model = QuestionModel()
    with asking(model) as llm:
        out = Q2Q(model=llm)(frame("king").iloc[:0])
    assert len(out) == 0
    assert set(out.columns) == {"qid", "query", "query_0"}
    assert model.requests == []


def test_pyterrier_can_inspect_it_without_asking() -> None:
    columns = pt.inspect.transformer_outputs(Rewriter(Shouting()), ["qid", "query", "reasoning"])
    assert set(columns) == {"qid", "query", "query_0", "reasoning"}
    with pytest.raises(pt.validate.InputValidationError):
        Rewriter(Shouting())(pd.DataFrame({"qid": ["1"]}))


@pytest.mark.parametrize("query", [None, float("nan"), 7])
def test_a_query_that_is_no_text_is_refused(query: object) -> None:
    with pytest.raises(InputError, match=r"a query to rewrite is .* valid: text"):
        Rewriter(Shouting())(frame("king", query))  # type: ignore[arg-type]


def test_equal_rewriters_are_equal_stages() -> None:
    with asking(QuestionModel()) as llm:
        one, same = Q2Q(model=llm), Q2Q(model=llm)
        others = [Q2Q(model=llm, apply_to="retriever"), Q2Q(model=llm, max_words=9)]
        assert one == same and hash(one) == hash(same)
        assert all(one != other for other in others)
        assert repr(one) == "Q2Q(reasoning=False, apply_to='both')"


def test_both_queries_and_what_happened_are_noted() -> None:
    with collecting() as notes:
        Rewriter(Shouting(), apply_to="retriever")(frame("king"))
    pair = {"raw": "king", "rewritten": "KING", "apply_to": "retriever"}
    assert notes == {"rewrite": {**pair, "of": 4}}


def test_what_happened_to_a_reply_is_noted_in_words() -> None:
    texts = ["", "Query: Who is king?", "It is long.\nToo long.", "What is it?"]
    with asking(QuestionModel(replies(*texts))) as llm:
        stage = Q2Q(model=llm, reasoning=True)
        found = []
        for query in ("king", "queen", "the 3rd"):
            with collecting() as notes:
                stage(frame(query))
            found.append({k: v for k, v in notes["rewrite"].items() if k != "apply_to"})
    first, second, third = found
    assert first == {
        **{"raw": "king", "rewritten": "Who is king?", "retried": True, "cleaned": True},
        **{"without_reasoning": True, "reply": texts[1]},
    }
    assert second == {
        **{"raw": "queen", "rewritten": "queen", "fell_back": "prose", "reply": texts[2]},
        "without_reasoning": True,
    }
    assert third == {
        **{"raw": "the 3rd", "rewritten": "What is it?", "lost_numbers": ["3"]},
        "without_reasoning": True,
    }


def test_threads_note_their_own_queries() -> None:
    with asking(QuestionModel(seconds=0.01)) as llm:
        stage = Q2Q(model=llm)

        def noted(number: int) -> object:
            with collecting() as notes:
                stage(frame(f"king {number}"))
            return notes["rewrite"]["raw"], notes["rewrite"]["rewritten"]

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(noted, range(24)))
    assert found == [(f"king {number}", f"What is king {number}?") for number in range(24)]
