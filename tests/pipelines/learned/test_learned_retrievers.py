"""What every retriever by a model and its index must do, one row a class; and how a corpus is
encoded: order, blocks on disk, shards, resuming after a kill, bad input."""

import inspect
import json
import multiprocessing
import pickle
import random
import re
import shutil
import signal
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from lz4.frame import LZ4FrameFile
from support import checkpoints
from support.assertions import refused

from soundingline.pipelines import device
from soundingline.pipelines.checkpoint import Checkpoint
from soundingline.pipelines.index_folder import Shard
from soundingline.pipelines.learned import encoding
from soundingline.pipelines.learned.colbert import ColBERT, colbert_retriever
from soundingline.pipelines.learned.dense import Dense, dense_retriever
from soundingline.pipelines.learned.encoding import (
    SPARSE,
    Blocks,
    encode_corpus,
    encode_shard,
    merged_shards,
)
from soundingline.pipelines.learned.splade import Sparta, Splade, sparta_retriever, splade_retriever
from soundingline.pipelines.learned.vectors import MultiVectorEngine, VectorEngine
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("sentence_transformers")

CPU = {"device": "cpu", "dtype": "float32"}


class Row(NamedTuple):
    """A retriever and the class of its encoder: how a checkpoint is saved, its words, arguments of
    all, and arguments that change the index."""

    retriever: Any
    kind: Any
    save: Any
    words: tuple[str, ...]
    settings: dict[str, Any]
    changes: tuple[dict[str, Any], ...]
    file: str


