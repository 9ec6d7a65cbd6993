"""Enrichment: phrases in the documents of an index, and weighted terms in the queries.

`EnrichedEngine` indexes documents together with their phrases. `Enrichment` is the stage of a
pipeline that opens such an index and adds weighted terms to queries.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import pyterrier as pt
from numpy.typing import NDArray
from typing_extensions import Self

from soundingline.pipelines.engines.engine import Engine, RemoteEngine, check_support
from soundingline.pipelines.enrich.df_filter import NO_FILTER, REASONS, DfFilter, FilterDecision
from soundingline.pipelines.enrich.phrases import PhraseSource, weight_of
from soundingline.pipelines.index_folder import read_manifest, write_manifest
from soundingline.pipelines.lexical.analyzers import SEPARATOR
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.lexical.operators import Filter
from soundingline.pipelines.prompting import last_words
from soundingline.pipelines.retrieve import BM25
from soundingline.pipelines.rewrite import QueryContext, query_contexts
from soundingline.pipelines.stage import (
    Collection,
    Counts,
    Stage,
    add_note,
    as_pyterrier,
    best_first,
    not_bound,
    places_in,
)
from soundingline.toolkit.console import notify
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import atomic_folder, fingerprint, write_json
from soundingline.toolkit.queries import ParsedQuery
from soundingline.toolkit.runs.run_folder import of_question

DECISIONS = "decisions.jsonl"
REASONS_FILE = "reasons.json"
SECONDS = "seconds.json"
APPLY_TO = ("query", "reasoning", "question")
EXCLUSIONS = ("none", "filter", "negative")
_VALUES = {
    "form": ("repaired", "published", "joined"),
    "apply_to": APPLY_TO,
    "sides": ("both", "query", "corpus"),
    "exclusions": EXCLUSIONS,
}
_INDEX, _PHRASES = "index", "phrases"
_REASONING_WORDS = 512
_EXCLUDED = "query_excluded"


@dataclass(frozen=True)
class EnrichedEngine:
    """Indexes the units of a collection together with their phrases, by another engine.

    The indexed text of a unit is its contents and each phrase that the filter keeps, separated by
    `SEPARATOR`, which no token and no n-gram spans. A folder holds

        index/                   the index, as `engine` builds it
        phrases/decisions.jsonl  each phrase of each unit, whether it is kept, and why not
        phrases/reasons.json     the number of phrases by reason
        phrases/seconds.json     the duration of the build
        phrases/manifest.json    written last: corpus, source and filter of the phrases, counts

    Args:
        engine: builds the index. It must support `enrichment`.
        filter: decides which phrases are kept; None keeps all that have an index term.
        collection: the collection without phrases. Its index has the document frequencies that
            the filter reads.
    """

    engine: Engine
    source: PhraseSource
    filter: DfFilter | None
    collection: Collection
    name: ClassVar[str] = "enriched"

    @property
    def fingerprint(self) -> str:
        phrases = self.source.content(self.collection)
        return fingerprint(self.name, phrases, repr(self.filter), self.engine.fingerprint)

    @property
    def supports(self) -> frozenset[str]:
        return self.engine.supports - {"ql"}

    @property
    def _inner(self) -> Any:
        """The engine for the units with their phrases."""
        if isinstance(self.engine, RemoteEngine):
            return self.engine.of_content(self.fingerprint)
        return self.engine

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """Collect and filter the phrases, then index the units with them. The units are read twice;
        the folder `path` appears when it is complete. `InputError` if the source gives phrases for
        other units, or in another order."""
        began = time.monotonic()
        with atomic_folder(path) as folder:
            phrases = folder / _PHRASES
            phrases.mkdir()
            reasons, enriched = self._decide(units, phrases / DECISIONS)
            joined = _with_phrases(units, phrases / DECISIONS)
            self._inner.build(joined, folder / _INDEX, corpus_fingerprint=corpus_fingerprint)
            write_json(phrases / REASONS_FILE, dict(reasons))
            write_json(phrases / SECONDS, {"seconds": round(time.monotonic() - began, 3)})
            content = {
                "corpus_fingerprint": corpus_fingerprint,
                "phrases": self.source.content(self.collection),
                "source": self.source.provenance(self.collection),
                "filter": repr(self.filter),
                "counts": {"enriched": enriched, "phrases": reasons["kept"]},
            }
            write_manifest(phrases, _PHRASES, content)

    def open(self, path: Path, *, corpus_fingerprint: str) -> LexicalIndex:
        """Open the index; `base` of it is the index of the collection without phrases."""
        read_manifest(path / _PHRASES, _PHRASES, corpus_fingerprint)
        index: LexicalIndex = self._inner.open(path / _INDEX, corpus_fingerprint=corpus_fingerprint)
        return index.over(self.collection.index)

    def _decide(self, units: Iterable[Unit], path: Path) -> tuple[Counter[str], int]:
        """Write the decision on each phrase to `path`. Returns the number of phrases by reason and
        the number of units with a kept phrase."""
        reasons: Counter[str] = Counter()
        enriched = 0
        filter_, index = self.filter or NO_FILTER, self.collection.index
        with path.open("w", encoding="utf-8") as stream:
            for unit_id, phrases in self.source.for_documents(units, self.collection):
                decisions = filter_.decide(phrases, index, corpus_side=True)
                reasons.update(decision.reason for decision in decisions)
                enriched += any(decision.kept for decision in decisions)
                if decisions:
                    row = {"id": unit_id, "phrases": [decision.row() for decision in decisions]}
                    stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        return reasons, enriched


def _with_phrases(units: Iterable[Unit], decisions: Path) -> Iterator[Unit]:
    """The units, each with its kept phrases at the end of its text."""
    with decisions.open(encoding="utf-8") as stream:
        rows = map(json.loads, stream)
        row = next(rows, None)
        for unit in units:
            if row is not None and row["id"] == unit.unit_id:
                kept = [phrase["phrase"] for phrase in row["phrases"] if phrase["kept"]]
                unit = unit._replace(text=SEPARATOR.join([unit.text, *kept]))
                row = next(rows, None)
            yield unit
        if row is not None:
            raise InputError(
                f"the phrase source gave phrases for the unit '{row['id']}'",
                valid="the units of the collection, each once and in their order",
                do="correct for_documents of the source",
            )


def phrases_folder(index: LexicalIndex) -> Path | None:
    """The folder of phrases of an index that `EnrichedEngine` opened; None for another index."""
    return None if index.base is index else index.path.parent / _PHRASES


def phrases_manifest(folder: Path) -> Mapping[str, Any]:
    """The manifest of a folder of phrases."""
    return read_manifest(folder, _PHRASES, None)


class Expansion(NamedTuple):
    """The index terms of a query and those of its phrases, with their counts (times the weights of
    the phrases), and the phrases that are excluded."""

    own: Mapping[str, int]
    added: Mapping[str, float]
    excluded: tuple[str, ...] = ()

    def weighted(self, weight: float) -> dict[str, float]:
        """Positive weights by index term; counts of the expansion are multiplied by `weight`."""
        weights: dict[str, float] = dict(self.own)
        for term, count in self.added.items():
            weights[term] = weights.get(term, 0.0) + weight * count
        return {term: float(value) for term, value in weights.items() if value > 0}


@dataclass(kw_only=True, eq=False, repr=False)
class Enrichment(Stage):
    """Enriches queries, documents or both, for one weighted BM25 call:

        score(d) = BM25(query, d) + weight * BM25(expansion, d)

    The corpus side is an index of the documents with their phrases, which is built if it is missing
    (`EnrichedEngine`). The query side adds the column `query_toks` (weights by index term), which
    lexical retrievers search with instead of `query`. The record of a search has the note
    `enrichment`: the phrases of each query, and the decision on each.

    A source of phrases for queries may give them weights, which multiply the counts of their terms,
    and exclusions (`WeightedPhrases`). Then the column `query_excluded` has the excluded phrases of
    each query, and `before` puts the stage `Excluding` after the retriever. The filter does not
    judge exclusions.

    Args:
        query: The source of the phrases of queries; None leaves queries unchanged.
        corpus: The source of the phrases of documents; None leaves documents unchanged.
        query_filter, corpus_filter: Decide which phrases are kept. None keeps all that have an
            index term.
        weight: The weight of the expansion, 0 or more.
        form: How terms are counted.

            - `repaired`: A term of the query counts as often as it occurs. Each kept phrase is
              analysed by itself, and a term counts once for each phrase that has it.
            - `published`, as in SIRA's released code: A term of the query counts once. The kept
              phrases are joined and analysed again, so that n-grams span two phrases, and a term
              counts once.
            - `joined`: As `repaired`, but a term of a phrase counts as often as it occurs in it,
              which is the same as appending the phrase to the query. A `weight` of 0.2 corresponds
              to the query five times and the text once.
        apply_to: The text for which phrases are proposed: the `query`, the newest `reasoning` of
            the agent (its last 512 words), or the `question` after the query. If it is missing,
            the query is used, and `counts` has it as `without_reasoning` or `without_question`.
        sides: `query` or `corpus` leaves the other side, and its filter, out.

    Raises:
        InputError: For impossible arguments, and for an index that cannot be enriched.

    Source: Yang et al., "SuperIntelligent Retrieval Agent", 2026, arXiv 2605.06647.
    """

    query: PhraseSource | None = None
    corpus: PhraseSource | None = None
    query_filter: DfFilter | None = None
    corpus_filter: DfFilter | None = None
    weight: float = 0.5
    form: str = "repaired"
    apply_to: str = "query"
    sides: str = "both"

    def __post_init__(self) -> None:
        if not 0 <= self.weight < inf:
            raise InputError(f"weight is {self.weight!r}", valid="0 or more, finite")
        if self.sides == "query":
            self.corpus = self.corpus_filter = None
        elif self.sides == "corpus":
            self.query = self.query_filter = None
        if self.query is None and self.corpus is None:
            raise InputError(
                "the enrichment has neither side",
                valid="query, corpus, or both",
                do="set enrichment=none for no enrichment",
            )
        for name, values in _VALUES.items():
            if (value := getattr(self, name)) not in values:
                raise InputError(f"{name} is {value!r}", valid=", ".join(values))
        if self.form == "published" and getattr(self.query, "weights", False):
            raise InputError(
                "form=published joins the phrases of a query, and these have weights",
                valid="repaired, joined",
                do="set one of these, or enrichment.query.weights=false",
            )
        self.weight = float(self.weight)
        without = (f"without_{name}" for name in APPLY_TO[1:])
        self._counts = Counts("queries", *without, *map(_counted_as, REASONS))

    # A property, which tells `declares` that the class alone does not decide.
    @property
    def needs_llm(self) -> bool:  # type: ignore[override]
        """Whether one of the sides needs a language model."""
        return any(side.needs_llm for side in self._sides.values())

    @property
    def fingerprint(self) -> str:
        """Hash of the sources of phrases."""
        return fingerprint(*[side and side.fingerprint for side in (self.query, self.corpus)])

    @property
    def counts(self) -> Mapping[str, float]:
        """Cumulative counts: the `queries` that were enriched, of these those
        `without_reasoning` or `without_question`; their phrases by decision (`phrases_kept`,
        `phrases_too_frequent` and so on); and the counts of each source with the name of its side
        in front."""
        counts: dict[str, float] = {} if self.query is None else {**self._counts()}
        for name, side in self._sides.items():
            counts.update((f"{name}_{key}", count) for key, count in side.counts.items())
        return counts

    @property
    def exclusions(self) -> str:
        """What happens to the units with an exclusion of the query, one of `EXCLUSIONS`."""
        return "none" if self.query is None else self.query.exclusions

    def before(self, retriever: pt.Transformer) -> pt.Transformer:
        """This stage, then a retriever, then what applies the exclusions, if there are any.
        `InputError` for a retriever that the enrichment does not reach, and for exclusions and
        another retriever than BM25."""
        supports = getattr(retriever, "supports", self.needs)
        check_support(self.needs, "Enrichment", supports, type(retriever).__name__)
        if self.exclusions == "none":
            return self >> retriever
        return self >> Excluding(retriever=retriever, rule=self.exclusions, weight=self.weight)

    @property
    def _sides(self) -> dict[str, PhraseSource]:
        sides = {"query": self.query, "corpus": self.corpus}
        return {name: side for name, side in sides.items() if side is not None}

    @property
    def _filters(self) -> dict[str, DfFilter]:
        filters = {"query": self.query_filter, "corpus": self.corpus_filter}
        return {name: filter_ for name, filter_ in filters.items() if filter_ is not None}

    @property
    def needs(self) -> frozenset[str]:
        """See `Stage`. The retriever must support it too."""
        of_side = {"query": "weighted queries", "corpus": "enriched documents"}
        return frozenset(of_side[side] for side in self._sides)

    def enriched(self, collection: Collection) -> Collection:
        """The collection with the index of documents and phrases, if there is a corpus side."""
        if self.corpus is None:
            return collection
        if collection.open_index is None or collection.engine is None:
            raise InputError(
                "the collection has no engine that indexes its documents with phrases",
                do="give Collection(engine=..., open_index=...)",
            )
        engine = EnrichedEngine(collection.engine, self.corpus, self.corpus_filter, collection)
        return replace(collection, index=collection.open_index(engine))

    def bind(self, collection: Collection) -> Self:
        """A copy that works on `collection`, which `enriched` returned."""
        if not hasattr(collection.index, "over"):
            raise InputError(
                f"an index of {type(collection.index).__name__} cannot be enriched",
                valid="our lexical index, or that of a search cluster",
                do="set engine=lexical",
            )
        for side, filter_ in self._filters.items():
            if message := filter_.note(len(collection.index)):
                notify(f"{side} side of the enrichment: {message}")
        return super().bind(collection)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.columns(inp, includes=["qid", "query"])
        if self.query is None:
            return inp
        inp = as_pyterrier(inp)
        queries = query_contexts(inp)
        different = list(dict.fromkeys(queries))
        expansions = dict(zip(different, self.expansions(different), strict=True))
        weights = {query: each.weighted(self.weight) for query, each in expansions.items()}
        columns: dict[str, list[Any]] = {"query_toks": [weights[query] for query in queries]}
        if self.exclusions != "none":
            columns[_EXCLUDED] = [expansions[query].excluded for query in queries]
        series = {name: pd.Series(of, inp.index, dtype=object) for name, of in columns.items()}
        return inp.assign(**series)

    @property
    def has_filter(self) -> bool:
        """Whether a side has a filter with a limit."""
        return any(filter_.rule != "none" for filter_ in self._filters.values())

    def with_tau(self, tau: float) -> Enrichment:
        """The stage with another limit of both filters, not bound."""
        query, corpus = self.query_filter, self.corpus_filter
        return replace(
            self,
            query_filter=query and replace(query, tau=tau),
            corpus_filter=corpus and replace(corpus, tau=tau),
        )

    def expansions(self, queries: Sequence[QueryContext]) -> list[Expansion]:
        """The terms of each query and of its expansion. The stage must be bound."""
        if self.collection is None:
            raise not_bound(self, "call bind(collection)")
        sources = [self._source(query) for query in queries]
        read = [
            QueryContext(text, query.qid) for (text, _), query in zip(sources, queries, strict=True)
        ]
        proposed = self.query.for_queries(read, self.collection) if self.query else [()] * len(read)
        expansions, notes = [], []
        for query, (_, source), phrases in zip(queries, sources, proposed, strict=True):
            decisions = self._decide([phrase for phrase in phrases if weight_of(phrase) > 0])
            excluded = tuple(phrase for phrase in phrases if weight_of(phrase) < 0)
            expansions.append(self._expansion(query.text, decisions, excluded))
            notes.append(self._note(query, source, decisions, excluded))
        add_note("enrichment", notes)
        return expansions

    def _decide(self, phrases: Sequence[str]) -> list[FilterDecision]:
        """The decision on each phrase of a query, counted."""
        assert self.collection is not None
        filter_ = self.query_filter or NO_FILTER
        decisions = filter_.decide(phrases, self.collection.index, corpus_side=False)
        self._counts.add(**Counter(_counted_as(decision.reason) for decision in decisions))
        return decisions

    def _note(
        self,
        query: QueryContext,
        source: str,
        decisions: Sequence[FilterDecision],
        excluded: tuple[str, ...],
    ) -> dict[str, Any]:
        """What the record of a search has of a query."""
        phrases = [decision.row() for decision in decisions]
        note: dict[str, Any] = {"qid": query.qid, "query": query.text, "phrases": phrases}
        if self.exclusions != "none":
            note["excluded"] = excluded
        if self.apply_to != "query":
            note["applied_to"] = source
        return note

    def _source(self, query: QueryContext) -> tuple[str, str]:
        """The text for which phrases are proposed, and which one it is (`APPLY_TO`)."""
        questions = (self.collection.questions if self.collection else None) or {}
        texts = {
            "query": query.text,
            "reasoning": last_words(query.reasoning, _REASONING_WORDS),
            "question": of_question(questions, query.qid) or "",
        }
        text = texts[self.apply_to]
        self._counts.add(queries=1)
        if text.strip():
            return text, self.apply_to
        if self.apply_to != "query":
            self._counts.add(**{f"without_{self.apply_to}": 1})
        return query.text, "query"

    def _expansion(
        self, query: str, decisions: Sequence[FilterDecision], excluded: tuple[str, ...]
    ) -> Expansion:
        """The terms of a query and of its kept phrases, counted by `form`."""
        assert self.collection is not None
        terms_of = self.collection.index.analyzer.terms
        own: Counter[str] = Counter(terms_of(query))
        kept = [decision for decision in decisions if decision.kept]
        if self.form == "published":
            own = Counter(own.keys())
            joined = " ".join(decision.phrase for decision in kept)
            # Each once, in an order that is the same in every process, because sums are rounded.
            return Expansion(own, dict.fromkeys(terms_of(joined), 1), excluded)
        added: dict[str, float] = {}
        for phrase, terms in ((decision.phrase, decision.terms) for decision in kept):
            for term in terms_of(phrase) if self.form == "joined" else terms:
                added[term] = added.get(term, 0) + weight_of(phrase)
        return Expansion(own, added, excluded)


@dataclass(kw_only=True, eq=False, repr=False)
class Excluding(Stage):
    """Applies the exclusions of each query, the column `query_excluded`, to the ranking of BM25.

    Both rules see the units of the ranking, which is as deep as the retriever, and no others. The
    output has no column `query_excluded`.

    Args:
        retriever: The BM25 that ranks.
        rule: `filter` leaves out the units whose text has an excluded phrase, as the operator
            `-"phrase"` does (see `soundingline.pipelines.lexical.operators`); a ranking may become
            shorter than the depth. `negative` subtracts `weight` times the BM25 score of the terms
            of the exclusions, which the index itself cannot do, and ranks again. Scores may then be
            below 0.
        weight: The weight of the exclusions for `negative`, 0 or more.

    Raises:
        InputError: For another retriever than BM25.
    """

    retriever: Any
    rule: str = "filter"
    weight: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.retriever, BM25):
            raise InputError(
                f"exclusions apply to BM25, and the retriever is {type(self.retriever).__name__}",
                valid="an option of BM25, such as bm25_sira",
                do="choose one, or set enrichment.query.exclusions=none",
            )

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.columns(inp, includes=["qid", _EXCLUDED])
        inp = as_pyterrier(inp)
        excluded = dict(zip(inp["qid"].tolist(), inp[_EXCLUDED].tolist(), strict=True))
        ranking = self.retriever.transform(inp).drop(columns=_EXCLUDED)
        docnos, scores = ranking["docno"].to_numpy(), ranking["score"].to_numpy(copy=True)
        kept = np.ones(len(ranking), np.bool_)
        groups, qids = pd.factorize(ranking["qid"])
        for group, qid in enumerate(qids):
            if not (phrases := excluded[qid]):
                continue
            rows = np.flatnonzero(groups == group)
            numbers = self.retriever.index.docnos.numbers(docnos[rows].tolist())
            if self.rule == "filter":
                kept[rows] = self._without(phrases, numbers)
            else:
                scores[rows] -= self.weight * self._scores(qid, phrases, numbers)
        ranking = ranking.assign(score=scores)[kept]
        order, queries = best_first(ranking, by_score=True)
        return ranking.iloc[order].assign(rank=places_in(queries)).reset_index(drop=True)

    def _without(self, phrases: Sequence[str], numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether the text of each unit has none of the phrases."""
        index = self.retriever.index
        texts = index.texts_for(self.retriever)
        passed = Filter(ParsedQuery("", (), tuple(phrases)), index, texts).first(numbers)
        kept = np.zeros(len(numbers), np.bool_)
        kept[passed] = True
        return kept

    def _scores(self, qid: str, phrases: Sequence[str], numbers: NDArray[np.int32]) -> Any:
        """The BM25 score of each unit for the terms of the phrases."""
        index = self.retriever.index
        terms = Counter(term for phrase in phrases for term in index.analyzer.terms(phrase))
        [scores] = index.score([terms], [numbers], self.retriever.for_question(qid))
        return scores


def _counted_as(reason: str) -> str:
    return f"phrases_{reason.replace(' ', '_')}"
