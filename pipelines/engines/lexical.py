"""Our inverted index as an engine: the default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from soundingline.pipelines.lexical import LexicalIndex, make_analyzer
from soundingline.pipelines.lexical.bm25 import searches_at_once
from soundingline.pipelines.lexical.build import BYTES_A_UNIT, LEAST_MEMORY_MB
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import check_int
from soundingline.toolkit.files import fingerprint

_MANY = 1_000_000


@dataclass(frozen=True)
class LexicalEngine:
    """Settings of `soundingline.pipelines.lexical.LexicalIndex`.

    `analyzer`: name of the analyzer (default Lucene's English). `memory_mb`: bound of the memory of
    a build. It changes no byte of the index, so it is not part of the fingerprint.
    """

    analyzer: str = "english"
    memory_mb: int = 1024
    name: str = "lexical"
    offers: ClassVar[frozenset[str]] = frozenset({"bm25", "ql", "rm3", "grid", "enrichment"})

    def __post_init__(self) -> None:
        make_analyzer(self.analyzer)
        check_int("engine.memory_mb", self.memory_mb, ge=LEAST_MEMORY_MB)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, make_analyzer(self.analyzer).fingerprint)

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        LexicalIndex.build(
            units,
            path,
            analyzer=self.analyzer,
            memory_mb=self.memory_mb,
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