WORDS = checkpoints.EMBEDDER_WORDS[:12]
ROWS = {
    "dense": Row(
        dense_retriever,
        Dense,
        checkpoints.save_sentence_model,
        WORDS,
        {},
        ({"normalise": False}, {"query_prefix": "q: "}, {"document_prefix": "d: "}),
        "vectors.npy",
    ),
    "pooled": Row(
        dense_retriever,
        Dense,
        checkpoints.save_qwen,
        WORDS,
        {"pooling": "last"},
        ({"pooling": "mean"}, {"append_eos": True}, {"query_max_length": 64}),
        "vectors.npy",
    ),
    "colbert": Row(
        colbert_retriever,
        ColBERT,
        checkpoints.save_multi_vector,
        WORDS,
        {"storage": "float32"},
        ({"storage": "float16"}, {"query_max_length": 16}),
        "offsets.npy",
    ),
    "splade": Row(
        splade_retriever,
        Splade,
        checkpoints.write_splade,
        checkpoints.SPLADE_WORDS[:12],
        {"scale": None},
        ({"scale": 100},),
        "documents.bin",
    ),
    "sparta": Row(
        sparta_retriever,
        Sparta,
        lambda folder, seed=0: checkpoints.write_splade(folder, kind="encoder", seed=seed),
        checkpoints.SPLADE_WORDS[:12],
        {"scale": None},
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
    return lambda **given: row.retriever(**{"model": model, **CPU, **row.settings, **given})


@pytest.fixture(scope="module")
def units(row):
    def text(n):
        return " ".join(row.words[n % 7 : n % 7 + n % 5 + 1])

    rows = [Unit(f"d{n}%p{n % 3}", row.words[3] if n % 2 else "", text(n)) for n in range(60)]
    return [*rows, Unit("nothing", "", "")]


@pytest.fixture(scope="module")
def built(make, units, tmp_path_factory):
    path = tmp_path_factory.mktemp("indexes") / "index"
    make().engine.build(units, path, corpus_fingerprint="c")
    return path


@pytest.fixture(scope="module")
def frame(row):
    texts = [" ".join(row.words[:3]), row.words[5]]
    return pd.DataFrame({"qid": ["b", "a"], "query": texts, "reasoning": "why"})


def bound(retriever, path, corpus_fingerprint="c"):
    opened = retriever.engine.open(path, corpus_fingerprint=corpus_fingerprint)
    return retriever.bind(Collection("c", open_index=lambda engine: opened))


def assert_alike(ranking, other):
    """The same scores, but for the rounding of batches."""
    assert len(ranking) == len(other) > 2
    theirs = other.set_index(["qid", "docno"])["score"]
    mine = ranking.set_index(["qid", "docno"])["score"]
    np.testing.assert_allclose(mine, theirs.reindex(mine.index), atol=2e-4)


def test_neither_the_batch_nor_the_order_changes_what_a_text_gives(row, make):
    words = row.words
    texts = [" ".join(words[:3]), "", " ".join(words * 3), words[1]]
    wide, narrow = (make(batch_tokens=n).engine.encoder for n in (100_000, 8))
    for other in (narrow.encode(texts), wide.encode(texts[::-1])[::-1]):
        for array, theirs in zip(wide.encode(texts), other, strict=True):
            for name in array.dtype.names or (...,):
                np.testing.assert_allclose(array[name], theirs[name], atol=1e-5)
    assert make().engine.encoder.encode([]) == []


def test_all_texts_are_tokenized_by_one_call(row, make, monkeypatch):
    encoder, calls = make(batch_tokens=40).engine.encoder, []
    encoder.encode(list(row.words))  # which measures the prompt once
    tokenize = transformers.PreTrainedTokenizerBase.__call__

    def counted(self, texts, *args, **settings):
        calls.append(len(texts))
        return tokenize(self, texts, *args, **settings)

    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "__call__", counted)
    assert len(encoder.encode([" ".join(row.words)] * 30)) == 30  # in many batches
    assert calls == [30]


def test_a_run_opens_the_index_of_the_model_and_ranks(make, built, units, frame):
    asked = []

    def open_index(engine):
        asked.append(engine)
        return engine.open(built)

    retriever = make(depth=3)
    ranking = retriever.bind(Collection("c", open_index=open_index))(frame)
    assert asked == [retriever.engine]
    assert ranking["qid"].tolist() == ["b"] * 3 + ["a"] * 3
    assert ranking["rank"].tolist() == [0, 1, 2] * 2 and set(ranking["reasoning"]) == {"why"}
    every = bound(make(depth=10_000), built)(frame)
    for _, hits in every.groupby("qid"):
        assert hits["score"].is_monotonic_decreasing and hits["docno"].is_unique
        assert set(hits["docno"]) <= {unit.unit_id for unit in units}
    empty = bound(make(), built)(frame[:0])
    assert list(empty.columns) == ["qid", "query", "reasoning", "docno", "score", "rank"]
    assert len(empty) == 0
    refused("opens no index of its model", lambda: retriever.bind(Collection("c")))
    refused("not bound", retriever, frame)


def test_a_stage_travels_and_a_cutoff_becomes_its_depth(make, built, frame):
    one, other = bound(make(depth=50), built), bound(make(depth=50), built)
    assert one.index == other.index
    assert type((one % 3).compile()[0]) is type(one) and (one % 3).compile()[0].depth == 3
    again = pickle.loads(pickle.dumps(one))
    assert repr(again) == repr(one)
    assert_alike(again(frame), one(frame))


def test_the_encoder_in_front_of_the_index_ranks_as_the_stage_does(row, make, built, frame):
    stage = bound(make(depth=5), built)
    assert stage.index.retriever().depth == 1000
    pipe = stage.engine.encoder >> stage.index.retriever(depth=5)
    ranking = pipe(frame)
    encoded = stage.engine.encoder.query_column
    assert list(ranking.columns) == [*frame.columns, encoded, "docno", "score", "rank"]
    expected = stage(frame)
    pd.testing.assert_frame_equal(ranking.drop(columns=encoded), expected)
    with pytest.raises(pt.validate.InputValidationError, match=encoded):
        stage.index.retriever()(frame)


def test_pyterrier_opens_the_index_by_its_path(row, make, built, frame, tmp_path):
    opened = pt.Artifact.load(str(built))
    stage = bound(make(depth=4), built)
    assert type(opened) is type(stage.index) and opened == stage.index
    assert type(opened).load(built) == opened
    ranking = (stage.engine.encoder >> opened.retriever(depth=4))(frame)
    assert ranking["docno"].tolist() == stage(frame)["docno"].tolist()
    refused("another corpus", lambda: pt.Artifact.load(str(built), corpus_fingerprint="other"))
    metadata = json.loads((built / "pt_meta.json").read_text())
    assert (metadata["type"], metadata["format"]) == pt.inspect.artifact_type_format(opened)
    package = opened.build_package(str(tmp_path / "package.tar.lz4"), verbose=False)
    with LZ4FrameFile(package) as stream, tarfile.open(fileobj=stream) as files:
        assert set(files.getnames()) == {"manifest.json", *opened.manifest["files"]}


def test_a_killed_build_goes_on_and_gives_the_same_index(
    row, make, units, built, frame, tmp_path, monkeypatch
):
    monkeypatch.setattr("soundingline.pipelines.learned.retriever.BLOCK_CHARACTERS", {"cpu": 200})
    monkeypatch.setattr(
        type(make().engine), "check_disk", lambda *_: None
    )  # which encodes a sample
    encode, encoded = row.kind.encode_batch, []

    def counted(self, features, role):
        encoded.append(len(features["input_ids"]))
        if stop and sum(encoded) > 40:
            raise KeyboardInterrupt
        return encode(self, features, role)

    monkeypatch.setattr(row.kind, "encode_batch", counted)
    stop, path = True, tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        make().engine.build(units, path, corpus_fingerprint="c")
    assert not path.exists()
    stop = False
    encoded.clear()
    make().engine.build(units, path, corpus_fingerprint="c")
    assert 0 < sum(encoded) < len(units)
    assert [child.name for child in tmp_path.iterdir()] == ["index"]
    assert_alike(bound(make(), path)(frame), bound(make(), built)(frame))


def test_a_build_takes_what_the_lexical_index_takes_and_replaces_on_request(
    make, units, built, frame, tmp_path
):
    rows = [{"docno": unit.unit_id, "title": unit.title, "text": unit.text} for unit in units]
    path = str(tmp_path / "index")
    make().engine.build(pd.DataFrame(rows), path)
    assert list(make().engine.open(path).docnos) == [unit.unit_id for unit in units]
    assert_alike(bound(make(), path, "")(frame), bound(make(), built)(frame))
    refused(
        r"holds an index of the kind \w+.* overwrite=True", lambda: make().engine.build(units, path)
    )
    make().engine.build(iter(rows[:5]), path, overwrite=True)
    assert list(make().engine.open(path).docnos) == [unit.unit_id for unit in units[:5]]
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="is not an index of the kind"):
            make().engine.build(units, tmp_path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert {child.name for child in tmp_path.iterdir()} == {"index", "thesis.tex"}
    with pytest.raises(InputError, match=r"document 2 has the text nan"):
        make().engine.build([units[0], {"docno": "a", "text": float("nan")}], tmp_path / "other")
    make().engine.build_shard(rows, str(tmp_path / "sharded"), Shard(0, 1))
    assert make().engine.missing_shards(str(tmp_path / "sharded"), 1) == []


def test_shards_give_the_index_of_one_process(make, units, built, frame, tmp_path):
    path = tmp_path / "index"
    with pytest.raises(InputError, match=r"3 of 3 shards .* are missing"):
        make().engine.build(units, path, corpus_fingerprint="c", shards=3)
    for number in range(3):
        assert number in make().engine.missing_shards(path, 3, "c")
        make().engine.build_shard(units, path, Shard(number, 3), corpus_fingerprint="c")
    assert make().engine.missing_shards(path, 3, "c") == []
    make().engine.build(units, path, corpus_fingerprint="c", shards=3)
    assert [child.name for child in tmp_path.iterdir()] == ["index"]
    assert list(make().engine.open(path).docnos) == list(make().engine.open(built).docnos)
    assert_alike(bound(make(), path)(frame), bound(make(), built)(frame))


@pytest.mark.parametrize(
    ("gpus", "device", "expected"),
    [
        (0, None, [None] * 3),
        (1, None, [None] * 3),
        (2, None, ["cuda:0", "cuda:1", "cuda:0"]),
        (2, "cuda:1", ["cuda:1"] * 3),
    ],
)
def test_shards_take_the_gpus_in_turn(model, row, tmp_path, monkeypatch, gpus, device, expected):
    devices = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(
        "soundingline.pipelines.learned.retriever.encode_shard",
        lambda units, encoder, *_, **settings: devices.append(encoder.device),
    )
    monkeypatch.setattr(MultiVectorEngine, "check_disk", lambda *_: None)  # which loads the model
    engine = row.retriever(str(model), dtype="float32", device=device).engine
    for number in range(3):
        engine.build_shard([], tmp_path / "index", Shard(number, 3))
    assert devices == expected


def test_another_corpus_model_or_damaged_file_is_refused(row, make, built, units, tmp_path):
    with pytest.raises(InputError, match=r"another corpus \('c'\)"):
        make().engine.open(built, corpus_fingerprint="other")
    refused(r"there is no .* index", lambda: make().engine.open(tmp_path / "none"))
    # A sparse index is that of its path.
    for changed in (*row.changes, {"max_length": 32}) if row.file != "documents.bin" else ():
        with pytest.raises(InputError, match="another encoder or with other settings"):
            make(**changed).engine.open(built)
    copied = Path(shutil.copytree(built, tmp_path / "copied"))
    with (copied / row.file).open("ab") as stream:
        stream.truncate(8)
    refused("damaged", lambda: make().engine.open(copied))
    for bad, message in (([], "corpus is empty"), ([units[0]] * 2, "comes twice")):
        with pytest.raises(InputError, match=message):
            make().engine.build(bad, tmp_path / "index", corpus_fingerprint="c")
    assert not (tmp_path / "index").exists()


def test_the_fingerprint_follows_what_changes_the_index_and_loads_nothing(
    row, make, built, tmp_path, monkeypatch
):
    other = str(row.save(tmp_path / "other", seed=5))
    monkeypatch.setattr(Checkpoint, "load", lambda *_: pytest.fail("loaded"))
    changes = [{"dtype": "bfloat16"}, {"max_length": 33}, {"model": other}, *row.changes]
    prints = {make(**each).fingerprint for each in [{}, *changes]}
    assert len(prints) == 1 + len(changes)
    for same in ({"batch_tokens": 7}, {"depth": 5}):
        assert make(**same).fingerprint == make().fingerprint
    assert len(make().engine.open(built)) == 61


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
    for read in (lambda stage: stage.fingerprint, lambda stage: stage.engine.encoder.encode(["x"])):
        refused(message, lambda read=read: read(make(model=name)))


def test_wrong_arguments_and_models_that_do_not_fit_are_refused(row, make, monkeypatch):
    for name, value in (("max_length", 2), ("batch_tokens", 0), ("depth", 0), ("device", "tpu")):
        with pytest.raises(InputError, match=f"{name}={value!r}"):
            make(**{name: value}).engine.encoder.encode(["x"])
    if row.kind is ColBERT:  # reads as far as it can
        assert make(max_length=10**5).fingerprint != make().fingerprint
    else:
        refused("positions of this model", lambda: make(max_length=10**5).fingerprint)
    monkeypatch.setattr(device, "free_bytes", lambda device: 1000)
    refused(r"needs .* GB and cpu has 0\.0 GB free", lambda: make().engine.encoder.encode(["x"]))


def without_a_weight(folder):
    """The name of a layer of the body whose weight the checkpoint is now without."""
    safetensors = pytest.importorskip("safetensors.torch")
    path = Path(folder) / "model.safetensors"
    weights = safetensors.load_file(path)
    name = next(each for each in sorted(weights) if "layers.0." in each or "layer.0." in each)
    del weights[name]
    safetensors.save_file(weights, path, {"format": "pt"})
    return name


def test_a_checkpoint_without_the_weights_of_a_layer_is_refused(row, make, tmp_path):
    folder = str(row.save(tmp_path / "model"))
    assert make(model=folder).engine.encoder.encode([row.words[0]])
    name = without_a_weight(folder)
    layer = re.escape(name[name.index("layer") :])
    with pytest.raises(InputError, match=rf"has no weights for \S*{layer}"):
        make(model=folder).engine.encoder.encode([row.words[0]])


class Counting:
    """Encodes a text to one row a word: its length, and the word's place. Notes every text."""

    model, fingerprint = "counting", "counting-1"

    def __init__(self, bad=None):
        self.bad, self.texts = bad, []

    def tokenize(self, texts):
        return texts

    def encode_tokens(self, texts):
        self.texts += filter(None, texts)
        return [self.rows(text) for text in texts]

    def rows(self, text):
        rows = np.array([(len(word), n) for n, word in enumerate(text.split())], np.float32)
        return np.full((1, 2), np.nan) if text == self.bad else rows.reshape(-1, 2)


class Pooled(Counting):
    """The same with one vector a text."""

    def rows(self, text):
        return np.array([len(text), len(text.split())], np.float32)


class Sparse(Counting):
    """The same with weights of terms, and none for an empty text."""

    def rows(self, text):
        return np.array([(n, 0.5) for n, _ in enumerate(text.split())], SPARSE)


def numbered_units(count):
    return [Unit(f"d{n}", f"title {n}", "word " * (n * 7 % 23)) for n in range(count)]


def encode_units(units, encoder, folder, **others):
    others = {"corpus_fingerprint": "corpus", "block_units": 10, **others}
    return encode_corpus(units, encoder, folder, **others)


def rows_by_id(blocks):
    return {
        name: array.tolist()
        for block in blocks
        for name, array in zip(block.unit_ids, block.arrays(), strict=True)
    }


def test_every_unit_has_its_own_rows_in_the_order_of_the_corpus(tmp_path):
    units, encoder = numbered_units(37), Counting()
    (tmp_path / ".manifest.json.abc.tmp").write_text("{")  # of a kill at the very beginning
    blocks = encode_units(units, encoder, tmp_path)
    expected = {unit.unit_id: encoder.rows(unit.contents).tolist() for unit in units}
    assert list(rows_by_id(blocks).items()) == list(expected.items())
    assert [len(block.unit_ids) for block in blocks] == [10, 10, 10, 7]
    assert blocks.counts["rows"] == sum(map(len, expected.values()))


@pytest.mark.parametrize(
    ("kind", "dtype", "lengths"),
    [(Counting, np.float32, [0, 3]), (Pooled, np.float32, [1, 1]), (Sparse, SPARSE, [0, 3])],
)
def test_values_are_mapped_in_the_type_of_the_encoder(kind, dtype, lengths, tmp_path):
    units = [Unit("a", "", ""), Unit("b", "", "one two three")]
    (block,) = encode_units(units, kind(), tmp_path)
    assert isinstance(block.values, np.memmap) and not block.values.flags.writeable
    assert block.values.dtype == dtype and list(map(len, block.arrays())) == lengths
    expected = np.concatenate([np.atleast_1d(kind().rows(unit.contents)) for unit in units])
    assert block.values.ravel().tolist() == expected.ravel().tolist()
    (empty,) = encode_units(units[:1], kind(), tmp_path / "empty")  # without a row
    assert list(map(len, empty.arrays())) == lengths[:1]


CHANGED = [
    unit._replace(text="changed") if n == 13 else unit for n, unit in enumerate(numbered_units(20))
]


@pytest.mark.parametrize(
    ("units", "size", "encoded"),
    [
        (numbered_units(37), 10, 0),
        (numbered_units(40), 4, 3),
        (numbered_units(10), 10, 0),
        (CHANGED, 10, 10),
    ],
    ids=["the same", "longer, other blocks", "shorter", "one changed"],
)
def test_only_blocks_whose_units_changed_are_computed_again(tmp_path, units, size, encoded):
    encode_units(numbered_units(37), Counting(), tmp_path / "blocks")
    again = Counting()
    blocks = encode_units(units, again, tmp_path / "blocks", block_units=size)
    assert len(again.texts) == encoded
    assert rows_by_id(blocks) == rows_by_id(encode_units(units, Counting(), tmp_path / "new"))
    paths = [path for path in (tmp_path / "blocks").iterdir() if path.is_dir()]
    assert len(paths) == blocks.counts["blocks"]


def test_what_is_refused_at_once_leaves_no_folder(tmp_path):
    class Refusing(Counting):
        def encode_tokens(self, texts):
            raise InputError("not this one")

    for encoder, settings in ((Refusing(), {}), (Counting(), {"block_units": 0})):
        with pytest.raises(InputError, match=r"not this one|block_units=0"):
            encode_units(numbered_units(3), encoder, tmp_path / "work", **settings)
        assert not (tmp_path / "work").exists()


def test_long_texts_make_smaller_blocks(tmp_path):
    units = [Unit(f"d{n}", "", "w" * length) for n, length in enumerate([90, 90, 90, 500, 10])]
    blocks = encode_units(units, Counting(), tmp_path, block_characters=200)
    assert [block.unit_ids for block in blocks] == [["d0", "d1", "d2"], ["d3"], ["d4"]]


def test_empty_texts_are_encoded_and_counted(tmp_path):
    units = [Unit("a", "", ""), Unit("b", "", " \n "), Unit("c", "", "one two")]
    encoder = Counting()
    blocks = encode_units(units, encoder, tmp_path)
    assert blocks.counts["empty"] == 2
    assert [len(rows) for rows in rows_by_id(blocks).values()] == [0, 0, 2]
    assert encoder.texts == [" \n ", "one two"]


class Slow(Counting):
    def encode_tokens(self, texts):
        time.sleep(0.1)
        return super().encode_tokens(texts)


def test_a_killed_process_loses_only_the_blocks_that_it_was_in(tmp_path):
    folder = tmp_path / "killed"
    process = multiprocessing.get_context("fork").Process(
        target=encode_units, args=(numbered_units(50), Slow(), folder)
    )
    process.start()
    deadline = time.monotonic() + 60
    while not (folder / "000001").is_dir():
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    refused("not complete", Blocks, folder)
    finished = sum(path.name.isdecimal() for path in folder.iterdir())
    assert 2 <= finished < 5
    before = {path: path.stat().st_mtime_ns for path in folder.glob("0*/values.npy")}

    encoder = Counting()
    blocks = encode_units(numbered_units(50), encoder, folder)

    assert len(encoder.texts) == 50 - 10 * finished
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert rows_by_id(blocks) == rows_by_id(
        encode_units(numbered_units(50), Counting(), tmp_path / "whole")
    )
    assert not [path for path in folder.iterdir() if path.name.endswith(".partial")]


def test_the_next_block_is_tokenized_and_the_last_one_written_while_one_is_computed(
    tmp_path, monkeypatch
):
    """Block 0 is computed when block 1 has been tokenized, and written when block 1 is computed:
    one after the other, each would wait for the other."""
    tokenized, computing = threading.Event(), threading.Event()

    class Waiting(Counting):
        def tokenize(self, texts):
            if texts[0].startswith("title 10"):
                tokenized.set()
            return texts

        def encode_tokens(self, texts):
            if texts[0].startswith("title 0"):
                assert tokenized.wait(30)
            if texts[0].startswith("title 10"):
                computing.set()
            return super().encode_tokens(texts)

    write = encoding.write_checksum_list

    def written(folder):
        assert computing.wait(30)
        write(folder)

    monkeypatch.setattr(encoding, "write_checksum_list", written)
    assert len(encode_units(numbered_units(20), Waiting(), tmp_path)) == 20


@pytest.mark.parametrize("name", ["values.npy", "offsets.npy", "ids.json"])
def test_a_damaged_block_is_set_aside_and_encoded_again(tmp_path, capsys, name):
    whole = encode_units(numbered_units(30), Counting(), tmp_path / "whole")
    folder = tmp_path / "damaged"
    encode_units(numbered_units(30), Counting(), folder)
    content = (folder / "000001" / name).read_bytes()
    for place in random.Random(name).sample(range(8 * len(content)), 3):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        (folder / "000001" / name).write_bytes(damaged)
        encoder = Counting()
        again = encode_units(numbered_units(30), encoder, folder)
        assert len(encoder.texts) == 10
        assert rows_by_id(again) == rows_by_id(whole)
        assert [block.unit_ids for block in again] == [block.unit_ids for block in whole]
        assert "000001 is damaged, now in 000001.damaged-" in capsys.readouterr().err
    kept = [(path / name).read_bytes() for path in folder.glob("000001.damaged-*")]
    assert len(kept) == 3 and content not in kept


def test_an_interrupted_encoding_leaves_its_whole_blocks(tmp_path):
    def cut_off():
        yield from numbered_units(15)
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="went away"):
        encode_units(cut_off(), Counting(), tmp_path)
    assert json.loads((tmp_path / "000000" / "ids.json").read_text())["units"] == 10
    encode_units(numbered_units(15), encoder := Counting(), tmp_path)
    assert len(encoder.texts) == 5


