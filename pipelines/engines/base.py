"""The face that every engine shows to the rest of the house."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import pyterrier as pt

from toolkit.contracts import Unit


class Index(Protocol):
    """An opened index."""

    def bm25(self, k1: float = 0.9, b: float = 0.4, depth: int = 1000) -> pt.Transformer: ...

    def document_frequency(self, term: str) -> int:
        """Number of indexed units that hold the (analysed) term."""
        ...

    def __len__(self) -> int: ...


class Engine(Protocol):
    """Build settings of one kind of index. Equal fingerprints give equal indexes of equal units."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def offers(self) -> frozenset[str]:
        """What can be asked of an opened index: `bm25`, `ql`, `rm3`, `grid` (tuning),
        `overlay` (phrases beside the index)."""
        ...

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """Index the units at `path`, whole or not at all."""
        ...

    def open(self, path: Path, *, corpus_fingerprint: str) -> Any:
        """Open what `build` made (an `Index`); `InputError` if it is another corpus's."""
        ...


def word_frequency(index: Any) -> Callable[[str], int]:
    """Document frequency of a word as people write it: that of its rarest index term, and the
    collection's size for a word that the analyzer drops (a stop word is no rare word)."""

    def frequency(word: str) -> int:
        terms = index.analyzer.terms(word)
        return min((index.document_frequency(term) for term in terms), default=len(index))

    return frequency
