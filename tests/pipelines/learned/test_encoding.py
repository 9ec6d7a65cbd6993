"""Encoding a corpus: order, blocks on disk, resuming after a kill, bad input."""

from __future__ import annotations

import json
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from soundingline.pipelines.index_folder import Shard
from soundingline.pipelines.learned.encoding import (
    SPARSE,
    Blocks,
    encode_corpus,
    encode_shard,
    merged,
)
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

ROOT = Path(__file__).resolve().parents[3]


class Counting:
    """Encodes a text to one row a word: its length, and the word's place. Notes every text."""

    model, fingerprint = "counting", "counting-1"

    def __init__(self, bad=None):
        self.bad, self.texts = bad, []

    def encode(self, texts):
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


def corpus(count):
    return [Unit(f"d{n}", f"title {n}", "word " * (n * 7 % 23)) for n in range(count)]


def encode(units, encoder, folder, **others):
    others = {"corpus_fingerprint": "corpus", "block_units": 10, **others}
    return encode_corpus(units, encoder, folder, **others)


def rows_by_id(blocks):
    return {
        name: array.tolist()
        for block in blocks
        for name, array in zip(block.unit_ids, block.arrays(), strict=True)
    }


def test_every_unit_has_its_own_rows_in_the_order_of_the_corpus(tmp_path):
    units, encoder = corpus(37), Counting()
    (tmp_path / ".manifest.json.abc.tmp").write_text("{")  # of a kill at the very beginning
    blocks = encode(units, encoder, tmp_path)
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
    (block,) = encode(units, kind(), tmp_path)
    assert isinstance(block.values, np.memmap) and not block.values.flags.writeable
    assert block.values.dtype == dtype and list(map(len, block.arrays())) == lengths
    expected = np.concatenate([np.atleast_1d(kind().rows(unit.contents)) for unit in units])
    assert block.values.ravel().tolist() == expected.ravel().tolist()
    (empty,) = encode(units[:1], kind(), tmp_path / "empty")  # without a row
    assert list(map(len, empty.arrays())) == lengths[:1]


CHANGED = [unit._replace(text="changed") if n == 13 else unit for n, unit in enumerate(corpus(20))]


@pytest.mark.parametrize(
    ("units", "size", "reused", "encoded"),
    [
        (corpus(37), 10, 4, 0),
        (corpus(40), 4, 4, 3),
        (corpus(10), 10, 1, 0),
        (CHANGED, 10, 1, 10),
    ],
    ids=["the same", "longer, other blocks", "shorter", "one changed"],
)
def test_only_blocks_whose_units_changed_are_computed_again(tmp_path, units, size, reused, encoded):
    encode(corpus(37), Counting(), tmp_path / "blocks")
    again = Counting()
    blocks = encode(units, again, tmp_path / "blocks", block_units=size)
    assert (blocks.counts["reused"], len(again.texts)) == (reused, encoded)
    assert rows_by_id(blocks) == rows_by_id(encode(units, Counting(), tmp_path / "new"))
    paths = [path for path in (tmp_path / "blocks").iterdir() if path.is_dir()]
    assert len(paths) == blocks.counts["blocks"]


def test_what_is_refused_at_once_leaves_no_folder(tmp_path):
    class Refusing(Counting):
        def encode(self, texts):
            raise InputError("not this one")

    for encoder, settings in ((Refusing(), {}), (Counting(), {"block_units": 0})):
        with pytest.raises(InputError, match=r"not this one|block_units=0"):
            encode(corpus(3), encoder, tmp_path / "work", **settings)
        assert not (tmp_path / "work").exists()


def test_long_texts_make_smaller_blocks(tmp_path):
    units = [Unit(f"d{n}", "", "w" * length) for n, length in enumerate([90, 90, 90, 500, 10])]
    blocks = encode(units, Counting(), tmp_path, block_characters=200)
    assert [block.unit_ids for block in blocks] == [["d0", "d1", "d2"], ["d3"], ["d4"]]


def test_empty_texts_are_encoded_and_counted(tmp_path):
    units = [Unit("a", "", ""), Unit("b", "", " \n "), Unit("c", "", "one two")]
    encoder = Counting()
    blocks = encode(units, encoder, tmp_path)
    assert blocks.counts["empty"] == 2
    assert [len(rows) for rows in rows_by_id(blocks).values()] == [0, 0, 2]
    assert encoder.texts == [" \n ", "one two"]


