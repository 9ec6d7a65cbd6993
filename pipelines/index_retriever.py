"""Retrievers over an opened index as PyTerrier transformers: our own indexes and other engines'."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray

from pipelines.arguments import ByArguments
from toolkit.checks import check_weights
from toolkit.errors import InputError

Query: TypeAlias = "Mapping[str, float] | Sequence[str]"
"""Weights by index term, or index terms, of which a repeated one counts again."""

_RESULT = ("docno", "score", "rank")


class RankedList(NamedTuple):
    """Unit ids, best first, and their scores."""

    docnos: Sequence[str] | NDArray[np.object_]
    scores: Sequence[float] | NDArray[Any]


NOTHING = RankedList((), ())


class Docnos(Protocol):
    """The unit ids of an index by number."""

    def __len__(self) -> int: ...

    def take(self, numbers: NDArray[Any]) -> NDArray[np.object_]: ...


class IndexRetriever(ByArguments, pt.Transformer):
    """Ranks the units of `index` for each query.

    In: `qid` and `query` (text), or the first column of `takes` where it is there; `query_toks`
    holds a dict of index terms to weights, 0 or more. Out: every column of the input, and `docno`,
    `score`, `rank` (from 0); at most `depth` rows a query, highest score first. `InputError` for a
    query of the wrong kind.

    A subclass has `index` and `depth` among its arguments. It says how texts become queries
    (`analysed`) and what ranks (`rank`).
    """

    takes: ClassVar[tuple[str, ...]] = ("query_toks", "query")
    """The columns that queries are read from: the first that the frame has."""

    index: Any
    depth: int

    @abstractmethod
    def rank(self, queries: Sequence[Any]) -> Sequence[RankedList]:
        """The best `depth` units of each query, one query at least."""

    def analysed(self, texts: Sequence[str]) -> Sequence[Any]:
        """Texts as the queries that `rank` takes; as they are where the engine analyses them."""
        return texts

    def given(self, value: Any) -> Any:
        """A value of `takes[0]` as a query that `rank` takes."""
        return checked_weights(value)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        with pt.validate.any(inp) as valid:
            for column in self.takes:
                valid.query_frame(extra_columns=[column])
        return ranked(inp, self.rank(self._queries(inp)) if len(inp) else [])

    def _queries(self, inp: pd.DataFrame) -> Sequence[Any]:
        column = next(name for name in self.takes if name in inp.columns)
        values = inp[column].tolist()
        if column != "query":
            return [self.given(value) for value in values]
        for value in values:
            if not isinstance(value, str):
                raise InputError(f"query holds {value!r}", valid="text")
        return self.analysed(values)

    def fuse_rank_cutoff(self, k: int) -> IndexRetriever | None:
        """`retriever % k` as one stage; PyTerrier's optimiser asks for it."""
        return self.at_depth(k) if k < self.depth else None

    def at_depth(self, depth: int) -> IndexRetriever:
        """The same with another depth."""
        return type(self)(**{**self._arguments(), "depth": depth})


def checked_weights(query: Any) -> Mapping[str, float]:
    """A query of weights by index term as it is; `InputError` for anything else, and for a weight
    below 0 or not finite."""
    if not isinstance(query, Mapping):
        raise InputError(f"query_toks holds {query!r}", valid="a dict of index terms to weights")
    check_weights(query)
    return query


def named(
    docnos: Docnos, rankings: Sequence[tuple[NDArray[Any], NDArray[Any]]]
) -> list[RankedList]:
    """Rankings of documents' numbers and scores, one at least, as rankings of unit ids."""
    # All at once: a look at the table of ids costs more than a short ranking.
    names = docnos.take(np.concatenate([numbers for numbers, _ in rankings]))
    ends = np.cumsum([len(numbers) for numbers, _ in rankings])
    parts = np.split(names, ends[:-1])
    return [RankedList(part, scores) for part, (_, scores) in zip(parts, rankings, strict=True)]


def ranked(inp: pd.DataFrame, rankings: Sequence[RankedList]) -> pd.DataFrame:
    """Every column of `inp`, and `docno`, `score`, `rank` (from 0), one row a hit. `rankings`: one
    for each row of `inp`, or none at all."""
    counts = [len(ranking.docnos) for ranking in rankings] or [0] * len(inp)
    rows = np.repeat(np.arange(len(inp)), counts)
    # One frame from complete columns: for a single query, setting them one by one takes longer
    # than the search.
    out = {name: inp[name].array.take(rows) for name in inp.columns if name not in _RESULT}
    out = {name: _as_they_are(values) for name, values in out.items()}
    out["docno"] = _as_they_are(_joined([ranking.docnos for ranking in rankings], np.object_))
    out["score"] = _joined([ranking.scores for ranking in rankings], np.float64)
    out["rank"] = _joined([np.arange(count) for count in counts], np.int64)
    return pd.DataFrame(out, copy=False)


def _as_they_are(values: Any) -> Any:
    """Values of which pandas makes no strings of its own: Arrow's do not hold half a surrogate
    pair, which a model may write, and making them takes longer than a search."""
    is_object = pd.api.types.is_object_dtype(values.dtype)
    return pd.Series(values, dtype=object, copy=False) if is_object else values


def _joined(parts: Sequence[Any], kind: type) -> NDArray[Any]:
    arrays: list[NDArray[Any]] = [np.asarray(part, dtype=kind) for part in parts]
    return np.concatenate([np.empty(0, kind), *arrays])