def test_values_that_are_not_finite_are_refused(tmp_path):
    encoder = Counting(bad="title 3\n" + "word " * 21)
    with pytest.raises(InputError, match=r"counting encodes unit 'd3'.*float32"):
        encode_units(numbered_units(5), encoder, tmp_path)


def test_an_encoder_that_loses_a_text_is_a_defect(tmp_path):
    class Losing(Counting):
        def encode_tokens(self, texts):
            return super().encode_tokens(texts)[:-1]

    with pytest.raises(ValueError, match="argument 2 is shorter"):
        encode_units(numbered_units(5), Losing(), tmp_path)


def test_ids_of_any_unicode_survive(tmp_path):
    names = ["é ü", "日本", 'quote"\n']
    (block,) = encode_units([Unit(name, "", "x") for name in names], Counting(), tmp_path)
    assert block.unit_ids == names


def test_a_folder_of_another_encoder_or_corpus_is_refused(tmp_path):
    encode_units(numbered_units(5), Counting(), tmp_path)
    other = Counting()
    other.fingerprint = "counting-2"
    for encoder, corpus_fingerprint in ((other, "corpus"), (Counting(), "another")):
        with pytest.raises(InputError, match=r"encoder counting-1.*remove that folder"):
            encode_units(
                numbered_units(5), encoder, tmp_path, corpus_fingerprint=corpus_fingerprint
            )


