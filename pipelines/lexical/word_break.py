"""Word segmentation equal to Lucene's `StandardTokenizer` (Unicode Standard Annex #29), and tables
of word forms.

The longest token at each place wins; what belongs to no token is skipped. ASCII text takes one
simple pattern. Other text is cut at white space, which no token spans, so that the expensive
pattern meets each distinct piece once. The classes of code points are in `word_break.txt`.

`make_byte_classes` describes for an analyzer where its words may end, byte by byte, so that
`WordTable` cuts text and numbers its forms in one compiled pass, and the analyzer analyses each
distinct form once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from string import ascii_letters, digits
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.lexical.storage import to_texts
from soundingline.toolkit.jit import compiled

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
# Marks that are not a token alone, and underscores. Scripts without spaces have other marks.
_NO_TOKEN = (
    f"(?:(?!{_set('Complex_Context')}|[{_TONES}])(?:{_set('ExtendNumLet')}|{_set('Extend')}))*"
)
# Letters that are pictures too: only comparing both readings tells which is longer.
_LETTER_PICTURES = "[\u2139\u24c2\U0001f170\U0001f171\U0001f17e\U0001f17f]"


class _Unicode(NamedTuple):
    """The patterns of text that is not ASCII. `token` is the longest token, unless the piece is
    `ambiguous`; `kinds` is each kind of token alone, and `no_token` a row, possibly empty, of
    characters that are not a token without others."""

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
    units = window.encode("utf-16-le")[: 2 * MAX_LENGTH]
    if len(units) == 2 * MAX_LENGTH and 0xD8 <= units[-1] < 0xDC:
        units = units[:-2]
    return units.decode("utf-16-le")


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


# Tables of word forms.

_SLOTS = 1 << 12
_BYTES = 1 << 14
# Odd numbers without pattern; what is compiled computes in 64 bits without a sign.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_LAST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_BYTE, _HALF, _TOP = np.uint64(8), np.uint64(32), np.uint64(56)
_LOW, _LONG = np.uint64(0xFFFFFFFF), np.uint64(0x80000000)
_WHOLE = 8  # bytes that a slot holds


class WordTable:
    """Numbers distinct word forms in the order of their first occurrence.

    An open hash table of two numbers a slot, at most three quarters full, and all forms one after
    another. A slot has the last eight bytes of its form, then in 32 bits the length or, for a
    longer form, a hash of what comes before these, and in 32 bits the form's number and one. So
    most forms are distinguished by their slots alone, which lie together in memory.

    Args:
        classes: the class of each byte (see `make_byte_classes`), which decides where
            forms end.
    """

    def __init__(self, classes: bytes) -> None:
        self._classes = np.frombuffer(classes, np.uint8)
        # As Python's hashes it differs by process, so that no text can be made to collide in it.
        self._seed = np.uint64(hash("word form") & 0xFFFFFFFFFFFFFFFF)
        self.clear()

    def clear(self) -> None:
        """Forget all forms."""
        self._slots = np.zeros(2 * _SLOTS, np.uint64)
        self._ends = np.zeros(_SLOTS * 3 // 4 + 1, np.int64)
        self._kept = np.empty(_BYTES, np.uint8)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def length(self) -> int:
        """Bytes of all forms."""
        return int(self._ends[self._size])

    def forms(self, first: int) -> list[str]:
        """The forms from number `first` on, in the order of their numbers."""
        ends = self._ends[first : self._size + 1]
        data = self._kept[ends[0] : ends[-1]].tobytes()
        return to_texts(data, (ends - ends[0]).tolist())

    def numbers(self, texts: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The number of each form of the texts, and where those of each text end."""
        data = np.frombuffer(b"".join(texts), np.uint8)
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        numbers = np.empty((len(data) + len(texts)) // 2, np.int32)
        number_ends = np.empty(len(texts), np.int64)
        state = np.array([0, 0, 0, self._size, 0])
        while not number_forms(
            data,
            ends,
            self._classes,
            self._seed,
            self._slots,
            self._ends,
            self._kept,
            state,
            numbers,
            number_ends,
        ):
            self._grow(int(state[3]), int(state[4]))
        self._size = int(state[3])
        return numbers[: state[2]], number_ends

    def _grow(self, size: int, room: int) -> None:
        """Make room for one form more, of `room` bytes."""
        if size == len(self._ends) - 1:
            slots = np.zeros(2 * len(self._slots), np.uint64)
            move(self._slots, slots, self._seed)
            self._slots = slots
            self._ends = np.concatenate([self._ends, np.empty(size, np.int64)])
        if (needed := int(self._ends[size]) + room) > len(self._kept):
            more = max(needed, 2 * len(self._kept)) - len(self._kept)
            self._kept = np.concatenate([self._kept, np.empty(more, np.uint8)])


@compiled
def number_forms(
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    classes: NDArray[np.uint8],
    seed: Any,
    slots: NDArray[np.uint64],
    form_ends: NDArray[np.int64],
    forms: NDArray[np.uint8],
    state: NDArray[np.int64],
    numbers: NDArray[np.int32],
    number_ends: NDArray[np.int64],
) -> bool:
    """Number the forms of the texts in `data`, which end at `ends`, from where `state` says:
    text, byte, forms met, distinct forms. False where there is no room for a new
    form; the last value of `state` is its length then, and the next call goes on with it."""
    row, position, count, size = state[0], state[1], state[2], state[3]
    while row < len(ends):
        first, last = ends[row - 1] if row > 0 else 0, ends[row]
        while position < last:
            end = position
            tail = np.uint64(0)
            before_last = seed
            while end < last:
                byte = data[end]
                kind = classes[byte]
                if not kind & PART:
                    if not kind & MARK:
                        break
                    left = classes[data[end - 1]] if end > first else 0
                    right = classes[data[end + 1]] if end + 1 < last else 0
                    if not ((left | right) & FOREIGN or left & right & (kind >> JOINS)):
                        break
                before_last = (before_last + (tail >> _TOP)) * _FACTOR
                tail = tail << _BYTE | np.uint64(byte)
                end += 1
            length = end - position
            rest = np.uint64(length) if length <= _WHOLE else before_last >> _HALF | _LONG
            if end == position:
                position += 1
                continue
            number, slot = find_form(slots, form_ends, forms, tail, rest, seed, data, position, end)
            if number < 0:
                if not keep_form(
                    slots, form_ends, forms, slot, tail, rest, size, data, position, end
                ):
                    state[:] = (row, position, count, size, end - position)
                    return False
                number = size
                size += 1
            numbers[count] = number
            count += 1
            position = end
        number_ends[row] = count
        row += 1
    state[:] = (row, position, count, size, 0)
    return True


@compiled
def find_form(
    slots: NDArray[np.uint64],
    ends: NDArray[np.int64],
    kept: NDArray[np.uint8],
    last: Any,
    rest: Any,
    seed: Any,
    data: NDArray[np.uint8],
    start: int,
    end: int,
) -> tuple[int, int]:
    """The number of the form from `start` to `end` of `data`, -1 for a new one, and its slot."""
    slot = first_slot(last, rest, seed, len(slots))
    while slots[slot + 1] != 0:
        if slots[slot] == last and slots[slot + 1] >> _HALF == rest:
            number = np.int64(slots[slot + 1] & _LOW) - 1
            length = end - start
            if length <= _WHOLE or is_at(kept, ends[number], ends[number + 1], data, start, length):
                return number, slot
        slot = (slot + 2) & (len(slots) - 1)
    return np.int64(-1), slot


@compiled
def keep_form(
    slots: NDArray[np.uint64],
    ends: NDArray[np.int64],
    kept: NDArray[np.uint8],
    slot: int,
    last: Any,
    rest: Any,
    size: int,
    data: NDArray[np.uint8],
    start: int,
    end: int,
) -> bool:
    """Put a new form into its slot as number `size`; false if there is no room for it."""
    first = ends[size]
    if size == len(ends) - 1 or first + end - start > len(kept):
        return False
    for step in range(end - start):
        kept[first + step] = data[start + step]
    ends[size + 1] = first + end - start
    slots[slot], slots[slot + 1] = last, rest << _HALF | np.uint64(size + 1)
    return True


@compiled
def is_at(
    forms: NDArray[np.uint8], first: int, end: int, data: NDArray[np.uint8], start: int, length: int
) -> bool:
    """Whether the form from `first` to `end` of `forms` is the one in `data`."""
    if end - first != length:
        return False
    same = 0
    while same < length and forms[first + same] == data[start + same]:
        same += 1
    return same == length


@compiled
def first_slot(last: Any, rest: Any, seed: Any, size: int) -> int:
    """Where the search for a form begins; `size` is a power of two."""
    key = last ^ seed
    key = (key ^ (key >> _HALF)) * _FACTOR + rest * _LAST_FACTOR
    key = (key ^ (key >> _HALF)) * _LAST_FACTOR
    return int(key >> _HALF) * 2 & (size - 1)


@compiled
def move(slots: NDArray[np.uint64], larger: NDArray[np.uint64], seed: Any) -> None:
    """Put what is in `slots` into an empty table of more."""
    for old in range(0, len(slots), 2):
        if slots[old + 1] != 0:
            slot = first_slot(slots[old], slots[old + 1] >> _HALF, seed, len(larger))
            while larger[slot + 1] != 0:
                slot = (slot + 2) & (len(larger) - 1)
            larger[slot], larger[slot + 1] = slots[old], slots[old + 1]
