"""What every retriever over an index shares: frames, checks of queries, equality, a cut depth."""

import pickle
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from soundingline.pipelines import LexicalIndex
from soundingline.pipelines.engines.engine import NOTHING, RankedList, ranked_lists
from soundingline.pipelines.index_folder import OpenedIndex, is_index, read_manifest, write_manifest
from soundingline.pipelines.retrieve import Retriever, ranked
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
    assert repr(one) == "Retriever(depth=1000, index=Letters('letters'))"
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
