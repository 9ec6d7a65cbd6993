"""Re-rankers: `Reranker`, the base class of stages that score rows by their texts; `Scorer`, of
those whose score depends on the query and the text alone; and `RerankTop`, which gives any of them
the best rows of a ranking.
"""

import inspect
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, filterfalse, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray

from soundingline.pipelines.cache import ResultCache, text_hash
from soundingline.pipelines.checkpoint import own_length
from soundingline.pipelines.device import Placement, in_batches, within_memory
from soundingline.pipelines.rerank.batches import SharedBatches
from soundingline.pipelines.stage import (
    Counts,
    LazyValues,
    Stage,
    Texts,
    as_pyterrier,
    best_first,
    places_in,
    shared,
)
from soundingline.toolkit.errors import InputError, Runtime, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.json_text import replace_surrogates
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    from torch import Tensor

LONG_DOCUMENTS = ("truncate", "max_passage")
# Pairs after which scores are written to the cache: what a killed process may lose.
_WRITTEN_EVERY = 4096
# trec_eval keeps scores in 32 bits. Scores that differ must differ there too, and stay finite.
_LARGEST = 1e30
_FEWEST_STEPS = 4.0
_COUNTS = (
    "windows",
    "batches",
    "pairs_scored",
    "missing_text",
    "unscored",
    "nanoseconds",
)

_Item: TypeAlias = tuple[str, str, bool]  # a query, a text, and whether the best window counts


class Pair(NamedTuple):
    """A query and the text of a candidate (title in front, as it was indexed)."""

    query: str
    text: str


@dataclass(kw_only=True, eq=False, repr=False)
class Reranker(Stage, ABC):
    """Gives every row a new score, by its query and its text. A subclass implements `score_rows`.

    The input has the columns `qid`, `query`, `docno` and `text`; the output has the same columns
    and rows with a new `score` and `rank`, best first. Rows of equal scores keep their order, which
    is that of `rank` or `score` if there are any. A row whose score is not a number comes last, and
    keeps it: a cache of scores holds nothing else than scores of the model. A missing text is read
    as an empty one. `InputError` without the column `text`, and for a query that is not text.

    `RerankTop` adds texts, and re-ranks only the best rows.

    Example:
        >>> class Reversed(Reranker):
        ...     def score_rows(self, rows):
        ...         return range(len(rows))
        >>> pipe = index.bm25() >> RerankTop(Reversed(), texts=index.texts)
        >>> pipe.search("old river")["docno"].tolist()
        ['d2%p0', 'd1%p0']
    """

    @abstractmethod
    def score_rows(self, rows: pd.DataFrame) -> Sequence[float]:
        """A score for each row; not a number for a row that has none. The rows of a query lie
        together, best first, and every `text` is a string."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Re-rank the queries of a frame; all of their rows are scored together."""
        inp = as_pyterrier(inp)
        _check_rows(inp, self, reads_text=True)
        order, queries = best_first(inp)
        rows = inp.iloc[order]
        given = self.score_rows(rows.assign(text=_strings(rows["text"]))) if len(rows) else []
        scores = np.array(given, dtype=float)
        order = np.lexsort((-scores, queries))
        return _ranking(rows.iloc[order], scores[order], queries)


