"""Enrichment as a stage: an enriched index below the retriever, and a weighted query above it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

import pandas as pd
import pyterrier as pt

from pipelines.engines.base import Engine
from pipelines.enrich.df_filter import REASONS, Decision, DfFilter
from pipelines.enrich.overlay_engine import OverlayEngine, decided, shown
from pipelines.enrich.sources import PhraseSource, Query
from pipelines.lexical import LexicalIndex
from pipelines.lexical.enriched import COUNTED, EnrichedIndex
from pipelines.prompt_template import last_words
from pipelines.search_notes import note
from pipelines.stage import Bound, Collection, Stage, not_bound
from toolkit.console import tell
from toolkit.counts import Counts
from toolkit.errors import InputError
from toolkit.files import fingerprint

FORMS = ("repaired", "published", "joined")
APPLY_TO = ("query", "reasoning", "question")
_REASONING_WORDS = 512


class Expansion(NamedTuple):
    """A query's own index terms and those of its phrases, with how often each counts."""

    own: Mapping[str, int]
    added: Mapping[str, int]

    def weighted(self, weight: float) -> dict[str, float]:
        """Weights above 0 by index term, those of phrases times `weight`."""
        weights: dict[str, float] = dict(self.own)
        for term, count in self.added.items():
            weights[term] = weights.get(term, 0.0) + weight * count
        return {term: float(value) for term, value in weights.items() if value > 0}


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
    - `joined`: as `repaired`, but a term of a phrase counts as often as it stands there. Texts that
      a model writes for a query count so where they are appended to it; a `weight` of 0.2 is the
      query five times over and the text once.

    `apply_to` says what phrases are proposed for: the `query` as it comes, the newest `reasoning`
    of the agent (its last 512 words), or the `question` behind the query; the expansion joins the
    query all the same. Where there is none, it is the query (`without_reasoning`,
    `without_question` in `counts`).

    A search's record has the note `enrichment`: for each query its phrases, and what became of
    each.
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
        apply_to: str = "query",
    ) -> None:
        if not 0 <= weight < inf:
            raise InputError(f"weight is {weight!r}", valid="0 or more, finite")
        if form not in FORMS:
            raise InputError(f"form is {form!r}", valid=", ".join(FORMS))
        if apply_to not in APPLY_TO:
            raise InputError(f"apply_to is {apply_to!r}", valid=", ".join(APPLY_TO))
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
        self.apply_to = apply_to
        without = (f"without_{name}" for name in APPLY_TO[1:])
        self._counts = Counts("queries", *without, *map(_counted_as, REASONS))

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
        """Of both sources, each count under its side's name; how many `queries` were enriched, for
        how many there was no reasoning or question to go by, and what became of their phrases
        (`phrases_kept`, `phrases_too_frequent` and so on)."""
        counts: dict[str, float] = {} if self.query is None else {**self._counts()}
        for name, side in {"query": self.query, "corpus": self.corpus}.items():
            of_side = side.counts if side is not None else {}
            counts.update((f"{name}_{key}", count) for key, count in of_side.items())
        return counts

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
        for side in ("query", "corpus"):
            filter_ = getattr(self, f"{side}_filter")
            if filter_ is not None and (message := filter_.note(len(collection.index))):
                tell(f"{side} side of the enrichment: {message}")
        return super().bind(collection)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.columns(inp, includes=["qid", "query"])
        if self.query is None:
            return inp
        queries = _queries(inp)
        different = list(dict.fromkeys(queries))
        weights = {
            query: expansion.weighted(self.weight)
            for query, expansion in zip(different, self.expansions(different), strict=True)
        }
        column = pd.Series([weights[query] for query in queries], index=inp.index, dtype=object)
        return inp.assign(query_toks=column)

    def with_tau(self, tau: float) -> Enrichment:
        """The same with another limit of both filters, not yet bound. `InputError` where it has
        no filter."""
        if self.query_filter is None and self.corpus_filter is None:
            raise InputError(
                "the enrichment has no filter, so tau changes nothing",
                do="leave grid.tau null, or choose an enrichment with a filter",
            )
        filters = {
            name: filter_ and DfFilter(tau, filter_.rule, filter_.unseen)
            for name, filter_ in (
                ("query_filter", self.query_filter),
                ("corpus_filter", self.corpus_filter),
            )
        }
        return type(self)(**{**self._arguments(), **filters})

    def with_weight(self, weight: float) -> Enrichment:
        """The same with another weight, not yet bound."""
        return type(self)(**{**self._arguments(), "weight": weight})

    def expansions(self, queries: Sequence[Query]) -> list[Expansion]:
        """What each query becomes, whatever the expansion's weight. The stage must be bound."""
        if self.collection is None:
            raise not_bound(self, "call bind(collection)")
        sources = [self._source(query) for query in queries]
        read = [Query(text, query.qid) for (text, _), query in zip(sources, queries, strict=True)]
        proposed = self.query.for_queries(read, self.collection) if self.query else [()] * len(read)
        index = self.collection.index
        expansions, notes = [], []
        for query, (_, name), of_query in zip(queries, sources, proposed, strict=True):
            decisions = decided(self.query_filter, of_query, index, corpus_side=False)
            self._counts.add(**Counter(_counted_as(decision.reason) for decision in decisions))
            expansions.append(self._expansion(query.text, decisions))
            of_decisions = [shown(decision) for decision in decisions]
            row = {"qid": query.qid, "query": query.text, "phrases": of_decisions}
            notes.append(row if self.apply_to == "query" else {**row, "applied_to": name})
        note("enrichment", notes)
        return expansions

    def _source(self, query: Query) -> tuple[str, str]:
        """The text that phrases are proposed for, and what it is (`APPLY_TO`)."""
        questions = self.collection.questions if self.collection else None
        texts = {
            "query": query.text,
            "reasoning": last_words(query.reasoning, _REASONING_WORDS),
            "question": (questions or {}).get(query.qid, ""),
        }
        text = texts[self.apply_to]
        self._counts.add(queries=1)
        if text.strip():
            return text, self.apply_to
        if self.apply_to != "query":
            self._counts.add(**{f"without_{self.apply_to}": 1})
        return query.text, "query"

    def _expansion(self, query: str, decisions: Sequence[Decision]) -> Expansion:
        assert self.collection is not None
        index = self.collection.index
        accepted = [decision for decision in decisions if decision.kept]
        own: Counter[str] = Counter(index.analyzer.terms(query))
        if self.form == "published":
            own = Counter(own.keys())
            joined = " ".join(decision.phrase for decision in accepted)
            added = Counter(set(index.analyzer.terms(joined)))
        elif self.form == "joined":
            added = Counter(term for d in accepted for term in index.analyzer.terms(d.phrase))
        else:
            added = Counter(term for decision in accepted for term in decision.terms)
        return Expansion(own, added)


def _counted_as(reason: str) -> str:
    return f"phrases_{reason.replace(' ', '_')}"


def _queries(inp: pd.DataFrame) -> list[Query]:
    thoughts = inp["reasoning"].tolist() if "reasoning" in inp.columns else [""] * len(inp)
    reasoning = [thought if isinstance(thought, str) else "" for thought in thoughts]
    return list(map(Query, map(str, inp["query"]), map(str, inp["qid"]), reasoning))