@pytest.mark.parametrize("content", [None, "{", "[]", json.dumps({"format": "something"})])
def test_a_folder_of_something_else_is_refused(content, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    if content:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match="is not an encoded corpus"):
        encode_units(numbered_units(5), Counting(), tmp_path)
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize("name", ["values.npy", "offsets.npy"])
@pytest.mark.parametrize("kind", ["array of objects", "pickle", "archive"])
def test_objects_in_the_place_of_numbers_are_refused_and_not_loaded(name, kind, tmp_path):
    blocks = encode_units(numbered_units(3), Counting(), tmp_path)
    path, canary = tmp_path / "000000" / name, checkpoints.Canary(tmp_path / "canary")
    with path.open("wb") as stream:
        if kind == "array of objects":
            np.save(stream, np.array([canary], dtype=object), allow_pickle=True)
        elif kind == "archive":
            np.savez(stream, values=np.ones(3))
        else:
            pickle.dump(canary, stream)
    refused("cannot read", list, blocks)
    assert not (tmp_path / "canary").exists()


def shard_of(units, encoder, path, number, count):
    others = {"corpus_fingerprint": "corpus", "block_units": 10}
    return encode_shard(units, encoder, path, Shard(number, count), **others)


def merge(units, encoder, path, count):
    return merged_shards(units, encoder, path, count, corpus_fingerprint="corpus")


