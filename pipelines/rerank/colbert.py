"""Re-ranking by the vectors of ColBERT: a text is encoded when it is scored, and needs no index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from soundingline.pipelines.learned.colbert import ColBERT
from soundingline.pipelines.learned.vectors import DocumentVectors, maxsim
from soundingline.pipelines.rerank.reranker import NeuralScorer
from soundingline.pipelines.stage import shared
from soundingline.toolkit.files import fingerprint

_TEXTS = 256  # whose vectors are held at the same time


@dataclass(kw_only=True, eq=False, repr=False)
class ColBERTReranker(NeuralScorer):
    """Scores by MaxSim (Khattab and Zaharia, SIGIR 2020) in float32.

    Args:
        query_max_length: Tokens that hold a query. The default is the checkpoint's own.

    Columns, `InputError`s and other arguments are those of `NeuralScorer` and `Scorer`;
    `ColBERT` says which checkpoints can be read. The `counts` add `pairs`; the different texts that
    were `encoded`, and those that were `truncated`. A text is encoded once for all queries of a
    batch.

    Example:
        >>> colbert = RerankTop(ColBERTReranker(), depth=50, texts=index.texts)
        >>> pipe = index.bm25() >> colbert >> MaxP()
        >>> pipe.search("old river")  # doctest: +SKIP
    """

    model: str = field(default="colbert-ir/colbertv2.0", kw_only=False)
    query_max_length: int | None = None

    extra = "learned"
    counted = ("pairs", "encoded", "truncated")

    @property
    @shared
    def encoder(self) -> ColBERT:
        """The model, which encodes queries and texts."""
        return ColBERT(
            self.model,
            revision=self.revision,
            max_length=self.max_length,
            query_max_length=self.query_max_length,
            device=self.device,
            dtype=self.dtype,
            batch_tokens=self.batch_tokens,
            storage="float32",
        )

    @property
    @shared
    def fingerprint(self) -> str:
        return fingerprint("maxsim", self.encoder.fingerprint)

    def score(self, queries: Sequence[str], texts: Sequence[str]) -> list[float]:
        positions_of: dict[str, list[int]] = {}
        for position, text in enumerate(texts):
            positions_of.setdefault(text, []).append(position)
        different = list(dict.fromkeys(queries))
        vectors = dict(zip(different, self.encoder.encode_queries(different), strict=True))
        scores = [0.0] * len(queries)
        # Longest first, so that texts of similar length share a batch.
        by_length = sorted(positions_of, key=len, reverse=True)
        for start in range(0, len(by_length), _TEXTS):
            self._batches.check_wanted()
            part = by_length[start : start + _TEXTS]
            tokens = self.encoder.tokenize(part)
            truncated = sum(bool(each.overflowing) for each in tokens.features.encodings)
            self.count.add(encoded=len(part), truncated=truncated)
            for text, rows in zip(part, self.encoder.encode_tokens(tokens), strict=True):
                document = DocumentVectors(rows, np.array([0, len(rows)]))
                positions = positions_of[text]
                of_text = maxsim([vectors[queries[index]] for index in positions], document)
                for position, score in zip(positions, of_text[:, 0].tolist(), strict=True):
                    scores[position] = score
        self.count.add(pairs=len(queries))
        return scores

    def windows(self, query: str, text: str) -> list[str]:
        """The text in parts that the model reads to their end; all of it if it fits."""
        return self.encoder.windows(text)
