"""PyTerrier's indexing convention: `LexicalIndexer("my-index").index(documents)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyterrier as pt

from pipelines.lexical.analyzer import make_analyzer
from pipelines.lexical.index import LexicalIndex


class LexicalIndexer(pt.Indexer):
    """Writes a `LexicalIndex` of rows with `docno`, `text` and perhaps `title`, so that it can end
    an indexing pipeline. Arguments as of `LexicalIndex.build`."""

    def __init__(
        self,
        path: str | Path,
        *,
        analyzer: str = "english",
        memory_mb: int = 1024,
        processes: int | None = None,
        keep_texts: bool = True,
    ) -> None:
        make_analyzer(analyzer)
        self.path, self.analyzer, self.memory_mb = Path(path), analyzer, memory_mb
        self.processes, self.keep_texts = processes, keep_texts

    def index(self, iter: Iterable[Mapping[str, Any]], **kwargs: Any) -> LexicalIndex:
        """Index the rows, in their order, and open the result; see `LexicalIndex.build`."""
        return LexicalIndex.build(
            iter,
            self.path,
            analyzer=self.analyzer,
            memory_mb=self.memory_mb,
            processes=self.processes,
            keep_texts=self.keep_texts,
            **kwargs,
        )

    def index_inputs(self) -> list[list[str]]:
        """The columns of a row; see `pt.Indexer`."""
        return [["docno", "text"], ["docno", "title", "text"]]