@dataclass(kw_only=True, eq=False, repr=False)
class Scorer(Reranker):
    """Scores a query and a text by a model; the score depends on nothing else.

    A subclass implements `score`. It may implement `windows`, which `long_documents=max_passage`
    needs, and `fingerprint`, which names its scores in the cache. Declare arguments of its own as
    fields of a dataclass with the same decorator. Columns and errors as in `Reranker`.

    Threads that call one scorer at the same time share batches: the requests that come while one
    batch is computed become the next one. Equal pairs of a batch are scored once. If a batch fails,
    its requests are scored one by one, so that an error reaches only the thread whose pairs cause
    it. Pairs with a cached score do not wait.

    Args:
        long_documents: `truncate` leaves a text that is too long to the model, which cuts it.
            `max_passage` scores the windows of the text and takes the best (Dai and Callan, SIGIR
            2019). The default is `max_passage` if the collection's units are whole documents and
            the model has windows, otherwise `truncate`.
        cache: A folder in which scores are kept between runs. The default is the collection's.
            Threads and processes may share it.

    Example:
        >>> class Overlap(Scorer):
        ...     def score(self, queries, texts):
        ...         pairs = zip(queries, texts)
        ...         return [len(set(query.split()) & set(text.split())) for query, text in pairs]
        >>> pipe = index.bm25() >> RerankTop(Overlap(), depth=10, texts=index.texts)
        >>> pipe.search("old mill")["docno"].tolist()[0]
        'd1%p0'
    """

    long_documents: str | None = None
    cache: Path | str | None = None

    shares_batches: ClassVar[bool] = True
    """False if several threads may call `score` at the same time, which suits a remote model."""

    counted: ClassVar[tuple[str, ...]] = ()
    """Names of the counts that the model adds to by `self.count.add(truncated=2)`."""

    def __post_init__(self) -> None:
        if self.long_documents not in (None, *LONG_DOCUMENTS):
            valid = f"null, {', '.join(LONG_DOCUMENTS)}"
            raise InputError(f"long_documents={self.long_documents!r}", valid=valid)
        if self.long_documents == "max_passage" and self.windows is None:
            raise InputError(
                f"long_documents=max_passage, and {type(self).__name__} has no windows",
                valid="truncate",
                do="set long_documents=truncate, or index passages",
            )
        # Bound copies are shallow: all of these are shared between them.
        self._shared, self._caches, self._batches = LazyValues(), LazyValues(), SharedBatches()
        self.count = Counts(*self.counted, *_COUNTS)

    @abstractmethod
    def score(self, queries: Sequence[str], texts: Sequence[str]) -> Sequence[float]:
        """One score for each query and its text, in the same order; higher is more relevant. It
        must not depend on the other pairs. A score may be not a number."""

    windows: ClassVar[Callable[[Any, str, str], list[str]] | None] = None
    """A method `windows(query, text)` gives the text in parts that the model reads with the query
    without a cut; None for a model without windows."""

    @property
    def fingerprint(self) -> str:
        """A hash that names the scores in the cache: equal fingerprints mean equal scores. The
        default covers the source of the class and its own arguments; a model from a file must add
        what the file holds."""
        general = Scorer.__dataclass_fields__
        own = {
            name: repr(value) for name, value in self._arguments().items() if name not in general
        }
        return fingerprint(type(self).__qualname__, self._shared.get("source", self._source), own)

    @property
    def counts(self) -> Mapping[str, float]:
        """Cumulative counts of the stage and its bound copies: the model's own; `windows` scored;
        `batches` of `pairs_scored`; with a cache `cache_hits` and `cache_misses`; rows with
        `missing_text`, which count as empty, and `unscored` ones, whose score is not a number;
        `seconds` in the model."""
        counts = self.count()
        if not self._by_windows:
            del counts["windows"]
        seconds = round(counts.pop("nanoseconds") / 1e9, 3)
        return {**counts, "seconds": seconds}

    def score_rows(self, rows: pd.DataFrame) -> Sequence[float]:
        texts = rows["text"].tolist()
        scores = self._cached_scores(rows["query"].tolist(), rows["docno"].tolist(), texts)
        self.count.add(missing_text=texts.count(""), unscored=sum(map(math.isnan, scores)))
        return scores

    def score_pairs(self, queries: Sequence[str], texts: Sequence[str]) -> list[float]:
        """What `score` returns, in batches shared with other threads and without the cache. A long
        text scores as its best window if `long_documents` says so."""
        by_windows = [self._by_windows] * len(queries)
        items = list(zip(queries, texts, by_windows, strict=True))
        if not items:
            return []
        if not self.shares_batches:
            return self._score_batch(items)
        return self._batches.results(items, self._score_batch)

    def _score_batch(self, items: Sequence[_Item]) -> list[float]:
        different = list(dict.fromkeys(items))
        started = time.perf_counter_ns()
        score_of = dict(zip(different, self._best_windows(different), strict=True))
        passed = time.perf_counter_ns() - started
        self.count.add(batches=1, pairs_scored=len(different), nanoseconds=passed)
        return [score_of[item] for item in items]

    def _best_windows(self, items: Sequence[_Item]) -> list[float]:
        """The score of each text's best window. A window without a score does not count."""
        # A text without a word may have no window.
        windows_of = [
            (self.windows(query, text) if self.windows and by_windows else []) or [text]
            for query, text, by_windows in items
        ]
        sizes = list(map(len, windows_of))
        queries = [item[0] for item, size in zip(items, sizes, strict=True) for _ in range(size)]
        scores = list(map(float, self.score(queries, list(chain(*windows_of)))))
        if len(scores) != len(queries):
            raise InputError(
                f"{type(self).__name__}.score returned {len(scores)} scores for {len(queries)} "
                "pairs",
                valid="one number for each pair, in the order of the pairs",
            )
        cut = zip(items, sizes, strict=True)
        self.count.add(windows=sum(size for (*_, by_windows), size in cut if by_windows))
        left = iter(scores)
        every = (filterfalse(math.isnan, islice(left, size)) for size in sizes)
        return [max(own, default=math.nan) for own in every]

    def _cached_scores(
        self, queries: Sequence[str], docnos: Sequence[Any], texts: Sequence[str]
    ) -> list[float]:
        """The scores of rows, from the cache where it has them."""
        folder = self.cache or (self.collection.caches if self.collection else None)
        if folder is None:
            return self.score_pairs(queries, texts)
        kind = self.fingerprint + (" max_passage" if self._by_windows else "")
        path = Path(folder) / f"rerank-{fingerprint(kind)}.sqlite"
        cache: ResultCache = self._caches.get(path, lambda: ResultCache(path, self.count))
        rows = list(zip(queries, map(str, docnos), texts, strict=True))
        keys = {row: (kind, row[0], row[1], text_hash(row[2])) for row in rows}
        values = zip(keys, cache.get(list(keys.values())), strict=True)
        scores: dict[Any, float] = {row: score for row, score in values if score is not None}
        missing = [row for row in keys if row not in scores]
        for start in range(0, len(missing), _WRITTEN_EVERY):
            part = missing[start : start + _WRITTEN_EVERY]
            new = self.score_pairs([row[0] for row in part], [row[2] for row in part])
            scores.update(zip(part, new, strict=True))
            cache.put((keys[row], scores[row]) for row in part if not math.isnan(scores[row]))
        return [scores[row] for row in rows]

    @property
    def _by_windows(self) -> bool:
        if self.long_documents:
            return self.long_documents == "max_passage"
        whole_documents = bool(self.collection and self.collection.whole_documents)
        return whole_documents and self.windows is not None

    def _source(self) -> str:
        try:
            return inspect.getsource(type(self))
        except (OSError, TypeError):
            # A class without a file, which may change at any time: cached in this process alone.
            return f"{threading.get_native_id()} {time.time_ns()}"


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralScorer(Scorer):
    """A scorer by a checkpoint that runs in this process.

    Constructing one reads nothing. `fingerprint` reads the configuration and the tokenizer; the
    first score loads the weights. `InputError` if the checkpoint cannot be loaded, is of another
    kind, or does not fit into memory. A subclass has `_inputs`, whose `encode` gives for each pair
    a named tuple of its token `ids` and of what the counts add, and `_network` with `_logits`.

    Args:
        model: A checkpoint: its name on the Hugging Face hub, or a folder.
        revision: Branch, tag or commit of a checkpoint on the hub.
        device, dtype: See `soundingline.pipelines.device.choose_device` and `choose_dtype`.
        batch_tokens: Tokens of a batch, padding included. The default depends on the device and
            the size of the network; see `soundingline.pipelines.device.Placement`.
        max_length: Tokens that hold a query and a text; longer texts are cut. The default is the
            length for which the checkpoint was made.
    """

    model: str = field(default="", kw_only=False)
    revision: str | None = None
    device: Runtime[str | None] = None
    dtype: str | None = None
    batch_tokens: Runtime[int | None] = None
    max_length: int | None = None

    extra = "rerank"
    default_batch_tokens: ClassVar[Mapping[str, int]] = Placement.default_batch_tokens
    """The default of `batch_tokens` by type of device."""

    least_length: ClassVar[int] = 1
    """The smallest `max_length`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length is not None:
            check_int("max_length", self.max_length, ge=self.least_length)
        self.placement = Placement(
            self.device, self.dtype, self.batch_tokens, self.default_batch_tokens
        )

    def score(self, queries: Sequence[str], texts: Sequence[str]) -> list[float]:
        inputs = self._inputs.encode(list(map(Pair, queries, texts)))
        self.count.add(
            **{name: sum(getattr(each, name) for each in inputs) for name in self.counted}
        )
        lengths = [len(each.ids) for each in inputs]
        # A network that is loaded tells the placement its size.
        compute = partial(self._batch_scores, self._network)
        size = self.placement.batch_tokens
        return in_batches(compute, inputs, lengths, size, lambda of: of[0].tolist())

    def windows(self, query: str, text: str) -> list[str]:
        """The text in parts that each fit and do not overlap, cut between words if possible; all
        of it if it fits."""
        windows: list[str] = self._inputs.windows(Pair(query, text))
        return windows

    def _batch_scores(self, network: Any, inputs: Sequence[Any]) -> "tuple[Tensor]":
        self._batches.check_wanted()
        tokens = sum(len(each.ids) for each in inputs)
        with (
            import_optional("torch").inference_mode(),
            within_memory(self.placement.device, f"a batch of {tokens} tokens"),
        ):
            return (self._logits(network, inputs),)

    def _logits(self, network: Any, inputs: Sequence[Any]) -> "Tensor":
        """The scores of one batch, in float32: bfloat16 would round unlike documents to the same
        score."""
        raise NotImplementedError

    _checkpoint: ClassVar[Any]
    _inputs: ClassVar[Any]
    _network: ClassVar[Any]

    @property
    @shared
    def _tokenizer(self) -> Any:
        return self._checkpoint.tokenizer()

    @property
    def _limit(self) -> int:
        """`max_length`, or else the length for which the checkpoint was made."""
        own = self._tokenizer.model_max_length
        return self.max_length or own_length(self._checkpoint.config, own)


@dataclass(kw_only=True, eq=False, repr=False)
class RerankTop(Stage):
    """Re-ranks the best `depth` rows of each query; the other rows stay below them in the
    retriever's order (see `merge_top_and_rest`).

    The columns of the input are `qid`, `query`, `docno`, and `rank` or `score`, which give the
    order. Without these two the rows are a set, as PyTerrier's `|` and `&` make it, and all of them
    are re-ranked. The output has the same columns and rows with new `score` and `rank`.

    The text of a row is its column `text`, or what `texts` returns for its docno. `InputError` if a
    scorer needs texts and there are none, and for a docno that `texts` does not know.

    Args:
        scorer: Any PyTerrier re-ranker, such as `MonoT5`. Its input are the best rows, with all
            columns of the ranking, and with `text` if there are texts. It may return them in any
            order and with any other columns; rows that share a docno are told apart by their order.
            A row that it leaves out, or to which it gives no number, ends the re-ranked rows.
        depth: Rows of each query to re-rank, at least 1; None for all.
        texts: A function from docnos to units, such as `index.texts`. The default are the texts of
            the collection.

    Example:
        >>> shortest = pt.apply.doc_score(lambda row: -len(row["text"]))
        >>> pipe = index.bm25() >> RerankTop(shortest, depth=10, texts=index.texts)
        >>> pipe.search("river")["docno"].tolist()
        ['d1%p0', 'd2%p0']
    """

    scorer: pt.Transformer = field(kw_only=False)
    depth: int | None = None
    texts: Texts | None = None

    def __post_init__(self) -> None:
        if self.depth is not None:
            check_int("depth", self.depth, do="set it to null for all rows")

    @property
    def fingerprint(self) -> str:
        """That of the scorer."""
        return getattr(self.scorer, "fingerprint", "")

    @property
    def counts(self) -> Mapping[str, float]:
        """Those of the scorer."""
        return getattr(self.scorer, "counts", {})

    @property
    def placement(self) -> Placement | None:
        """Where the model of the scorer computes; None without one."""
        return getattr(self.scorer, "placement", None)

    def close(self) -> None:
        """Close the scorer."""
        if isinstance(self.scorer, Stage):
            self.scorer.close()

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Re-rank the queries of a frame; the best rows of all of them are scored together."""
        inp = as_pyterrier(inp)
        texts = self.texts or (self.collection.texts if self.collection else None)
        _check_rows(inp, self, reads_text=isinstance(self.scorer, Reranker) and not texts)
        ordered = not {"rank", "score"}.isdisjoint(inp.columns)
        top, rest = split_top(inp, self.depth if ordered else None)
        scores = self._scores(top, _with_texts(top, texts)) if len(top) else []
        return merge_top_and_rest(top.assign(score=np.array(scores, dtype=float)), rest)

    def _scores(self, top: pd.DataFrame, rows: pd.DataFrame) -> Sequence[float]:
        """The score of each of the `top` rows, which the scorer reads as `rows`."""
        if isinstance(self.scorer, Reranker):
            return self.scorer.score_rows(rows)
        try:
            scored = self.scorer.transform(rows.reset_index(drop=True))
        except KeyError as error:
            if "text" not in rows.columns and error.args == ("text",):
                raise _no_texts(self) from error
            raise
        scores = pd.Series(scored["score"].tolist(), _rows_by_document(scored), dtype=float)
        ordered: list[float] = scores.reindex(_rows_by_document(top)).tolist()
        return ordered


