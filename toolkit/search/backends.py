"""A backend and a store in memory, for tests, examples and toy corpora."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from toolkit.contracts import Document, Hit, Lines, SearchRequest, SearchResult, Unit, parent
from toolkit.corpus.lines import line_spans, without_break

_WORD = re.compile(r"\w+")


class DictionaryBackend:
    """Ranks `{unit_id: text}` by the number of distinct query words that a text holds.

    Ties stand in the order of the dictionary; texts without a query word are left out.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._words = {unit_id: _words(text) for unit_id, text in texts.items()}

    def search(self, request: SearchRequest) -> SearchResult:
        """At most `request.depth` hits, best first, without titles and excerpts."""
        query = _words(request.query)
        scores = {unit_id: len(query & words) for unit_id, words in self._words.items()}
        ranked = sorted((item for item in scores.items() if item[1]), key=lambda item: -item[1])
        return SearchResult(
            [
                Hit(parent(unit_id), unit_id, rank, float(score))
                for rank, (unit_id, score) in enumerate(ranked[: request.depth], start=1)
            ]
        )


class DictionaryStore:
    """A `contracts.DocumentStore` over `{docid: text or Document}`, with the lines that
    `corpus.SqliteStore` would give.

    `passages` (`{unit_id: text}`) adds the texts of passages.
    """

    def __init__(
        self,
        documents: Mapping[str, str | Document],
        passages: Mapping[str, str] | None = None,
    ) -> None:
        self._documents = {
            docid: content if isinstance(content, Document) else Document(docid, "", content)
            for docid, content in documents.items()
        }
        self._passages = dict(passages or {})

    def documents(self) -> Iterator[Document]:
        return iter(self._documents.values())

    def document(self, docid: str) -> Document:
        return self._documents[docid]

    def lines(self, docid: str, offset: int = 1, limit: int = 200) -> Lines:
        document = self._documents[docid]
        spans = line_spans(document.text)
        if not 1 <= offset <= len(spans):
            raise ValueError(f"offset is {offset}; document {docid!r} has lines 1 to {len(spans)}")
        chosen = spans[offset - 1 : offset - 1 + limit]
        lines = [without_break(document.text[start:end]) for start, end in chosen]
        return Lines(docid, document.title, offset, lines, len(spans))

    def texts(self, unit_ids: Sequence[str]) -> list[Unit]:
        return [self._unit(unit_id) for unit_id in unit_ids]

    def _unit(self, unit_id: str) -> Unit:
        document = self._documents[parent(unit_id)]
        if parent(unit_id) == unit_id:
            return Unit(unit_id, document.title, document.text)
        return Unit(unit_id, document.title, self._passages[unit_id])


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))
