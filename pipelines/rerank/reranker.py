"""Re-rankers: the base class of all models that score a query with a text, and what it does for
them. A model implements `Reranker.score`; texts, head and tail, windows of long documents, the
cache and the batches of concurrent threads are the base class's.
"""

import inspect
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt

from soundingline.pipelines.cache import ResultCache, text_hash
from soundingline.pipelines.checkpoint import own_length
from soundingline.pipelines.device import Placement, in_batches, within_memory
from soundingline.pipelines.lexical.storage import ATTRIBUTE
from soundingline.pipelines.stage import (
    Counts,
    MadeOnce,
    Stage,
    Texts,
    as_pyterrier,
    shared_property,
)
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    from torch import Tensor

    from soundingline.pipelines.lexical.index import LexicalIndex

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
    "largest_batch",
    "failed_batches",
    "gathered_requests",
    "missing_text",
    "unscored",
)


class Pair(NamedTuple):
    """A query and the text of a candidate (title in front, as it was indexed).

    Example:
        >>> Pair("old mill", "Mill. The old mill stands by the river.").query
        'old mill'
    """

    query: str
    text: str


class _Request(Future[list[float]]):
    """The pairs of one thread, and their scores when a thread has computed them."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        super().__init__()
        self.pairs = pairs


class _Queue:
    """The requests of the threads that share a model: `waiting[by_windows]`. `changed` is notified
    when no thread computes any more (`busy`)."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.busy = False
        self.waiting: tuple[list[_Request], list[_Request]] = ([], [])
        self.seconds = 0.0

    def __reduce__(self) -> Any:
        return _Queue, ()


@dataclass(kw_only=True, eq=False, repr=False)
class HeadReranker(Stage, ABC):
    """Gives the best `depth` rows of each query new scores; the other rows stay below them in the
    retriever's order (see `merge_head_and_tail`). A subclass implements `score_head`.

    The columns of the input are `qid`, `query`, `docno`, and `rank` or `score`, which give the
    order. Without these two the rows are a set, as PyTerrier's `|` and `&` make it, and all of them
    are scored. The text of a row is its column `text`, or what `texts` returns for its docno. The
    output has the same columns and rows with new `score` and `rank`. `InputError` if there is no
    text to score, and for a docno that `texts` does not know.

    Args:
        depth: Rows of each query to score, at least 1; None for all.
        texts: A function from docnos to units, such as `store.texts`. The default are the texts of
            the collection, or of the lexical index that the ranking comes from.
    """

    depth: int | None = None
    texts: Texts | None = None

    needs_text: ClassVar[bool] = True
    """Whether a ranking is refused if there are no texts."""

    def __post_init__(self) -> None:
        if self.depth is not None:
            check_int("depth", self.depth, do="set it to null for all rows")

    @abstractmethod
    def score_head(self, head: pd.DataFrame, texts: list[str]) -> Sequence[float]:
        """A score for each row of the heads of all queries, which have these texts (empty if a row
        has none). A score that is not a number puts its row at the end of its head."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Re-rank the queries of a frame; all of their heads are scored together."""
        inp = as_pyterrier(inp)
        texts = self.texts or (self.collection.texts if self.collection else None)
        path = inp.attrs.get(ATTRIBUTE)
        if not texts and isinstance(path, str) and Path(path).is_dir():
            texts = _opened(path).texts
        self._check_columns(inp, texts)
        ordered = not {"rank", "score"}.isdisjoint(inp.columns)
        head, tail = split_head(inp, self.depth if self.depth and ordered else max(1, len(inp)))
        scores = self.score_head(head, _texts_of(head, texts)) if len(head) else []
        head = head.assign(score=pd.Series(scores, index=head.index, dtype=float))
        return merge_head_and_tail(head, tail)

    def _check_columns(self, frame: pd.DataFrame, texts: Texts | None) -> None:
        """`InputError` if there is no text to read and for queries that are no text; PyTerrier's
        error for other missing columns."""
        needed = ["query", "text"] if self.needs_text and not texts else ["query"]
        if {"qid", "docno", *needed} - set(frame.columns) == {"text"}:
            if frame.empty:
                # PyTerrier inspects pipelines with such frames, which come from no index.
                return
            raise _no_texts(self)
        pt.validate.result_frame(frame, extra_columns=needed, context=self)
        for qid, query in zip(frame["qid"].tolist(), frame["query"].tolist(), strict=True):
            if not isinstance(query, str):
                raise InputError(f"the query {qid!r} is {query!r}", do="give each query as text")


