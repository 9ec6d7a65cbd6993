"""Encoding a corpus: order, batches, resuming after a kill, bad input."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from soundingline.pipelines.learned import shards
from soundingline.pipelines.learned.encoding import encode_corpus, encoded
from soundingline.pipelines.learned.shards import Shards
from soundingline.pipelines.models import readable
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

ROOT = Path(__file__).resolve().parents[3]


class Counting:
    """Encodes a text to one row a word: its length, and the word's place. Notes every batch."""

    name, fingerprint, device = "counting", "counting-1", "cpu"

    def __init__(self, batch_tokens: int = 40, bad: str | None = None) -> None:
        self.batch_tokens, self.bad = batch_tokens, bad
        self.batches = []

    def tokenized(self, texts):
        return list(texts), [len(text.split()) for text in texts]

    def encode_tokenized(self, items):
        self.batches.append(list(items))
        return [self.rows(text) for text in items]

    def rows(self, text):
        rows = np.array([(len(word), n) for n, word in enumerate(text.split())], np.float32)
        return np.full((1, 2), np.nan) if text == self.bad else rows.reshape(-1, 2)


class Pooled(Counting):
    """The same with one vector a text."""

    def rows(self, text):
        return np.array([len(text), len(text.split())], np.float32)


def corpus(count):
    return [Unit(f"d{n}", f"title {n}", "word " * (n * 7 % 23)) for n in range(count)]


def encode(units, encoder, folder, **others):
    others = {"corpus_fingerprint": "corpus", "shard_units": 10, **others}
    return encode_corpus(units, encoder, folder, **others)


def rows_by_id(shards):
    return {
        name: array.tolist()
        for shard in shards
        for name, array in zip(shard.unit_ids, shard.arrays(), strict=True)
    }


def test_every_unit_has_its_own_rows_in_the_order_of_the_corpus(tmp_path):
    units, encoder = corpus(37), Counting()
    shards = encode(units, encoder, tmp_path)
    expected = {unit.unit_id: encoder.rows(unit.contents).tolist() for unit in units}
    assert list(rows_by_id(shards).items()) == list(expected.items())
    assert [len(shard.unit_ids) for shard in shards] == [10, 10, 10, 7]
    assert shards.counts["rows"] == sum(map(len, expected.values()))


def test_a_single_vector_is_one_row_a_unit(tmp_path):
    units, encoder = corpus(12), Pooled()
    first, second = encode(units, encoder, tmp_path)
    expected = [encoder.rows(unit.contents) for unit in units]
    np.testing.assert_array_equal(np.concatenate([first.values, second.values]), expected)
    assert second.offsets.tolist() == [0, 1, 2]


def test_batches_hold_texts_of_like_length_and_no_more_tokens_than_allowed(tmp_path):
    encoder = Counting(batch_tokens=60)
    encode(corpus(40), encoder, tmp_path, shard_units=20)
    for batch in encoder.batches:
        assert len(batch) * max(encoder.tokenized(batch)[1]) <= 60
    firsts = [encoder.tokenized(batch)[1][0] for batch in encoder.batches]
    assert firsts[0] == max(firsts)
    assert max(len(batch) for batch in encoder.batches) > 4


def test_long_texts_make_smaller_shards(tmp_path, monkeypatch):
    monkeypatch.setattr("soundingline.pipelines.learned.encoding._SHARD_CHARACTERS", 200)
    units = [Unit(f"d{n}", "", "w" * length) for n, length in enumerate([90, 90, 90, 500, 10])]
    shards = encode(units, Counting(), tmp_path)
    assert [shard.unit_ids for shard in shards] == [["d0", "d1", "d2"], ["d3"], ["d4"]]


