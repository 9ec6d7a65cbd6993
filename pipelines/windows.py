"""Windows of texts that are longer than a model reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def replace_surrogates(text: str) -> str:
    """`text` with a `?` for each lone surrogate: JSON can hold them, tokenizers reject them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def least_window(max_length: int) -> int:
    """The fewest tokens of a window if `max_length` tokens hold a query and the window. A text is
    not split if the query leaves less room."""
    return max(1, max_length // 8)


def cut(text: str, begins: Sequence[int], size: int) -> list[str]:
    """Split `text` into pieces of at most `size` of its tokens, which begin at the characters
    `begins`. Joined, the pieces are `text`. It is cut before a word if one begins in the piece,
    otherwise within the word, and never between tokens that begin at the same character."""
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
    sizes: Callable[[Sequence[str]], Iterable[int]],
    aim: int | None = None,
) -> list[str]:
    """Split `text` as `cut` does, into pieces that each have at most `room` tokens by themselves or
    cannot be cut further.

    `begins` gives the characters at which the tokens of a text begin, `sizes` the number of tokens
    of each text by itself, and `aim` is that of a piece within `text`, at first `room`.
    """
    aim = aim or room
    pieces, fitted = cut(text, begins(text), aim), []
    for piece, size in zip(pieces, sizes(pieces), strict=True):
        # A piece can have more tokens by itself than in the text.
        smaller = size > room and aim > 1
        fitted += fitting(piece, room, begins, sizes, aim * 3 // 4) if smaller else [piece]
    return fitted


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
