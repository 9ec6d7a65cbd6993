"""The links between a corpus's documents as a graph: who refers to whom, in both directions."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.benchmarks.reading import Place, lines
from toolkit.contracts import Link
from toolkit.errors import InputError
from toolkit.files import fingerprint

DIRECTIONS = ("out", "in", "both")
HEADER = ("docid", "linked")

Numbers = NDArray[np.int32]


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
        pairs: NDArray[np.int64],
        *,
        missing: int = 0,
        repeated: int = 0,
        own: int = 0,
    ) -> None:
        """`pairs`: (links, 2) distinct numbers, from whom and to whom."""
        self.docids = list(docids)
        self.missing, self.repeated, self.own = missing, repeated, own
        self._numbers = {docid: number for number, docid in enumerate(self.docids)}
        self._out = _rows(pairs, len(self.docids))
        self._in = _rows(pairs[:, ::-1], len(self.docids))

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
        return cls(list(numbers), array, **counts)

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

    @property
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
    for number, (place, line) in enumerate(lines(path)):
        ends = tuple(part.strip() for part in line.split("\t"))
        if number == 0 and ends == HEADER:
            continue
        yield _link(place, ends)


def _link(place: Place, ends: Sequence[str]) -> Link:
    if len(ends) != 2 or not all(ends):
        raise InputError(f"{place} is no link", valid="a docid, a tab, and the docid it links to")
    return Link(*ends)


def _rows(pairs: NDArray[Any], documents: int) -> tuple[NDArray[np.int64], Numbers]:
    """Offsets and ends of the rows, both in ascending order."""
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    offsets = np.searchsorted(pairs[order, 0], np.arange(documents + 1))
    return offsets.astype(np.int64), pairs[order, 1].astype(np.int32)


def _row(table: tuple[NDArray[np.int64], Numbers], number: int) -> Numbers:
    offsets, ends = table
    return ends[offsets[number] : offsets[number + 1]]
