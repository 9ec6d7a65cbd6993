from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd
import pytest
from scripted_prompts import ScriptedPrompts

from pipelines.rerank.pointwise import Pointwise, read_score
from toolkit.errors import InputError
from toolkit.llm.errors import ModelError, Refused, ServerGone


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ('{"score": 73}', 73.0),
        ('{"score": 0}', 0.0),
        ('{"score": 99.5}', 99.5),
        ('First {"score": 10}, no: {"score": 80}.', 80.0),
        ('```json\n{"score": 5, "reason": "far {off}"}\n```', 5.0),
        ("73", None),
        ("The score is 73 of 100", None),
        ('{"score": "73"}', None),
        ('{"score": true}', None),
        ('{"score": 101}', None),
        ('{"score": -1}', None),
        ('{"score": NaN}', None),
        ('{"rating": 73}', None),
        ("", None),
        ("{" * 100_000, None),
    ],
)
def test_only_a_number_under_score_is_a_score(answer: str, score: float | None) -> None:
    assert read_score(answer) == score


def ranking(*texts: str) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "qid": "q1",
            "query": "tide",
            "docno": [f"d{n}" for n in range(len(texts))],
            "text": texts,
            "score": [float(len(texts) - n) for n in range(len(texts))],
            "rank": range(len(texts)),
        }
    )


def shown(prompt: str) -> str:
    found = re.search(r"<document>\n(.*?)\n</document>", prompt, re.DOTALL)
    assert found
    return found[1]


def scoring(scores: dict[str, str | Exception]) -> Callable[[str], str | Exception]:
    return lambda prompt: scores[shown(prompt)]


def test_the_head_is_ordered_by_score_and_ties_by_the_retriever() -> None:
    model = ScriptedPrompts(
        scoring({"a": '{"score": 10}', "b": '{"score": 90}', "c": '{"score": 90}'})
    )
    out = Pointwise(model, depth=3).transform(ranking("a", "b", "c", "tail"))
    assert out.sort_values("rank")["docno"].tolist() == ["d1", "d2", "d0", "d3"]
    assert "tide" in model.prompts[0] and len(model.prompts) == 3


def test_what_has_no_score_ends_the_head_in_the_retrievers_order() -> None:
    answers: dict[str, str | Exception] = {
        **{"a": "no idea", "b": '{"score": 0}', "c": Refused("no"), "d": '{"score": 3}'}
    }
    stage = Pointwise(ScriptedPrompts(scoring(answers)), depth=4)
    out = stage.transform(ranking("a", "b", "c", "d", "tail")).sort_values("rank")
    assert out["docno"].tolist() == ["d3", "d1", "d0", "d2", "d4"]
    counts = stage.counts
    assert (counts["pairs"], counts["unreadable"], counts["refused"], counts["retried"]) == (
        *(4, 1, 1, 1),
    )


def test_equal_pairs_are_asked_for_once_and_texts_are_cut() -> None:
    model = ScriptedPrompts(lambda prompt: '{"score": 1}')
    Pointwise(model, max_characters=4).transform(ranking("same one", "same two", "other"))
    assert sorted(map(shown, model.prompts)) == ["othe", "same"]


def test_an_error_that_any_pair_would_meet_is_raised() -> None:
    with pytest.raises(ModelError):
        Pointwise(ScriptedPrompts(lambda prompt: ServerGone("gone"))).transform(ranking("a"))


def test_an_empty_ranking_stays_empty() -> None:
    model = ScriptedPrompts(lambda prompt: '{"score": 1}')
    assert Pointwise(model).transform(ranking("a").iloc[:0]).empty and not model.prompts


def test_settings_are_checked() -> None:
    with pytest.raises(InputError, match="depth"):
        Pointwise(depth=0)
    with pytest.raises(InputError, match="max_characters=0"):
        Pointwise(max_characters=0)
    with pytest.raises(InputError, match="is not bound"):
        Pointwise().transform(ranking("a"))
