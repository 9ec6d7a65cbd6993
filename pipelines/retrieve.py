"""First stages: retrievers that rank the units of an index, whichever engine built it.

A retriever holds the parameters of one ranking model. It ranks an index that it is given
(`index.bm25(k1=25, b=1.0)`), or that of the collection to which a run binds it. Retrievers of
learned models are in `soundingline.pipelines.learned`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray
from typing_extensions import Self, TypedDict

from soundingline.pipelines.engines.engine import RankedList, check_support, checked_weights
from soundingline.pipelines.lexical.bm25 import check_settings
from soundingline.pipelines.lexical.rm3 import Feedback, check_feedback
from soundingline.pipelines.stage import Collection, Stage, as_pyterrier, not_bound, places_in
from soundingline.toolkit.console import notify
from soundingline.toolkit.errors import InputError, Runtime, check_call, check_int, check_number
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.runs.run_folder import of_question

# What a new ranking replaces. The `text` of a topic is not that of a document.
_RESULT = ("docno", "score", "rank", "text")
# What Terrier's rewriters (Bo1, KL, RM3, SDM) write.
_TERRIER = re.compile(r"\bapplypipeline:off\b|#combine[:(]")


@dataclass(kw_only=True, eq=False, repr=False)
class Retriever(Stage):
    """Ranks the units of an index for each query.

    The input has `qid` and `query` (text), or the first column of the index's `query_columns` that
    is there: `query_toks` holds a dict of index terms to weights, 0 or more. The output has every
    column of the input but `text`, and `docno`, `score`, `rank` (from 0), best first. Its qids are
    text.

    If the input has a column `docno` and the index scores units (`scores_candidates`), these units
    are scored instead: the output has a row for each row of the input, whatever `depth`, with the
    `score` of the unit in the whole ranking, or 0 if it is not in it. Rows are ordered by query,
    then by score, then by the order of the index. The query of a qid is the first that is not
    missing.

    A subclass adds the parameters of its model as fields of a dataclass with the same decorator.

    Args:
        depth: the largest number of units for a query. With passages and Max-P, the ranking of
            documents may be shorter.
        index: the index to rank. None: the index of the collection (see `bind`).

    Raises:
        InputError: without an index, for parameters out of range, for a query of the wrong kind or
            in Terrier's query language, for a frame with `docid` and without `docno`, for a unit to
            score that the index does not have.

    Example:
        >>> (index.bm25(depth=1) >> MaxP())(queries)["docno"].tolist()
        ['d1']
        >>> candidates = queries.assign(docno="d1%p1")  # a unit to score
        >>> index.bm25()(candidates)["score"].round(3).tolist()
        [0.263]
    """

    depth: int = 1000
    index: Any = None

    matching: ClassVar[str] = "unknown"
    """See `Stage.matching`."""

    def __post_init__(self) -> None:
        check_int("depth", self.depth, do="try 1000")
        if self.index is not None:
            self._check_index(self.index)

    def _check_index(self, index: Any) -> None:
        check_support(self.needs, type(self).__name__, index.supports, index)

    def index_in(self, collection: Collection) -> Any:
        """The index to rank in `collection`."""
        return collection.index

    def bind(self, collection: Collection) -> Self:
        """See `Stage`. Opens the index, and builds it if it is missing."""
        bound = super().bind(collection)
        bound.index = self.index_in(collection)
        self._check_index(bound.index)
        return bound

    @property
    def query_columns(self) -> tuple[str, ...]:
        """The columns of a frame that hold queries, in the order in which they are preferred."""
        columns: tuple[str, ...] = self.index.query_columns
        return columns

    @property
    def scores_candidates(self) -> bool:
        """Whether the index scores the units of a frame with a column `docno`."""
        return hasattr(self.index, "score")

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        if self.index is None:
            do = "call bind(collection), or take a retriever from an index: index.bm25(...)"
            raise not_bound(self, do)
        check_queries(inp)
        scores_candidates = self.scores_candidates
        with pt.validate.any(inp) as valid:
            # Text first, which PyTerrier then shows as the input.
            for column in sorted(self.query_columns, key=lambda name: name != "query"):
                valid.query_frame(extra_columns=[column])
                if scores_candidates:
                    valid.result_frame(extra_columns=[column])
        inp = as_pyterrier(inp)
        if "docno" in inp.columns:
            return self._scored(inp)
        rankings: list[Any] = [None] * len(inp)
        if len(inp):
            queries = self._queries(inp)
            for model, places in self._models(inp["qid"].tolist()):
                found = self.index.rank([queries[n] for n in places], model, self.depth)
                for place, ranking in zip(places, found, strict=True):
                    rankings[place] = ranking
        return ranked(inp, rankings)

    def _queries(self, inp: pd.DataFrame) -> Sequence[Any]:
        column = next(name for name in self.query_columns if name in inp.columns)
        if column == "query":
            return self._text_queries(checked_texts(inp["query"]))
        values: list[Any] = inp[column].tolist()
        return list(map(checked_weights, values)) if column == "query_toks" else values

    def _text_queries(self, texts: Sequence[str]) -> Sequence[Any]:
        """What the index takes for these texts."""
        return texts

    def _scored(self, inp: pd.DataFrame) -> pd.DataFrame:
        """The rows of the input by their scores."""
        docnos = inp["docno"].tolist()
        numbers = self.index.docnos.numbers(docnos)
        if len(unknown := np.flatnonzero(numbers < 0)):
            raise InputError(
                f"docno {docnos[unknown[0]]!r} is not in {self.index!r}",
                valid="units of the index that scores them",
                do="score candidates of the same index, before any aggregation (Max-P)",
            )
        groups, qids = pd.factorize(inp["qid"], use_na_sentinel=False)
        rows = [np.flatnonzero(groups == group) for group in range(len(qids))]
        scores = np.zeros(len(inp))
        if rows:
            queries = self._queries(inp.iloc[[of_query[0] for of_query in rows]])
            for model, places in self._models(list(qids)):
                of_model = [queries[n] for n in places], [numbers[rows[n]] for n in places]
                for place, values in zip(places, self.index.score(*of_model, model), strict=True):
                    scores[rows[place]] = values
        order = np.lexsort((numbers, -scores, groups))
        out = inp.drop(columns=["score", "rank"], errors="ignore").iloc[order]
        ranks = places_in(groups[order])
        return out.assign(score=scores[order], rank=ranks).reset_index(drop=True)

    def _models(self, qids: Sequence[str]) -> Iterator[tuple[Retriever, Sequence[int]]]:
        """The models that rank the questions, each with the places of its questions in `qids`."""
        yield self, range(len(qids))

    def fuse_rank_cutoff(self, k: int) -> pt.Transformer | None:
        """`retriever % k` that ranks no deeper than it must; PyTerrier's optimiser calls it."""
        if k >= self.depth:
            return None
        shorter = self.at_depth(k)
        # `depth` does not limit the units that a frame gives.
        return shorter % k if self.scores_candidates else shorter

    def at_depth(self, depth: int) -> Self:
        """The same with another depth."""
        shorter = copy.copy(self)
        shorter.depth = depth
        return shorter


