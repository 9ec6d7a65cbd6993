"""Word forms of text: cut by their bytes and numbered in one compiled pass, so that an analyzer
analyses each distinct form once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.lexical.storage import to_text
from soundingline.pipelines.lexical.word_break import FOREIGN, JOINS, MARK, PART
from soundingline.toolkit.jit import compiled

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
        classes: the class of each byte (see `word_break.make_byte_classes`), which decides where
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
        bounds = (ends - ends[0]).tolist()
        pairs = pairwise(bounds)
        if data.isascii():  # all to text at once is faster
            text = data.decode("ascii")
            return [text[start:end] for start, end in pairs]
        return [to_text(data[start:end]) for start, end in pairs]

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
    text, byte, forms met, distinct forms. False where a new form lacks room; the last value of
    `state` is its length then, and the next call goes on with it."""
    row, position, count, size = state[0], state[1], state[2], state[3]
    while row < len(ends):
        first = ends[row - 1] if row > 0 else 0
        end = ends[row]
        while position < end:
            start = position
            last = np.uint64(0)
            before_last = seed
            while position < end:
                byte = data[position]
                kind = classes[byte]
                if not kind & PART:
                    if not kind & MARK:
                        break
                    left = classes[data[position - 1]] if position > first else 0
                    right = classes[data[position + 1]] if position + 1 < end else 0
                    if not ((left | right) & FOREIGN or left & right & (kind >> JOINS)):
                        break
                before_last = (before_last + (last >> _TOP)) * _FACTOR
                last = last << _BYTE | np.uint64(byte)
                position += 1
            length = position - start
            if length == 0:
                position += 1
                continue
            rest = np.uint64(length) if length <= _WHOLE else before_last >> _HALF | _LONG
            slot = first_slot(last, rest, seed, len(slots))
            number = np.int64(-1)
            while slots[slot + 1] != 0:
                if slots[slot] == last and slots[slot + 1] >> _HALF == rest:
                    candidate = np.int64(slots[slot + 1] & _LOW) - 1
                    if length <= _WHOLE or is_at(
                        forms, form_ends[candidate], form_ends[candidate + 1], data, start, length
                    ):
                        number = candidate
                        break
                slot = (slot + 2) & (len(slots) - 1)
            if number < 0:
                number = size
                kept_end = form_ends[size] + length
                if size == len(form_ends) - 1 or kept_end > len(forms):
                    state[0], state[1], state[2], state[3] = row, start, count, size
                    state[4] = length
                    return False
                for step in range(length):
                    forms[kept_end - length + step] = data[start + step]
                size += 1
                form_ends[size] = kept_end
                slots[slot] = last
                slots[slot + 1] = rest << _HALF | np.uint64(size)
            numbers[count] = number
            count += 1
        number_ends[row] = count
        row += 1
    state[0], state[1], state[2], state[3] = row, position, count, size
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
