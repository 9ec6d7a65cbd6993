"""The dense engine: a genuine FlexIndex, exact search, whole or not at all."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tiny_embedder

from soundingline.pipelines.learned.dense import DenseEngine, DenseRetriever, read_flex, write_flex
from soundingline.pipelines.learned.dense_encoder import DenseEncoder
from soundingline.pipelines.learned.shards import Shard
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
    search = settings.pop("search", "numpy")
    exact = {"pooling": "last", "dtype": "float32", "device": "cpu", "query_prefix": "q: "}
    return DenseEngine(DenseEncoder(str(model), **{**exact, **settings}), search)


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

    class Given(DenseEncoder):
        def tokenized(self, texts):
            return [int(text or 0) for text in texts], [1] * len(texts)

        def encode_tokenized(self, items):
            return [vectors[number] for number in items]

    made = DenseEngine(Given(str(model), pooling="last", dtype="float32", device="cpu"), search)
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
    index = opened(model, built, search=search)
    encoder = engine(model).encoder
    texts = [unit.contents for unit in UNITS]
    asked = ["text 7", "who built the mill"]
    exact = encoder.encode_queries(asked) @ np.stack(encoder.encode(texts)).T
    found = index.retriever(depth=len(UNITS))(queries(*asked))
    for row, (_, hits) in zip(exact, found.groupby("qid", sort=False), strict=True):
        scores = dict(zip([unit.unit_id for unit in UNITS], row, strict=True))
        assert sorted(hits["docno"]) == sorted(scores)
        np.testing.assert_allclose(
            hits["score"], [scores[docno] for docno in hits["docno"]], atol=1e-5
        )
        assert (np.diff(hits["score"]) <= 0).all()


def test_the_index_is_a_flex_index_that_pyterrier_dr_searches_alike(model, built):
    from pyterrier_dr import FlexIndex

    index = opened(model, built)
    flex = FlexIndex(str(index.path / "flex"), verbose=False)
    assert list(flex.docnos()) == [unit.unit_id for unit in UNITS]
    frame = queries("text 7")
    frame["query_vec"] = list(index.encoder.encode_queries(frame["query"].tolist()))
    theirs = flex.np_retriever(num_results=10)(frame)
    ours = index.retriever(depth=10)(frame)
    np.testing.assert_allclose(ours["score"], theirs["score"], atol=1e-5)
    assert set(ours["docno"][:3]) == set(theirs["docno"][:3])


@pytest.mark.parametrize(
    "names",
    [
        [f"Theodore_Roosevelt%p{number}" for number in range(554)],
        [f"Theodore_Roosevelt%p{number * 3 % 554}" for number in range(554)],
        [f"50%d{number:03d}" for number in range(1, 600)],
        [f"100%%{number}" for number in range(600)],
        [*(f"d{number}" for number in range(300)), *(f"e%p{number}" for number in range(600))],
        [*(f"e%p{number}" for number in range(300)), *(f"d{number}" for number in range(600))],
    ],
    ids=["in order", "in no order", "padded", "two signs", "behind others", "before others"],
)
def test_hundreds_of_passages_of_one_document_are_written_and_found_by_their_ids(tmp_path, names):
    from pyterrier_dr import FlexIndex

    values = np.arange(len(names) * 4, dtype=np.float32).reshape(-1, 4)
    halves = np.array_split(np.arange(len(names)), 2)
    shards = [
        Shard([names[row] for row in rows], values[rows], np.arange(len(rows) + 1))
        for rows in halves
    ]
    assert write_flex(tmp_path / "flex", shards) == 4
    docnos, vectors = read_flex(tmp_path / "flex")
    assert docnos.tolist() == names
    np.testing.assert_array_equal(vectors, values)
    flex = FlexIndex(str(tmp_path / "flex"), verbose=False)
    assert list(flex.docnos()) == names
    assert list(flex.docnos().fwd[list(range(len(names)))]) == names
    assert list(flex.docnos().inv[names]) == list(range(len(names)))


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
    with (copied / "flex" / "vecs.f4").open("ab") as stream:
        stream.truncate(8)
    with pytest.raises(InputError, match="damaged"):
        opened(model, copied)


def test_a_killed_build_goes_on_and_gives_the_same_index(model, built, tmp_path, monkeypatch):
    from soundingline.pipelines.learned import encoding

    monkeypatch.setattr(encoding, "_SHARD_CHARACTERS", 200)
    path = tmp_path / "index"
    encode, calls = DenseEncoder.encode_tokenized, []

    def killed(self, items):
        calls.append(len(items))
        if sum(calls) > 40:
            raise KeyboardInterrupt
        return encode(self, items)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DenseEncoder, "encode_tokenized", killed)
        engine(model).build(UNITS, path, corpus_fingerprint="corpus")
    assert not path.exists()
    before, again = sum(calls), []
    monkeypatch.setattr(
        DenseEncoder,
        "encode_tokenized",
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
        engine(model, search="faiss")
    with pytest.raises(InputError, match="depth=0"):
        opened(model, built).retriever(depth=0)


@pytest.mark.parametrize(("whole", "length"), [(True, 32), (False, 16)])
def test_whole_documents_may_have_a_length_of_their_own(model, whole, length):
    engines = []

    def open_index(engine):
        engines.append(engine)
        return "index"

    retriever = DenseRetriever(
        str(model), pooling="last", depth=7, max_length=16, document_max_length=32
    )
    collection = Collection("c1", open_index=open_index, whole_documents=whole)
    assert retriever.open(collection) == "index"
    assert engines[0].encoder.documents.limit == length
