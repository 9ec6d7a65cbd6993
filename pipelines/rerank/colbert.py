"""ColBERT as a re-ranker of any first stage: documents are encoded when they are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from soundingline.pipelines.counts import shared_property
from soundingline.pipelines.learned.colbert_encoder import ColbertEncoder
from soundingline.pipelines.learned.vector_search import DocumentVectors, maxsim
from soundingline.pipelines.rerank.reranker import NeuralReranker, Pair
from soundingline.toolkit.files import fingerprint

_TEXTS = 256  # whose vectors are in memory at the same time


@dataclass(kw_only=True, eq=False, repr=False)
class ColBERT(NeuralReranker):
    """Re-ranks by MaxSim (Khattab and Zaharia, SIGIR 2020) in float32.

    Args:
        query_max_length: Tokens that hold a query. The default is the checkpoint's own.

    Columns, `InputError`s and other arguments are those of `NeuralReranker` and `Reranker`;
    `ColbertEncoder` says which checkpoints can be read. The `counts` add `pairs`; the different
    texts that were `encoded`, and those that were `truncated`. A text is encoded once for all
    queries of a batch.
    """

    model: str = field(default="colbert-ir/colbertv2.0", kw_only=False)
    query_max_length: int | None = None

    counted = ("pairs", "encoded", "truncated")

    @shared_property
    def encoder(self) -> ColbertEncoder:
        """What encodes queries and texts."""
        return self._part(ColbertEncoder, storage="float32")

    @shared_property
    def fingerprint(self) -> str:  # type: ignore[override]
        return fingerprint("maxsim", self.encoder.fingerprint)

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        positions_of: dict[str, list[int]] = {}
        for position, pair in enumerate(pairs):
            positions_of.setdefault(pair.text, []).append(position)
        queries = list(dict.fromkeys(pair.query for pair in pairs))
        vectors = dict(zip(queries, self.encoder.encode_queries(queries), strict=True))
        scores = [0.0] * len(pairs)
        # Longest first, so that texts of similar length share a batch.
        texts = sorted(positions_of, key=len, reverse=True)
        for start in range(0, len(texts), _TEXTS):
            part = texts[start : start + _TEXTS]
            lengths = self.encoder.whole_lengths(part)
            truncated = sum(length > self.encoder.limit for length in lengths)
            self.count.add(encoded=len(part), truncated=truncated)
            for text, tokens in zip(part, self.encoder.encode(part), strict=True):
                document = DocumentVectors(tokens, np.array([0, len(tokens)]))
                positions = positions_of[text]
                of_text = maxsim([vectors[pairs[index].query] for index in positions], document)
                for position, score in zip(positions, of_text[:, 0].tolist(), strict=True):
                    scores[position] = score
        self.count.add(pairs=len(pairs))
        return scores

    def windows(self, pair: Pair) -> list[str]:
        """The document in parts that are each read whole; the whole document if it fits."""
        return self.encoder.windows(pair.text)
