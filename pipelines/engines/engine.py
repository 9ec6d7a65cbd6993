"""Engines: what builds an index of units and opens it again, and how an opened index ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_weights

if TYPE_CHECKING:
    from soundingline.pipelines.lexical.storage import Docnos

TermQuery: TypeAlias = "Mapping[str, float] | Sequence[str]"
"""Weights by index term, or index terms, of which a repeated one counts again."""


class RankedList(NamedTuple):
    """Unit ids, best first, and their scores."""

    docnos: Sequence[str] | NDArray[np.object_]
    scores: Sequence[float] | NDArray[Any]


NOTHING = RankedList((), ())


def ranked_lists(
    docnos: Docnos, rankings: Sequence[tuple[NDArray[Any], NDArray[Any]]]
) -> list[RankedList]:
    """One ranking or more of numbers and scores of units, as rankings of unit ids."""
    # All at once: a look at the table of ids costs more than a short ranking.
    names = docnos.take(np.concatenate([numbers for numbers, _ in rankings]))
    ends = np.cumsum([len(numbers) for numbers, _ in rankings])
    parts = np.split(names, ends[:-1])
    return [RankedList(part, scores) for part, (_, scores) in zip(parts, rankings, strict=True)]


def checked_weights(query: Any) -> Mapping[str, float]:
    """A query of weights by index term as it is; `InputError` for anything else, and for a weight
    below 0 or not finite."""
    if not isinstance(query, Mapping):
        raise InputError(f"query_toks holds {query!r}", valid="a dict of index terms to weights")
    check_weights(query)
    return query


class Engine(Protocol):
    """Build settings of one kind of index. Equal fingerprints give equal indexes of equal units."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def supports(self) -> frozenset[str]:
        """What an opened index supports: `bm25`, `ql`, `rm3`, `grid` (tuning), `operators` (in
        queries), `weighted queries` and `enriched documents` of an enrichment."""
        ...

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """Index the units in the folder `path`, which appears when it is complete."""
        ...

    def open(self, path: Path, *, corpus_fingerprint: str) -> Any:
        """Open what `build` made (an `OpenedIndex`); `InputError` if it is of another corpus."""
        ...


def check_support(needs: frozenset[str], stage: str, supports: frozenset[str], of: Any) -> None:
    """`InputError` if an engine, an index or a retriever does not support what a stage needs.

    Args:
        needs: what the stage needs.
        stage: its name.
        supports: what is supported.
        of: what supports it.
    """
    if missing := needs - supports:
        raise InputError(
            f"{stage} needs {' and '.join(sorted(missing))}, which {of} does not support",
            valid=", ".join(sorted(supports)) or "nothing",
            do="set engine=lexical and a retriever such as bm25_default, or choose another stage",
        )


@runtime_checkable
class RemoteEngine(Protocol):
    """An engine whose indexes are not in their folders, so that only their names tell them apart.
    The name of an index is a hash of the corpus, the settings of the engine, and its contents."""

    def of_content(self, content: str) -> Engine:
        """The same engine with a further content, which identifies the units among those that the
        corpus may have: how its documents are cut, or what is added to them."""
        ...


class DeletedIndex(InputError):
    """A folder records an index of a `RemoteEngine` that is not there any more."""


def word_frequency(index: Any) -> Callable[[str], int]:
    """Document frequency of a word as people write it: that of its rarest index term, and the
    collection's size for a word that the analyzer drops (a stop word is not a rare word)."""

    def frequency(word: str) -> int:
        terms = index.analyzer.terms(word)
        return min((index.document_frequency(term) for term in terms), default=len(index))

    return frequency