KILLED = """
import sys, time
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}, {root!r} + '/tests']
from test_encoding import Counting, corpus, encode

class Slow(Counting):
    def encode(self, texts):
        time.sleep(0.1)
        print("block", flush=True)
        return super().encode(texts)

encode(corpus(50), Slow(), Path({folder!r}))
"""


def test_a_killed_process_loses_only_the_block_that_it_was_in(tmp_path):
    folder = tmp_path / "killed"
    script = KILLED.format(
        root=str(ROOT), tests=str(Path(__file__).resolve().parent), folder=str(folder)
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (folder / "000001").is_dir():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    with pytest.raises(InputError, match="not complete"):
        Blocks(folder)
    finished = sum(path.name.isdecimal() for path in folder.iterdir())
    assert 2 <= finished < 5
    before = {path: path.stat().st_mtime_ns for path in folder.glob("0*/values.npy")}

    encoder = Counting()
    blocks = encode(corpus(50), encoder, folder)

    assert blocks.counts["reused"] == finished
    assert len(encoder.texts) == 50 - 10 * finished
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert rows_by_id(blocks) == rows_by_id(encode(corpus(50), Counting(), tmp_path / "whole"))
    assert not [path for path in folder.iterdir() if path.name.endswith(".partial")]


@pytest.mark.parametrize("name", ["values.npy", "offsets.npy", "ids.json"])
def test_a_damaged_block_is_set_aside_and_encoded_again(tmp_path, capsys, name):
    whole = encode(corpus(30), Counting(), tmp_path / "whole")
    folder = tmp_path / "damaged"
    encode(corpus(30), Counting(), folder)
    content = (folder / "000001" / name).read_bytes()
    for place in random.Random(name).sample(range(8 * len(content)), 3):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        (folder / "000001" / name).write_bytes(damaged)
        encoder = Counting()
        again = encode(corpus(30), encoder, folder)
        assert len(encoder.texts) == 10 and again.counts["reused"] == 2
        assert rows_by_id(again) == rows_by_id(whole)
        assert [block.unit_ids for block in again] == [block.unit_ids for block in whole]
        assert "000001 is damaged; it is kept as 000001.damaged-" in capsys.readouterr().err
    kept = [(path / name).read_bytes() for path in folder.glob("000001.damaged-*")]
    assert len(kept) == 3 and content not in kept


def test_an_interrupted_encoding_leaves_its_whole_blocks(tmp_path):
    def cut_off():
        yield from corpus(15)
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="went away"):
        encode(cut_off(), Counting(), tmp_path)
    assert json.loads((tmp_path / "000000" / "ids.json").read_text())["units"] == 10
    assert encode(corpus(15), Counting(), tmp_path).counts["reused"] == 1


def test_values_that_are_not_finite_are_refused(tmp_path):
    encoder = Counting(bad="title 3\n" + "word " * 21)
    with pytest.raises(InputError, match=r"counting encodes unit 'd3'.*float32"):
        encode(corpus(5), encoder, tmp_path)


def test_an_encoder_that_loses_a_text_is_a_defect(tmp_path):
    class Losing(Counting):
        def encode(self, texts):
            return super().encode(texts)[:-1]

    with pytest.raises(ValueError, match="argument 2 is shorter"):
        encode(corpus(5), Losing(), tmp_path)


def test_ids_of_any_unicode_survive(tmp_path):
    names = ["é ü", "日本", "lone \ud800", 'quote"\n']
    (block,) = encode([Unit(name, "", "x") for name in names], Counting(), tmp_path)
    assert block.unit_ids == names


def test_a_folder_of_another_encoder_or_corpus_is_refused(tmp_path):
    encode(corpus(5), Counting(), tmp_path)
    other = Counting()
    other.fingerprint = "counting-2"
    for encoder, corpus_fingerprint in ((other, "corpus"), (Counting(), "another")):
        with pytest.raises(InputError, match=r"encoder counting-1.*remove that folder"):
            encode(corpus(5), encoder, tmp_path, corpus_fingerprint=corpus_fingerprint)


