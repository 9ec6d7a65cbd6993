"""PISA (C++; Mallia et al., OSIRRC 2019) as an engine, through `pyterrier_pisa`.

Text is analysed as for our own index, so that engines differ in scoring, not in tokens. PISA's
idf is not Lucene's, and its lengths are exact; see docs/lexical.md. PISA compresses its lists for
each (k1, b); one process does so, once, into a folder that appears when it is complete.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from soundingline.pipelines.engines.engine import NOTHING, RankedList
from soundingline.pipelines.index_folder import (
    Documents,
    TermIndex,
    UniqueUnits,
    as_units,
    read_manifest,
    write_manifest,
    write_once,
)
from soundingline.pipelines.lexical.analyzers import Analyzer, make_analyzer
from soundingline.pipelines.retrieve import BM25
from soundingline.toolkit.console import track
from soundingline.toolkit.errors import InputError, Runtime, check_int
from soundingline.toolkit.files import atomic_folder, fingerprint
from soundingline.toolkit.optional import check_optional, import_optional

NAME = "pisa"
_INDEX = "pisa"
_PREPARED = "prepared"
_UNITS = "units.txt"


@dataclass(frozen=True)
class PisaEngine:
    """Builds and opens PISA indexes.

    Args:
        analyzer: The name of the analyzer; see `make_analyzer`.
        threads: Threads that search the queries of a frame.
    """

    analyzer: str = "english"
    threads: Runtime[int] = 1
    name: str = NAME
    supports: ClassVar[frozenset[str]] = frozenset({"bm25"})

    def __post_init__(self) -> None:
        make_analyzer(self.analyzer)
        check_int("engine.threads", self.threads)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, make_analyzer(self.analyzer).fingerprint)

    def build(self, units: Documents, path: str | Path, *, corpus_fingerprint: str) -> None:
        """Index the `contents` of the units, in their order. The folder appears when complete.
        `InputError` for an empty corpus, a repeated id, an id with a line break."""
        pisa, analyzer = import_optional("pyterrier_pisa"), make_analyzer(self.analyzer)
        checked = UniqueUnits(track(as_units(units), "indexing (pisa)"))
        with atomic_folder(Path(path)) as folder:
            index = pisa.PisaIndex(str(folder / _INDEX), text_field="toks", stemmer="none")
            with (folder / _UNITS).open("w", encoding="utf-8") as names, ExitStack() as native:
                native.enter_context(_unlogged())
                rows = _rows(checked, analyzer, names, native)
                index.toks_indexer("toks", scale=1).index(rows)
            total = checked.finish()
            if index.num_docs() != total:
                raise RuntimeError(f"PISA indexed {index.num_docs()} of {total} units")
            content = {
                "analyzer_fingerprint": analyzer.fingerprint,
                "corpus_fingerprint": corpus_fingerprint,
                "counts": {"units": total},
                "versions": {"pyterrier_pisa": version("pyterrier_pisa")},
            }
            write_manifest(folder, NAME, content)

    def open(self, path: str | Path, *, corpus_fingerprint: str | None = None) -> PisaIndex:
        """`InputError` if there is no complete index of that corpus and analyzer."""
        check_optional("pyterrier_pisa")
        return PisaIndex(Path(path), read_manifest(Path(path), NAME, corpus_fingerprint), self)


def _rows(
    units: UniqueUnits, analyzer: Analyzer, names: Any, native: ExitStack
) -> Iterator[dict[str, Any]]:
    # PISA cuts names at white space, so it gets numbers, and the names are in a file of our own.
    for number, unit in enumerate(units):
        if "\n" in unit.unit_id or "\r" in unit.unit_id:
            raise InputError(f"unit id {unit.unit_id!r} has a line break", do="rename it")
        names.write(unit.unit_id + "\n")
        yield {"docno": str(number), "toks": dict(Counter(analyzer.terms(unit.contents)))}
    units.finish()  # here, because PISA does not survive an empty corpus
    native.enter_context(_quiet())  # what follows is C++, which prints


class PisaIndex(TermIndex):
    """An opened PISA index. Its BM25 has exact lengths and PISA's own idf; equal scores are in the
    order of the index."""

    def __init__(self, path: Path, manifest: dict[str, Any], engine: PisaEngine) -> None:
        super().__init__(path, manifest, make_analyzer(engine.analyzer))
        self.engine = engine
        self._searchers: dict[tuple[float, float, int], Any] = {}

    @cached_property
    def docnos(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Unit ids in the order of the index."""
        text = (self.path / _UNITS).read_text("utf-8")
        return np.array(text.split("\n")[:-1], dtype=object)

    def __len__(self) -> int:
        return int(self.manifest["counts"]["units"])

    def document_frequency(self, term: str) -> int:
        """In how many documents an index term occurs."""
        return self._frequencies.get(term, 0)

    @cached_property
    def _frequencies(self) -> dict[str, int]:
        """PISA's own lists: a first pair (1, documents), then for each term its length and ids."""
        terms = (self.path / _INDEX / "fwd.terms").read_text("utf-8").split("\n")[:-1]
        lists = np.memmap(self.path / _INDEX / "inv.docs", dtype=np.uint32, mode="r")
        frequencies: dict[str, int] = {}
        position = 2
        for term in terms:
            frequencies[term] = int(lists[position])
            position += 1 + frequencies[term]
        return frequencies

    def rank(self, queries: Sequence[Any], model: BM25, depth: int) -> Sequence[RankedList]:
        """See `OpenedIndex`."""
        rankings = [NOTHING] * len(queries)
        known = enumerate(map(self._known, queries))
        rows = [(str(number), weights) for number, weights in known if weights]
        if rows:
            frame = pd.DataFrame(rows, columns=["qid", "query_toks"])
            hits_of_all = self._searcher(float(model.k1), float(model.b), depth).transform(frame)
            for number, hits in hits_of_all.groupby("qid", sort=False):
                numbers = hits["docno"].astype(np.int64).to_numpy()
                scores = hits["score"].to_numpy(dtype=np.float64)
                order = np.lexsort((numbers, -scores))
                docnos = self.docnos[numbers[order]].tolist()
                rankings[int(str(number))] = RankedList(docnos, scores[order].tolist())
        return rankings

    def _known(self, query: str | Mapping[str, float]) -> dict[str, float]:
        """The weights above 0 of terms that the index has."""
        weights = Counter(self.analyzer.terms(query)) if isinstance(query, str) else query
        return {
            term: float(weight)
            for term, weight in weights.items()
            if weight > 0 and self.document_frequency(term)
        }

    def _searcher(self, k1: float, b: float, depth: int) -> Any:
        key = k1, b, depth
        if key not in self._searchers:
            folder = self._prepared(k1, b)
            self._searchers[key] = _searcher(folder, *key, self.engine.threads)
        return self._searchers[key]

    def _prepared(self, k1: float, b: float) -> Path:
        """The folder in which PISA has compressed the lists for (k1, b)."""
        folder = self.path / _PREPARED / f"k1={k1!r},b={b!r}"

        def prepare(unfinished: Path) -> None:
            for file in (self.path / _INDEX).iterdir():
                (unfinished / file.name).symlink_to(Path("..", "..", _INDEX, file.name))
            with _quiet():
                _searcher(unfinished, k1, b, 1, 1)

        write_once(folder, _PREPARED, self.manifest["checksum"], prepare)
        return folder


def _searcher(folder: Path, k1: float, b: float, depth: int, threads: int) -> Any:
    pisa = import_optional("pyterrier_pisa")
    return pisa.PisaIndex(str(folder), stemmer="none", stops="none", threads=threads).bm25(
        k1=k1,
        b=b,
        num_results=depth,
        query_algorithm="maxscore",  # changes speed alone; the default is slow on long queries
        query_weighted=True,  # without it, PISA takes a repeated word for one
        toks_scale=1,
    )


@contextmanager
def _unlogged() -> Iterator[None]:
    """Without the lines that pyterrier_pisa logs, through the logger of ir_datasets."""
    logger = logging.getLogger("ir_datasets")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing on standard output and error, what C++ prints included."""
    with ExitStack() as restored:
        sink = restored.enter_context(Path(os.devnull).open("w"))
        restored.enter_context(redirect_stdout(sink))
        restored.enter_context(redirect_stderr(sink))
        for number in (1, 2):
            original = os.dup(number)
            restored.callback(os.close, original)
            restored.callback(os.dup2, original, number)
            os.dup2(sink.fileno(), number)
        yield