@pytest.mark.parametrize("encoder", [Counting(), Pooled(), Sparse()])
@pytest.mark.parametrize("count", [1, 4, 150])
def test_shards_make_the_encoding_of_one_process(tmp_path, count, encoder):
    units = numbered_units(100)
    whole = encode_units(units, encoder, tmp_path / "whole")
    encoder.texts.clear()
    for number in reversed(range(count)):
        shard_of(units, encoder, tmp_path / "i", number, count)
    # Every unit is encoded by one shard, and no shard has all.
    assert sorted(encoder.texts) == sorted(filter(None, (unit.contents for unit in units)))
    with merge(units, encoder, tmp_path / "i", count) as blocks:
        assert list(rows_by_id(blocks).items()) == list(rows_by_id(whole).items())
        again = list(rows_by_id(blocks).items())  # the blocks can be read more than once
        assert again == list(rows_by_id(whole).items())
        alike = ("units", "rows", "empty")
        assert [blocks.counts[name] for name in alike] == [whole.counts[name] for name in alike]
        assert {block.values.dtype for block in blocks} == {block.values.dtype for block in whole}
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_shards_that_are_missing_damaged_or_of_other_units_are_told(tmp_path, capsys):
    units, path = numbered_units(100), tmp_path / "i"
    for number in (0, 1, 3):
        shard_of(units, Counting(), path, number, 4)
    with pytest.raises(InputError, match=r"1 of 4 shards of the index .* are missing: 2"):
        merge(units, Counting(), path, 4).__enter__()
    shard_of(units, Counting(), path, 2, 4)
    with pytest.raises(InputError, match="is of other units than the corpus has"):
        merge(numbered_units(101), Counting(), path, 4).__enter__()
    with pytest.raises(InputError, match="is of other units than the corpus has"):
        merge(numbered_units(99), Counting(), path, 4).__enter__()
    values = Shard(1, 4).folder(path) / "000000" / "values.npy"
    values.write_bytes(values.read_bytes()[:-1] + b"\x01")
    refused("are missing: 1", lambda: merge(units, Counting(), path, 4).__enter__())
    assert "is damaged" in capsys.readouterr().err
    shard_of(units, Counting(), path, 1, 4)
    with merge(units, Counting(), path, 4) as blocks:
        assert list(rows_by_id(blocks)) == [unit.unit_id for unit in units]


