"""Enrichment as a stage: an enriched index below the retriever, and a weighted query above it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pyterrier as pt

from pipelines.engines.base import Engine
from pipelines.enrich.df_filter import Decision, DfFilter
from pipelines.enrich.sources import PhraseSource, Query
from pipelines.lexical import LexicalIndex
from pipelines.lexical.enriched import COUNTED, EnrichedIndex
from pipelines.lexical.overlay import Overlay
from pipelines.search_notes import note
from pipelines.stage import Bound, Collection, Stage, not_bound
from toolkit.contracts import Unit
from toolkit.errors import InputError
from toolkit.files import fingerprint, write_json

FORMS = ("repaired", "published")
DECISIONS = "decisions.jsonl"
REASONS = "reasons.json"


class Enrichment(Stage):
    """Enriches queries, documents, or both, and keeps it to one weighted BM25 call:

        score(d) = BM25(query, d) + weight * BM25(expansion, d)

    `query` and `corpus` say where the phrases of each side come from; None: that side is left as it
    is. `query_filter` and `corpus_filter` decide which of them are kept (None: all that have an
    index term). The corpus side is an overlay beside the index of the collection, built when it is
    missing; `counted` says where its phrases count (see `EnrichedIndex`).

    In: `qid`, `query`. Out: the same, and `query_toks` (weights by index term), which lexical
    retrievers take instead of `query`; nothing is added without a query side. `form`:

    - `repaired`: the query's terms as BM25 has them, a repeated one again; each kept phrase is
      analysed by itself, and a term counts once for each phrase that has it.
    - `published`, as SIRA's released code has it: a term of the query counts once; the kept phrases
      are joined and analysed again, so that n-grams span two phrases, and a term counts once.

    A search's record has the note `enrichment`: phrases, and what became of each.
    """

    def __init__(
        self,
        *,
        query: PhraseSource | None = None,
        corpus: PhraseSource | None = None,
        query_filter: DfFilter | None = None,
        corpus_filter: DfFilter | None = None,
        weight: float = 0.5,
        form: str = "repaired",
        counted: Sequence[str] = COUNTED,
    ) -> None:
        if not 0 <= weight < inf:
            raise InputError(f"weight is {weight!r}", valid="0 or more, finite")
        if form not in FORMS:
            raise InputError(f"form is {form!r}", valid=" or ".join(FORMS))
        unknown = sorted(set(counted) - set(COUNTED))
        if unknown:
            raise InputError(f"counted has {', '.join(unknown)}", valid=", ".join(COUNTED))
        if query is None and corpus is None:
            raise InputError(
                "the enrichment has neither side",
                valid="query, corpus, or both",
                do="set enrichment=none for no enrichment",
            )
        self.query, self.corpus = query, corpus
        self.query_filter, self.corpus_filter = query_filter, corpus_filter
        self.weight, self.form, self.counted = float(weight), form, tuple(counted)

    @property
    def asks_model(self) -> bool:  # type: ignore[override]
        """Whether one of the sides asks a language model."""
        return any(side is not None and side.asks_model for side in (self.query, self.corpus))

    @property
    def fingerprint(self) -> str:
        """Of the phrases' sources."""
        return fingerprint(*[side and side.fingerprint for side in (self.query, self.corpus)])

    @property
    def counts(self) -> Mapping[str, float]:
        """Of both sources, each count under its side's name."""
        sides = {"query": self.query, "corpus": self.corpus}
        return {
            f"{name}_{key}": count
            for name, side in sides.items()
            if side is not None
            for key, count in side.counts.items()
        }

    def check(self, engine: Engine) -> None:
        """`InputError` where the engine's index cannot be enriched."""
        super().check(engine)
        if "overlay" not in engine.offers:
            raise InputError(
                f"the engine {engine.name} has no overlays for phrases",
                valid="lexical",
                do="set engine=lexical, or enrichment=none",
            )

    def enriched(self, collection: Collection) -> Collection:
        """The collection whose index has the corpus side's phrases, if there is one."""
        if self.corpus is None:
            return collection
        if collection.open_index is None:
            raise InputError(
                "the collection opens no index beside its own",
                do="give Collection(open_index=...)",
            )
        engine = OverlayEngine(self.corpus, self.corpus_filter, self.counted, collection)
        return replace(collection, index=collection.open_index(engine))

    def bind(self: Bound, collection: Collection) -> Bound:
        """A copy that works on `collection`, as `enriched` gives it."""
        if not isinstance(collection.index, LexicalIndex | EnrichedIndex):
            raise InputError(
                f"an index of {type(collection.index).__name__} cannot be enriched",
                valid="our lexical index",
                do="set engine=lexical",
            )
        return super().bind(collection)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.columns(inp, includes=["qid", "query"])
        if self.query is None:
            return inp
        if self.collection is None:
            raise not_bound(self, "call bind(collection)")
        queries = list(map(Query, map(str, inp["query"]), map(str, inp["qid"])))
        different = list(dict.fromkeys(queries))
        phrases = self.query.for_queries(different, self.collection)
        weights = {
            query: self._weights(query.text, proposed)
            for query, proposed in zip(different, phrases, strict=True)
        }
        column = pd.Series([weights[query] for query in queries], index=inp.index, dtype=object)
        return inp.assign(query_toks=column)

    def _weights(self, query: str, proposed: Sequence[str]) -> dict[str, float]:
        assert self.collection is not None
        index = self.collection.index
        decisions = decided(self.query_filter, proposed, index, corpus_side=False)
        kept = [decision for decision in decisions if decision.kept]
        note("enrichment", {"phrases": [_shown(decision) for decision in decisions]})
        own: Counter[str] = Counter(index.analyzer.terms(query))
        if self.form == "published":
            own = Counter(own.keys())
            joined = " ".join(decision.phrase for decision in kept)
            added = Counter(set(index.analyzer.terms(joined)))
        else:
            added = Counter(term for decision in kept for term in decision.terms)
        weights: dict[str, float] = dict(own)
        for term, count in added.items():
            weights[term] = weights.get(term, 0.0) + self.weight * count
        return {term: float(weight) for term, weight in weights.items() if weight > 0}


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
        return fingerprint(self.name, 1, self.source.fingerprint, repr(self.filter), analyzer)

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """Ask the source for phrases, filter them, and write the overlay at `path`."""
        base: LexicalIndex = self.collection.index
        decisions = path.with_name(path.name + ".decisions")
        reasons: Counter[str] = Counter()

        def kept() -> Iterator[tuple[str, list[str]]]:
            with decisions.open("w", encoding="utf-8") as stream:
                for unit_id, proposed in self.source.for_documents(units, self.collection):
                    of_unit = decided(self.filter, proposed, base, corpus_side=True)
                    reasons.update(decision.reason for decision in of_unit)
                    if of_unit:
                        row = {"id": unit_id, "phrases": [_shown(d) for d in of_unit]}
                        stream.write(json.dumps(row, ensure_ascii=False) + "\n")
                    yield unit_id, [decision.phrase for decision in of_unit if decision.kept]

        try:
            provenance = {"source": self.source.fingerprint, "filter": repr(self.filter)}
            Overlay.build(base, kept(), path, provenance=provenance)
            decisions.rename(path / DECISIONS)
            write_json(path / REASONS, dict(reasons))
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


def _shown(decision: Decision) -> dict[str, Any]:
    return {
        "phrase": decision.phrase,
        "kept": decision.kept,
        "reason": decision.reason,
        "df": min(decision.frequencies, default=0),
    }
