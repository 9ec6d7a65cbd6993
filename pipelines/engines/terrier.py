"""Terrier (Java) as an engine, through PyTerrier's own bindings.

PyTerrier fetches Terrier's jars from Maven Central the first time and keeps them; on a machine
that cannot reach it, every use is one clear error. Text is analysed by Terrier: its English
tokeniser, its stop words, Porter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pyterrier as pt

from pipelines.index_folder import Checked, OpenedIndex, read_manifest, write_manifest
from pipelines.index_retriever import NOTHING, IndexRetriever, RankedList
from pipelines.lexical import Analyzer, make_analyzer
from pipelines.lexical.top_documents import check_settings
from toolkit.contracts import Unit
from toolkit.errors import InputError
from toolkit.files import fingerprint, folder_made_whole
from toolkit.progress import track

NAME = "terrier"
_INDEX = "terrier"
_LONGEST_ID = 512
# What Terrier's query language reads as operators is no part of a word.
_WORDS = re.compile(r"[^\W_]+")


def _start() -> None:
    try:
        pt.java.init()
    except Exception as error:
        raise InputError(
            f"Terrier could not be started ({type(error).__name__}: {error})",
            valid="Java 11 or newer, and Terrier's jars from Maven Central",
            do="run python -c 'import pyterrier as pt; pt.java.init()' once where Maven Central "
            "can be reached, or take engine=lexical",
        ) from error


@dataclass(frozen=True)
class TerrierEngine:
    """Builds and opens Terrier indexes, with Terrier's own analysis. Without settings."""

    name: str = NAME
    offers: ClassVar[frozenset[str]] = frozenset({"bm25"})

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, "english", "terrier", "porter")

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """Index the `contents` of the units, in their order. Whole or not at all.

        `InputError` where Terrier cannot start, for an empty corpus, a repeated or too long id.
        """
        _start()
        checked = Checked(track(units, "indexing (terrier)"))
        with folder_made_whole(Path(path)) as folder:
            index = pt.terrier.TerrierIndex(str(folder / _INDEX))
            index.indexer(meta={"docno": _LONGEST_ID}).index(_rows(checked))
            total = checked.finish()
            if len(index) != total:
                raise RuntimeError(f"Terrier indexed {len(index)} of {total} units")
            content = {"corpus_fingerprint": corpus_fingerprint, "counts": {"units": total}}
            write_manifest(folder, NAME, content)

    def open(self, path: Path, *, corpus_fingerprint: str | None = None) -> TerrierIndex:
        """`InputError` if there is no whole index of that corpus, or Terrier cannot start."""
        manifest = read_manifest(Path(path), NAME, corpus_fingerprint)
        _start()
        return TerrierIndex(Path(path), manifest, self)


def _rows(units: Iterable[Unit]) -> Iterator[dict[str, str]]:
    for unit in units:
        if len(unit.unit_id) > _LONGEST_ID:
            raise InputError(
                f"unit id '{unit.unit_id[:40]}...' has {len(unit.unit_id)} characters",
                valid=f"{_LONGEST_ID} at most",
            )
        yield {"docno": unit.unit_id, "text": unit.contents}


class TerrierIndex(OpenedIndex):
    """An opened Terrier index."""

    def __init__(self, path: Path, manifest: dict[str, Any], engine: TerrierEngine) -> None:
        super().__init__(path, manifest)
        self.engine = engine
        # Lower case, stop words, Porter, as Terrier does; tokens and stop words differ a little.
        self.analyzer: Analyzer = make_analyzer("english")
        self._index = pt.terrier.TerrierIndex(str(path / _INDEX))

    def __len__(self) -> int:
        return int(self.manifest["counts"]["units"])

    def document_frequency(self, term: str) -> int:
        """In how many documents an index term occurs."""
        entry = self._index.index_obj().getLexicon().getLexiconEntry(term)
        return int(entry.getDocumentFrequency()) if entry is not None else 0

    def bm25(self, k1: float = 1.2, b: float = 0.75, depth: int = 1000) -> TerrierRetriever:
        """Terrier's BM25 (its defaults are 1.2 and 0.75)."""
        check_settings(k1, b, depth, "lucene")
        return TerrierRetriever(self, k1=float(k1), b=float(b), depth=depth)

    def retriever(self, k1: float, b: float, depth: int) -> pt.Transformer:
        """PyTerrier's own transformer."""
        return self._index.bm25(k1=k1, b=b, num_results=depth)


class TerrierRetriever(IndexRetriever):
    """Terrier's BM25 as a transformer: `qid` and `query` in; every column of the input, `docno`,
    `score`, `rank` out. Punctuation in a query is text, not Terrier's query language."""

    takes = ("query",)

    def __init__(self, index: TerrierIndex, *, k1: float, b: float, depth: int) -> None:
        self.index, self.k1, self.b, self.depth = index, k1, b, depth
        self._retriever = index.retriever(k1, b, depth)

    def analysed(self, texts: Sequence[str]) -> Sequence[str]:
        return [" ".join(_WORDS.findall(text)) for text in texts]

    def rank(self, queries: Sequence[str]) -> Sequence[RankedList]:
        rankings = [NOTHING] * len(queries)
        rows = [(str(number), text) for number, text in enumerate(queries) if text]
        if rows:
            frame = self._retriever.transform(pd.DataFrame(rows, columns=["qid", "query"]))
            for number, hits in frame.groupby("qid", sort=False):
                rankings[int(str(number))] = RankedList(list(hits["docno"]), list(hits["score"]))
        return rankings