def test_a_repeated_id_is_found_by_its_shard(tmp_path):
    units = [*numbered_units(50), Unit("d7", "", "again")]
    owners = [n for n in range(4) if any(u.unit_id == "d7" for u in Shard(n, 4).of(units))]
    with pytest.raises(InputError, match="unit id 'd7' comes twice"):
        shard_of(units, Counting(), tmp_path / "i", owners[0], 4)


# Encoders in the pipelines of others.


def rows_of(units):
    return [{"docno": unit.unit_id, "title": unit.title, "text": unit.text} for unit in units]


def as_frame(units):
    return pd.DataFrame(rows_of(units))


def as_generator(units):
    return iter(rows_of(units))


@pytest.mark.parametrize("form", [rows_of, as_frame, as_generator])
def test_the_flex_index_of_pyterrier_dr_takes_vectors_and_ranks_as_ours(form, tmp_path):
    dr = pytest.importorskip("pyterrier_dr", reason="pip install pyterrier-dr")
    row = ROWS["dense"]
    dense = Dense(str(row.save(tmp_path / "model")), **CPU)
    words = row.words
    units = [Unit(f"d{n}", words[n % 5], " ".join(words[n % 7 : 9])) for n in range(30)]
    flex = dr.FlexIndex(str(tmp_path / "flex"), verbose=False)
    # PyTerrier's indexing pipelines take dicts.
    (dense >> flex.indexer()).index(rows_of(units) if form is as_frame else form(units))
    asked = pd.DataFrame({"qid": ["b", "a"], "query": [" ".join(words[:3]), words[5]]})
    theirs = (dense >> flex.np_retriever(num_results=10))(asked)
    engine = VectorEngine(dense)
    engine.build(form(units), tmp_path / "ours")
    ours = (dense >> engine.open(tmp_path / "ours").retriever(depth=30))(asked)
    by_id = ours.set_index(["qid", "docno"])["score"]
    for qid, hits in theirs.groupby("qid"):
        found = hits.sort_values("rank")
        expected = by_id[qid].sort_values(ascending=False)[:10]
        np.testing.assert_allclose(found["score"], expected, atol=1e-5)
        np.testing.assert_allclose(found["score"], by_id[qid][found["docno"]], atol=1e-5)


