"""Shards of an encoded corpus on disk: what is kept, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from soundingline.pipelines.learned import shards
from soundingline.pipelines.learned.encoding import SPARSE
from soundingline.pipelines.learned.shards import Shards
from soundingline.toolkit.errors import InputError


def written(folder, *parts, number=0):
    names = [f"s{number}u{place}" for place in range(len(parts))]
    return shards.write(folder, number, "digest", names, parts, empty=0)


def test_rows_of_different_counts_come_back_as_they_were(tmp_path):
    parts = [np.arange(6.0).reshape(2, 3), np.empty((0, 3)), np.full((1, 3), 7.5)]
    written(tmp_path, *parts)
    shard = shards.read(tmp_path, 0)
    assert shard.unit_ids == ["s0u0", "s0u1", "s0u2"]
    assert shard.offsets.tolist() == [0, 2, 2, 3]
    for array, part in zip(shard.arrays(), parts, strict=True):
        np.testing.assert_array_equal(array, part)


def test_values_are_mapped_not_read(tmp_path):
    written(tmp_path, np.ones((4, 2), np.float16))
    values = shards.read(tmp_path, 0).values
    assert isinstance(values, np.memmap)
    assert values.dtype == np.float16
    assert not values.flags.writeable


def test_a_shard_without_any_row_can_be_read(tmp_path):
    written(tmp_path, np.empty(0, SPARSE), np.empty(0, SPARSE))
    shard = shards.read(tmp_path, 0)
    assert shard.values.dtype == SPARSE
    assert [len(array) for array in shard.arrays()] == [0, 0]


def test_ids_of_any_unicode_survive(tmp_path):
    names = ["é ü", "日本", "lone \ud800", 'quote"\n']
    shards.write(tmp_path, 0, "digest", names, [np.ones((1, 1))] * 4, empty=0)
    assert shards.read(tmp_path, 0).unit_ids == names


def test_a_head_tells_the_counts_and_is_none_where_no_shard_is(tmp_path):
    made = written(tmp_path, np.ones((2, 3)), np.ones((5, 3)))
    assert made == shards.Head("digest", 2, 7, 0)
    assert shards.head(tmp_path, 0) == made
    assert shards.head(tmp_path, 1) is None


def test_finishing_sums_the_counts_and_removes_what_is_beyond(tmp_path):
    shards.prepare(tmp_path, "encoder", "corpus", 2)
    heads = [written(tmp_path, np.ones((2, 3)), np.ones((1, 3)), number=n) for n in range(2)]
    written(tmp_path, np.ones((9, 3)), number=2)
    shards.finish(tmp_path, heads)
    whole = Shards(tmp_path, reused=1)
    assert dict(whole.counts) == {"units": 4, "rows": 6, "shards": 2, "empty": 0, "reused": 1}
    assert len(whole) == 4
    assert [shard.unit_ids for shard in whole] == [["s0u0", "s0u1"], ["s1u0", "s1u1"]]
    assert not (tmp_path / "000002").exists()


def test_an_unfinished_encoding_cannot_be_opened(tmp_path):
    shards.prepare(tmp_path, "encoder", "corpus", 2)
    written(tmp_path, np.ones((2, 3)))
    with pytest.raises(InputError, match="is not whole"):
        Shards(tmp_path)


@pytest.mark.parametrize(
    "other", [("another", "corpus", 2), ("encoder", "another", 2), ("encoder", "corpus", 3)]
)
def test_a_folder_of_another_encoder_corpus_or_size_is_refused(other, tmp_path):
    shards.prepare(tmp_path, "encoder", "corpus", 2)
    shards.prepare(tmp_path, "encoder", "corpus", 2)
    with pytest.raises(InputError, match=r"encoder encoder.*remove that folder"):
        shards.prepare(tmp_path, *other)


@pytest.mark.parametrize("content", [None, "{", "[]", json.dumps({"format": "something"})])
def test_a_folder_of_something_else_is_refused(content, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    if content:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match="is no encoded corpus"):
        shards.prepare(tmp_path, "encoder", "corpus", 2)
    assert (tmp_path / "thesis.tex").exists()


def test_what_a_kill_at_the_very_beginning_leaves_is_no_obstacle(tmp_path):
    (tmp_path / ".manifest.json.abc.tmp").write_text("{")
    shards.prepare(tmp_path, "encoder", "corpus", 2)
    assert json.loads((tmp_path / "manifest.json").read_text())["encoder"] == "encoder"


class Canary:
    """Unpickled, it makes a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


@pytest.mark.parametrize("name", ["values.npy", "offsets.npy"])
@pytest.mark.parametrize("kind", ["array of objects", "pickle", "archive"])
def test_objects_in_the_place_of_numbers_are_refused_and_not_loaded(name, kind, tmp_path):
    written(tmp_path, np.ones((2, 3)))
    path, canary = tmp_path / "000000" / name, Canary(tmp_path / "canary")
    with path.open("wb") as stream:
        if kind == "array of objects":
            np.save(stream, np.array([canary], dtype=object), allow_pickle=True)
        elif kind == "archive":
            np.savez(stream, values=np.ones(3))
        else:
            pickle.dump(canary, stream)
    with pytest.raises(InputError, match="cannot read"):
        shards.read(tmp_path, 0)
    assert not (tmp_path / "canary").exists()
