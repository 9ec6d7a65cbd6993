"""Windows of texts that are longer than a model reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def least_window(max_length: int) -> int:
    """The fewest tokens of a window if `max_length` tokens hold a query and the window. A text is
    not split if the query leaves less room."""
    return max(1, max_length // 8)


def split_into_windows(
    text: str,
    room: int,
    tokenize: Callable[..., Any],
    sizes: Callable[[Sequence[str]], Iterable[int]] | None = None,
    aim: int | None = None,
) -> list[str]:
    """Split `text` as `split_at_tokens` does, into pieces that each have at most `room` tokens by
    themselves or cannot be cut further. Joined, the pieces are `text`.

    Args:
        tokenize: A fast tokenizer of transformers, or a function with its arguments.
        sizes: The number of tokens of each of some texts by itself. The default is that of
            `tokenize` without special tokens.
        aim: Tokens of a piece within `text`, at first `room`.
    """
    aim = aim or room
    offsets = tokenize(text, add_special_tokens=False, return_offsets_mapping=True)
    pieces = split_at_tokens(text, [begin for begin, _ in offsets["offset_mapping"]], aim)
    lengths: Iterable[int]
    if sizes is None:
        lengths = map(len, tokenize(pieces, add_special_tokens=False)["input_ids"])
    else:
        lengths = sizes(pieces)
    windows = []
    for piece, size in zip(pieces, lengths, strict=True):
        # A piece can have more tokens by itself than in the text.
        if size > room and aim > 1:
            windows += split_into_windows(piece, room, tokenize, sizes, aim * 3 // 4)
        else:
            windows.append(piece)
    return windows


def split_at_tokens(text: str, begins: Sequence[int], size: int) -> list[str]:
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


def _opens_word(text: str, position: int) -> bool:
    # The tokens of some models begin with the space before the word.
    return text[position].isspace() or text[position - 1].isspace()


def split_from_front(text: str, front: Callable[[str], str]) -> list[str]:
    """Split `text` for a model whose tokens are only estimated: into what `front` gives of the
    text, of the rest, and so on, with the white space between these left out. There is at least one
    piece, which is empty for a text without a word."""
    pieces = []
    rest = text.strip()
    while rest:
        pieces.append(front(rest))
        rest = rest[len(pieces[-1]) :].lstrip()
    return pieces or [""]
