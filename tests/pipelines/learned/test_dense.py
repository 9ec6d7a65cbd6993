"""Dense retrieval: exact search in an index that is complete or absent."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_embedder

from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

UNITS = [
    Unit(f"d{number}%p{number % 3}", "Mill" if number % 2 else "", f"text {number % 40} é")
    for number in range(90)
]
SEARCHES = ("numpy", "torch")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    import torch

    torch.set_num_threads(1)
    return tiny_embedder.save_qwen(tmp_path_factory.mktemp("models") / "qwen")


def engine(model, **settings):
    exact = {"pooling": "last", "dtype": "float32", "device": "cpu", "query_prefix": "q: "}
    return Dense(str(model), **{**exact, **settings})


@pytest.fixture(scope="module")
def built(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("indexes") / "dense"
    engine(model).build(UNITS, path, corpus_fingerprint="corpus")
    return path


def opened(model, built, **settings):
    return engine(model, **settings).open(built, corpus_fingerprint="corpus")


def queries(*texts):
    rows = {"qid": [f"q{n}" for n in range(len(texts))], "query": texts, "reasoning": "why"}
    return pd.DataFrame({name: list(v) if name != "reasoning" else v for name, v in rows.items()})


def random_index(tmp_path, model, vectors, search):
    """An index whose vectors are given, by an encoder that reads them from the text."""

    class Given(Dense):
        def read(self, texts):
            return [int(text or 0) for text in texts], [1] * len(texts)

        def encode_batch(self, items):
            return [vectors[number] for number in items]

    made = Given(str(model), pooling="last", dtype="float32", device="cpu", compute=search)
    units = [Unit(f"d{number}", "", str(number)) for number in range(len(vectors))]
    made.build(units, tmp_path / "index", corpus_fingerprint="c")
    return made.open(tmp_path / "index", corpus_fingerprint="c")


@pytest.mark.parametrize("search", SEARCHES)
def test_the_top_100_are_those_of_brute_force(tmp_path, model, search):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((3000, 32)).astype(np.float32)
    index = random_index(tmp_path, model, vectors, search)
    asked = rng.standard_normal((7, 32)).astype(np.float32)
    frame = pd.DataFrame({"qid": list("abcdefg"), "query_vec": list(asked)})
    found = index.retriever(depth=100)(frame)
    for query, (_, hits) in zip(asked, found.groupby("qid", sort=False), strict=True):
        exact = vectors.astype(np.float64) @ query.astype(np.float64)
        best = np.argsort(-exact)[:100]
        assert hits["docno"].tolist() == [f"d{number}" for number in best]
        np.testing.assert_allclose(hits["score"], exact[best], rtol=1e-5)
        assert hits["rank"].tolist() == list(range(100))


@pytest.mark.parametrize("search", SEARCHES)
def test_equal_scores_are_kept_and_stand_in_the_order_of_the_index(tmp_path, model, search):
    vectors = np.ones((5000, 4), np.float32)
    vectors[4000] *= 2
    index = random_index(tmp_path, model, vectors, search)
    frame = pd.DataFrame({"qid": ["1"], "query_vec": [np.ones(4)]})
    assert index.retriever(depth=4)(frame)["docno"].tolist() == ["d4000", "d0", "d1", "d2"]


@pytest.mark.parametrize("search", SEARCHES)
def test_text_queries_rank_by_the_dot_product_with_their_own_vector(model, built, search):
    index = opened(model, built, compute=search)
    encoder = engine(model)
    texts = [unit.contents for unit in UNITS]
    asked = ["text 7", "who built the mill"]
    exact = np.stack(encoder.encode_queries(asked)) @ np.stack(encoder.encode(texts)).T
    found = index.retriever(depth=len(UNITS))(queries(*asked))
    for row, (_, hits) in zip(exact, found.groupby("qid", sort=False), strict=True):
        scores = dict(zip([unit.unit_id for unit in UNITS], row, strict=True))
        assert sorted(hits["docno"]) == sorted(scores)
        np.testing.assert_allclose(
            hits["score"], [scores[docno] for docno in hits["docno"]], atol=1e-5
        )
        assert (np.diff(hits["score"]) <= 0).all()


def test_other_columns_stay_and_queries_keep_their_order(model, built):
    frame = queries("text 7", "text 8").iloc[::-1].assign(query_0="before")
    found = opened(model, built).retriever(depth=2)(frame)
    assert found["qid"].tolist() == ["q1", "q1", "q0", "q0"]
    assert set(found["reasoning"]) == {"why"}
    assert set(found["query_0"]) == {"before"}
    assert found["rank"].tolist() == [0, 1, 0, 1]


def test_an_empty_frame_gives_an_empty_frame_with_all_columns(model, built):
    found = opened(model, built).retriever()(queries("x").iloc[:0])
    assert len(found) == 0
    assert {"qid", "query", "reasoning", "docno", "score", "rank"} <= set(found.columns)


def test_a_depth_beyond_the_index_gives_every_unit(model, built):
    assert len(opened(model, built).retriever(depth=10_000)(queries("x"))) == len(UNITS)


def test_a_rank_cutoff_becomes_the_depth(model, built):
    retriever = opened(model, built).retriever(depth=50)
    shorter = opened(model, built).retriever(depth=3)
    assert (retriever % 3).compile() == shorter % 3
    assert hash(retriever.at_depth(3)) == hash(shorter)
    assert retriever != opened(model, built).retriever(depth=3)


def test_opening_and_asking_by_vector_loads_no_model(model, built, monkeypatch):
    from soundingline.pipelines.models import Checkpoint

    monkeypatch.setattr(Checkpoint, "load", lambda *_: pytest.fail("loaded"))
    index = opened(model, built)
    assert len(index) == len(UNITS)
    frame = queries("x")
    frame["query_vec"] = [index.documents.vectors[5]]
    assert index.retriever(depth=1)(frame)["score"].iloc[0] == pytest.approx(1.0, abs=1e-5)


def test_another_corpus_encoder_or_a_damaged_file_is_refused(model, built, tmp_path):
    import shutil

    with pytest.raises(InputError, match="another corpus"):
        engine(model).open(built, corpus_fingerprint="other")
    with pytest.raises(InputError, match="another encoder"):
        opened(model, built, max_length=64)
    with pytest.raises(InputError, match="no dense index"):
        opened(model, tmp_path / "none")
    copied = Path(shutil.copytree(built, tmp_path / "copied"))
    with (copied / "vectors.npy").open("ab") as stream:
        stream.truncate(8)
    with pytest.raises(InputError, match="damaged"):
        opened(model, copied)


def test_a_killed_build_goes_on_and_gives_the_same_index(model, built, tmp_path, monkeypatch):
    monkeypatch.setattr("soundingline.pipelines.learned.retriever.SHARD_CHARACTERS", {"cpu": 200})
    path = tmp_path / "index"
    encode, calls = Dense.encode_batch, []

    def killed(self, items):
        calls.append(len(items))
        if sum(calls) > 40:
            raise KeyboardInterrupt
        return encode(self, items)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Dense, "encode_batch", killed)
        engine(model).build(UNITS, path, corpus_fingerprint="corpus")
    assert not path.exists()
    before, again = sum(calls), []
    monkeypatch.setattr(
        Dense,
        "encode_batch",
        lambda self, items: again.append(len(items)) or encode(self, items),
    )
    engine(model).build(UNITS, path, corpus_fingerprint="corpus")
    assert before > 20
    assert sum(again) < len(UNITS)
    np.testing.assert_allclose(
        opened(model, path).documents.vectors, opened(model, built).documents.vectors, atol=1e-5
    )
    assert [child.name for child in tmp_path.iterdir()] == ["index"]


def test_an_empty_corpus_and_a_repeated_id_leave_nothing(model, tmp_path):
    with pytest.raises(InputError, match="empty"):
        engine(model).build([], tmp_path / "a", corpus_fingerprint="c")
    with pytest.raises(InputError, match="twice"):
        engine(model).build([UNITS[0]] * 2, tmp_path / "b", corpus_fingerprint="c")
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def test_wrong_queries_are_refused(model, built):
    retriever = opened(model, built).retriever()
    with pytest.raises(InputError, match="query holds nan"):
        retriever(pd.DataFrame({"qid": ["1"], "query": [float("nan")]}))
    with pytest.raises(InputError, match=r"shape \[3\].*valid: \[32\]"):
        retriever(pd.DataFrame({"qid": ["1"], "query_vec": [np.ones(3)]}))
    with pytest.raises(InputError, match=r"shape \[3\]"):
        retriever(pd.DataFrame({"qid": ["1", "2"], "query_vec": [np.ones(3), np.ones(4)]}))
    with pytest.raises(InputError, match="numpy, torch"):
        engine(model, compute="faiss")
    with pytest.raises(InputError, match="depth=0"):
        opened(model, built).retriever(depth=0)


@pytest.mark.parametrize(("whole", "length"), [(True, 32), (False, 16)])
def test_whole_documents_may_have_a_length_of_their_own(model, whole, length):
    engines = []

    def open_index(engine):
        engines.append(engine)
        return "index"

    retriever = Dense(
        str(model), pooling="last", depth=7, max_length=16, document_max_length=32, device="cpu"
    )
    collection = Collection("c1", open_index=open_index, whole_documents=whole)
    assert retriever.index_in(collection) == "index"
    assert engines[0].read(["word " * 99])[1] == [length]
