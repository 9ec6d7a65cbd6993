"""Units: what of a document is indexed and retrieved. Each class is a `contracts.Segmenter`.

Tokens are those of `toolkit.text` unless a tokenizer is named, and the title is never counted: it
is put in front of every unit (`Unit.contents`) on top of its budget, so that each passage names its
document.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from toolkit.checks import check_integer
from toolkit.contracts import PASSAGE_MARK, Document, Unit
from toolkit.corpus.sentences import RULES_VERSION, Spans, Splitter, rule_spans
from toolkit.corpus.spacy_sentences import spacy_spans, spacy_version
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.text import token_starts
from toolkit.tokens import tokens_of

SPLITTERS: dict[str, Splitter] = {"rules": rule_spans, "spacy": spacy_spans}


@dataclass
class WholeDocument:
    """One unit a document: all of its text, whose id is the docid."""

    name: str = field(default="document", init=False)
    aggregate: bool = field(default=False, init=False)
    whole_documents: bool = field(default=True, init=False)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name)

    def spans(self, document: Document) -> Spans:
        return [(0, len(document.text))]

    def units(self, document: Document) -> Iterator[Unit]:
        yield Unit(document.docid, document.title, document.text)


@dataclass
class DocumentHead:
    """One unit a document: its first `max_tokens` tokens (the title not counted), whose id is the
    docid. 512 by default, as in studies of retrieval units on BrowseComp-Plus. `tokenizer`: see
    `toolkit.tokens.tokens_of`; None: words and single marks."""

    max_tokens: int = 512
    tokenizer: str | None = None
    name: str = field(default="document_head", init=False)
    aggregate: bool = field(default=False, init=False)
    whole_documents: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        _check_tokens(self.max_tokens)

    @property
    def fingerprint(self) -> str:
        """`InputError` where the tokenizer cannot be had."""
        counted = [tokens_of(self.tokenizer).fingerprint] if self.tokenizer else []
        return fingerprint(self.name, self.max_tokens, *counted)

    def spans(self, document: Document) -> Spans:
        return [(0, len(tokens_of(self.tokenizer).head(document.text, self.max_tokens)))]

    def units(self, document: Document) -> Iterator[Unit]:
        ((_, end),) = self.spans(document)
        yield Unit(document.docid, document.title, document.text[:end])


@dataclass
class Passages:
    """Passages of whole sentences, packed greedily up to `max_tokens` tokens.

    - Ids are `<docid>%p<n>`, n from 0. A sentence of more tokens is a passage by itself. A
      document without visible text is one empty passage, so that no document vanishes.
    - `splitter`: `rules` (fast) or `spacy` (`en_core_web_sm`, an optional install).
    - `aggregate`: ask pipelines for documents ranked by their best passage (Max-P). The cut is
      the same, so both forms have one fingerprint and share an index.
    """

    max_tokens: int = 250
    splitter: str = "rules"
    aggregate: bool = False
    name: str = field(default="passage", init=False)
    whole_documents: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        _check_tokens(self.max_tokens)
        if self.splitter not in SPLITTERS:
            raise InputError(
                f"splitter is {self.splitter!r}",
                valid=", ".join(SPLITTERS),
                do="set unit.splitter to one of them",
            )

    @property
    def fingerprint(self) -> str:
        """`InputError` where the splitter is spaCy's and is not installed."""
        rules = spacy_version() if self.splitter == "spacy" else f"rules {RULES_VERSION}"
        return fingerprint(self.name, self.max_tokens, rules)

    def spans(self, document: Document) -> Spans:
        sentences = SPLITTERS[self.splitter](document.text)
        return pack(document.text, sentences, self.max_tokens) or [(0, 0)]

    def units(self, document: Document) -> Iterator[Unit]:
        for number, (start, end) in enumerate(self.spans(document)):
            unit_id = f"{document.docid}{PASSAGE_MARK}{number}"
            yield Unit(unit_id, document.title, document.text[start:end])


def pack(text: str, sentences: Spans, max_tokens: int) -> Spans:
    """Join neighbouring `sentences` (ordered, disjoint spans of `text`) greedily into spans of at
    most `max_tokens` tokens; a sentence of more stands alone."""
    if not sentences:
        return []
    tokens = token_starts(text)
    starts, ends = np.asarray(sentences).T
    # From the right, so that a start inside a token counts what is left of it as one more.
    before = (np.searchsorted(tokens, starts, side="right") - 1).tolist()
    upto = np.searchsorted(tokens, ends).tolist()
    packed: Spans = []
    first = 0
    while first < len(sentences):
        after = max(first + 1, bisect_right(upto, before[first] + max_tokens))
        packed.append((sentences[first][0], sentences[after - 1][1]))
        first = after
    return packed


def _check_tokens(value: int) -> None:
    do = "set unit.max_tokens, e.g. 250 for passages or 512 for heads"
    check_integer("max_tokens", value, do=do)