@dataclass(kw_only=True, eq=False, repr=False)
class Reranker(HeadReranker):
    """Orders the best `depth` rows of each query by the scores of a model; the other rows stay
    below them in the retriever's order (see `merge_head_and_tail`).

    A subclass implements `score`. It may implement `windows`, which `long_documents=max_passage`
    needs, and `fingerprint`, which names its scores in the cache. Declare arguments of its own as
    fields of a dataclass with the same decorator. Columns and errors as in `HeadReranker`.

    Threads that call one stage at the same time share batches: the requests that come while one
    thread computes become the next batch. Equal pairs of a batch are scored once. If a batch fails,
    its requests are scored one by one, so that an error reaches only the thread whose pairs cause
    it. Pairs with a cached score do not wait.

    A stage without `depth` gives every row a score of the model, so that a cache of scores may hold
    them: `RerankHead(ScorerCache("scores", MonoT5()), depth=50)` with pyterrier-caching. With a
    `depth`, the scores of the rows below it only continue the ranking; cache these by `cache`.

    Args:
        depth, texts: See `HeadReranker`.
        long_documents: `truncate` leaves a text that is too long to the model, which cuts it.
            `max_passage` scores the windows of the text and takes the best (Dai and Callan, SIGIR
            2019). The default is `max_passage` if the collection's units are whole documents and
            the model has windows, otherwise `truncate`.
        cache: A folder in which scores are kept between runs. The default is the collection's.
            Threads and processes may share it.

    Example:
        >>> class Overlap(Reranker):
        ...     def score(self, pairs):
        ...         return [len(set(p.query.split()) & set(p.text.split())) for p in pairs]
    """

    long_documents: str | None = None
    cache: Path | str | None = None

    shares_batches: ClassVar[bool] = True
    """False if several threads may call `score` at the same time, which suits a remote model."""

    counted: ClassVar[tuple[str, ...]] = ()
    """Names of the counts that the model adds to by `self.count.add(truncated=2)`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long_documents not in (None, *LONG_DOCUMENTS):
            valid = f"null, {', '.join(LONG_DOCUMENTS)}"
            raise InputError(f"long_documents={self.long_documents!r}", valid=valid)
        if self.long_documents == "max_passage" and not self._has_windows:
            raise InputError(
                f"long_documents=max_passage, and {type(self).__name__} has no windows",
                valid="truncate",
                do="set long_documents=truncate, or index passages",
            )
        label = type(self).__name__ + (f" %{self.depth}" if self.depth else "")
        self.schematic = {**type(self).schematic, "label": label}
        # Bound copies are shallow: all of these are shared between them.
        self._shared, self._caches, self._queue = MadeOnce(), MadeOnce(), _Queue()
        self.count = Counts(*self.counted)
        self._counts = Counts(*_COUNTS)

    @abstractmethod
    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """One score for each pair, in the same order; higher is more relevant. It must not depend
        on the other pairs. A score that is not a number puts its row at the end of the head."""

    def windows(self, pair: Pair) -> list[str]:
        """The text of `pair` in parts that the model reads without a cut."""
        return [pair.text]

    @property
    def fingerprint(self) -> str:
        """A hash that names the scores in the cache: equal fingerprints mean equal scores. The
        default covers the source of the class and its own arguments; a model from a file must add
        what the file holds."""
        general = Reranker.__dataclass_fields__
        own = {
            name: repr(value) for name, value in self._arguments().items() if name not in general
        }
        return fingerprint(type(self).__qualname__, self._shared.get("source", self._source), own)

    @property
    def counts(self) -> Mapping[str, float]:
        """Cumulative counts of the stage and its bound copies: the model's own; `windows` scored;
        `batches` of `pairs_scored`, the `largest_batch`, `failed_batches` and the requests in them
        (`gathered_requests`); with a cache `cache_hits` and `cache_misses`; rows with
        `missing_text`, which count as empty, and `unscored` ones, whose score is not a number;
        `seconds` in the model."""
        counts: Counter[str] = Counter({**self.count(), **self._counts()})
        if not self._by_windows:
            del counts["windows"]
        if not self.shares_batches:
            del counts["gathered_requests"]
        return {**counts, "seconds": round(self._queue.seconds, 3)}

    def score_head(self, head: pd.DataFrame, texts: list[str]) -> Sequence[float]:
        docnos = map(str, head["docno"].tolist())
        scores = self._cached_scores(list(zip(head["query"].tolist(), docnos, texts, strict=True)))
        self._counts.add(missing_text=texts.count(""), unscored=sum(map(math.isnan, scores)))
        return scores

    def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:
        """The scores of `pairs`, in batches shared with other threads and without the cache. A long
        text scores as its best window if `long_documents` says so."""
        if not pairs:
            return []
        if not self.shares_batches:
            return self._score_batch(pairs)
        request, queue = _Request(pairs), self._queue
        waiting = queue.waiting[self._by_windows]
        try:
            with queue.changed:
                waiting.append(request)
                queue.changed.wait_for(lambda: request.done() or not queue.busy)
                if not request.done():
                    queue.busy = True
                    requests = list(waiting)
                    waiting.clear()
            if not request.done():
                self._score_requests(requests)
        finally:
            # Not done if this thread was interrupted: nobody needs its scores.
            with queue.changed:
                if not request.done() and request in waiting:
                    waiting.remove(request)
        return request.result()

    def _score_requests(self, requests: Sequence[_Request]) -> None:
        """Score requests in one batch, or one by one if that fails, and let others compute."""
        try:
            if not self._answer(requests):
                for request in requests:
                    self._answer([request])
        finally:
            # After Ctrl-C the next thread scores what is left.
            left = [request for request in requests if not request.done()]
            self._counts.add(gathered_requests=len(requests) - len(left))
            with self._queue.changed:
                self._queue.waiting[self._by_windows][:0] = left
                self._queue.busy = False
                self._queue.changed.notify_all()

    def _answer(self, requests: Sequence[_Request]) -> bool:
        """Score requests in one batch. Returns whether all are answered: an error answers a request
        that is alone."""
        try:
            pairs = [pair for request in requests for pair in request.pairs]
            scores = iter(self._score_batch(pairs))
        except Exception as error:
            if len(requests) == 1:
                requests[0].set_exception(error)
            return len(requests) == 1
        for request in requests:
            request.set_result(list(islice(scores, len(request.pairs))))
        return True

    def _score_batch(self, pairs: Sequence[Pair]) -> list[float]:
        different = list(dict.fromkeys(pairs))
        started, failed = time.perf_counter(), True
        try:
            scores = (self._best_windows if self._by_windows else self._checked)(different)
            failed = False
        finally:
            with self._queue.changed:
                self._queue.seconds += time.perf_counter() - started
            self._counts.add(batches=1, pairs_scored=len(different), failed_batches=failed)
            self._counts.raise_to("largest_batch", len(different))
        score_of = dict(zip(different, scores, strict=True))
        return [score_of[pair] for pair in pairs]

    def _best_windows(self, pairs: Sequence[Pair]) -> list[float]:
        """The score of each text's best window. A window without a score does not count."""
        # A text without a word may have no window.
        windows_of = [self.windows(pair) or [pair.text] for pair in pairs]
        windows = [
            Pair(pair.query, text)
            for pair, texts in zip(pairs, windows_of, strict=True)
            for text in texts
        ]
        scores = np.array(self._checked(windows))
        self._counts.add(windows=len(windows))
        starts = np.cumsum([0, *map(len, windows_of[:-1])])
        best: list[float] = np.fmax.reduceat(scores, starts).tolist()
        return best

    def _checked(self, pairs: Sequence[Pair]) -> list[float]:
        scores = list(map(float, self.score(pairs)))
        if len(scores) != len(pairs):
            raise InputError(
                f"{type(self).__name__}.score returned {len(scores)} scores for {len(pairs)} pairs",
                valid="one number for each pair, in the order of the pairs",
            )
        return scores

    def _cached_scores(self, rows: Sequence[tuple[str, str, str]]) -> list[float]:
        """The scores of rows (query, docno, text), from the cache where it has them."""
        folder = self.cache or (self.collection.caches if self.collection else None)
        if folder is None:
            return self.score_pairs([Pair(query, text) for query, _, text in rows])
        kind = self.fingerprint + (" max_passage" if self._by_windows else "")
        path = Path(folder) / f"rerank-{fingerprint(kind)}.sqlite"
        cache: ResultCache = self._caches.get(path, lambda: ResultCache(path, self._counts))
        keys = {
            (query, docno, text): (kind, query, docno, text_hash(text))
            for query, docno, text in rows
        }
        values = zip(keys, cache.get(list(keys.values())), strict=True)
        scores: dict[Any, float] = {row: score for row, score in values if score is not None}
        missing = [row for row in keys if row not in scores]
        for start in range(0, len(missing), _WRITTEN_EVERY):
            part = missing[start : start + _WRITTEN_EVERY]
            new = self.score_pairs([Pair(query, text) for query, _, text in part])
            scores.update(zip(part, new, strict=True))
            cache.put((keys[row], scores[row]) for row in part if not math.isnan(scores[row]))
        return [scores[row] for row in rows]

    @property
    def _has_windows(self) -> bool:
        return type(self).windows is not Reranker.windows

    @property
    def _by_windows(self) -> bool:
        if self.long_documents:
            return self.long_documents == "max_passage"
        whole_documents = bool(self.collection and self.collection.whole_documents)
        return whole_documents and self._has_windows

    def _source(self) -> str:
        try:
            return inspect.getsource(type(self))
        except (OSError, TypeError):
            # A class without a file, which may change at any time: cached in this process alone.
            return f"{threading.get_native_id()} {time.time_ns()}"

    def _lasting(self, argument: str) -> tuple[str, ...]:
        # The model does not depend on the arguments that all re-rankers have.
        shared = ("_shared", "_caches", "_queue", "count", "_counts")
        return shared if argument in Reranker.__dataclass_fields__ else ()


