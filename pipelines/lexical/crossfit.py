"""BM25 that is tuned by cross-validation on the questions of the collection, and the ranks of their
judged documents at the points of a grid, which `soundingline tune` reads as well."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.lexical.grid import GridBM25, JudgedQuery
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.retrieve import BM25, Retriever
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.console import progress_bar
from soundingline.toolkit.data import Qrels
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.evaluation.grid import Grid, RankTable, measure_table
from soundingline.toolkit.evaluation.retrieval import parse_measures
from soundingline.toolkit.evaluation.tuning import cross_validated
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.locks import file_lock

_SECONDS = 10.0  # between two files, which an interrupt may lose
_GRID = {
    "k1": (0.3, 0.6, 0.9, 1.2, 1.5, 2, 3, 4, 6, 10, 16, 25),
    "b": (0.2, 0.4, 0.6, 0.75, 0.9, 1),
}


@dataclass(kw_only=True, eq=False, repr=False)
class CrossFittedBM25(Retriever):
    """BM25 that searches each question with the `k1` and `b` that were chosen without it (nested
    cross-validation; Cawley and Talbot, JMLR 2010).

    The judged questions of the collection are divided into folds as by `soundingline tune`. The
    point of the grid with the best mean on the other folds serves the questions of a fold, whatever
    an agent asks for them: the `qid` of a query is that of its question. Questions without
    judgements, and queries of no question, are searched with the best point on all judged
    questions. The ranks of the judged documents are kept in the caches of the collection.

    `bind` gives a `BM25` with `fold_parameters`; columns and errors as in `Retriever`.

    Args:
        grid: the axes `k1` and `b` (`soundingline.toolkit.evaluation.grid.Grid`); 72 points by
            default, among them Anserini's default (0.9, 0.4) and Pi-Serini's (25, 1).
        objective: the measure, of judgements of the tier `evidence`.
        folds: the number of folds, 2 or more; with fewer questions, each is a fold of its own.
        seed: of the division into folds.

    Raises:
        InputError: for a grid, a measure or folds that cannot work, for an engine other than our
            index, and for fewer than two judged questions.

    Example:
        >>> judged = {"evidence": {"1": {"d1": 1}, "2": {"d2": 1}}}
        >>> questions = {"1": "mill", "2": "old river"}
        >>> collection = Collection("mine", index=index, qrels=judged, questions=questions)
        >>> bm25 = CrossFittedBM25(grid={"k1": [0.9, 25], "b": [0, 1]}).bind(collection)
        >>> [fold["questions"] for fold in bm25.fold_parameters]
        [['1'], ['2']]
    """

    needs: ClassVar[frozenset[str]] = frozenset({"bm25", "grid"})
    matching: ClassVar[str] = "lexical"

    grid: Mapping[str, Any] = field(default_factory=lambda: dict(_GRID))
    objective: str = "nDCG@10"
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_int("folds", self.folds, ge=2)
        if set(self.grid) != set(_GRID):
            raise InputError(f"grid has {', '.join(self.grid) or 'no axis'}", valid="k1, b")
        Grid(**self.grid)
        parse_measures([self.objective])
        super().__post_init__()

    def bind(self, collection: Collection) -> Any:
        """The BM25 with the parameters of each fold, bound to `collection`."""
        index, questions = self.index_in(collection), collection.questions or {}
        self._check_index(index)
        evidence = (collection.qrels or {}).get("evidence", {})
        judged = {qid: evidence[qid] for qid in questions if evidence.get(qid)}
        if len(judged) < 2:
            raise InputError(
                f"{len(judged)} of {len(questions)} questions have judgements, and cross-fitted "
                "BM25 is tuned by them",
                valid="two judged questions or more",
                do="choose retriever=bm25_default, or retriever=bm25_from_tuning",
            )
        if collection.exclude_own:
            raise InputError(
                "a tuning measures rankings with the question's own document in them",
                do="set benchmark.exclude_own=false, or choose retriever=bm25_default",
            )
        chosen = self._chosen(index, questions, judged, collection)
        return BM25(depth=self.depth, **chosen).bind(collection)

    def _chosen(
        self,
        index: LexicalIndex,
        questions: Mapping[str, str],
        judged: Qrels,
        collection: Collection,
    ) -> dict[str, Any]:
        """`k1`, `b` and `fold_parameters`."""
        points = Grid(**self.grid).points
        terms = index.analyzer.terms
        queries = [JudgedQuery(qid, terms(questions[qid]), list(judged[qid])) for qid in judged]
        content = (index.manifest, index.base.manifest, points, self.depth, queries)
        with _ranks_folder(collection.caches, fingerprint(*content)) as folder:
            pairs = [(k1, b) for k1, b in points]
            ranks = judged_ranks(index, pairs, queries, folder, depth=self.depth)
        table = measure_table(ranks, judged, [self.objective])
        qids = sorted(judged)  # so that folds do not depend on the order of the questions
        choice = cross_validated(
            table.of(self.objective, qids), points, folds=min(self.folds, len(qids)), seed=self.seed
        )
        k1, b = points[choice.chosen]
        return {"k1": k1, "b": b, "fold_parameters": choice.fold_parameters(qids, points)}


@contextmanager
def _ranks_folder(caches: Path | None, name: str) -> Iterator[Path]:
    """The folder of the ranks of a tuning in the `caches`, which one process fills; without caches
    a folder that goes."""
    if caches is None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    folder = caches / "tuning" / name
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / ".lock"):
        yield folder


def judged_ranks(
    index: LexicalIndex,
    points: Sequence[tuple[float, float]],
    questions: Sequence[JudgedQuery],
    folder: Path,
    *,
    depth: int,
    threads: int | None = None,
) -> RankTable:
    """Rank every question at every point (k1, b), to `depth`, in `threads` (None: one a core).

    Parts of the table (`<n>.npz`) are written to `folder` atomically every few seconds. Questions
    that a part contains are not ranked again.
    """
    parts = [RankTable.load(path) for path in sorted(folder.glob("*.npz"))]
    done = {qid for part in parts for qid in part.ranks}
    pending = [question for question in questions if question.qid not in done]
    if not pending:
        return RankTable.joined(parts)
    grid = GridBM25(index, points, depth=depth)
    docids = {question.qid: question.docids for question in pending}
    ranks_of: dict[str, NDArray[np.int32]] = {}

    def write_part() -> None:
        if ranks_of:
            part = RankTable(grid.cells, {qid: docids[qid] for qid in ranks_of}, dict(ranks_of))
            part.save(folder / f"{len(parts):05d}.npz")
            parts.append(part)
            ranks_of.clear()

    with progress_bar() as progress:
        task = progress.add_task(f"Ranking {len(grid.cells):,} points", total=len(pending), note="")
        last = time.monotonic()
        try:
            for qid, ranks in grid.ranks(pending, threads):
                ranks_of[qid] = ranks
                progress.advance(task)
                if time.monotonic() - last > _SECONDS:
                    write_part()
                    last = time.monotonic()
        finally:
            write_part()
    return RankTable.joined(parts)
