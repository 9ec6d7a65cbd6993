"""A small search backend and stores in memory."""

import re
from collections.abc import Mapping

from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import (
    Document,
    Hit,
    SearchResult,
    Unit,
    parent,
)


class WordBackend:
    """Ranks texts by the number of distinct query words that they contain, then by their order."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._words = {unit_id: _words(text) for unit_id, text in texts.items()}

    def search(self, request):
        query = _words(request.query)
        scores = {unit_id: len(query & words) for unit_id, words in self._words.items()}
        ranked = sorted((item for item in scores.items() if item[1]), key=lambda item: -item[1])
        rows = enumerate(ranked[: request.depth], start=1)
        return SearchResult([Hit(parent(u), u, rank, float(score)) for rank, (u, score) in rows])


def _words(text):
    return set(re.findall(r"\w+", text.casefold()))


def store_of(documents, passages=None):
    """A store of texts or documents by docid, and of any passages by unit id."""
    store = SqliteStore.in_memory(
        Document(docid, "", each) if isinstance(each, str) else each
        for docid, each in documents.items()
    )
    return store if passages is None else _WithPassages(store, passages)


class _WithPassages:
    def __init__(self, store: SqliteStore, passages: Mapping[str, str]) -> None:
        self._store, self._passages = store, passages

    def documents(self):
        return self._store.documents()

    def document(self, docid):
        return self._store.document(docid)

    def lines(self, docid, offset=1, limit=200):
        return self._store.lines(docid, offset, limit)

    def texts(self, unit_ids):
        return [self._unit(unit_id) for unit_id in unit_ids]

    def _unit(self, unit_id):
        document = self._store.document(parent(unit_id))
        whole = parent(unit_id) == unit_id
        return Unit(unit_id, document.title, document.text if whole else self._passages[unit_id])
