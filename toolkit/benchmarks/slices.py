"""Parts of a benchmark's questions that depend on nothing but their ids."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from toolkit.checks import check_integer, is_number
from toolkit.contracts import Topic
from toolkit.errors import InputError

SPLITS = ("dev", "test")


def sliced(
    topics: Sequence[Topic],
    *,
    split: str | None = None,
    dev_share: float = 0.5,
    sample: int | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> list[Topic]:
    """The questions of `split` (None: all), of these the `sample` of `seed` (None: all), of these
    the first `limit` (None: all), in their order.

    A question is of `dev` where the hash of its id falls into the first `dev_share` of all hashes,
    else of `test`: it stays where it is when others come or go. A larger sample of one seed holds
    the smaller ones. `InputError` for impossible values and for a slice without a question.
    """
    _check(split, dev_share, sample, seed, limit)
    chosen = list(topics)
    if split is not None:
        dev = [topic for topic in chosen if _share("split", topic.qid) < dev_share]
        chosen = dev if split == "dev" else [topic for topic in chosen if topic not in set(dev)]
    if sample is not None:
        if sample > len(chosen):
            raise InputError(
                f"sample={sample}", valid=f"at most the {len(chosen)} questions that there are"
            )
        lowest = sorted(chosen, key=lambda topic: _share(f"sample {seed}", topic.qid))[:sample]
        members = {topic.qid for topic in lowest}
        chosen = [topic for topic in chosen if topic.qid in members]
    if not chosen:
        raise InputError(
            f"split={split} of {len(topics)} questions holds none", do="choose another share"
        )
    return chosen[:limit]


def _share(purpose: str, qid: str) -> float:
    """A number from 0 to 1 by the id, which differs between purposes."""
    digest = hashlib.sha256(f"{purpose}\0{qid}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def check_limit(name: str, value: int | None) -> None:
    """`InputError` for a number of questions that is none; None stands for all."""
    if value is not None:
        check_integer(name, value, do="set it to null for all questions")


def _check(
    split: str | None, dev_share: float, sample: int | None, seed: int, limit: int | None
) -> None:
    if split is not None and split not in SPLITS:
        raise InputError(
            f"split={split!r}", valid=f"{', '.join(SPLITS)}, or null for all questions"
        )
    if not is_number(dev_share) or not 0 < dev_share < 1:
        raise InputError(f"dev_share={dev_share!r}", valid="a number between 0 and 1")
    check_limit("sample", sample)
    check_limit("limit", limit)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed={seed!r}", valid="an integer")