@pytest.mark.parametrize("form", [rows_of, as_generator])
def test_pisa_takes_the_weights_of_splade(form, tmp_path):
    pisa = pytest.importorskip("pyterrier_pisa", reason="pip install -e '.[pisa]'")
    words = ROWS["splade"].words
    splade = Splade(str(checkpoints.write_splade(tmp_path / "model")), max_length=40, **CPU)
    units = [Unit(f"d{n}", words[n % 5], " ".join(words[n % 7 : 9])) for n in range(30)]
    index = pisa.PisaIndex(str(tmp_path / "pisa"), stemmer="none")
    (splade >> index.toks_indexer()).index(form(units))
    asked = pd.DataFrame({"qid": ["q"], "query": [" ".join(words[:3])]})
    found = (splade >> index.quantized(num_results=10))(asked)
    # pyterrier_pisa cuts all weights off at their hundredths, and its queries are in lower case.
    documents = splade(as_frame(units))["toks"]
    query = {term: int(100 * w) for term, w in splade(asked)["query_toks"][0].items()}
    scores = {
        unit.unit_id: sum(
            query.get(term, 0) * int(100 * weight)
            for term, weight in toks.items()
            if term == term.lower()
        )
        for unit, toks in zip(units, documents, strict=True)
    }
    best = sorted(scores.values(), reverse=True)[:10]
    assert len(found) == 10 and best[-1] > 0
    np.testing.assert_allclose(found["score"], best)
    np.testing.assert_allclose(found["score"], [scores[d] for d in found["docno"]])


