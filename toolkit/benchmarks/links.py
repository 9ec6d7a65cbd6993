"""The links between a corpus's documents as a graph: who refers to whom, in both directions."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.benchmarks.reading import Place, lines
from toolkit.contracts import Link
from toolkit.errors import InputError
from toolkit.files import dump_json, fingerprint

DIRECTIONS = ("out", "in", "both")
HEADER = ("docid", "linked")

FORMAT = 1  # of a graph's folder
_RECORD = "links.json"

Numbers = NDArray[np.int32]
Table = tuple[NDArray[np.int64], Numbers]


class LinkGraph:
    """A directed graph in compressed sparse rows (CSR), about 16 bytes a link beside the docids.

    Documents are numbered in the order in which the links name them first; `docids` gives their
    ids. Cycles are welcome, and so are documents with any number of links. Not kept, but counted:
    `missing`, links of which an end is not in the corpus; `repeated`, links given before; and
    `own`, links of a document to itself. Read-only, so that threads may share it.
    """

    def __init__(
        self,
        docids: Sequence[str],
        out: Table,
        into: Table,
        *,
        missing: int = 0,
        repeated: int = 0,
        own: int = 0,
    ) -> None:
        """`out` and `into`: whom each document links to, and who links to it, as offsets of
        documents + 1 and the numbers of the others."""
        self.docids = list(docids)
        self.missing, self.repeated, self.own = missing, repeated, own
        self._numbers = {docid: number for number, docid in enumerate(self.docids)}
        self._out, self._in = out, into

    @classmethod
    def build(cls, links: Iterable[Link], corpus: Container[str] | None = None) -> LinkGraph:
        """The graph of `links`; without a `corpus` every document counts as present."""
        numbers: dict[str, int] = {}
        present: dict[str, bool] = {}
        pairs: dict[tuple[int, int], None] = {}
        counts = {"missing": 0, "repeated": 0, "own": 0}
        for link in links:
            for docid in link:
                if docid not in present:
                    present[docid] = corpus is None or docid in corpus
            if not all(present[docid] for docid in link):
                counts["missing"] += 1
            elif link.docid == link.linked:
                counts["own"] += 1
            else:
                source, target = (numbers.setdefault(docid, len(numbers)) for docid in link)
                counts["repeated"] += (source, target) in pairs
                pairs[source, target] = None
        array = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
        out, into = _rows(array, len(numbers)), _rows(array[:, ::-1], len(numbers))
        return cls(list(numbers), out, into, **counts)

    @classmethod
    def open(cls, folder: Path) -> LinkGraph:
        """The graph that `write` has left in a folder. `OSError`, `ValueError` or `KeyError` where
        there is none, or one that is damaged."""
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        tables = {name: _read_table(folder, name, len(record["docids"])) for name in ("out", "in")}
        counts = {name: record[name] for name in ("missing", "repeated", "own")}
        graph = cls(record["docids"], tables["out"], tables["in"], **counts)
        graph.fingerprint = record["fingerprint"]
        return graph

    def write(self, folder: Path) -> None:
        """Leave the graph in a folder, for `open`."""
        for name, (offsets, ends) in (("out", self._out), ("in", self._in)):
            np.save(folder / f"{name}_offsets.npy", offsets)
            np.save(folder / f"{name}_ends.npy", ends)
        record = {
            "docids": self.docids,
            **{name: getattr(self, name) for name in ("missing", "repeated", "own")},
            "fingerprint": self.fingerprint,
        }
        (folder / _RECORD).write_text(dump_json(record, indent=None), encoding="utf-8")

    def __len__(self) -> int:
        """The number of links."""
        return len(self._out[1])

    def __contains__(self, docid: object) -> bool:
        return docid in self._numbers

    def neighbours(self, docid: str, direction: str = "both") -> list[str]:
        """The documents that `docid` links to (`out`), that link to it (`in`), or `both`, each
        once; none for a document without links."""
        number = self._numbers.get(docid)
        if number is None:
            return []
        tables = {"out": [self._out], "in": [self._in], "both": [self._out, self._in]}[direction]
        numbers = np.concatenate([_row(table, number) for table in tables])
        return [self.docids[other] for other in dict.fromkeys(numbers.tolist())]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the links."""
        return fingerprint(self.docids, [part.tobytes().hex() for part in self._out])

    def __repr__(self) -> str:
        return f"LinkGraph({len(self.docids)} documents, {len(self)} links)"


def check_direction(direction: object) -> None:
    """`InputError` for anything but `out`, `in` or `both`."""
    if direction not in DIRECTIONS:
        raise InputError(f"direction={direction!r}", valid=", ".join(DIRECTIONS))


def read_links(path: Path) -> Iterable[Link]:
    """The rows of a `links.tsv`: two ids with a tab between, a header line `docid, linked` where
    there is one. Anything else is an `InputError` with its line."""
    for number, (location, line) in enumerate(lines(path)):
        ends = tuple(part.strip() for part in line.split("\t"))
        if number == 0 and ends == HEADER:
            continue
        yield _link(location, ends)


def _link(location: Place, ends: Sequence[str]) -> Link:
    if len(ends) != 2 or not all(ends):
        raise InputError(
            f"{location} is no link", valid="a docid, a tab, and the docid it links to"
        )
    return Link(*ends)


def _read_table(folder: Path, name: str, documents: int) -> Table:
    offsets: NDArray[np.int64] = np.load(folder / f"{name}_offsets.npy")
    ends: Numbers = np.load(folder / f"{name}_ends.npy")
    inside = not len(ends) or (ends.min() >= 0 and ends.max() < documents)
    if len(offsets) != documents + 1 or offsets[-1] != len(ends) or not inside:
        raise ValueError(f"{folder} holds no graph of {documents} documents")
    return offsets, ends


def _rows(pairs: NDArray[Any], documents: int) -> Table:
    """Offsets and ends of the rows, both in ascending order."""
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    offsets = np.searchsorted(pairs[order, 0], np.arange(documents + 1))
    return offsets.astype(np.int64), pairs[order, 1].astype(np.int32)


def _row(table: Table, number: int) -> Numbers:
    offsets, ends = table
    return ends[offsets[number] : offsets[number + 1]]
