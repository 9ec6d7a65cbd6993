"""The corpus side of an enrichment as an engine: phrases, filtered, as an overlay of the index."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipelines.enrich.df_filter import Decision, DfFilter
from pipelines.enrich.sources import PhraseSource
from pipelines.lexical import LexicalIndex
from pipelines.lexical.enriched import EnrichedIndex
from pipelines.lexical.overlay import Overlay
from pipelines.stage import Collection
from toolkit.contracts import Unit
from toolkit.files import fingerprint, write_json

DECISIONS = "decisions.jsonl"
REASONS = "reasons.json"
SECONDS = "seconds.json"


@dataclass(frozen=True)
class OverlayEngine:
    """The corpus side's phrases as an index of the collection's units: an overlay of its index.

    The folder has `decisions.jsonl` beside the overlay: what was proposed for each unit, what was
    kept, and why not. The manifest's counts say how many of each.
    """

    source: PhraseSource
    filter: DfFilter | None
    counted: tuple[str, ...]
    collection: Collection
    name: ClassVar[str] = "overlay"
    offers: ClassVar[frozenset[str]] = frozenset({"bm25", "rm3"})

    @property
    def fingerprint(self) -> str:
        base: LexicalIndex = self.collection.index
        analyzer = base.analyzer.fingerprint
        phrases = self.source.content(self.collection)
        return fingerprint(self.name, 2, phrases, repr(self.filter), analyzer)

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """Ask the source for phrases, filter them, and write the overlay at `path`."""
        base: LexicalIndex = self.collection.index
        began = time.monotonic()
        decisions = path.with_name(path.name + ".decisions")
        reasons: Counter[str] = Counter()

        def kept() -> Iterator[tuple[str, list[str]]]:
            with decisions.open("w", encoding="utf-8") as stream:
                for unit_id, proposed in self.source.for_documents(units, self.collection):
                    of_unit = decided(self.filter, proposed, base, corpus_side=True)
                    reasons.update(decision.reason for decision in of_unit)
                    if of_unit:
                        row = {"id": unit_id, "phrases": [shown(d) for d in of_unit]}
                        stream.write(json.dumps(row, ensure_ascii=False) + "\n")
                    yield unit_id, [decision.phrase for decision in of_unit if decision.kept]

        def finish(folder: Path) -> None:
            decisions.rename(folder / DECISIONS)
            write_json(folder / REASONS, dict(reasons))
            write_json(folder / SECONDS, {"seconds": round(time.monotonic() - began, 3)})

        try:
            provenance = {
                "phrases": self.source.content(self.collection),
                "source": self.source.provenance(self.collection),
                "filter": repr(self.filter),
            }
            Overlay.build(base, kept(), path, provenance=provenance, finish=finish)
        finally:
            decisions.unlink(missing_ok=True)

    def open(self, path: Path, *, corpus_fingerprint: str) -> EnrichedIndex:
        base: LexicalIndex = self.collection.index
        return EnrichedIndex(base, Overlay.open(path, base), self.counted)


def decided(
    filter_: DfFilter | None, phrases: Sequence[str], index: Any, *, corpus_side: bool
) -> list[Decision]:
    """A decision for each phrase; without a filter, every phrase that has an index term is kept."""
    if filter_ is not None:
        return filter_.decide(phrases, index, corpus_side=corpus_side)
    everything = DfFilter(tau=1.0, rule="released", unseen="keep")
    return everything.decide(phrases, index, corpus_side=corpus_side)


def shown(decision: Decision) -> dict[str, Any]:
    return {
        "phrase": decision.phrase,
        "kept": decision.kept,
        "reason": decision.reason,
        "df": min(decision.frequencies, default=0),
    }
