"""Splitting a text into sentences (by rules for English, or by spaCy) and into lines, as half-open
character spans. Sentences are in order, disjoint, and cover every visible character. Those of the
rules are trimmed of white space, and a line break always ends them. Lines partition the text."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata
from itertools import pairwise
from typing import Any

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import install_command

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
