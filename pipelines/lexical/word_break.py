"""Word segmentation equal to Lucene's `StandardTokenizer` (Unicode Standard Annex #29).

The longest token at each place wins; what belongs to no token is skipped. ASCII text takes one
simple pattern. Other text is cut at white space, which no token spans, so that the expensive
pattern meets each distinct piece once. The classes of code points are in `word_break.txt`.

`make_byte_classes` describes for an analyzer where its words may end, byte by byte, so that
`word_table` cuts text in compiled code and only words that it has not met before are analysed.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import chain
from pathlib import Path
from string import ascii_letters, digits
from typing import NamedTuple

VERSION = "unicode-12.1"  # of word_break.txt
MAX_LENGTH = 255  # UTF-16 units, the default of Lucene
_PIECES_KEPT = 1 << 17
_PIECE_LENGTH_KEPT = 64

# A byte's class is a sum of these bits. Two neighbours of a byte are enough to cut text.
PART = 1  # always of a word, or next to one
LETTER, DIGIT = 2, 4  # what a mark may stand between
FOREIGN = 8  # not ASCII: what a mark next to it is, the analyzer decides
MARK = 16  # of a word next to a foreign byte, and between the two that it joins; else a gap
JOINS = 5  # LETTER and DIGIT, so many bits higher: what a mark joins


def make_byte_classes(
    *,
    parts: str = "",
    letters: str = "",
    digits: str = "",
    letter_marks: str = "",
    digit_marks: str = "",
    other_marks: str = "",
) -> bytes:
    """The class of each byte, from ASCII characters of each kind; all others separate words.

    A character among `letter_marks` joins two letters, one among `digit_marks` two digits; one
    may be both. `other_marks` join nothing.
    """
    kinds = {
        PART: parts,
        PART | LETTER: letters,
        PART | DIGIT: digits,
        MARK | LETTER << JOINS: letter_marks,
        MARK | DIGIT << JOINS: digit_marks,
        MARK: other_marks,
    }
    classes = bytearray(128) + bytes([PART | FOREIGN]) * 128
    for byte_class, characters in kinds.items():
        for character in characters:
            classes[ord(character)] |= byte_class
    return bytes(classes)


# A paragraph of the file is a class and its hexadecimal ranges; the first one is a comment.
_PARAGRAPHS = Path(__file__).with_suffix(".txt").read_text(encoding="ascii").split("\n\n")[1:]
_RANGES = {name: ranges for name, *ranges in map(str.split, _PARAGRAPHS)}


def _set(*names: str, leave_out: str = "") -> str:
    parts = []
    for span in chain.from_iterable(_RANGES[name] for name in names):
        first, _, last = span.partition("-")
        parts.append("-".join(re.escape(chr(int(code, 16))) for code in (first, last or first)))
    members = f"[{''.join(parts)}]"
    return f"(?![{leave_out}]){members}" if leave_out else members


_ZWJ, _TEXT, _EMOJI = "\u200d", "\ufe0e", "\ufe0f"
_EX = f"{_set('Extend')}*"
_NUM_LET = f"{_set('ExtendNumLet')}{_EX}"
_HEBREW = f"{_set('Hebrew_Letter')}{_EX}"
_LETTER = f"{_set('ALetter', 'Hebrew_Letter')}{_EX}"
_NUMBER = f"{_set('Numeric')}{_EX}"
_KATAKANA = f"{_set('Katakana')}{_EX}"
_MID_LETTER = f"{_set('MidLetter', 'MidNumLet')}{_EX}"
_MID_NUMBER = f"{_set('MidNum', 'MidNumLet')}{_EX}"
_QUOTED = f"(?:'{_EX}|\"{_EX}{_HEBREW})"
# A Hebrew letter before a quotation mark leaves the run of letters, so that the mark joins it.
_RUN_LETTER = f"(?!{_HEBREW}{_QUOTED}){_LETTER}"
_RUN = (
    f"(?:{_KATAKANA}(?:(?:{_NUM_LET})*{_KATAKANA})*"
    f"|(?:{_HEBREW}{_QUOTED}"
    f"|{_NUMBER}(?:(?:(?:{_NUM_LET})*|{_MID_NUMBER}){_NUMBER})*"
    f"|{_RUN_LETTER}(?:(?:{_NUM_LET})*{_RUN_LETTER}|{_MID_LETTER}{_LETTER})*)+)"
)
# The look-arounds spare a search from, and to, every place in a long row of underscores, unless
# marks stand between these: see `_MARKED`.
_WORD = (
    f"(?:(?<!{_set('ExtendNumLet')})(?:{_NUM_LET})+(?!{_set('ExtendNumLet')}))?{_RUN}"
    f"(?:(?:{_NUM_LET})+{_RUN})*(?:{_NUM_LET})*"
)
_COMPLEX = f"(?:{_set('Complex_Context')}{_EX})+"
_SINGLE = f"{_set('Han', 'Hiragana')}{_EX}"

_PLAIN_EX = f"(?:{_set('Extend', leave_out=_TEXT + _EMOJI)})*"
_PICTURE = _set("Emoji")
_PICTURE_EX = f"(?:{_set('Extend', leave_out=_ZWJ + _TEXT + _EMOJI)}|{_ZWJ}+(?!{_ZWJ}|{_PICTURE}))*"
_TONES = "\U0001f3fb-\U0001f3ff"
_TONED = f"[{_TONES}]{_PICTURE_EX}"
_PICTURE_BODY = f"{_PICTURE}{_PICTURE_EX}{_EMOJI}?"
_REGION = f"{_set('Regional_Indicator')}{_EX}"
_PICTURES = (
    f"(?:(?:(?<!{_ZWJ}){_ZWJ}+)?{_PICTURE_BODY}|{_TONED})"
    f"(?:[\U000e0020-\U000e007e]+\U000e007f|(?:{_ZWJ}(?:{_ZWJ}*{_PICTURE_BODY}|{_TONED}))*)"
    f"|[0-9#*]{_PLAIN_EX}{_EMOJI}?\u20e3{_PLAIN_EX}"
    f"|{_REGION}{_REGION}"
)

_ASCII = re.compile(
    r"(?:(?<!_)_+)?[A-Za-z0-9][A-Za-z0-9_]*"
    r"(?:[.':,;](?:(?<=[A-Za-z][.':])(?=[A-Za-z])|(?<=[0-9][.',;])(?=[0-9]))[A-Za-z0-9_]+)*"
)
# As `_ASCII`, by byte. Next to a character that is not ASCII, a mark or a sign of the last kind may
# be part of a word: an apostrophe after a Hebrew letter, a quotation mark between two, a sign on a
# key.
BYTE_CLASSES = make_byte_classes(
    parts="_",
    letters=ascii_letters,
    digits=digits,
    letter_marks=".':",
    digit_marks=".',;",
    other_marks='"#*',
)
# Underscores with marks between them. A row of these before no word is searched from each place in
# it to its end, which only a window of fixed length keeps from being quadratic.
_MARKED = f"{_set('ExtendNumLet')}{_set('Extend')}+{_set('ExtendNumLet')}"
# Marks that are no token alone, and underscores. Scripts without spaces have other marks.
_NO_TOKEN = (
    f"(?:(?!{_set('Complex_Context')}|[{_TONES}])(?:{_set('ExtendNumLet')}|{_set('Extend')}))*"
)
# Letters that are pictures too: only comparing both readings tells which is longer.
_LETTER_PICTURES = "[\u2139\u24c2\U0001f170\U0001f171\U0001f17e\U0001f17f]"


class _Unicode(NamedTuple):
    """The patterns of text that is not ASCII. `token` is the longest token, unless the piece is
    `ambiguous`; `kinds` is each kind of token alone, and `no_token` a row, possibly empty, of
    characters that are no token without others."""

    token: re.Pattern[str]
    ambiguous: re.Pattern[str]
    kinds: tuple[re.Pattern[str], ...]
    no_token: re.Pattern[str]


@cache
def _unicode() -> _Unicode:
    # Not on import: compiling them takes time, and ASCII text needs none.
    kinds = (_WORD, _COMPLEX, _SINGLE, _PICTURES)
    token, ambiguous, no_token = "|".join(kinds), f"{_LETTER_PICTURES}|{_MARKED}", _NO_TOKEN
    patterns = map(re.compile, (token, ambiguous, no_token, *kinds))
    return _Unicode(next(patterns), next(patterns), no_token=next(patterns), kinds=tuple(patterns))


# White space for Python, but a word character (ExtendNumLet) for Annex #29.
_NARROW_SPACE = "\u202f"


def segment(text: str) -> list[str]:
    """The words of `text` in order, longer ones cut into pieces of at most 255 UTF-16 units."""
    if not text.isascii():
        if _NARROW_SPACE in text:
            return _segment_piece(text)
        return list(chain.from_iterable(map(_pieces.__getitem__, text.split())))
    if text.isalnum() and len(text) <= MAX_LENGTH:
        return [text]  # faster than the pattern
    words: list[str] = _ASCII.findall(text)
    if max(map(len, words), default=0) <= MAX_LENGTH:
        return words
    return [part for word in words for part in ([word] if len(word) <= MAX_LENGTH else scan(word))]


def _segment_piece(piece: str) -> list[str]:
    patterns = _unicode()
    if patterns.ambiguous.search(piece):
        return scan(piece)
    words: list[str] = patterns.token.findall(piece)
    # Every character is at most two UTF-16 units.
    return scan(piece) if max(map(len, words), default=0) > MAX_LENGTH // 2 else words


def scan(text: str) -> list[str]:
    """The specification itself, slowly: at each place the longest match within 255 units."""
    patterns, words, position = _unicode(), [], 0
    while position < len(text):
        window = _within_limit(text[position : position + MAX_LENGTH])
        ends = [match.end() for kind in patterns.kinds if (match := kind.match(window))]
        if ends:
            words.append(window[: max(ends)])
            position += max(ends)
        else:
            # Windows that lie within a row without a token are passed over.
            row = patterns.no_token.match(text, position)
            row_end = row.end() if row else position
            position = max(position, row_end - MAX_LENGTH) + 1
    return words


def _within_limit(window: str) -> str:
    units = window.encode("utf-16-le", "surrogatepass")[: 2 * MAX_LENGTH]
    if len(units) == 2 * MAX_LENGTH and 0xD8 <= units[-1] < 0xDC:
        units = units[:-2]
    return units.decode("utf-16-le", "surrogatepass")


class _Pieces(dict[str, tuple[str, ...]]):
    """Words of each piece of text between white space, remembered up to a number of pieces."""

    def __missing__(self, piece: str) -> tuple[str, ...]:
        words = tuple(segment(piece) if piece.isascii() else _segment_piece(piece))
        if len(piece) <= _PIECE_LENGTH_KEPT:
            if len(self) >= _PIECES_KEPT:
                self.clear()
            self[piece] = words
        return words


_pieces = _Pieces()
