"""Texts as tokenizers take them, and long ones in pieces that a model reads whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


def readable(text: str) -> str:
    """`text` as tokenizers take it: a lone surrogate, which JSON can carry, becomes a `?`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def cut(text: str, begins: Sequence[int], size: int) -> list[str]:
    """`text` in pieces that hold at most `size` of its tokens, which begin at the characters
    `begins`; joined, the pieces are `text`. Cut before a word where one begins in the piece, else
    within the word; never between tokens that begin at one character."""
    pieces, begin, first = [], 0, 0
    while len(begins) - first > size:
        last = first + size
        words = (token for token in range(last, first, -1) if _opens_word(text, begins[token]))
        after = next(words, last)
        while after > first + 1 and begins[after - 1] == begins[after]:
            after -= 1
        while after < len(begins) and begins[after] <= begin:
            after += 1
        if after == len(begins):
            break
        end = begins[after]
        pieces.append(text[begin:end])
        begin, first = end, after
    return [*pieces, text[begin:]]


def fitting(
    text: str,
    room: int,
    begins: Callable[[str], Sequence[int]],
    sizes: Callable[[Sequence[str]], Sequence[int]],
) -> list[str]:
    """`text` in pieces as `cut` makes them, each of which has at most `room` tokens by itself, or
    cannot be cut further. `begins`: of the tokens of a text; `sizes`: tokens of each text."""
    return list(_fitting(text, room, room, begins, sizes))


def _fitting(
    text: str,
    room: int,
    aim: int,
    begins: Callable[[str], Sequence[int]],
    sizes: Callable[[Sequence[str]], Sequence[int]],
) -> Iterator[str]:
    pieces = cut(text, begins(text), aim)
    for piece, size in zip(pieces, sizes(pieces), strict=True):
        # By itself a piece can have more tokens than it had in the text.
        if size <= room or aim == 1:
            yield piece
        else:
            yield from _fitting(piece, room, aim * 3 // 4, begins, sizes)


def taken_off(text: str, front: Callable[[str], str]) -> list[str]:
    """`text` in pieces between which white space is left out: what `front` gives of the rest, again
    and again. One piece at least, which is empty for a text without a word."""
    pieces = []
    rest = text.strip()
    while rest:
        pieces.append(front(rest))
        rest = rest[len(pieces[-1]) :].lstrip()
    return pieces or [""]


def _opens_word(text: str, position: int) -> bool:
    # The tokens of some models begin with the space before the word.
    return text[position].isspace() or text[position - 1].isspace()
