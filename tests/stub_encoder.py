"""Encoders without a model: vectors that are drawn by the length of a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Stub:
    """A `VectorEncoder`, of one vector a text (`single`) or of several."""

    single: bool
    name: str = "stub"
    model: str = "stub"
    fingerprint: str = "stub"
    device: Any = "cpu"
    batch_tokens: int = 1 << 12
    storage: str = "float16"
    dimensions: int = 8
    settings: Mapping[str, Any] = field(default_factory=dict)

    def tokenized(self, texts):
        return list(texts), self.lengths(texts)

    def lengths(self, texts):
        return [1 + len(text) // 8 for text in texts]

    def encode_tokenized(self, items):
        return [rows[0] if self.single else rows.astype(np.float16) for rows in map(_drawn, items)]

    def encode_queries(self, texts):
        return [rows[0] if self.single else rows for rows in map(_drawn, texts)]


class StubSparse(Stub):
    """A `TextEncoder` of (term, weight) pairs; terms are 0 to 51."""

    def __init__(self) -> None:
        super().__init__(single=True)

    def encode_tokenized(self, items):
        from soundingline.pipelines.learned.encoding import SPARSE

        terms = [sorted({len(text) % 50, 50, 51}) for text in items]
        return [np.array([(term, 1.0 + term / 7) for term in each], SPARSE) for each in terms]


def _drawn(text):
    shape = 1 + len(text) // 8, 8
    return np.random.default_rng(len(text)).normal(size=shape).astype(np.float32)


def vector_engine(kind):
    """The `dense` or the `colbert` engine with such an encoder."""
    if kind == "dense":
        from soundingline.pipelines.learned.dense import DenseEngine

        return DenseEngine(Stub(single=True))  # type: ignore[arg-type]
    from soundingline.pipelines.learned.colbert import ColbertEngine

    return ColbertEngine(Stub(single=False))  # type: ignore[arg-type]
