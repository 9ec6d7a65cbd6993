"""HyDE: a passage that answers the query is searched in its place (Gao et al., "Precise Zero-Shot
Dense Retrieval without Relevance Labels", ACL 2023, arXiv 2212.10496)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.enrich.model_text import ModelText
from pipelines.enrich.sources import Query
from pipelines.rewrite.stage import (
    QueryRewriter,
    Rewriter,
    RewriteRequest,
    RewrittenQuery,
    check_apply_to,
)
from pipelines.stage import Collection, not_bound

_WITHOUT = {"fell_back": "no passage"}


class Hyde(Rewriter):
    """Puts a passage that the collection's language model writes in the place of the query, for
    dense retrievers as in its paper, and for lexical ones. Columns as in `Rewriter`.

    `task`, `prompt` and `max_words` as in `ModelText`, with which `enrichment=hyde` shares its
    replies. The paper searches with the mean of the vectors of eight passages and of the query;
    this is one passage. The query is used as it is where no passage comes (`fell_back`).
    """

    asks_model = True

    def __init__(
        self,
        *,
        apply_to: str = "retriever",
        task: str = "general",
        prompt: str | None = None,
        max_words: int = 512,
    ) -> None:
        check_apply_to(apply_to)
        self.apply_to, self.task, self.prompt = apply_to, task, prompt
        self.max_words = max_words
        self._passages = ModelText(method="hyde", task=task, prompt=prompt, max_words=max_words)

    @property
    def writer(self) -> QueryRewriter:  # type: ignore[override]
        """What asks the model of the collection."""
        if self.collection is None:
            raise not_bound(self, "bind it to a collection that has a language model")
        return _PassageWriter(self._passages, self.collection)

    @property
    def fingerprint(self) -> str:
        """Of the prompt and the limit."""
        return self._passages.fingerprint

    @property
    def counts(self) -> Mapping[str, float]:
        """See `ModelText`."""
        return self._passages.counts

    def __repr__(self) -> str:
        return f"Hyde(task={self.task!r}, apply_to={self.apply_to!r})"


class _PassageWriter:
    """A `QueryRewriter` over the passages of one collection's model."""

    def __init__(self, passages: ModelText, collection: Collection) -> None:
        self._passages, self._collection = passages, collection
        self.fingerprint = passages.fingerprint

    @property
    def counts(self) -> Mapping[str, int]:
        return {name: int(count) for name, count in self._passages.counts.items()}

    def rewrite(self, requests: Sequence[RewriteRequest]) -> list[RewrittenQuery]:
        """A passage for each query."""
        queries = [Query(request.query, request.qid) for request in requests]
        written = self._passages.for_queries(queries, self._collection)
        return [
            RewrittenQuery(texts[0]) if texts else RewrittenQuery(query.text, _WITHOUT)
            for query, texts in zip(queries, written, strict=True)
        ]
