"""Segmenters: how documents are cut into the units that are indexed and retrieved. Sizes are in
tokens of `soundingline.toolkit.tokens` without the title, which engines index in front of every
unit (`Unit.contents`), so that each passage names its document."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import numpy as np

from soundingline.toolkit.corpus.sentences import (
    RULES_VERSION,
    Spans,
    rule_spans,
    spacy_sentences,
    spacy_version,
)
from soundingline.toolkit.data import PASSAGE_BREAK, PASSAGE_MARK, Document, Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.tokens import load_tokenizer, token_starts

SPLITTERS = ("rules", "spacy", "released")


class Segmenter(ABC):
    """Base class of segmenters; a subclass sets `name` and writes `fingerprint` and `spans`.

    Attributes:
        name: the name of the unit in folders and messages.
        passages: whether the ids of units are `<docid>%p<n>`. Otherwise a document has one unit,
            whose id is the docid.
        first: the number of a document's first passage.
        whole_documents: whether a unit is a document of any length, which stages with a limited
            input may have to split.
        aggregate: whether pipelines should rank documents by their best passage (Max-P).
    """

    name: ClassVar[str]
    passages: ClassVar[bool] = False
    whole_documents: ClassVar[bool] = False
    aggregate: bool = False

    @property
    def first(self) -> int:
        return 0

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Names the segmenter and its settings; equal fingerprints give equal units."""

    @abstractmethod
    def spans(self, document: Document) -> Spans:
        """Half-open character spans of `document.text`, one per unit, in order."""

    def units(self, document: Document) -> Iterator[Unit]:
        """The units of a document, in order."""
        for number, (start, end) in enumerate(self.spans(document), start=self.first):
            unit_id = f"{document.docid}{PASSAGE_MARK}{number}" if self.passages else document.docid
            yield Unit(unit_id, document.title, document.text[start:end])


@dataclass
class WholeDocument(Segmenter):
    """One unit per document: its whole text.

    Example:
        >>> document = Document("d1", "", "The old mill stands by the river.")
        >>> [unit.unit_id for unit in WholeDocument().units(document)]
        ['d1']
    """

    name: ClassVar[str] = "document"
    whole_documents: ClassVar[bool] = True

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name)

    def spans(self, document: Document) -> Spans:
        return [(0, len(document.text))]


@dataclass
class DocumentHead(Segmenter):
    """One unit per document: its first `max_tokens` tokens (default: 512, as in BrowseComp-Plus),
    title not included, counted by a `tokenizer` (`soundingline.toolkit.tokens.load_tokenizer`).

    Example:
        >>> document = Document("d1", "", "The old mill stands by the river.")
        >>> [unit.text for unit in DocumentHead(max_tokens=4).units(document)]
        ['The old mill stands']
    """

    max_tokens: int = 512
    tokenizer: str | None = None
    name: ClassVar[str] = "document_head"

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens, do="set unit.max_tokens, e.g. 512")

    @property
    def fingerprint(self) -> str:
        """Raises `InputError` if the tokenizer cannot be loaded."""
        counted = [load_tokenizer(self.tokenizer).fingerprint] if self.tokenizer else []
        return fingerprint(self.name, self.max_tokens, *counted)

    def spans(self, document: Document) -> Spans:
        return [(0, len(load_tokenizer(self.tokenizer).truncate(document.text, self.max_tokens)))]


@dataclass
class Passages(Segmenter):
    """Passages of sentences, packed greedily. A sentence longer than `max_tokens` is a passage of
    its own. A document without visible text has one empty passage.

    With `splitter=spacy`, the passages are those of "Revisiting Text Ranking in Deep Research"
    (arXiv 2602.21456), in the text's own white space: sentences by `senter`, lengths in spaCy's
    tokens. The published code repeats a passage before a sentence of 250 tokens or more; this does
    not. With `splitter=released`, the passages are those of a corpus that was released in passages,
    with its numbers, from 1; `max_tokens` is not used.

    Args:
        max_tokens: length of a passage in words and punctuation marks (in spaCy's tokens with
            `splitter=spacy`), title not included.
        splitter: `rules` (fast), `spacy` (`en_core_web_sm`, an optional package) or `released`.
        aggregate: rank documents by their best passage (Max-P). The passages are the same, so both
            settings have one fingerprint and share an index.

    Example:
        >>> document = Document("d1", "", "The mill is old. It was built in 1820. It stands still.")
        >>> [unit.unit_id for unit in Passages(max_tokens=10).units(document)]
        ['d1%p0', 'd1%p1']
    """

    max_tokens: int = 250
    splitter: str = "rules"
    aggregate: bool = False
    name: ClassVar[str] = "passage"
    passages: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens, do="set unit.max_tokens, e.g. 250")
        if self.splitter not in SPLITTERS:
            valid, do = ", ".join(SPLITTERS), "set unit.splitter to one of them"
            raise InputError(f"splitter is {self.splitter!r}", valid=valid, do=do)

    @property
    def first(self) -> int:
        return 1 if self.splitter == "released" else 0

    @property
    def fingerprint(self) -> str:
        """Raises `InputError` if the splitter is spaCy's and spaCy is not installed."""
        if self.splitter == "released":
            return fingerprint(self.name, self.splitter)
        rules = spacy_version() if self.splitter == "spacy" else f"rules {RULES_VERSION}"
        return fingerprint(self.name, self.max_tokens, rules)

    def spans(self, document: Document) -> Spans:
        text = document.text
        if self.splitter == "rules":
            return pack(text, rule_spans(text), self.max_tokens) or [(0, 0)]
        if self.splitter == "released":
            pieces = text.split(PASSAGE_BREAK)
            starts = accumulate((len(piece) + 1 for piece in pieces[:-1]), initial=0)
            placed = zip(starts, pieces, strict=True)
            return [_trimmed(text, start, start + len(piece)) for start, piece in placed]
        sentences = spacy_sentences(text)
        upto = list(accumulate(tokens for _, _, tokens in sentences))
        bounds = [(start, end) for start, end, _ in sentences]
        packed = _greedy(bounds, [0, *upto], upto, self.max_tokens)
        trimmed = (_trimmed(text, *span) for span in packed)
        return [(start, end) for start, end in trimmed if start < end] or [(0, 0)]


def pack(text: str, sentences: Spans, max_tokens: int) -> Spans:
    """Join neighbouring sentences (ordered, disjoint spans of `text`) greedily into spans of at
    most `max_tokens` tokens. A longer sentence gets a span of its own."""
    if not sentences:
        return []
    tokens = token_starts(text)
    starts, ends = np.asarray(sentences).T
    # A sentence that starts inside a token counts the rest of it as one more token.
    before = (np.searchsorted(tokens, starts, side="right") - 1).tolist()
    upto = np.searchsorted(tokens, ends).tolist()
    return _greedy(sentences, before, upto, max_tokens)


def _greedy(sentences: Spans, before: Sequence[int], upto: list[int], max_tokens: int) -> Spans:
    """`pack` with the numbers of tokens before each sentence and up to its end."""
    packed: Spans = []
    first = 0
    while first < len(sentences):
        after = max(first + 1, bisect_right(upto, before[first] + max_tokens))
        packed.append((sentences[first][0], sentences[after - 1][1]))
        first = after
    return packed


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without white space at its ends."""
    piece = text[start:end]
    end = start + len(piece.rstrip())
    return min(end, start + len(piece) - len(piece.lstrip())), end
