"""Our own inverted index as an engine: the default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipelines.lexical import LexicalIndex, make_analyzer
from pipelines.lexical.build import BYTES_A_UNIT, LEAST_MEMORY_MB
from pipelines.lexical.top_documents import searches_at_once
from toolkit.checks import check_integer
from toolkit.contracts import Unit
from toolkit.files import fingerprint

_MANY = 1_000_000


@dataclass(frozen=True)
class LexicalEngine:
    """Settings of `pipelines.lexical.LexicalIndex`.

    `analyzer`: name of the analyzer (default Lucene's English). `memory_mb`: bound of the build's
    postings buffers. `processes`: analysing processes, default all cores. Memory and processes
    change no byte of the index, so they are not part of its fingerprint.
    """

    analyzer: str = "english"
    memory_mb: int = 1024
    processes: int | None = None
    name: str = "lexical"
    offers: ClassVar[frozenset[str]] = frozenset({"bm25", "ql", "rm3", "grid", "overlay"})

    def __post_init__(self) -> None:
        make_analyzer(self.analyzer)
        check_integer("engine.memory_mb", self.memory_mb, least=LEAST_MEMORY_MB)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, make_analyzer(self.analyzer).fingerprint)

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        LexicalIndex.build(
            units,
            path,
            analyzer=self.analyzer,
            memory_mb=self.memory_mb,
            processes=self.processes,
            keep_texts=False,  # the run's document store has them
            corpus_fingerprint=corpus_fingerprint,
        )

    def notice(self, units: int) -> str:
        """What so many units take, in one line for a person; empty below a million."""
        if units < _MANY:
            return ""
        building = BYTES_A_UNIT * units // 1_000_000
        searching = 4 * units // 1_000_000
        return (
            f"{units:,} units to index: building keeps about {building:,} MB beside "
            f"engine.memory_mb={self.memory_mb}; each search takes {searching:,} MB while it runs, "
            f"and at most {searches_at_once(units)} run at once"
        )

    def open(self, path: Path, *, corpus_fingerprint: str) -> LexicalIndex:
        return LexicalIndex.open(path, corpus_fingerprint=corpus_fingerprint)
