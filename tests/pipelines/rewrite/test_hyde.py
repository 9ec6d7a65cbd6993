"""HyDE in the place of the query."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from scripted_prompts import ScriptedPrompts

from pipelines.composition import compose
from pipelines.enrich.model_text import ModelText
from pipelines.enrich.sources import Query
from pipelines.lexical import LexicalIndex
from pipelines.retrievers import BM25Retriever
from pipelines.rewrite.hyde import Hyde
from pipelines.search_notes import collecting
from pipelines.stage import Collection
from toolkit.errors import InputError
from toolkit.llm.errors import Refused

PASSAGE = "The lamp burns oil\nat the pier."
FRAME = pd.DataFrame({"qid": ["q1"], "query": ["tide table"]})


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    units = [{"docno": "d0", "text": "tide table"}, {"docno": "d1", "text": "oil lamp"}]
    index = LexicalIndex.build(units, tmp_path / "index", processes=1)
    return Collection("c", index=index, caches=tmp_path / "caches")


def test_the_passage_is_searched_and_the_query_re_ranks(collection: Collection) -> None:
    with_model = collection.with_model(ScriptedPrompts(lambda prompt: PASSAGE))
    pipeline = compose(
        BM25Retriever().bind(with_model),
        rewriter=Hyde().bind(with_model),  # type: ignore[arg-type]
    )
    with collecting("q1") as notes:
        out = pipeline.transform(FRAME)
    assert out["docno"].tolist() == ["d1"]
    assert out["query_0"].tolist() == ["tide table"]
    assert notes["rewrite"]["rewritten"] == "The lamp burns oil at the pier."
    assert notes["rewrite"]["apply_to"] == "retriever"


def test_an_enrichment_by_the_same_passage_asks_for_it_once(collection: Collection) -> None:
    model = ScriptedPrompts(lambda prompt: PASSAGE)
    with_model = collection.with_model(model)
    Hyde().bind(with_model).transform(FRAME)
    ModelText().for_queries([Query("tide table")], with_model)
    assert len(model.prompts) == 1


@pytest.mark.parametrize("answer", ["  \n", Refused("no")])
def test_without_a_passage_the_query_is_searched(
    collection: Collection, answer: str | Exception
) -> None:
    stage = Hyde().bind(collection.with_model(ScriptedPrompts(lambda prompt: answer)))
    with collecting("q1") as notes:
        assert stage.transform(FRAME)["query"].tolist() == ["tide table"]
    assert notes["rewrite"]["fell_back"]
    assert stage.counts["empty"] + stage.counts["refused"] == 1


def test_settings_are_checked(collection: Collection) -> None:
    with pytest.raises(InputError, match="apply_to is 'all'"):
        Hyde(apply_to="all")
    with pytest.raises(InputError, match="task is 'poem'"):
        Hyde(task="poem")
    with pytest.raises(InputError, match="is not bound"):
        Hyde().transform(FRAME)
    with pytest.raises(InputError, match="need one, and the collection has none"):
        Hyde().bind(collection).transform(FRAME)
