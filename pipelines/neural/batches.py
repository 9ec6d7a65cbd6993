"""Batches filled by tokens, of texts of like length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from toolkit.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")


def by_tokens(
    lengths: Sequence[int], max_tokens: int, max_items: int | None = None
) -> list[list[int]]:
    """Positions of the texts in batches whose padded size (items x longest) is at most
    `max_tokens`, and of at most `max_items` texts. Longest first: what does not fit in memory fails
    at once, and texts of like length share a batch, so that little is padding. A text longer than
    `max_tokens` is a batch by itself."""
    if max_tokens < 1 or (max_items is not None and max_items < 1):
        raise InputError(
            f"batches of {max_tokens} tokens and {max_items} texts", valid="1 or more of each"
        )
    batches: list[list[int]] = []
    room = 0
    for position in sorted(range(len(lengths)), key=lambda position: -lengths[position]):
        if room == 0:
            batches.append([])
            # The first of a batch is its longest.
            room = max(1, max_tokens // max(1, lengths[position]))
            room = min(room, max_items or room)
        batches[-1].append(position)
        room -= 1
    return batches


def in_batches(
    compute: Callable[[list[Item]], Iterable[Result]],
    items: Sequence[Item],
    lengths: Sequence[int],
    max_tokens: int,
) -> list[Result]:
    """What `compute` gives for each item, one a result, in the order of `items`; it is called with
    the batches of `by_tokens`. `ValueError` where it gives another number."""
    results: dict[int, Result] = {}
    for positions in by_tokens(lengths, max_tokens):
        batch_results = compute([items[position] for position in positions])
        results.update(zip(positions, batch_results, strict=True))
    return [results[position] for position in range(len(items))]
