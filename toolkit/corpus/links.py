"""The links between the documents of a corpus as a graph, in both directions."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from soundingline.toolkit.data import Link
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import dump_json, fingerprint

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DIRECTIONS = ("out", "in", "both")
FORMAT = 2  # of a graph's folder
_RECORD, _MATRIX = "links.json", "links.npz"


class LinkGraph:
    """A directed graph as a sparse matrix. Read-only, so that threads may share it.

    Args:
        docids: the documents in the order of the matrix.
        matrix: boolean, documents x documents, with sorted indices: row i has a value in column j
            if document i links to document j.
        missing, repeated, own: numbers of links left out because one end is not in the corpus, they
            occurred before, or they lead from a document to itself.
    """

    def __init__(
        self, docids: list[str], matrix: csr_array, *, missing: int, repeated: int, own: int
    ) -> None:
        self.docids = docids
        self.missing, self.repeated, self.own = missing, repeated, own
        self._numbers = {docid: number for number, docid in enumerate(self.docids)}
        self._matrices = {"out": matrix, "in": matrix.T.tocsr()}

    @classmethod
    def build(cls, links: Iterable[Link], corpus: Container[str] | None = None) -> LinkGraph:
        """The graph of `links`, whose documents are numbered in the order in which the links first
        name them. Without a `corpus` every document counts as present."""
        from scipy.sparse import coo_array  # a command without links starts faster without it

        numbers: dict[str, int] = {}
        present: dict[str, bool] = {}
        ends: tuple[list[int], list[int]] = ([], [])
        missing = own = 0
        for link in links:
            for docid in link:
                if docid not in present:
                    present[docid] = corpus is None or docid in corpus
            if not all(present[docid] for docid in link):
                missing += 1
            elif link.docid == link.linked:
                own += 1
            else:
                for docid, column in zip(link, ends, strict=True):
                    column.append(numbers.setdefault(docid, len(numbers)))
        shape = (len(numbers), len(numbers))
        matrix = coo_array((np.ones(len(ends[0]), dtype=bool), ends), shape=shape).tocsr()
        matrix.sort_indices()
        repeated = len(ends[0]) - matrix.nnz
        return cls(list(numbers), matrix, missing=missing, repeated=repeated, own=own)

    @classmethod
    def open(cls, folder: Path) -> LinkGraph:
        """The graph that `write` has written in a folder whose checksums were verified."""
        from scipy.sparse import csr_array, load_npz

        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        matrix = csr_array(load_npz(folder / _MATRIX))
        counts = {name: record[name] for name in ("missing", "repeated", "own")}
        graph = cls(record["docids"], matrix, **counts)
        graph.fingerprint = record["fingerprint"]
        return graph

    def write(self, folder: Path) -> None:
        """Write the graph into a folder, for `open`."""
        from scipy.sparse import save_npz

        save_npz(folder / _MATRIX, self._matrices["out"], compressed=False)
        record = {
            "docids": self.docids,
            **{name: getattr(self, name) for name in ("missing", "repeated", "own")},
            "fingerprint": self.fingerprint,
        }
        (folder / _RECORD).write_text(dump_json(record, indent=None), encoding="utf-8")

    def __len__(self) -> int:
        """The number of links."""
        return int(self._matrices["out"].nnz)

    def __contains__(self, docid: object) -> bool:
        return docid in self._numbers

    def neighbours(self, docid: str, direction: str = "both") -> list[str]:
        """The documents that `docid` links to (`out`), that link to it (`in`), or `both`, each
        once; none for a document without links."""
        row = self._numbers.get(docid)
        if row is None:
            return []
        numbers: list[int] = []
        for name in ("out", "in") if direction == "both" else (direction,):
            matrix = self._matrices[name]
            numbers += matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].tolist()
        return [self.docids[number] for number in dict.fromkeys(numbers)]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the links."""
        matrix = self._matrices["out"]
        parts = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
        return fingerprint(self.docids, [part.tobytes().hex() for part in parts])

    def __repr__(self) -> str:
        return f"LinkGraph({len(self.docids)} documents, {len(self)} links)"


def check_direction(direction: object) -> None:
    """`InputError` for anything but `out`, `in` or `both`."""
    if direction not in DIRECTIONS:
        raise InputError(f"direction={direction!r}", valid=", ".join(DIRECTIONS))