class _WithFeedback(Retriever):
    """Retrievers that may follow feedback from their own ranking."""

    matching: ClassVar[str] = "lexical"

    @check_call
    def rm3(self, fb_terms: int = 10, fb_docs: int = 10, original_weight: float = 0.5) -> RM3:
        """The same with RM3 feedback from its own best units; see `RM3`."""
        if getattr(self, "fold_parameters", None):
            raise InputError(
                "RM3 has one k1 and b for all questions, and this BM25 has them by fold",
                do="take index.bm25(k1=..., b=...).rm3()",
            )
        names, own = ("depth", "index", "k1", "b", "mu"), vars(self)
        settings: dict[str, Any] = {name: own[name] for name in names if name in own}
        settings |= {"fb_terms": fb_terms, "fb_docs": fb_docs, "original_weight": original_weight}
        return RM3(**settings)


class FoldParameters(TypedDict):
    """The parameters for the questions (ids) of one fold, chosen on the questions of the others."""

    k1: float
    b: float
    questions: list[str]


@dataclass(kw_only=True, eq=False, repr=False)
class BM25(_WithFeedback):
    """BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009).

    Our index and Anserini's compute Lucene's formula, with lengths in one byte; see
    docs/lexical.md for the others. The defaults are Anserini's. Columns and errors as in
    `Retriever`.

    Args:
        k1: saturation of term frequencies, 0 or more.
        b: normalisation by length, 0 to 1.
        source: the tuning that chose the parameters, for the record of a run; it changes nothing.
        fold_parameters: a cross-validated tuning: the `qid` of a query names the question, which is
            searched with the parameters of its fold; with `k1` and `b` if it is in no fold. None:
            `k1` and `b` for all questions.
        operators: `phrases` honours quoted phrases and `-word` in `query` (see
            `soundingline.pipelines.lexical.operators`), with our index alone. None ignores them.

    Example:
        >>> index.bm25(k1=25, b=1.0).search("old river")["docno"].tolist()
        ['d1%p0', 'd2%p0']
    """

    k1: float = 0.9
    b: float = 0.4
    source: Runtime[str | None] = None
    fold_parameters: Sequence[FoldParameters] | None = None
    operators: str | None = None

    def __post_init__(self) -> None:
        check_settings(self.k1, self.b, self.depth)
        if self.operators not in (None, "phrases"):
            valid = "phrases, or null for words as they are"
            raise InputError(f"operators is {self.operators!r}", valid=valid)
        self._of_question: dict[str, tuple[float, float]] = {}
        for fold in self.fold_parameters or ():
            check_settings(fold["k1"], fold["b"], self.depth)
            for qid in fold["questions"]:
                if qid in self._of_question:
                    raise InputError(f"question {qid!r} is in two folds", valid="one fold")
                self._of_question[qid] = fold["k1"], fold["b"]
        super().__post_init__()

    def bind(self, collection: Collection) -> Self:
        """See `Stage`. A line tells how many of the collection's questions are in no fold;
        `InputError` if all of them are."""
        bound = super().bind(collection)
        if self.fold_parameters and collection.questions:
            self._check_folds(collection.questions)
        return bound

    def _check_folds(self, questions: Mapping[str, str]) -> None:
        outside = sum(qid not in self._of_question for qid in questions)
        if outside == len(questions):
            raise InputError(
                f"none of the {outside} questions is in a fold of the tuning"
                + (f" {self.source}" if self.source else ""),
                valid="a tuning on the questions of this benchmark",
                do="choose retriever=bm25_crossfit, or run soundingline tune tuning.select=null",
            )
        if outside:
            notify(
                f"{outside} of {len(questions)} questions are in no fold; they are searched with "
                f"k1={self.k1:g} and b={self.b:g}, chosen on all questions of the tuning"
            )

    def _parameters(self, qid: str) -> tuple[float, float]:
        """The k1 and b of a question, also of a repeat of it."""
        return of_question(self._of_question, qid) or (self.k1, self.b)

    def for_question(self, qid: str) -> BM25:
        """The retriever with the parameters of a question's fold as `k1` and `b`."""
        if not self.fold_parameters:
            return self
        model = copy.copy(self)
        model.k1, model.b = self._parameters(qid)
        model.fold_parameters, model._of_question = None, {}
        return model

    def _models(self, qids: Sequence[str]) -> Iterator[tuple[Retriever, Sequence[int]]]:
        if not self.fold_parameters:
            yield from super()._models(qids)
            return
        places: dict[tuple[float, float], list[int]] = {}
        for place, qid in enumerate(qids):
            places.setdefault(self._parameters(qid), []).append(place)
        for of_model in places.values():
            yield self.for_question(qids[of_model[0]]), of_model

    @property
    def fingerprint(self) -> str:
        """See `Stage`: a hash of the folds and their parameters; empty without folds."""
        if not self.fold_parameters:
            return ""
        return fingerprint(self.k1, self.b, sorted(self._of_question.items()))

    @property
    def chosen_parameters(self) -> Mapping[str, Any]:
        """See `Stage`: the folds with their questions and parameters."""
        if not self.fold_parameters:
            return {}
        folds = [dict(fold) for fold in self.fold_parameters]
        known = self.collection.questions if self.collection else None
        outside = [qid for qid in known or () if qid not in self._of_question]
        return {
            "fingerprint": self.fingerprint,
            "folds": folds,
            "in_no_fold": {"k1": self.k1, "b": self.b, "questions": outside},
        }

    @property
    def needs(self) -> frozenset[str]:
        """See `Stage`."""
        return frozenset({"bm25", "operators"} if self.operators else {"bm25"})

    @property
    def supports(self) -> frozenset[str]:
        """See `Stage`. Operators are in texts, which weights would replace."""
        return super().supports - {"weighted queries"} if self.operators else super().supports