@pytest.mark.parametrize("speed", [2.0, 40.0, 100_000.0])
def test_a_shard_is_written_at_least_once_a_minute(tmp_path, monkeypatch, speed):
    now, written = [0.0], [0.0]

    class Slow(Counting):
        """Reads 24 words of a text, and 12 times `speed` a second."""

        def tokenized(self, texts):
            items = [" ".join(text.split()[:24]) for text in texts]
            return super().tokenized(items)

        def encode_tokenized(self, items):
            now[0] += sum(self.tokenized(items)[1]) / 12 / speed
            return super().encode_tokenized(items)

    keep = shards.write

    def write(*arguments):
        written.append(now[0])
        return keep(*arguments)

    monkeypatch.setattr("soundingline.pipelines.learned.encoding.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("soundingline.pipelines.learned.encoding.shards.write", write)
    # Of the first 150, the model leaves out nearly all.
    words = [400 if n < 150 else 1 + n % 12 for n in range(3000)]
    units = [Unit(f"d{n}", "", "twelve chars " * count) for n, count in enumerate(words)]
    encode(units, Slow(batch_tokens=400), tmp_path, shard_units=2048)
    assert max(np.diff(written)) <= 60
    # A fast model is not slowed down by tiny shards.
    assert len(written) <= 8 + now[0] / 15


def test_shards_that_another_machine_cut_are_kept(tmp_path, monkeypatch):
    encode(corpus(40)[:37], Counting(), tmp_path)
    monkeypatch.setattr("soundingline.pipelines.learned.encoding._FIRST_TOKENS", 10)
    again = Counting()
    assert encode(corpus(40), again, tmp_path).counts["reused"] == 4
    assert sum(map(len, again.batches)) == 3
    assert list(rows_by_id(Shards(tmp_path))) == [f"d{n}" for n in range(40)]


def test_empty_texts_are_encoded_and_counted(tmp_path):
    units = [Unit("a", "", ""), Unit("b", "", " \n "), Unit("c", "", "one two")]
    encoder = Counting()
    shards = encode(units, encoder, tmp_path)
    assert shards.counts["empty"] == 2
    assert [len(rows) for rows in rows_by_id(shards).values()] == [0, 0, 2]
    assert sorted(text for batch in encoder.batches for text in batch) == ["", " \n ", "one two"]


def test_an_encoding_that_stands_is_not_computed_again(tmp_path):
    first = rows_by_id(encode(corpus(25), Counting(), tmp_path))
    again = Counting()
    shards = encode(corpus(25), again, tmp_path)
    assert again.batches == []
    assert shards.counts["reused"] == 3
    assert rows_by_id(shards) == first


def test_only_shards_whose_units_changed_are_computed_again(tmp_path):
    encode(corpus(30), Counting(), tmp_path)
    units = corpus(20)
    units[13] = units[13]._replace(text="changed")
    again = Counting()
    shards = encode(units, again, tmp_path)
    assert sorted(text for batch in again.batches for text in batch) == sorted(
        unit.contents for unit in units[10:]
    )
    assert list(rows_by_id(shards)) == [unit.unit_id for unit in units]
    assert rows_by_id(shards)["d13"] == again.rows("title 13\nchanged").tolist()


KILLED = """
import sys, time
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}]
from test_encoding import Counting, corpus, encode

class Slow(Counting):
    def encode_tokenized(self, items):
        time.sleep(0.1)
        print("batch", flush=True)
        return super().encode_tokenized(items)

encode(corpus(50), Slow(), Path({folder!r}))
"""


def test_a_killed_process_loses_only_the_shard_that_it_was_in(tmp_path):
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
    with pytest.raises(InputError, match="not whole"):
        Shards(folder)
    finished = sum(path.name.isdecimal() for path in folder.iterdir())
    assert 2 <= finished < 5
    before = {path: path.stat().st_mtime_ns for path in folder.glob("0*/values.npy")}

    encoder = Counting()
    shards = encode(corpus(50), encoder, folder)

    assert shards.counts["reused"] == finished
    assert sum(map(len, encoder.batches)) == 50 - 10 * finished
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert rows_by_id(shards) == rows_by_id(encode(corpus(50), Counting(), tmp_path / "whole"))
    assert not [path for path in folder.iterdir() if path.name.endswith(".partial")]


@pytest.mark.parametrize("name", ["values.npy", "offsets.npy", "ids.json"])
def test_a_damaged_shard_is_set_aside_and_encoded_again(tmp_path, capsys, name):
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
        assert sum(map(len, encoder.batches)) == 10 and again.counts["reused"] == 2
        assert rows_by_id(again) == rows_by_id(whole)
        assert [shard.unit_ids for shard in again] == [shard.unit_ids for shard in whole]
        assert "000001 is damaged; it is kept as 000001.damaged-" in capsys.readouterr().err
    kept = [(path / name).read_bytes() for path in folder.glob("000001.damaged-*")]
    assert len(kept) == 3 and content not in kept


def test_an_interrupted_encoding_leaves_its_whole_shards(tmp_path):
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
        def encode_tokenized(self, items):
            return super().encode_tokenized(items)[:-1]

    with pytest.raises(ValueError, match="shorter"):
        encode(corpus(5), Losing(), tmp_path)


def test_a_shard_of_no_unit_is_refused(tmp_path):
    with pytest.raises(InputError, match="shard_units=0"):
        encode(corpus(5), Counting(), tmp_path, shard_units=0)


def test_an_index_encodes_beside_itself_and_cleans_up(tmp_path):
    path = tmp_path / "index"
    with encoded(corpus(5), Counting(), path, corpus_fingerprint="c") as shards:
        assert shards.folder == tmp_path / "index.encoding"
        assert len(shards) == 5
    assert list(tmp_path.iterdir()) == []


def test_an_index_that_fails_keeps_the_encoding_for_the_next_try(tmp_path):
    path = tmp_path / "index"
    with (
        pytest.raises(OSError, match="no room"),
        encoded(corpus(5), Counting(), path, corpus_fingerprint="c"),
    ):
        raise OSError("no room")
    with encoded(corpus(5), Counting(), path, corpus_fingerprint="c") as shards:
        assert shards.counts["reused"] == 1


def test_a_repeated_id_and_an_empty_corpus_are_refused(tmp_path):
    units = [*corpus(3), Unit("d1", "", "again")]
    for bad, message in ((units, "'d1' comes twice"), ([], "corpus is empty")):
        with (
            pytest.raises(InputError, match=message),
            encoded(bad, Counting(), tmp_path / "index", corpus_fingerprint="c"),
        ):
            pass


def test_a_lone_surrogate_becomes_readable_and_other_text_stays():
    assert readable("a\ud800b") == "a?b"
    assert readable("日本 é") == "日本 é"
    assert os.fsencode(readable("\udfff"))


def test_what_the_encoder_refuses_leaves_no_folder(tmp_path):
    class Refusing(Counting):
        def tokenized(self, texts):
            raise InputError("not this one")

    with pytest.raises(InputError, match="not this one"):
        encode(corpus(3), Refusing(), tmp_path / "work")
    assert not (tmp_path / "work").exists()
