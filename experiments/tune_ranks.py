"""The rank tables of a tuning on disk: what is there is kept, what is missing is computed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipelines.lexical.grid import GridBM25, JudgedQuery
from pipelines.lexical.index import LexicalIndex
from pipelines.lexical.merged_postings import MergedIndex
from toolkit.evaluation.tuning import RankTable
from toolkit.progress import bar

_SECONDS = 10.0  # between two files: what an interrupt may cost


def judged_ranks(
    index: LexicalIndex | MergedIndex,
    cells: Sequence[tuple[float, float]],
    questions: Sequence[JudgedQuery],
    folder: Path,
    *,
    depth: int,
    threads: int | None = None,
) -> RankTable:
    """Ranks of every question in every cell (k1, b). `folder` holds parts (`<n>.npz`), each written
    whole every few seconds; questions that a part has are not ranked again."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    parts = [RankTable.load(path) for path in sorted(folder.glob("*.npz"))]
    done = {qid for part in parts for qid in part.ranks}
    pending = [question for question in questions if question.qid not in done]
    if pending:
        grid = GridBM25(index, cells, depth=depth)
        parts += _computed(grid, pending, folder, len(parts), threads)
    return RankTable.joined(parts)


def _computed(
    grid: GridBM25,
    pending: Sequence[JudgedQuery],
    folder: Path,
    number: int,
    threads: int | None,
) -> list[RankTable]:
    docids = {question.qid: question.docids for question in pending}
    parts: list[RankTable] = []
    ranks_of: dict[str, NDArray[np.int32]] = {}

    def keep() -> None:
        if ranks_of:
            part = RankTable(grid.cells, {qid: docids[qid] for qid in ranks_of}, dict(ranks_of))
            part.save(folder / f"{number + len(parts):05d}.npz")
            parts.append(part)
            ranks_of.clear()

    with bar() as progress:
        task = progress.add_task(f"Ranking {len(grid.cells):,} cells", total=len(pending), note="")
        last = time.monotonic()
        try:
            for qid, ranks in grid.ranks(pending, threads):
                ranks_of[qid] = ranks
                progress.advance(task)
                if time.monotonic() - last > _SECONDS:
                    keep()
                    last = time.monotonic()
        finally:
            keep()
    return parts
