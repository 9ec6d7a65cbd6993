"""What every retriever over an index shares: frames, checks of queries, equality, a cut depth."""

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipelines import LexicalIndex
from pipelines.index_folder import OpenedIndex, is_index, read_manifest, write_manifest
from pipelines.index_retriever import NOTHING, IndexRetriever, RankedList, named, ranked
from toolkit.contracts import Unit
from toolkit.errors import InputError


class Backwards(IndexRetriever):
    """Ranks the letters of a query, the last one first."""

    def __init__(self, index: str, *, depth: int = 10) -> None:
        self.index, self.depth = index, depth

    def rank(self, queries: Sequence[str]) -> Sequence[RankedList]:
        letters = [query[::-1][: self.depth] for query in queries]
        return [RankedList(list(each), range(len(each), 0, -1)) for each in letters]


def frame(**columns: list[object]) -> pd.DataFrame:
    return pd.DataFrame({"qid": [f"q{n}" for n in range(len(*columns.values()))], **columns})


def test_rows_keep_every_column_and_old_results_give_way() -> None:
    queries = frame(query=["ab", "", "c"]).assign(reasoning=["x", "y", "z"], rank=9)
    ranking = Backwards("letters")(queries)
    assert list(ranking.columns) == ["qid", "query", "reasoning", "docno", "score", "rank"]
    rows = ranking[["qid", "reasoning", "docno", "score", "rank"]].to_numpy().tolist()
    assert rows == [["q0", "x", "b", 2, 0], ["q0", "x", "a", 1, 1], ["q2", "z", "c", 1, 0]]
    assert len(Backwards("letters")(queries[:0])) == 0


@pytest.mark.parametrize("query", [None, 3, float("nan"), ["a"]])
def test_a_query_that_is_no_text_is_refused(query: object) -> None:
    with pytest.raises(InputError, match=r"query holds .* valid: text"):
        Backwards("letters")(frame(query=[query]))


@pytest.mark.parametrize("weights", ["a", ["a"], {"a": -1}, {"a": float("inf")}])
def test_weights_that_are_no_weights_are_refused(weights: object) -> None:
    with pytest.raises(InputError, match=r"(query_toks holds|weight -?\w+ of term 'a').*valid"):
        Backwards("letters")(frame(query_toks=[weights]))


def test_retrievers_are_equal_by_class_index_and_settings() -> None:
    one, same = Backwards("letters"), Backwards("letters")
    assert one == same and hash(one) == hash(same)
    assert one not in (Backwards("others"), Backwards("letters", depth=3), "letters")
    assert repr(one) == "Backwards('letters', depth=10)"
    assert one.fuse_rank_cutoff(3) == Backwards("letters", depth=3)
    assert one.fuse_rank_cutoff(10) is None


def test_ids_are_read_for_all_queries_together() -> None:
    docnos = np.array(["a", "b", "c"], dtype=object)
    parts = [(np.array([2, 0]), np.array([5.0, 4.0])), (np.array([], int), np.array([]))]
    rankings = named(docnos, parts)
    assert [list(ranking.docnos) for ranking in rankings] == [["c", "a"], []]
    assert ranked(frame(query=["x", "y"]), rankings)["docno"].tolist() == ["c", "a"]
    assert len(ranked(frame(query=["x"]), [NOTHING])) == 0


def test_an_opened_index_is_its_folder_and_its_corpus(tmp_path: Path) -> None:
    units = [Unit("d1", "", "old mill"), Unit("d2", "", "river")]
    index = LexicalIndex.build(units, tmp_path / "one", processes=1, corpus_fingerprint="c")
    other = LexicalIndex.build(units, tmp_path / "two", processes=1, corpus_fingerprint="c")
    assert index == LexicalIndex.open(tmp_path / "one") != other
    assert index != OpenedIndex(index.path, index.manifest)
    assert pickle.loads(pickle.dumps(index)) == index


def test_a_folder_is_an_index_of_its_own_kind_alone(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"1234")
    write_manifest(tmp_path, "ours", {"corpus_fingerprint": "c"})
    assert is_index(tmp_path, "ours") and not is_index(tmp_path, "theirs")
    assert read_manifest(tmp_path, "ours", "c")["files"] == {"data.bin": 4}
    with pytest.raises(InputError, match=r"the format soundingline-ours, version 1\. valid: sound"):
        read_manifest(tmp_path, "theirs", "c")