@dataclass(kw_only=True, eq=False, repr=False)
class NeuralReranker(Reranker):
    """A re-ranker by a checkpoint that runs in this process.

    Constructing one reads nothing. `fingerprint` reads the configuration and the tokenizer; the
    first score loads the weights. `InputError` if the checkpoint cannot be loaded, is of another
    kind, or does not fit into memory. A subclass has `_inputs`, whose `encode` gives for each pair
    a named tuple of its token `ids` and of what the counts add, and `_network` with `_logits`.

    Args:
        model: A checkpoint: its name on the Hugging Face hub, or a folder.
        revision: Branch, tag or commit of a checkpoint on the hub.
        device, dtype: See `soundingline.pipelines.device.choose_device` and `choose_dtype`.
        batch_tokens: Tokens of a batch, padding included. The default depends on the device
            (`default_batch_tokens`).
        max_length: Tokens that hold a query and a text; longer texts are cut. The default is the
            length for which the checkpoint was made.
    """

    model: str = field(default="", kw_only=False)
    revision: str | None = None
    device: str | None = None
    dtype: str | None = None
    batch_tokens: int | None = None
    max_length: int | None = None

    extra = "rerank"
    default_batch_tokens: ClassVar[Mapping[str, int]] = Placement.default_batch_tokens
    """The default of `batch_tokens` by type of device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.placement = Placement(
            self.device, self.dtype, self.batch_tokens, self.default_batch_tokens
        )

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        inputs = self._inputs.encode(pairs)
        self.count.add(
            **{name: sum(getattr(each, name) for each in inputs) for name in self.counted}
        )
        lengths = [len(each.ids) for each in inputs]
        return in_batches(self._batch_scores, inputs, lengths, self.placement.batch_tokens)

    def windows(self, pair: Pair) -> list[str]:
        """The document in parts that each fit and do not overlap, cut between words if possible;
        all of it if it fits."""
        return self._inputs.windows(pair)  # type: ignore[no-any-return]

    def _batch_scores(self, inputs: Sequence[Any]) -> list[float]:
        network, tokens = self._network, sum(len(each.ids) for each in inputs)
        with (
            import_optional("torch").inference_mode(),
            within_memory(self.placement.device, f"a batch of {tokens} tokens"),
        ):
            scores: list[float] = self._logits(network, inputs).tolist()
        return scores

    def _logits(self, network: Any, inputs: Sequence[Any]) -> "Tensor":
        """The scores of one batch, in float32: bfloat16 would round unlike documents to the same
        score."""
        raise NotImplementedError

    _checkpoint: ClassVar[Any]
    _inputs: ClassVar[Any]
    _network: ClassVar[Any]

    @shared_property
    def _tokenizer(self) -> Any:
        return self._checkpoint.tokenizer()

    @property
    def _limit(self) -> int:
        """`max_length`, or else the length for which the checkpoint was made."""
        own = self._tokenizer.model_max_length
        return self.max_length or own_length(self._checkpoint.config, own)


@dataclass(kw_only=True, eq=False, repr=False)
class RerankHead(HeadReranker):
    """Any PyTerrier re-ranker on the best `depth` rows of each query (by default on all); the other
    rows stay below them. Columns, `texts` and `InputError`s are those of `HeadReranker`.

    Args:
        stage: The re-ranker. Its input is the head, with all columns of the ranking, and with
            `text` if there are texts. It may return them in any order and with any other columns;
            rows that share a docno are told apart by their order. A row that it leaves out is put
            at the head's end.
        depth: Rows of each query to score; None for all.

    Example:
        >>> shortest = pt.apply.doc_score(lambda row: -len(row["text"]))
        >>> (index.bm25() >> RerankHead(shortest, depth=10)).search("river")["docno"].tolist()
        ['d1%p0', 'd2%p0']
    """

    stage: pt.Transformer = field(kw_only=False)

    # A Terrier retriever, for example, scores the documents of its index.
    needs_text: ClassVar[bool] = False

    def score_head(self, head: pd.DataFrame, texts: list[str]) -> Sequence[float]:
        has_text = "text" in head.columns or any(texts)
        rows = head.assign(text=texts) if has_text else head
        try:
            scored = self.stage.transform(rows.reset_index(drop=True))
        except KeyError as error:
            if not has_text and error.args == ("text",):
                raise _no_texts(self) from error
            raise
        scores = pd.Series(scored["score"].tolist(), _rows_by_document(scored), dtype=float)
        return scores.reindex(_rows_by_document(head)).tolist()  # type: ignore[no-any-return]


def split_head(frame: pd.DataFrame, depth: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The best `depth` rows of each query, and the other rows, by `rank`, or by `score` without it,
    or in their order without both. Both parts come query by query (in the order of their first
    rows), best first; rows of equal rank or score keep their order."""
    queries = pd.factorize(frame["qid"])[0]
    # lexsort is stable, and puts what is not a number last.
    by = np.zeros(len(frame))
    if "rank" in frame.columns:
        by = frame["rank"].to_numpy(dtype=float)
    elif "score" in frame.columns:
        by = -frame["score"].to_numpy(dtype=float)
    order = np.lexsort((by, queries))
    queries = queries[order]
    in_head = np.arange(len(order)) - np.searchsorted(queries, queries) < depth
    return frame.iloc[order[in_head]], frame.iloc[order[~in_head]]


