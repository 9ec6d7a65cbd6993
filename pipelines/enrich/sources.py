"""Where phrases come from: a language model, a file, or the documents that a search finds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.enrich.phrases import Cleaned, Limits, clean
from pipelines.lexical.analyzer import is_ngram
from pipelines.lexical.rm3 import check_feedback
from pipelines.lexical.scoring import idf
from pipelines.stage import Collection
from toolkit.benchmarks.reading import records
from toolkit.contracts import Unit
from toolkit.errors import InputError
from toolkit.files import file_fingerprint, fingerprint


class Query(NamedTuple):
    """A query to enrich, and the question that it belongs to."""

    text: str
    qid: str = ""


class PhraseSource(ABC):
    """Proposes phrases for documents or for queries. Thread-safe.

    Options of a configuration: making one is cheap and checks its arguments. `fingerprint` changes
    with whatever changes the phrases; `counts` tells what was out of the ordinary.
    """

    asks_model = False
    """Whether it needs a language model in the collection."""

    limits: Limits

    @property
    @abstractmethod
    def fingerprint(self) -> str: ...

    @property
    def counts(self) -> Mapping[str, float]:
        return {}

    @abstractmethod
    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        """Unit id and phrases of each unit, in their order; no phrase of a unit without any."""

    @abstractmethod
    def for_queries(self, queries: Sequence[Query], collection: Collection) -> list[Sequence[str]]:
        """The phrases of each query."""


class PhraseFile(PhraseSource):
    """Phrases that somebody has made: `path` holds JSON lines, each with an `id` (a unit's; for
    queries the qid or the query itself) and its `phrases`, a list.

    `InputError` names the line of anything else. An id that comes twice has the phrases of both.
    """

    def __init__(self, *, path: str, phrases: int = 10, words: int = 4) -> None:
        self.path, self.phrases, self.words = path, phrases, words
        self.limits = Limits(phrases, words).checked()
        self._read: dict[str, Cleaned] | None = None

    @property
    def fingerprint(self) -> str:
        if not Path(self.path).is_file():
            raise InputError(f"there is no file '{self.path}'", do="give a file of JSON lines")
        return fingerprint("file", file_fingerprint(Path(self.path)), *self.limits)

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        by_id = self._by_id()
        for unit in units:
            yield unit.unit_id, by_id.get(unit.unit_id, ())

    def for_queries(self, queries: Sequence[Query], collection: Collection) -> list[Sequence[str]]:
        by_id = self._by_id()
        return [by_id.get(query.qid) or by_id.get(query.text) or () for query in queries]

    def _by_id(self) -> dict[str, tuple[str, ...]]:
        if self._read is None:
            listed: dict[str, list[Any]] = {}
            for place, record in records(Path(self.path)):
                key, phrases = record.get("id"), record.get("phrases")
                if not isinstance(key, str) or not isinstance(phrases, list):
                    raise InputError(
                        f"{place} has no id with phrases",
                        valid='lines as {"id": "d1", "phrases": ["harbour light"]}',
                    )
                listed.setdefault(key, []).extend(phrases)
            self._read = {key: clean(phrases, self.limits) for key, phrases in listed.items()}
        return {key: cleaned.phrases for key, cleaned in self._read.items()}


class FeedbackPhrases(PhraseSource):
    """Words of the documents that a search finds: a reference that needs no model, and that a model
    must beat.

    A query is searched with BM25 (`k1`, `b`); a document is searched with the `query_terms` of its
    terms of highest tf-idf. Of the best `fb_docs` other documents, the words are weighted as RM3
    weighs terms (share of the document's tokens times the document's share of the scores), and the
    `phrases` heaviest words that the text lacks are proposed, each as it is most often written.
    """

    def __init__(
        self,
        *,
        phrases: int = 10,
        fb_docs: int = 10,
        query_terms: int = 20,
        k1: float = 0.9,
        b: float = 0.4,
    ) -> None:
        check_feedback(phrases, fb_docs, 0.5)
        self.phrases, self.fb_docs, self.query_terms = phrases, fb_docs, query_terms
        self.k1, self.b = k1, b
        self.limits = Limits(phrases, 1).checked()
        if isinstance(query_terms, bool) or query_terms < 1:
            raise InputError(f"query_terms is {query_terms!r}", valid="a whole number from 1")

    @property
    def fingerprint(self) -> str:
        settings = (self.phrases, self.fb_docs, self.query_terms, self.k1, self.b)
        return fingerprint("feedback", 1, *settings)

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        feedback = _Feedback(self, collection)
        for unit in units:
            terms = feedback.telling_terms(unit.contents)
            yield unit.unit_id, feedback.phrases(terms, besides=unit.unit_id)

    def for_queries(self, queries: Sequence[Query], collection: Collection) -> list[Sequence[str]]:
        feedback = _Feedback(self, collection)
        terms = [collection.index.analyzer.terms(query.text) for query in queries]
        return [feedback.phrases(of_query) for of_query in terms]


class _Feedback:
    """Searches and word counts of one pass over documents or queries."""

    def __init__(self, source: FeedbackPhrases, collection: Collection) -> None:
        if collection.texts is None:
            raise InputError("phrases from feedback need the texts of the collection")
        self._source, self._texts = source, collection.texts
        self._index: Any = collection.index
        self._words: OrderedDict[str, tuple[Counter[str], dict[str, str]]] = OrderedDict()

    def telling_terms(self, text: str) -> list[str]:
        """The terms of highest tf-idf of a document that other documents have too."""
        counts = Counter(term for term in self._index.analyzer.terms(text) if not is_ngram(term))
        weights = {}
        for term, count in counts.items():
            frequency = self._index.document_frequency(term)
            if frequency > 1:
                weights[term] = count * idf(len(self._index), frequency)
        heaviest = sorted(weights, key=lambda term: (-weights[term], term))
        return heaviest[: self._source.query_terms]

    def phrases(self, terms: Sequence[str], besides: str = "") -> list[str]:
        """The heaviest words that are not among `terms` nor in the document `besides`."""
        source = self._source
        if not terms:
            return []
        numbers, scores = self._index.search(terms, source.k1, source.b, source.fb_docs + 1)
        found = dict(zip(self._index.docnos.take(numbers).tolist(), scores.tolist(), strict=True))
        excluded = set(terms)
        if besides:
            excluded |= self._counted(besides)[0].keys()
            found.pop(besides, None)
        documents = list(found)[: source.fb_docs]
        weights: Counter[str] = Counter()
        written: dict[str, str] = {}
        for docno in documents:
            counts, spellings = self._counted(docno)
            share = found[docno] / max(1, counts.total())
            for term, count in counts.items():
                if term not in excluded:
                    weights[term] += count * share
                    written.setdefault(term, spellings[term])
        heaviest = sorted(weights, key=lambda term: (-weights[term], term))[: source.phrases]
        return [written[term] for term in heaviest]

    def _counted(self, docno: str) -> tuple[Counter[str], dict[str, str]]:
        """The terms of a unit with their frequencies, and how each is most often written."""
        known = self._words.get(docno)
        if known is None:
            analyzer = self._index.analyzer
            spellings: dict[str, Counter[str]] = {}
            for word in analyzer.words(self._texts([docno])[0].contents):
                term = analyzer.term(word)
                if term is not None and not term.isdecimal():
                    spellings.setdefault(term, Counter())[word.lower()] += 1
            counts = Counter({term: words.total() for term, words in spellings.items()})
            usual = {
                term: min(words, key=lambda w: (-words[w], w)) for term, words in spellings.items()
            }
            known = self._words[docno] = counts, usual
            if len(self._words) > _UNITS_KEPT:
                self._words.popitem(last=False)
        return known


_UNITS_KEPT = 2000
