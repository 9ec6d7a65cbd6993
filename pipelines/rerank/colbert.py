"""ColBERT as a re-ranker of any first stage: documents are encoded when they are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pipelines.learned.colbert_encoder import ColbertEncoder
from pipelines.learned.vector_search import DocumentVectors, maxsim
from pipelines.rerank.base import Pair
from pipelines.rerank.stage import Reranker
from pipelines.stage import Texts
from toolkit.counts import Counts
from toolkit.errors import InputError
from toolkit.files import fingerprint

_TEXTS = 256  # whose vectors are held at once


class ColbertScorer:
    """MaxSim of each query with each text, in float32. Thread-safe.

    A text that several queries ask for is encoded once a call. `counts`, cumulative: `pairs`
    scored; different texts `encoded`, of these `truncated` to what the model reads.
    """

    def __init__(self, encoder: ColbertEncoder) -> None:
        if encoder.storage != "float32":
            raise InputError(
                f"storage={encoder.storage!r} for vectors that are not stored", valid="float32"
            )
        self.encoder = encoder
        self._counts = Counts("pairs", "encoded", "truncated")

    @property
    def fingerprint(self) -> str:
        """See `PairScorer`."""
        return fingerprint("maxsim", self.encoder.fingerprint)

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts()

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """See `PairScorer`. `InputError` where a batch does not fit in memory."""
        positions_of: dict[str, list[int]] = {}
        for position, pair in enumerate(pairs):
            positions_of.setdefault(pair.text, []).append(position)
        queries = list(dict.fromkeys(pair.query for pair in pairs))
        vectors = dict(zip(queries, self.encoder.encode_queries(queries), strict=True))
        scores = [0.0] * len(pairs)
        # Longest first, so that texts of like length share a batch.
        texts = sorted(positions_of, key=len, reverse=True)
        for start in range(0, len(texts), _TEXTS):
            part = texts[start : start + _TEXTS]
            self._count(part)
            for text, tokens in zip(part, self.encoder.encode(part), strict=True):
                document = DocumentVectors(tokens, np.array([0, len(tokens)]))
                positions = positions_of[text]
                of_text = maxsim([vectors[pairs[index].query] for index in positions], document)
                for position, score in zip(positions, of_text[:, 0].tolist(), strict=True):
                    scores[position] = score
        self._counts.add(pairs=len(pairs))
        return scores

    def split(self, pair: Pair) -> list[Pair]:
        """The document in windows that are each read whole; the pair itself where it is."""
        return [Pair(pair.query, text) for text in self.encoder.windows(pair.text)]

    def close(self) -> None:
        """See `PairScorer`: it holds no connection."""

    def _count(self, texts: Sequence[str]) -> None:
        limit = self.encoder.limit
        lengths = self.encoder.whole_lengths(texts)
        truncated = sum(length > limit for length in lengths)
        self._counts.add(encoded=len(texts), truncated=truncated)

    def __repr__(self) -> str:
        return f"ColbertScorer({self.encoder!r})"


class ColBERT(Reranker):
    """Re-ranks the best `depth` rows of each query by MaxSim (Khattab and Zaharia, SIGIR 2020);
    documents are encoded when they are scored. Columns and errors as in `Reranker`, of which it
    takes the arguments too; those of the model, and what is refused of a checkpoint, as in
    `ColbertEncoder`."""

    def __init__(
        self,
        model: str = "colbert-ir/colbertv2.0",
        *,
        revision: str | None = None,
        depth: int = 50,
        max_length: int | None = 512,
        query_max_length: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        long_documents: str | None = None,
        max_wait_ms: float = 5.0,
        texts: Texts | None = None,
        cache: Path | str | None = None,
    ) -> None:
        self.model, self.revision = model, revision
        self.max_length, self.query_max_length = max_length, query_max_length
        self.device, self.dtype, self.batch_tokens = device, dtype, batch_tokens
        super().__init__(
            ColbertScorer(self._part(ColbertEncoder, storage="float32")),
            texts=texts,
            depth=depth,
            cache=cache,
            long_documents=long_documents,
            max_wait_ms=max_wait_ms,
        )