@pytest.mark.parametrize("content", [None, "{", "[]", json.dumps({"format": "something"})])
def test_a_folder_of_something_else_is_refused(content, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    if content:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match="is not an encoded corpus"):
        encode(corpus(5), Counting(), tmp_path)
    assert (tmp_path / "thesis.tex").exists()


class Canary:
    """Unpickled, it makes a file."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


@pytest.mark.parametrize("name", ["values.npy", "offsets.npy"])
@pytest.mark.parametrize("kind", ["array of objects", "pickle", "archive"])
def test_objects_in_the_place_of_numbers_are_refused_and_not_loaded(name, kind, tmp_path):
    blocks = encode(corpus(3), Counting(), tmp_path)
    path, canary = tmp_path / "000000" / name, Canary(tmp_path / "canary")
    with path.open("wb") as stream:
        if kind == "array of objects":
            np.save(stream, np.array([canary], dtype=object), allow_pickle=True)
        elif kind == "archive":
            np.savez(stream, values=np.ones(3))
        else:
            pickle.dump(canary, stream)
    with pytest.raises(InputError, match="cannot read"):
        list(blocks)
    assert not (tmp_path / "canary").exists()


def shard_of(units, encoder, path, number, count):
    others = {"corpus_fingerprint": "corpus", "block_units": 10}
    return encode_shard(units, encoder, path, Shard(number, count), **others)


def merge(units, encoder, path, count):
    return merged(units, encoder, path, count, corpus_fingerprint="corpus")


@pytest.mark.parametrize("encoder", [Counting(), Pooled(), Sparse()])
@pytest.mark.parametrize("count", [1, 4, 150])
def test_shards_make_the_encoding_of_one_process(tmp_path, count, encoder):
    units = corpus(100)
    whole = encode(units, encoder, tmp_path / "whole")
    encoder.texts.clear()
    for number in reversed(range(count)):
        shard_of(units, encoder, tmp_path / "i", number, count)
    # Every unit is encoded by one shard, and no shard has all.
    assert sorted(encoder.texts) == sorted(filter(None, (unit.contents for unit in units)))
    with merge(units, encoder, tmp_path / "i", count) as blocks:
        assert list(rows_by_id(blocks).items()) == list(rows_by_id(whole).items())
        assert rows_by_id(blocks) == rows_by_id(blocks)
        alike = ("units", "rows", "empty")
        assert [blocks.counts[name] for name in alike] == [whole.counts[name] for name in alike]
        assert {block.values.dtype for block in blocks} == {block.values.dtype for block in whole}
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_shards_that_are_missing_damaged_or_of_other_units_are_told(tmp_path, capsys):
    units, path = corpus(100), tmp_path / "i"
    for number in (0, 1, 3):
        shard_of(units, Counting(), path, number, 4)
    with pytest.raises(InputError, match=r"1 of 4 shards of the index .* are missing: 2"):
        merge(units, Counting(), path, 4).__enter__()
    shard_of(units, Counting(), path, 2, 4)
    with pytest.raises(InputError, match="is of other units than the corpus has"):
        merge(corpus(101), Counting(), path, 4).__enter__()
    with pytest.raises(InputError, match="is of other units than the corpus has"):
        merge(corpus(99), Counting(), path, 4).__enter__()
    values = Shard(1, 4).folder(path) / "000000" / "values.npy"
    values.write_bytes(values.read_bytes()[:-1] + b"\x01")
    with pytest.raises(InputError, match="are missing: 1"):
        merge(units, Counting(), path, 4).__enter__()
    assert "is damaged" in capsys.readouterr().err
    shard_of(units, Counting(), path, 1, 4)
    with merge(units, Counting(), path, 4) as blocks:
        assert list(rows_by_id(blocks)) == [unit.unit_id for unit in units]


def test_a_repeated_id_is_found_by_its_shard(tmp_path):
    units = [*corpus(50), Unit("d7", "", "again")]
    owners = [n for n in range(4) if any(u.unit_id == "d7" for u in Shard(n, 4).of(units))]
    with pytest.raises(InputError, match="unit id 'd7' comes twice"):
        shard_of(units, Counting(), tmp_path / "i", owners[0], 4)


@pytest.mark.parametrize(("number", "count"), [(4, 4), (-1, 4), (0, 0), (True, 4)])
def test_numbers_of_shards_are_checked(number, count):
    with pytest.raises(InputError, match="valid: a whole number"):
        Shard(number, count)
