"""A document in layers of reading, the cheapest first: metadata, abstract, evidence, whole text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from toolkit.checks import check_integer
from toolkit.contracts import Document, DocumentStore, Unit
from toolkit.corpus.sentences import rule_spans
from toolkit.tokens import WORDS, Tokens

METADATA, ABSTRACT, EVIDENCE, TEXT = LAYERS = ("metadata", "abstract", "evidence", "text")

Fields = Callable[[str], Mapping[str, str]]


class Metadata(NamedTuple):
    """What is known of a document without its text."""

    docid: str
    title: str
    url: str
    fields: Mapping[str, str]


def no_fields(docid: str) -> Mapping[str, str]:
    """For corpora whose documents have title and url alone."""
    return {}


class LayeredStore:
    """The layers of a document store's documents (the three tiers of PaSaMaster's repository: Du et
    al., 2026, section 2.2; whole texts come last and only where they are asked for).

    - `fields` gives further fields of a document by name; `abstract_field` is the one that holds
      its abstract. Where that is absent, the abstract is the first sentences of the text, at most
      `abstract_tokens` tokens of them; of a longer first sentence, its beginning.
    - `passages` gives the texts of evidence by unit id; by default the store's own.

    All raise `KeyError` for an unknown id.
    """

    def __init__(
        self,
        store: DocumentStore,
        *,
        passages: DocumentStore | None = None,
        fields: Fields = no_fields,
        abstract_field: str = "abstract",
        abstract_tokens: int = 200,
        tokens: Tokens = WORDS,
    ) -> None:
        check_integer("abstract_tokens", abstract_tokens)
        self._store, self._passages = store, passages or store
        self._fields, self._abstract_field = fields, abstract_field
        self.abstract_tokens, self._tokens = abstract_tokens, tokens

    def metadata(self, docid: str) -> Metadata:
        document = self._store.document(docid)
        fields = self._fields(docid)
        others = {name: text for name, text in fields.items() if name != self._abstract_field}
        return Metadata(docid, document.title, document.url, others)

    def abstract(self, docid: str) -> str:
        text = self._store.document(docid).text
        written = self._fields(docid).get(self._abstract_field, "")
        return written or first_sentences(text, self.abstract_tokens, self._tokens)

    def evidence(self, unit_ids: Sequence[str]) -> list[Unit]:
        """The passages, in the order asked."""
        return self._passages.texts(unit_ids)

    def text(self, docid: str) -> Document:
        return self._store.document(docid)


def first_sentences(text: str, most: int, tokens: Tokens = WORDS) -> str:
    """The sentences at the beginning of `text` that have at most `most` tokens together; where the
    first one has more, its first `most` tokens."""
    head = tokens.head(text, most)
    if len(head) == len(text):
        return text.strip()
    # A sentence ends where the next begins, so what follows the head decides its last one.
    ends = [end for _, end in rule_spans(text[: 2 * len(head) + 1000]) if end <= len(head)]
    return text[: ends[-1]].strip() if ends else head.strip()
