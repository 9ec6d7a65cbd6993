"""Figures of a sample of pages, to compare with real collections."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from toolkit.benchmarks.fictional.articles import Articles

_WORD = re.compile(r"\w+")


def described(articles: Articles, size: int, sample: int) -> dict[str, float]:
    """See `FictionalWorld.statistics`."""
    counts: Counter[str] = Counter()
    lengths = []
    for turn in range(sample):
        words = _WORD.findall(articles.document(turn * size // sample).text.lower())
        counts.update(words)
        lengths.append(len(words))
    return {
        "documents": size,
        "sample": sample,
        "mean": float(np.mean(lengths)),
        "median": float(np.median(lengths)),
        "p90": float(np.percentile(lengths, 90)),
        "max": max(lengths),
        "words": sum(lengths),
        "distinct": len(counts),
        "singletons": sum(count == 1 for count in counts.values()),
        "expected_words": round(float(np.mean(lengths)) * size),
    }
