"""The slices of BrowseComp-Plus on which Pi-Serini was measured."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from soundingline.toolkit.errors import InputError

# Questions of each stratum of q100: recall@1000 of default BM25, and evidence documents.
_NAMES = [f"{recall}_{size}" for recall in ("low", "medium", "high") for size in ("small", "large")]
STRATA = {"zero_small": 10, "zero_large": 20, "tiny_large": 10, **dict.fromkeys(_NAMES, 10)}
_RECALLS = ((0.0, "zero"), (0.1, "tiny"), (0.25, "low"), (0.5, "medium"), (1.0, "high"))
_SMALL = 5  # evidence documents
_SEED = 42


def stratum(recall: float, relevant: int) -> str:
    """The stratum of a question with this recall@1000 and this number of evidence documents.

    Example:
        >>> stratum(0.1, 6)
        'tiny_large'
    """
    difficulty = next(name for bound, name in _RECALLS if recall <= bound)
    return f"{difficulty}_{'small' if relevant <= _SMALL else 'large'}"


def pi_serini_slices(
    strata: Mapping[str, str], allocation: Mapping[str, int] = STRATA, total: int = 300
) -> tuple[list[str], list[str]]:
    """The ids of Pi-Serini's slices q100 and q300 (arXiv 2605.10848) in numerical order.

    Both are drawn with seed 42, stratum by stratum in the order of their names, from ids in their
    numerical order. The second slice, of `total` questions, contains the first; its other questions
    are allotted to the strata in the same proportions by largest remainders, as far as a stratum
    has questions. `InputError` for ids that are not numbers, and if there are too few questions.

    Args:
        strata: the `stratum` of each question, which depends on a run of BM25.
        allocation: questions of each stratum in the first slice.
        total: questions of the second slice.
    """
    if not all(qid.isdecimal() for qid in strata):
        raise InputError(
            "a question has an id that is not a number", valid="ids of BrowseComp-Plus"
        )
    first = _draw(strata, allocation)
    left = {qid: name for qid, name in strata.items() if qid not in first}
    more = _allotted(
        total - len(first), Counter(strata.values()), Counter(left.values()), allocation
    )
    second = {*first, *_draw(left, more)}
    return sorted(first, key=int), sorted(second, key=int)


def _draw(strata: Mapping[str, str], allocation: Mapping[str, int]) -> set[str]:
    generator = random.Random(_SEED)
    drawn: set[str] = set()
    for name in sorted(allocation):
        qids = sorted((qid for qid, of in strata.items() if of == name), key=int)
        if len(qids) < allocation[name]:
            raise InputError(
                f"the stratum {name} has {len(qids)} of {allocation[name]} questions",
                valid="a ranking of all questions of BrowseComp-Plus by default BM25, 1,000 deep",
            )
        if allocation[name]:
            drawn.update(generator.sample(qids, allocation[name]))
    return drawn


def _allotted(
    count: int, population: Mapping[str, int], room: Mapping[str, int], weights: Mapping[str, int]
) -> dict[str, int]:
    """`count` questions over the strata by `weights`, at most the `room` of each."""
    allotted = dict.fromkeys(weights, 0)
    while count > 0:
        free = [name for name in weights if weights[name] and allotted[name] < room.get(name, 0)]
        if not free:
            raise InputError(f"{count} questions too few for the second slice")
        total = sum(weights[name] for name in free)
        targets = {name: count * weights[name] / total for name in free}
        for name in free:
            amount = min(int(targets[name]), room[name] - allotted[name])
            allotted[name] += amount
            count -= amount
        ranks = {n: (targets[n] % 1, weights[n], population[n], n) for n in free}
        for name in sorted(free, key=ranks.__getitem__, reverse=True):
            if count and allotted[name] < room[name]:
                allotted[name] += 1
                count -= 1
    return allotted