@dataclass(kw_only=True, eq=False, repr=False)
class QueryLikelihood(_WithFeedback):
    """Query likelihood with Dirichlet smoothing (Zhai and Lafferty, TOIS 2004), as Lucene computes
    it (see `soundingline.pipelines.lexical.likelihood`). Columns and errors as in `Retriever`.

    Args:
        mu: the smoothing parameter, above 0. The default is Anserini's.

    Example:
        >>> index.ql(mu=500).search("old river")["docno"].tolist()
        ['d1%p0', 'd2%p0']
    """

    mu: float = 1000.0

    needs: ClassVar[frozenset[str]] = frozenset({"ql"})
    supports: ClassVar[frozenset[str]] = frozenset({"weighted queries"})

    def __post_init__(self) -> None:
        check_number("mu", self.mu, gt=0, do="try 1000")
        super().__post_init__()


@dataclass(kw_only=True, eq=False, repr=False)
class RM3(Retriever):
    """Ranks, rewrites the query from the best units (RM3; Abdul-Jaleel et al., TREC 2004), and
    ranks again.

    Over our index it ranks as `bm25 >> Feedback(index) >> bm25` (see
    `soundingline.pipelines.lexical.rm3.Feedback`), and the query of the input stays in the output.
    Units of a frame with `docno` are scored by the query that the best units of the whole index
    give. Another engine's index does all of it itself. The defaults are Anserini's. Columns and
    errors as in `Retriever`.

    Args:
        k1, b: the parameters of BM25.
        mu: rank by query likelihood with this parameter instead.
        fb_terms: the number of feedback terms.
        fb_docs: the number of feedback units.
        original_weight: the weight of the original query, 0 to 1.

    Example:
        >>> index.bm25().rm3(fb_docs=1, fb_terms=5).search("mill")["docno"].tolist()
        ['d1%p0', 'd1%p1']
    """

    k1: float = 0.9
    b: float = 0.4
    mu: float | None = None
    fb_terms: int = 10
    fb_docs: int = 10
    original_weight: float = 0.5

    needs: ClassVar[frozenset[str]] = frozenset({"rm3"})
    matching: ClassVar[str] = "lexical"

    def __post_init__(self) -> None:
        self._without_feedback(self.depth, None)  # checks the parameters
        check_feedback(self.fb_terms, self.fb_docs, self.original_weight)
        super().__post_init__()

    def fuse_rank_cutoff(self, k: int) -> pt.Transformer | None:
        """See `Retriever`. The depth is not reduced below that which feedback reads."""
        return super().fuse_rank_cutoff(k) if k >= self.fb_docs else None

    def _queries(self, inp: pd.DataFrame) -> Sequence[Any]:
        """The rewritten queries, unless the index does all of it itself."""
        if not hasattr(self.index, "vectors"):
            return super()._queries(inp)
        names = ("fb_terms", "fb_docs", "original_weight")
        feedback = Feedback(self.index, **{name: getattr(self, name) for name in names})
        first = self._without_feedback(min(self.fb_docs, self.depth), self.index)
        columns = [name for name in ("qid", "query", "query_toks") if name in inp.columns]
        rewritten = feedback.transform(first.transform(inp.drop_duplicates("qid")[columns]))
        weights = dict(zip(rewritten["qid"], rewritten["query_toks"], strict=True))
        # A query that finds nothing has no row any more: it finds nothing, and scores units 0.
        return [weights.get(qid, {}) for qid in inp["qid"].tolist()]

    def _models(self, qids: Sequence[str]) -> Iterator[tuple[Retriever, Sequence[int]]]:
        ours = hasattr(self.index, "vectors")
        model = self._without_feedback(self.depth, self.index) if ours else self
        yield model, range(len(qids))

    def _without_feedback(self, depth: int, index: Any) -> Retriever:
        if self.mu is None:
            return BM25(k1=self.k1, b=self.b, depth=depth, index=index)
        return QueryLikelihood(mu=self.mu, depth=depth, index=index)