def test_an_encoder_adds_what_the_columns_of_a_frame_allow(row, make, units):
    encoder = make().engine.encoder
    query, document = encoder.query_column, encoder.document_column
    asked = pd.DataFrame({"qid": ["1"], "query": [row.words[0]], "text": ["of the topic"]})
    frame = as_frame(units[:3])
    assert list(encoder(asked).columns) == [*asked.columns, query]
    assert list(encoder(frame).columns) == [*frame.columns, document]
    both = frame.assign(qid="1", query=row.words[0])
    out = encoder(both)
    assert list(out.columns) == [*both.columns, query, document] and len(out) == 3
    same = frame.drop(columns="title").assign(text=[unit.contents for unit in units[:3]])
    alone = make().engine.encoder
    encoded = alone.encode_documents([unit.contents for unit in units[:3]])
    for whole in (out, encoder(same)):
        for value, expected in zip(whole[document], encoded, strict=True):
            if isinstance(expected, dict):
                assert value == pytest.approx(expected, abs=1e-5)
            else:
                np.testing.assert_allclose(value, expected, atol=1e-5)
    with pytest.raises(pt.validate.InputValidationError):
        encoder(frame.drop(columns="text"))
    refused("query holds None", lambda: encoder(asked.assign(query=None)))


def test_pyterrier_knows_the_columns_of_an_encoder_without_loading_it(row, make, monkeypatch):
    monkeypatch.setattr(Checkpoint, "load", lambda *_: pytest.fail("loaded"))
    encoder = make().engine.encoder
    assert pt.inspect.transformer_inputs(encoder)[:2] == [["qid", "query"], ["docno", "text"]]
    outputs = pt.inspect.transformer_outputs(encoder, ["qid", "query"])
    assert outputs == ["qid", "query", encoder.query_column]
    outputs = pt.inspect.transformer_outputs(encoder, ["docno", "text"])
    assert outputs == ["docno", "text", encoder.document_column]


def test_a_retriever_of_an_option_is_the_stages_of_its_parts(row, make):
    made = make(depth=7, max_length=32)
    assert (made.depth, made.engine.encoder.max_length) == (7, 32)
    assert type(made.engine.encoder) is row.kind
    names = set(inspect.signature(row.retriever).parameters)
    parts = (made, made.engine, made.engine.encoder)
    taken = {name for part in parts for name in part._arguments()}
    assert names == taken - {"engine", "encoder", "index"}
    with pytest.raises(TypeError, match="nonsense"):
        make(nonsense=1)
