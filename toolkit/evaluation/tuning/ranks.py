"""Ranks of judged documents in every cell, from which any measure follows, and their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError
from toolkit.files import file_made_whole

GridPoint = tuple[float, ...]
"""(k1, b), or (k1, b, weight, tau); see `grid.NAMES`."""


@dataclass(frozen=True)
class RankTable:
    """`ranks[qid]` is int32 [judged documents, cells]: ranks from 1, and 0 for a document that the
    cell's ranking does not hold. Rows are those of `docids[qid]`, columns those of `cells`."""

    cells: Sequence[GridPoint]
    docids: Mapping[str, Sequence[str]]
    ranks: Mapping[str, NDArray[np.int32]]

    def save(self, path: Path) -> None:
        """Write one .npz file, whole or not at all, readable without pickle."""
        qids = list(self.ranks)
        counts = [len(self.docids[qid]) for qid in qids]
        parts = [self.ranks[qid] for qid in qids]
        save_arrays(
            path,
            cells=cell_array(self.cells),
            qids=np.array(qids, dtype=np.str_),
            counts=np.array(counts, dtype=np.int64),
            docids=np.array([d for qid in qids for d in self.docids[qid]], dtype=np.str_),
            ranks=np.concatenate([np.empty((0, len(self.cells)), np.int32), *parts]),
        )

    @classmethod
    def load(cls, path: Path) -> RankTable:
        """Read what `save` wrote; `InputError` for anything else."""
        data = load_arrays(path, ("cells", "qids", "counts", "docids", "ranks"))
        ends = np.cumsum(data["counts"]).tolist()
        starts = [0, *ends][: len(ends)]
        docids, ranks = {}, {}
        for qid, first, last in zip(data["qids"].tolist(), starts, ends, strict=True):
            docids[qid] = data["docids"][first:last].tolist()
            ranks[qid] = data["ranks"][first:last]
        return cls([tuple(cell) for cell in data["cells"].tolist()], docids, ranks)

    @classmethod
    def joined(cls, tables: Sequence[RankTable]) -> RankTable:
        """One table of the questions of several over the same cells."""
        first, *rest = tables
        if any(list(table.cells) != list(first.cells) for table in rest):
            raise InputError(
                "the rank tables have different cells", do="delete them and tune again"
            )
        docids = {qid: names for table in tables for qid, names in table.docids.items()}
        ranks = {qid: rows for table in tables for qid, rows in table.ranks.items()}
        return cls(first.cells, docids, ranks)


def cell_array(cells: Sequence[GridPoint]) -> NDArray[np.float64]:
    """Cells as float64 [cells, numbers of a cell]."""
    return np.array(cells, dtype=np.float64).reshape(len(cells), len(cells[0]) if cells else 2)


def save_arrays(path: Path, **arrays: NDArray[Any]) -> None:
    """A compressed .npz file that is whole or absent."""
    with file_made_whole(path) as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


def load_arrays(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The named arrays of an .npz file; `InputError` where it is not one that holds them."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in names}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise InputError(f"cannot read {path}: {error}", do="delete it and tune again") from error
