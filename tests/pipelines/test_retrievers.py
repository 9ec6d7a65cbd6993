from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest

from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.lexical.rm3 import Feedback
from soundingline.pipelines.retrieve import BM25, RM3, QueryLikelihood
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

QUERY = pd.DataFrame({"qid": ["1"], "query": ["alpha"]})


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    texts = ["alpha beta", "beta gamma", *["delta"] * 20]
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(texts)]
    path = tmp_path_factory.mktemp("retrievers") / "index"
    return LexicalIndex.build(units, path)


def over(index):
    return Collection("c1", index=index)


def test_bm25_and_ql_rank_as_the_index_s_own(index):
    for retriever, own in (
        (BM25(k1=2, depth=5), index.bm25(k1=2, depth=5)),
        (QueryLikelihood(mu=20, depth=5), index.ql(mu=20, depth=5)),
        (BM25(), index.bm25()),
        (QueryLikelihood(), index.ql()),
    ):
        assert retriever.bind(over(index))(QUERY).equals(own(QUERY))


def test_feedback_finds_documents_that_the_words_do_not(index):
    bm25 = BM25().bind(over(index))
    assert bm25(QUERY)["docno"].tolist() == ["d0"]
    ranking = RM3(depth=5).bind(over(index))(QUERY)
    assert ranking["docno"].tolist() == ["d0", "d1"]
    retriever = index.bm25(depth=5)
    assert ranking.equals((retriever >> Feedback(index) >> retriever)(QUERY))
    few = RM3(fb_terms=3, fb_docs=1, original_weight=1.0).bind(over(index))(QUERY)
    assert few["score"].iloc[0] == bm25(QUERY)["score"].iloc[0]


def test_an_engine_without_feedback_or_likelihood_is_refused_before_it_builds():
    for retriever in (RM3(), QueryLikelihood()):
        with pytest.raises(InputError, match=r"pisa offers no .*valid: bm25.*engine=lexical"):
            retriever.check(PisaEngine())
        retriever.check(LexicalEngine())


def test_a_retriever_that_is_not_bound_says_what_to_do():
    with pytest.raises(InputError, match=r"BM25 is not bound.*index\.bm25"):
        BM25()(QUERY)


def test_binding_gives_a_copy_and_leaves_the_retriever_as_it_was(index):
    retriever = BM25(k1=2)
    bound = retriever.bind(over(index))
    assert retriever.collection is None and bound.collection == over(index)
    assert bound != retriever and retriever == BM25(k1=2)
    again = retriever.bind(over(index))
    assert again == bound and hash(again) == hash(bound)
    assert bound != retriever.bind(Collection("c2", index=index))
    assert bound != BM25(k1=3).bind(over(index))


def test_64_threads_bind_and_search_at_once(index):
    retriever = BM25(depth=5)
    expected = index.bm25(depth=5)(QUERY)
    start = threading.Barrier(64)

    def search(_):
        start.wait()
        return bool(retriever.bind(over(index))(QUERY).equals(expected))

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(search, range(64)))
    assert retriever.collection is None


def test_a_cutoff_is_taken_into_the_retriever(index):
    retriever = BM25(k1=2).bind(over(index))
    cut = (retriever % 1).compile()
    assert cut == BM25(k1=2, depth=1).bind(over(index)) % 1
    assert len(cut(pd.DataFrame({"qid": ["1"], "query": ["beta"]}))) == 1
