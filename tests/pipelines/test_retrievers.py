"""What every retriever over an index shares: frames, queries, equality, binding, a cut depth."""

from __future__ import annotations

import pickle
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from soundingline.pipelines.engines.engine import NOTHING, RankedList, ranked_lists
from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.index_folder import OpenedIndex, is_index, read_manifest, write_manifest
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.lexical.rm3 import Feedback
from soundingline.pipelines.retrieve import BM25, RM3, QueryLikelihood, Retriever, ranked
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError


class Letters(OpenedIndex):
    """Ranks the letters of a query, the last one first."""

    def rank(self, queries, model, depth):
        letters = [query[::-1][:depth] for query in queries]
        return [RankedList(list(each), range(len(each), 0, -1)) for each in letters]


def backwards(name="letters", **settings):
    return Retriever(index=Letters(Path(name), {"corpus_fingerprint": "c"}), **settings)


def frame(**columns):
    return pd.DataFrame({"qid": [f"q{n}" for n in range(len(*columns.values()))], **columns})


def test_rows_keep_every_column_and_old_results_give_way():
    queries = frame(query=["ab", "", "c"]).assign(reasoning=["x", "y", "z"], rank=9)
    ranking = backwards()(queries)
    assert list(ranking.columns) == ["qid", "query", "reasoning", "docno", "score", "rank"]
    rows = ranking[["qid", "reasoning", "docno", "score", "rank"]].to_numpy().tolist()
    assert rows == [["q0", "x", "b", 2, 0], ["q0", "x", "a", 1, 1], ["q2", "z", "c", 1, 0]]
    assert len(backwards()(queries[:0])) == 0


@pytest.mark.parametrize("query", [None, 3, float("nan"), ["a"]])
def test_a_query_that_is_no_text_is_refused(query):
    with pytest.raises(InputError, match=r"query holds .* valid: text"):
        backwards()(frame(query=[query]))


@pytest.mark.parametrize("weights", ["a", ["a"], {"a": -1}, {"a": float("inf")}])
def test_weights_that_are_no_weights_are_refused(weights):
    with pytest.raises(InputError, match=r"(query_toks holds|weight -?\w+ of term 'a').*valid"):
        backwards()(frame(query_toks=[weights]))


def test_retrievers_are_equal_by_class_index_and_settings():
    one, same = backwards(), backwards()
    assert one == same and hash(one) == hash(same)
    assert one not in (backwards("others"), backwards(depth=3), "letters")
    assert repr(one) == "Retriever(depth=1000, index=Letters.open('letters'))"
    assert one.fuse_rank_cutoff(3) == backwards(depth=3)
    assert one.fuse_rank_cutoff(1000) is None


def test_ids_are_read_for_all_queries_together():
    docnos = np.array(["a", "b", "c"], dtype=object)
    parts = [(np.array([2, 0]), np.array([5.0, 4.0])), (np.array([], int), np.array([]))]
    rankings = ranked_lists(docnos, parts)
    assert [list(ranking.docnos) for ranking in rankings] == [["c", "a"], []]
    assert ranked(frame(query=["x", "y"]), rankings)["docno"].tolist() == ["c", "a"]
    assert len(ranked(frame(query=["x"]), [NOTHING])) == 0


def test_an_opened_index_is_its_folder_and_its_corpus(tmp_path):
    units = [Unit("d1", "", "old mill"), Unit("d2", "", "river")]
    index = LexicalIndex.build(units, tmp_path / "one", corpus_fingerprint="c")
    other = LexicalIndex.build(units, tmp_path / "two", corpus_fingerprint="c")
    assert index == LexicalIndex.open(tmp_path / "one") != other
    assert index != OpenedIndex(index.path, index.manifest)
    assert pickle.loads(pickle.dumps(index)) == index


def test_a_folder_is_an_index_of_its_own_kind_alone(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"1234")
    write_manifest(tmp_path, "ours", {"corpus_fingerprint": "c"})
    assert is_index(tmp_path, "ours") and not is_index(tmp_path, "theirs")
    files = read_manifest(tmp_path, "ours", "c")["files"]
    assert files == {"data.bin": {"bytes": 4, "crc32": f"{zlib.crc32(b'1234'):08x}"}}
    with pytest.raises(InputError, match=r"the format soundingline-ours, version 3\. valid: sound"):
        read_manifest(tmp_path, "theirs", "c")


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
            retriever.validate(PisaEngine())
        retriever.validate(LexicalEngine())


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
