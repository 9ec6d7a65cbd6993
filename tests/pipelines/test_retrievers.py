from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from pipelines import retrievers
from pipelines.lexical import RM3, LexicalIndex
from toolkit.contracts import Unit
from toolkit.errors import InputError

QUERY = pd.DataFrame({"qid": ["1"], "query": ["alpha"]})


class Rankless:
    """An index whose engine ranks by BM25 alone."""

    def bm25(self, k1: float = 0.9, b: float = 0.4, depth: int = 1000) -> object:
        return object()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> LexicalIndex:
    texts = ["alpha beta", "beta gamma", *["delta"] * 20]
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]
    path: Path = tmp_path_factory.mktemp("retrievers") / "index"
    return LexicalIndex.build(units, path, processes=1)


def test_bm25_and_ql_are_the_index_s_own(index: LexicalIndex) -> None:
    assert retrievers.bm25(index, k1=2, depth=5) == index.bm25(k1=2, depth=5)
    assert retrievers.ql(index, mu=20, depth=5) == index.ql(mu=20, depth=5)
    assert retrievers.bm25(index) == index.bm25()
    assert retrievers.ql(index) == index.ql()


def test_feedback_finds_documents_that_the_words_do_not(index: LexicalIndex) -> None:
    assert retrievers.bm25(index)(QUERY)["docno"].tolist() == ["d0"]
    found = retrievers.bm25_rm3(index, depth=5)(QUERY)
    assert found["docno"].tolist() == ["d0", "d1"]
    ranker = index.bm25(depth=5)
    assert found.equals((ranker >> RM3(index) >> ranker)(QUERY))
    few = retrievers.bm25_rm3(index, fb_terms=3, fb_docs=1, original_weight=1.0)(QUERY)
    assert few["score"].iloc[0] == retrievers.bm25(index)(QUERY)["score"].iloc[0]


def test_an_engine_without_feedback_or_likelihood_says_so() -> None:
    for factory in (retrievers.bm25_rm3, retrievers.ql):
        with pytest.raises(InputError, match=r"Rankless offers no .*engine=lexical"):
            factory(Rankless())  # type: ignore[arg-type]