def check_queries(inp: pd.DataFrame) -> None:
    """`InputError` for rows of documents without a `docno`."""
    if "docid" in inp.columns and "docno" not in inp.columns:
        raise InputError(
            "the frame has docid and no docno; a docid is a number in one Terrier index",
            valid="queries without docid, or documents with docno",
            do="add the docnos, or drop the column: pt.apply.docid(drop=True)",
        )


def checked_texts(column: pd.Series[Any]) -> list[str]:
    """The queries of a column; `InputError` for one that is not text, or that is in Terrier's query
    language."""
    texts: list[str] = column.tolist()
    for query in texts:
        if not isinstance(query, str):
            raise InputError(f"query holds {query!r}", valid="text")
        if _TERRIER.search(query):
            raise InputError(
                f"a query is in Terrier's query language: {query:.60}",
                valid="words",
                do="rank with a Terrier retriever after Terrier's rewriters, or use "
                "index.bm25().rm3() instead; pt.rewrite.reset() restores the words",
            )
    return texts


def ranked(inp: pd.DataFrame, rankings: Sequence[RankedList]) -> pd.DataFrame:
    """Every column of `inp`, and `docno`, `score`, `rank` (from 0), one row a hit. There is a
    ranking for each row of `inp`."""
    counts = [len(ranking.docnos) for ranking in rankings]
    rows = np.repeat(np.arange(len(inp)), counts)
    # One frame from complete columns: for a single query, setting them one by one takes longer
    # than the search.
    out = {name: inp[name].array.take(rows) for name in inp.columns if name not in _RESULT}
    out = {name: _plain(values) for name, values in out.items()}
    out["docno"] = _plain(_joined([ranking.docnos for ranking in rankings], np.object_))
    out["score"] = _joined([ranking.scores for ranking in rankings], np.float64)
    out["rank"] = _joined([np.arange(count) for count in counts], np.int64)
    return pd.DataFrame(out, copy=False)


def _plain(values: Any) -> Any:
    """Values that pandas does not convert into strings of Arrow, which take longer to make than a
    search."""
    is_object = pd.api.types.is_object_dtype(values.dtype)
    return pd.Series(values, dtype=object, copy=False) if is_object else values


def _joined(parts: Sequence[Any], kind: type) -> NDArray[Any]:
    arrays: list[NDArray[Any]] = [np.asarray(part, dtype=kind) for part in parts]
    return np.concatenate([np.empty(0, kind), *arrays])
