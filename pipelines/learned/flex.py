"""Vectors in `pyterrier_dr.FlexIndex`'s format.

The files are the library's own, and `FlexIndex(folder)` opens them elsewhere. The search is ours
(`vector_search`): the library's retrievers leave to chance which of equal scores are kept at the
depth and in which order they stand, and sort every batch of documents for every query.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.learned.shards import Shard
from toolkit.errors import InputError
from toolkit.extras import require

Vectors = NDArray[np.float32]


def write_flex(folder: Path, shards: Iterable[Shard]) -> int:
    """Write the vectors of an encoded corpus as a FlexIndex; their dimensions."""
    index = require("pyterrier_dr").FlexIndex(str(folder), verbose=False)
    try:
        index.index(_rows(shards))
    except UnicodeEncodeError as error:
        raise InputError(
            f"unit id {error.object!r} cannot be written as UTF-8", do="rename it"
        ) from error
    return int(index.payload(return_dvecs=False, return_docnos=False)[0]["vec_size"])


def read_flex(folder: Path) -> tuple[NDArray[Any], Vectors]:
    """Unit ids (array of str objects), and the vectors [units, dimensions], mapped from disk."""
    # As FlexIndex.payload does, without importing the library, which loads transformers.
    meta = json.loads((folder / "pt_meta.json").read_text("utf-8"))
    shape = (meta["doc_count"], meta["vec_size"])
    vectors = np.memmap(folder / "vecs.f4", np.float32, mode="r", shape=shape)
    docnos = require("npids").Lookup(folder / "docnos.npids")
    return np.array(list(docnos), dtype=object), np.asarray(vectors)


def _rows(shards: Iterable[Shard]) -> Iterator[dict[str, Any]]:
    for shard in shards:
        names: Sequence[str] = shard.unit_ids
        for name, vector in zip(names, shard.values, strict=True):
            yield {"docno": name, "doc_vec": vector}
