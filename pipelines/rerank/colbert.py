"""Re-ranking by the vectors of ColBERT: a text is encoded when it is scored, and needs no index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from soundingline.pipelines.device import TokenizedTexts, moved
from soundingline.pipelines.learned.colbert import ColBERT
from soundingline.pipelines.learned.vectors import DocumentVectors, maxsim
from soundingline.pipelines.rerank.reranker import NeuralScorer
from soundingline.pipelines.stage import shared
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.optional import import_optional

if TYPE_CHECKING:
    from torch import Tensor

_TEXTS = 256  # whose vectors are held at the same time


@dataclass(kw_only=True, eq=False, repr=False)
class ColBERTReranker(NeuralScorer):
    """Scores by MaxSim (Khattab and Zaharia, SIGIR 2020): on a CPU in float32; on a GPU where the
    texts are encoded, with products in float16, or in float32 with dtype=float32.

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
        scores = np.zeros(len(queries))
        # Longest first, so that texts of similar length share a batch.
        by_length = sorted(positions_of, key=len, reverse=True)
        for start in range(0, len(by_length), _TEXTS):
            self._batches.check_wanted()
            part = by_length[start : start + _TEXTS]
            tokens = self.encoder.tokenize(part)
            truncated = sum(bool(each.overflowing) for each in tokens.features.encodings)
            self.count.add(encoded=len(part), truncated=truncated)
            asked = [[vectors[queries[place]] for place in positions_of[text]] for text in part]
            for text, of_text in zip(part, self._scores(tokens, asked), strict=True):
                scores[positions_of[text]] = of_text
        self.count.add(pairs=len(queries))
        return scores.tolist()

    def _scores(self, tokens: TokenizedTexts, asked: Sequence[Sequence[Any]]) -> list[list[float]]:
        """The score of each text with each query that is `asked` of it."""
        torch, place = import_optional("torch"), self.encoder.placement
        if place.device.type == "cpu":
            arrays = self.encoder.encode_tokens(tokens)
            texts = (DocumentVectors(rows, np.array([0, len(rows)])) for rows in arrays)
            return [maxsim(*pair)[:, 0].tolist() for pair in zip(asked, texts, strict=True)]
        dtype = torch.float32 if place.dtype == torch.float32 else torch.float16

        def compute(rows: list[int], features: Mapping[str, Any]) -> tuple[Tensor, ...]:
            states, kept = self.encoder.encode_batch(features, "document")
            vectors = [torch.from_numpy(query).to(dtype) for row in rows for query in asked[row]]
            queries = moved(
                torch.nn.utils.rnn.pad_sequence(vectors, batch_first=True), place.device
            )
            counts = torch.tensor([len(asked[row]) for row in rows])
            texts = moved(torch.arange(len(rows)).repeat_interleave(counts), place.device)
            return maxsim_of_pairs(queries, states.to(dtype)[texts], kept[texts]), counts

        def read(tensors: tuple[Tensor, ...]) -> list[list[float]]:
            return [each.tolist() for each in tensors[0].cpu().split(tensors[1].tolist())]

        return self.encoder.map_batches(tokens, compute, read)

    def windows(self, query: str, text: str) -> list[str]:
        """The text in parts that the model reads to their end; all of it if it fits."""
        return self.encoder.windows(text)


def maxsim_of_pairs(queries: Tensor, documents: Tensor, kept: Tensor) -> Tensor:
    """float32 [pairs], by products in the type of the vectors. These are [pairs, tokens,
    dimensions], and zeros, which add 0, where a query has fewer. `kept` [pairs, tokens] is false
    for padding and left-out tokens; a document of which nothing is kept scores 0."""
    similar = (documents @ queries.mT).masked_fill_(~kept[..., None], -np.inf)
    largest = similar.amax(1).float()
    return largest.masked_fill(largest.isneginf(), 0).sum(1)