def merge_head_and_tail(head: pd.DataFrame, tail: pd.DataFrame) -> pd.DataFrame:
    """One ranking of a head with new scores and its tail, as `split_head` returns them.

    The rows of a query are: the head by its new scores, rows of equal scores in the retriever's
    order; the rows of the head whose score is not a number; the tail. `rank` counts from 0. The
    rows below the scored ones get the worst new score (0 without any) minus one step for each row,
    where tail rows of equal retriever scores share a step. Their scores are finite and distinct in
    32 bits too, in which trec_eval reads them. Scores beyond 1e30 become 1e30.
    """
    rows = pd.concat([head, tail], ignore_index=True) if len(tail) else head
    queries = pd.factorize(rows["qid"])[0]
    scores = rows["score"].to_numpy(dtype=float)
    part = np.where(np.isnan(scores), 1, 0)  # 0: has a new score
    part[len(head) :] = 2
    order = np.lexsort((np.where(part == 0, -scores, 0.0), part, queries))
    queries, part, scores = queries[order], part[order], scores[order]
    first = np.searchsorted(queries, queries)
    bounded, below = np.clip(scores, -_LARGEST, _LARGEST), part > 0
    moves = below.copy()
    moves[1:] &= (np.diff(part) != 0) | (np.diff(first) != 0) | (scores[1:] != scores[:-1])
    steps_below = np.cumsum(moves)
    steps_below -= steps_below[first] - moves[first]
    scored = np.bincount(first[~below], minlength=len(first))[first]
    worst = np.where(scored > 0, bounded[first + np.maximum(scored, 1) - 1], 0.0)
    step = np.maximum(1.0, _FEWEST_STEPS * np.spacing(np.abs(worst).astype(np.float32)))
    return (
        rows.iloc[order]
        .reset_index(drop=True)
        .assign(
            score=np.where(below, worst - step * steps_below, bounded),
            rank=np.arange(len(order)) - first + pt.model.FIRST_RANK,
        )
    )