def split_top(frame: pd.DataFrame, depth: int | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The best `depth` rows of each query (None: all), and the other rows, by `rank`, or by `score`
    without it, or in their order without both. Both parts come query by query (in the order of
    their first rows), best first; rows of equal rank or score keep their order."""
    order, queries = best_first(frame)
    in_top = places_in(queries) < (depth or len(frame))
    return frame.iloc[order[in_top]], frame.iloc[order[~in_top]]


def merge_top_and_rest(top: pd.DataFrame, rest: pd.DataFrame) -> pd.DataFrame:
    """One ranking of rows with new scores and the rest, as `split_top` returns them.

    The rows of a query are: the top rows by their new scores, rows of equal scores in the
    retriever's order; the top rows whose score is not a number; the rest. `rank` counts from 0. The
    scores of the rows below the scored ones continue theirs (see `_continued`). Scores beyond 1e30
    become 1e30.
    """
    rows = pd.concat([top, rest], ignore_index=True) if len(rest) else top
    queries = pd.factorize(rows["qid"])[0]
    scores = rows["score"].to_numpy(dtype=float)
    scored = (np.arange(len(rows)) < len(top)) & ~np.isnan(scores)
    # lexsort is stable: the top rows without a score stay above the rest.
    order = np.lexsort((np.where(scored, -scores, 0.0), ~scored, queries))
    scores, scored = scores[order], scored[order]
    starts = np.flatnonzero(np.diff(queries[order], prepend=-2))
    for start, end in zip(starts, np.append(starts, len(order))[1:], strict=True):
        number = int(scored[start:end].sum())
        scores[start:end] = _continued(scores[start : start + number], scores[start + number : end])
    return _ranking(rows.iloc[order], scores, queries[order])


def _continued(scores: NDArray[np.float64], old: NDArray[np.float64]) -> NDArray[np.float64]:
    """The falling `scores`, and below them one for each of the `old` scores: the worst of `scores`
    (0 without any) minus one step for each row, where rows of equal old scores share a step. They
    are finite and distinct in 32 bits too, in which trec_eval reads them."""
    bounded = np.clip(scores, -_LARGEST, _LARGEST)
    worst = bounded[-1] if len(bounded) else 0.0
    step = max(1.0, _FEWEST_STEPS * float(np.spacing(np.float32(abs(worst)))))
    is_step = np.ones(len(old), dtype=bool)
    is_step[1:] = old[1:] != old[:-1]
    return np.concatenate([bounded, worst - step * np.cumsum(is_step)])


def _ranking(rows: pd.DataFrame, scores: NDArray[Any], queries: NDArray[Any]) -> pd.DataFrame:
    """Rows in their new order with their scores and ranks. `queries` are numbers that rise."""
    ranks = places_in(queries) + pt.model.FIRST_RANK
    return rows.reset_index(drop=True).assign(score=scores, rank=ranks)


def _rows_by_document(frame: pd.DataFrame) -> pd.MultiIndex:
    """A key of each row: its qid and docno, and how many rows before it have the same."""
    keys = frame[["qid", "docno"]].astype(str)
    return pd.MultiIndex.from_frame(keys.assign(row=keys.groupby(["qid", "docno"]).cumcount()))


def _check_rows(frame: pd.DataFrame, stage: Stage, reads_text: bool) -> None:
    """`InputError` if rows have no text to read and for queries that are not text; PyTerrier's
    error for other missing columns."""
    lacks_text = reads_text and len(frame) > 0 and "text" not in frame.columns
    columns = ["query", "text"] if reads_text and not lacks_text else ["query"]
    pt.validate.result_frame(frame, extra_columns=columns, context=stage)
    if lacks_text:
        raise _no_texts(stage)
    for qid, query in zip(frame["qid"].tolist(), frame["query"].tolist(), strict=True):
        if not isinstance(query, str):
            raise InputError(f"the query {qid!r} is {query!r}", do="give each query as text")


def _no_texts(stage: Stage) -> InputError:
    scorer = stage.scorer if isinstance(stage, RerankTop) else stage
    name = type(scorer).__name__
    return InputError(
        f"the ranking has no text for {stage} to read",
        valid="a column text, or a RerankTop with texts",
        do=f"write RerankTop({name}(...), texts=index.texts), or texts=store.texts; or put "
        "pt.text.get_text(index) before it",
    )


def _with_texts(rows: pd.DataFrame, texts: Texts | None) -> pd.DataFrame:
    """The rows with their texts: those of the column `text`, else what `texts` gives for each docno
    (title in front). `InputError` for a docno that `texts` does not have."""
    if "text" in rows.columns:
        return rows.assign(text=_strings(rows["text"]))
    if texts is None:
        return rows
    docnos = list(map(str, rows["docno"].tolist()))
    different = list(dict.fromkeys(docnos))
    try:
        units = texts(different)
    except KeyError as error:
        raise InputError(
            f"the ranking names {error}, which is missing from the document store",
            do="build the index and the store from the same corpus",
        ) from error
    contents = {docno: unit.contents for docno, unit in zip(different, units, strict=True)}
    return rows.assign(text=pd.Series([contents[docno] for docno in docnos], rows.index, object))


def _strings(texts: pd.Series) -> pd.Series:
    """The texts without lone surrogates, and an empty one where there is none."""
    strings = [replace_surrogates(x) if isinstance(x, str) else "" for x in texts.tolist()]
    return pd.Series(strings, texts.index, object)
