"""Texts that a language model writes for a query, and that join it whole: the paper's baselines
HyDE and query expansion by chain of thought."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pipelines.enrich.phrases import Limits, clean_text
from pipelines.enrich.sources import PhraseSource, Query, model_of
from pipelines.prompt_client import PromptClients
from pipelines.prompt_template import PromptTemplate
from pipelines.stage import Collection
from toolkit.checks import check_integer
from toolkit.contracts import Unit
from toolkit.counts import Counts
from toolkit.errors import InputError
from toolkit.files import fingerprint

PROMPTS = Path(__file__).resolve().parent / "prompts"
METHODS: Mapping[str, tuple[str, ...]] = {
    "hyde": ("general", "claim", "argument", "finance"),
    "chain_of_thought": ("general",),
}


class ModelText(PhraseSource):
    """One text a query, written by the collection's language model, as the query's only phrase.

    `method` and `task` name a published prompt:

    - `hyde`: a passage that answers the query (Gao et al., "Precise Zero-Shot Dense Retrieval
      without Relevance Labels", ACL 2023, arXiv 2212.10496, appendix A.1; for a `claim`, an
      `argument` and `finance` those of SciFact, ArguAna and FiQA). There a dense model reads it;
      here BM25 does, as in SIRA's table.
    - `chain_of_thought`: an answer with the rationale before it (Jagerman et al., "Query Expansion
      by Prompting Large Language Models", 2023, arXiv 2305.03653, prompt CoT).

    Both guess the answer by their nature, which `phrases_with_answer` counts. `prompt` is the path
    of a prompt of one's own with `{query}`. Of a text the first `max_words` words are read. Texts
    are cached under the model, how it samples, and the prompt with the query. An empty one is asked
    for once more, and is then none (`empty`), as one that the model refuses (`refused`). Documents
    have no texts.
    """

    asks_model = True

    def __init__(
        self,
        *,
        method: str = "hyde",
        task: str = "general",
        prompt: str | None = None,
        max_words: int = 512,
    ) -> None:
        if method not in METHODS:
            raise InputError(f"method is {method!r}", valid=", ".join(METHODS))
        if task not in METHODS[method]:
            raise InputError(
                f"task is {task!r}", valid=f"{', '.join(METHODS[method])} (of {method})"
            )
        check_integer("max_words", max_words)
        self.method, self.task, self.prompt, self.max_words = method, task, prompt, max_words
        self.limits = Limits(1, max_words)
        self._prompt = PromptTemplate(prompt, PROMPTS / f"{method}_{task}.txt", ("query",))
        self._counts = Counts("texts", "empty", "refused", "asked", "retried", "shared")
        self._clients = PromptClients(
            "enrichment", ["enrichment"], lambda answer: not answer.strip(), self._counts
        )

    @property
    def fingerprint(self) -> str:
        """Of the prompt and the limit. The model and how it samples are in the cache's keys."""
        return fingerprint("text", self._prompt.text, self.max_words)

    @property
    def counts(self) -> Mapping[str, float]:
        return {**self._counts(), **self._clients.lookups}

    def for_documents(
        self, units: Iterable[Unit], collection: Collection
    ) -> Iterator[tuple[str, Sequence[str]]]:
        """`InputError`: what is written here is written for queries."""
        raise InputError(
            f"{self.method} writes texts for queries, and not for documents",
            do="set enrichment.corpus=null, or another source for it",
        )

    def for_queries(self, queries: Sequence[Query], collection: Collection) -> list[Sequence[str]]:
        prompts = [self._prompt.filled({"query": query.text}) for query in queries]
        accounts = {prompt: query.qid for prompt, query in zip(prompts, queries, strict=True)}
        client = self._clients.of(model_of(collection), collection.caches)
        replies = client.replies(accounts) if prompts else {}
        texts: list[Sequence[str]] = []
        for prompt in prompts:
            reply = replies[prompt]
            text = "" if reply.error else clean_text(reply.text, self.max_words)
            refused = bool(reply.error)
            self._counts.add(texts=1, refused=refused, empty=not text and not refused)
            texts.append((text,) if text else ())
        return texts