def _rows_by_document(frame: pd.DataFrame) -> pd.MultiIndex:
    """A key of each row: its qid and docno, and how many rows before it have the same."""
    keys = frame[["qid", "docno"]].astype(str)
    return pd.MultiIndex.from_frame(keys.assign(row=keys.groupby(["qid", "docno"]).cumcount()))


def _no_texts(stage: HeadReranker) -> InputError:
    name = type(stage).__name__
    return InputError(
        f"the ranking has no text for {stage} to read",
        valid="a column text, a re-ranker with texts, or the frame that a lexical index with texts "
        "returned (fusion, link expansion, caches, lists and files of rankings keep no texts)",
        do=f"write {name}(texts=index.texts), or texts=store.texts; or put pt.text.get_text(index) "
        "before it",
    )


@lru_cache(maxsize=16)
def _opened(path: str) -> "LexicalIndex":
    from soundingline.pipelines.lexical.index import LexicalIndex  # here, because it imports numba

    return LexicalIndex(path)


def _texts_of(frame: pd.DataFrame, texts: Texts | None) -> list[str]:
    """The text of each row: its column `text`, else what `texts` gives for its docno (title in
    front); empty where there is none. `InputError` for a docno that `texts` lacks."""
    if "text" in frame.columns:
        return [text if isinstance(text, str) else "" for text in frame["text"].tolist()]
    docnos = list(map(str, frame["docno"].tolist()))
    if texts is None:
        return [""] * len(docnos)
    different = list(dict.fromkeys(docnos))
    try:
        units = texts(different) if different else []
    except KeyError as error:
        raise InputError(
            f"the ranking names {error}, which the document store lacks",
            do="build the index and the store from the same corpus",
        ) from error
    contents = {docno: unit.contents for docno, unit in zip(different, units, strict=True)}
    return [contents[docno] for docno in docnos]
