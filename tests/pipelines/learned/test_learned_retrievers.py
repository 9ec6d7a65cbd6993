"""What every retriever by a model and its index must do, one row a class."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from support import checkpoints

from soundingline.pipelines import models
from soundingline.pipelines.index_folder import Shard
from soundingline.pipelines.learned.colbert import ColBERT
from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.learned.retriever import LearnedRetriever
from soundingline.pipelines.learned.splade import Sparta, Splade
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

CPU = {"device": "cpu", "dtype": "float32"}


class Row(NamedTuple):
    """A class: how a checkpoint is saved, its words, arguments of all, and arguments that change
    the index."""

    kind: Any
    save: Any
    words: tuple[str, ...]
    settings: dict[str, Any]
    changes: tuple[dict[str, Any], ...]
    file: str


WORDS = checkpoints.EMBEDDER_WORDS[:12]
ROWS = {
    "dense": Row(
        Dense,
        checkpoints.save_sentence_model,
        WORDS,
        {},
        ({"normalise": False}, {"query_prefix": "q: "}, {"document_prefix": "d: "}),
        "vectors.npy",
    ),
    "pooled": Row(
        Dense,
        checkpoints.save_qwen,
        WORDS,
        {"pooling": "last"},
        ({"pooling": "mean"}, {"append_eos": True}, {"query_max_length": 64}),
        "vectors.npy",
    ),
    "colbert": Row(
        ColBERT,
        checkpoints.save_multi_vector,
        WORDS,
        {"storage": "float32"},
        ({"storage": "float16"}, {"query_max_length": 16}),
        "offsets.npy",
    ),
    "splade": Row(
        Splade,
        checkpoints.write_splade,
        checkpoints.SPLADE_WORDS[:12],
        {"scale": None},
        ({"scale": 100},),
        "documents.bin",
    ),
    "sparta": Row(
        Sparta,
        lambda folder, seed=0: checkpoints.write_splade(folder, kind="encoder", seed=seed),
        checkpoints.SPLADE_WORDS[:12],
        {},
        ({"scale": 100}, {"terms": 9}),
        "documents.bin",
    ),
}


@pytest.fixture(scope="module", params=ROWS)
def row(request):
    torch.set_num_threads(1)
    return ROWS[request.param]


@pytest.fixture(scope="module")
def model(row, tmp_path_factory):
    return str(row.save(tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture(scope="module")
def make(row, model):
    return lambda **given: row.kind(**{"model": model, **CPU, **row.settings, **given})


@pytest.fixture(scope="module")
def units(row):
    def text(n):
        return " ".join(row.words[n % 7 : n % 7 + n % 5 + 1])

    rows = [Unit(f"d{n}%p{n % 3}", row.words[3] if n % 2 else "", text(n)) for n in range(60)]
    return [*rows, Unit("nothing", "", "")]


@pytest.fixture(scope="module")
def built(make, units, tmp_path_factory):
    path = tmp_path_factory.mktemp("indexes") / "index"
    make().build(units, path, corpus_fingerprint="c")
    return path


@pytest.fixture(scope="module")
def frame(row):
    texts = [" ".join(row.words[:3]), row.words[5]]
    return pd.DataFrame({"qid": ["b", "a"], "query": texts, "reasoning": "why"})


def bound(retriever, path):
    opened = retriever.open(path, corpus_fingerprint="c")
    return retriever.bind(Collection("c", open_index=lambda engine: opened))


def assert_alike(ranking, other):
    """The same scores, but for the rounding of batches."""
    assert len(ranking) == len(other) > 2
    theirs = other.set_index(["qid", "docno"])["score"]
    mine = ranking.set_index(["qid", "docno"])["score"]
    np.testing.assert_allclose(mine, theirs.reindex(mine.index), atol=2e-4)


def test_neither_the_batch_nor_the_order_changes_what_a_text_gives(row, make):
    words = row.words
    texts = [" ".join(words[:3]), "", " ".join(words * 3), words[1], "x\ud800"]
    wide, narrow = make(batch_tokens=100_000), make(batch_tokens=8)
    for other in (narrow.encode(texts), wide.encode(texts[::-1])[::-1]):
        for array, theirs in zip(wide.encode(texts), other, strict=True):
            if array.dtype.names:
                assert array["term"].tolist() == theirs["term"].tolist()
                array, theirs = array["weight"], theirs["weight"]
            np.testing.assert_allclose(array, theirs, atol=1e-5)
    assert make().encode([]) == []


def test_a_run_opens_the_index_of_the_model_and_ranks(make, built, units, frame):
    asked = []

    def open_index(engine):
        asked.append(engine)
        return engine.open(built)

    retriever = make(depth=3)
    ranking = retriever.bind(Collection("c", open_index=open_index))(frame)
    assert asked == [retriever]
    assert ranking["qid"].tolist() == ["b"] * 3 + ["a"] * 3
    assert ranking["rank"].tolist() == [0, 1, 2] * 2 and set(ranking["reasoning"]) == {"why"}
    every = bound(make(depth=10_000), built)(frame)
    for _, hits in every.groupby("qid"):
        assert hits["score"].is_monotonic_decreasing and hits["docno"].is_unique
        assert set(hits["docno"]) <= {unit.unit_id for unit in units}
    empty = bound(make(), built)(frame[:0])
    assert list(empty.columns) == ["qid", "query", "reasoning", "docno", "score", "rank"]
    assert len(empty) == 0
    with pytest.raises(InputError, match="opens no index of its model"):
        retriever.bind(Collection("c"))
    with pytest.raises(InputError, match="not bound"):
        retriever(frame)


def test_stages_of_equal_arguments_are_equal_and_travel_and_a_cutoff_becomes_the_depth(
    make, built, frame
):
    one, other = bound(make(depth=50), built), bound(make(depth=50), built)
    assert one == other and hash(one) == hash(other) and one.index == other.index
    assert one != bound(make(depth=5), built) and make() != make(batch_tokens=9)
    assert (one % 3).compile() == bound(make(depth=3), built) % 3
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert_alike(again(frame), one(frame))


def test_a_killed_build_goes_on_and_gives_the_same_index(
    row, make, units, built, frame, tmp_path, monkeypatch
):
    monkeypatch.setattr("soundingline.pipelines.learned.retriever.BLOCK_CHARACTERS", {"cpu": 200})
    monkeypatch.setattr(row.kind, "check_disk", lambda *_: None)  # which encodes a sample
    encode, encoded = row.kind.encode_batch, []

    def counted(self, items):
        encoded.append(len(items))
        if stop and sum(encoded) > 40:
            raise KeyboardInterrupt
        return encode(self, items)

    monkeypatch.setattr(row.kind, "encode_batch", counted)
    stop, path = True, tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        make().build(units, path, corpus_fingerprint="c")
    assert not path.exists()
    stop = False
    encoded.clear()
    make().build(units, path, corpus_fingerprint="c")
    assert 0 < sum(encoded) < len(units)
    assert [child.name for child in tmp_path.iterdir()] == ["index"]
    assert_alike(bound(make(), path)(frame), bound(make(), built)(frame))


def test_shards_give_the_index_of_one_process(make, units, built, frame, tmp_path):
    path = tmp_path / "index"
    with pytest.raises(InputError, match=r"3 of 3 shards .* are missing"):
        make().build(units, path, corpus_fingerprint="c", shards=3)
    for number in range(3):
        assert number in make().missing_shards(path, 3, "c")
        make().build_shard(units, path, Shard(number, 3), corpus_fingerprint="c")
    assert make().missing_shards(path, 3, "c") == []
    make().build(units, path, corpus_fingerprint="c", shards=3)
    assert [child.name for child in tmp_path.iterdir()] == ["index"]
    assert list(make().open(path).docnos) == list(make().open(built).docnos)
    assert_alike(bound(make(), path)(frame), bound(make(), built)(frame))


def test_another_corpus_model_or_damaged_file_is_refused(row, make, built, units, tmp_path):
    with pytest.raises(InputError, match=r"another corpus \('c'\)"):
        make().open(built, corpus_fingerprint="other")
    with pytest.raises(InputError, match=r"there is no .* index"):
        make().open(tmp_path / "none")
    if row.file != "documents.bin":  # a sparse index is that of its path
        for changed in (*row.changes, {"max_length": 32}):
            with pytest.raises(InputError, match="another encoder or with other settings"):
                make(**changed).open(built)
    copied = Path(shutil.copytree(built, tmp_path / "copied"))
    with (copied / row.file).open("ab") as stream:
        stream.truncate(8)
    with pytest.raises(InputError, match="damaged"):
        make().open(copied)
    for bad, message in (([], "corpus is empty"), ([units[0]] * 2, "comes twice")):
        with pytest.raises(InputError, match=message):
            make().build(bad, tmp_path / "index", corpus_fingerprint="c")
    assert not (tmp_path / "index").exists()


def test_the_fingerprint_follows_what_changes_the_index_and_loads_nothing(
    row, make, built, tmp_path, monkeypatch
):
    other = str(row.save(tmp_path / "other", seed=5))
    monkeypatch.setattr(models.Checkpoint, "load", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr(LearnedRetriever, "load_from_library", lambda *_: pytest.fail("loaded"))
    changes = [{"dtype": "bfloat16"}, {"max_length": 33}, {"model": other}, *row.changes]
    prints = {make(**each).fingerprint for each in [{}, *changes]}
    assert len(prints) == 1 + len(changes)
    for same in ({"batch_tokens": 7}, {"depth": 5}):
        assert make(**same).fingerprint == make().fingerprint
    assert len(make().open(built)) == 61


def test_threads_get_what_one_gets(row, make, built):
    frames = [
        pd.DataFrame({"qid": [f"q{n}"], "query": [" ".join(row.words[n % 5 : n % 5 + 3])]})
        for n in range(16)
    ]
    retriever = bound(make(depth=5), built)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(retriever, frames))
    for ranking, asked in zip(together, frames, strict=True):
        assert_alike(ranking, retriever(asked))


@pytest.mark.parametrize(
    ("name", "message"), [("/none/here", "no folder"), ("no/model", "hf down")]
)
def test_a_missing_model_is_refused_in_one_line(make, name, message):
    for read in (lambda stage: stage.fingerprint, lambda stage: stage.encode(["x"])):
        with pytest.raises(InputError, match=message) as refused:
            read(make(model=name))
        assert "\n" not in str(refused.value)


def test_wrong_arguments_and_models_that_do_not_fit_are_refused(row, make, monkeypatch):
    for name, value in (("max_length", 2), ("batch_tokens", 0), ("depth", 0), ("device", "tpu")):
        with pytest.raises(InputError, match=f"{name}={value!r}"):
            make(**{name: value}).encode(["x"])
    if row.kind is not ColBERT:  # reads as far as it can
        with pytest.raises(InputError, match="positions of this model"):
            _ = make(max_length=10**5).fingerprint
    monkeypatch.setattr(models, "free_bytes", lambda device: 1000)
    with pytest.raises(InputError, match=r"needs .* GB and cpu has 0\.0 GB free"):
        make().encode(["x"])
