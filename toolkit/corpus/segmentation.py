"""Segmenters: how documents are cut into the units that are indexed and retrieved. Sizes are in
tokens of `soundingline.toolkit.tokens` without the title, which engines index in front of every
unit (`Unit.contents`), so that each passage names its document."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np

from soundingline.toolkit.data import PASSAGE_BREAK, PASSAGE_MARK, Document, Unit
from soundingline.toolkit.errors import FileName, InputError, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.optional import install_command
from soundingline.toolkit.tokens import load_tokenizer, token_starts

# Half-open ranges of characters, in order and disjoint. Sentences cover every visible character;
# lines partition the text.
Spans = list[tuple[int, int]]

# Increment when a rule changes: the fingerprint of a segmenter contains it.
RULES_VERSION = 1

# A possible end of a sentence. The leading character class lets the regex engine skip to
# candidates. Group 1 is the first letter or digit after the candidate and any opening quotes.
_CANDIDATE = re.compile(
    r"[.!?…\n。！？](?:"
    r"(?<=\n)\s*"
    r"|(?<=[.!?…])[\"'”’»)\]]*(?:\s+|\Z)(?=[\"'“‘«(\[]*(\w?))"
    r"|(?<=[。！？])[」』”’）]*\s*"
    r")"
)
_OPENING = "\"'“‘«(["


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Nearly always followed by a name or a number, so never the end of a sentence.
_BINDING = _words(
    "mr mrs ms mx dr prof st rev fr gen col lt sgt capt cpl maj cmdr adm gov sen rep hon pres supt "
    "messrs mme mlle mt ft vs v cf ca approx e.g i.e viz resp"
)
# Abbreviations only if a number follows.
_COUNTING = _words(
    "no nos fig figs vol vols p pp pg pgs ch chap sec sect art eq eqs ed eds op par para tab app "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
# May end a sentence or not: the next word decides, as it does after initials.
_LOOSE = _words(
    "al etc inc ltd co corp bros jr sr esq ph.d m.d b.a m.a d.c univ dept est assn ave blvd rd "
    "bldg dist div gov't int'l mfg natl min max avg misc trans repr"
)
_STARTERS = _words(
    "the a an this that these those he she it they we you i his her its their our my there here "
    "in on at by for from to with as of and but or nor so yet if when while where after before "
    "since during although though however because both each some many most all no not one two "
    "what who why how which also then thus today later another other such"
)
_LONGEST_ABBREVIATION = 16
# Characters after a candidate that the rules look at: white space, opening quotes, a letter.
_AHEAD = 16


LINE_WIDTH = 1000
_TO_LAST_SPACE = re.compile(r".*\s", re.DOTALL)
MODEL = "en_core_web_sm"
_UNUSED = ["parser", "tagger", "ner", "attribute_ruler", "lemmatizer", "tok2vec"]
_LONGEST_PARSED = 2_000_000  # characters; spaCy needs memory in proportion to the text


def rule_spans(text: str) -> Spans:
    """Split English text into sentences by rules. A sentence ends at `.`, `!`, `?` or `…` (and
    closing quotes) before white space, unless the context indicates an abbreviation, an initial, a
    numbered item or a continuation in lower case."""
    spans: Spans = []
    start = len(text) - len(text.lstrip())
    for match in _CANDIDATE.finditer(text, start):
        if _ends_sentence(text, match):
            spans.append((start, start + len(text[start : match.end()].rstrip())))
            start = match.end()
    end = len(text.rstrip())
    if start < end:
        spans.append((start, end))
    return spans


def last_sentence_start(text: str, start: int, limit: int, near: int = 300) -> int:
    """The last position in `(start, limit]` at which a sentence of `text` begins, or 0. The last
    `near` characters are searched first, which is enough for nearly every text."""
    for begin in dict.fromkeys((max(start, limit - near), start)):
        candidates = list(_CANDIDATE.finditer(text, begin, limit + _AHEAD))
        for match in reversed(candidates):
            if start < match.end() <= limit and _ends_sentence(text, match):
                return match.end()
    return 0


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    mark, following = match.start(), match.group(1)
    # The group is absent for line breaks and full-width marks, which always end a sentence.
    if following is None or "\n" in match.group():
        return True
    if following.islower():
        return False
    if text[mark] != "." or text[mark - 1 : mark] == ".":
        return True
    # The word before the full stop, no longer than any abbreviation.
    before = text[max(0, mark - _LONGEST_ABBREVIATION) : mark]
    word = before.split()[-1] if before and not before[-1].isspace() else ""
    stem = word.lstrip(_OPENING)
    low = stem.lower()
    if low in _BINDING:
        return False
    if stem.isdecimal():  # A label of an item, if a sentence or a line begins there.
        begin = mark - len(word)
        ahead = text[max(0, begin - 2) : begin]
        return "\n" not in ahead and ahead.strip()[-1:] not in ("", *".!?…")
    if low in _COUNTING:
        return not following.isdecimal()
    # Letters with full stops between them, such as `U.S`, `a.m` or `Ph.D`.
    dotted = "." in stem and all(len(it) in (1, 2) and it.isalpha() for it in stem.split("."))
    if low in _LOOSE or (len(stem) == 1 and stem.isupper()) or dotted:
        after = text[match.end() : match.end() + 24].lstrip(_OPENING).split(maxsplit=1)
        return bool(after) and after[0].rstrip(",.;:!?").lower() in _STARTERS
    return True


def line_spans(text: str, width: int = LINE_WIDTH) -> Spans:
    """Split a text into lines for reading; the spans partition it without gaps. A line ends with
    its line break (`\\n` or `\\r\\n`). A longer one than `width` characters is wrapped after the
    last sentence that fits, with the white space that follows; if none fits, after the last word;
    if a single word is longer, at `width`. An empty text has one empty line."""
    spans: Spans = []
    start = 0
    while start < len(text):
        stop = text.find("\n", start) + 1 or len(text)
        # Only the two characters of a line break are copied: copying the line would be quadratic.
        ending = text[max(start, stop - 2) : stop]
        visible_end = stop - len(ending) + len(without_break(ending))
        while visible_end - start > width:
            limit = start + width
            cut = last_sentence_start(text, start, limit)
            if not cut:
                words = _TO_LAST_SPACE.match(text, start, limit)
                cut = words.end() if words else limit
            spans.append((start, cut))
            start = cut
        spans.append((start, stop))
        start = stop
    return spans or [(0, 0)]


def without_break(line: str) -> str:
    """The line without its final line break; all other white space stays."""
    return line.removesuffix("\n").removesuffix("\r")


def spacy_sentences(text: str) -> list[tuple[int, int, int]]:
    """The sentences of an English text by the model `senter` of spaCy's `en_core_web_sm`, as the
    passage corpus of BrowseComp-Plus was cut: start, end, and number of spaCy's tokens. White space
    around sentences is part of them, and they may contain line breaks. Texts beyond 2 million
    characters are cut into pieces at line breaks. `InputError` if spaCy or the model is not
    installed."""
    cuts = [0]
    while len(text) - cuts[-1] > _LONGEST_PARSED:
        limit = cuts[-1] + _LONGEST_PARSED
        cuts.append(text.rfind("\n", cuts[-1], limit) + 1 or limit)
    pieces = [text[start:end] for start, end in pairwise([*cuts, len(text)])]
    return [
        (offset + sentence.start_char, offset + sentence.end_char, len(sentence))
        for offset, parsed in zip(cuts, _spacy_model().pipe(pieces), strict=True)
        for sentence in parsed.sents
    ]


def spacy_version() -> str:
    """Names and versions of spaCy and of its model, without loading them; `InputError` if not
    installed."""
    try:
        return f"spacy {metadata.version('spacy')} {MODEL} {metadata.version(MODEL)} senter"
    except metadata.PackageNotFoundError as error:
        raise _spacy_missing() from error


@cache
def _spacy_model() -> Any:
    try:
        import spacy

        model = spacy.load(MODEL, exclude=_UNUSED)
        model.enable_pipe("senter")
        model.max_length = _LONGEST_PARSED
        return model
    except (ImportError, OSError) as error:
        raise _spacy_missing() from error


def _spacy_missing() -> InputError:
    return InputError(
        f"splitter 'spacy' needs spaCy and its model {MODEL}, which are not both installed",
        valid="splitter 'rules' needs neither",
        do=f"{install_command('spacy')} && python -m spacy download {MODEL}",
    )


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
    """One unit per document: its first tokens, title not included.

    Args:
        max_tokens: the number of tokens. The default is that of BrowseComp-Plus.
        tokenizer: what counts them; see `soundingline.toolkit.tokens.load_tokenizer`.

    Example:
        >>> document = Document("d1", "", "The old mill stands by the river.")
        >>> [unit.text for unit in DocumentHead(max_tokens=4).units(document)]
        ['The old mill stands']
    """

    max_tokens: int = 512
    tokenizer: FileName[str | None] = None
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
