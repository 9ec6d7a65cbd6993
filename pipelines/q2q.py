"""Rewriters that ask a language model: Q2Q writes keyword queries as natural-language questions,
and HyDE a passage that answers the query."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from soundingline.pipelines.enrich.llm_phrases import ModelText
from soundingline.pipelines.prompting import LlmStep, PromptTemplate, Reply
from soundingline.pipelines.rewrite import QueryContext, Rewriter, RewrittenQuery
from soundingline.pipelines.stage import not_bound
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.queries import words_of

EMPTY, COPIED = "empty", "copied"
_COUNTED = ("fell_back", "without_reasoning", "lost_numbers", COPIED, "errors")
_QUOTED = 500  # characters of a reply in the record of a search
_EXAMPLE = "- "  # begins the examples of a prompt
_NO_PASSAGE = {"fell_back": "no passage"}
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")


@dataclass(kw_only=True, eq=False, repr=False)
class Q2Q(LlmStep, Rewriter):
    """Rewrites each query as one natural-language question.

    Columns as in `Rewriter`: the question is the new `query`, and `query_0` the query before it.

    Neural rankers are trained on questions, whereas agents type keywords. The question is written
    from the query alone (Q), or with `reasoning` also from the agent's newest reasoning (Q+R).

    The question is the whole reply in one line. An empty or truncated reply, and one that is an
    example of the prompt (`trouble_of`), is requested once more. The query itself is used if the
    second reply is not better, after a refusal, and if the prompt is too long for the model. Other
    errors of the model are raised, so that an outage is not mistaken for a result, whereas the
    authors' code searches with the query after any error. Blank queries are unchanged.

    The `counts` are `queries` that were rewritten; of these those that `fell_back` to the query,
    were `copied`, brought `errors`, came `without_reasoning`, or have `lost_numbers` (a number of
    the query is missing from the question, which is used all the same); and those of `LlmStep`.

    Args:
        model: A `BlockingModel`. The default is the model of the collection.
        reasoning: Whether the prompt includes the agent's newest reasoning.
        prompt: Path of a prompt with `{query}` and, with `reasoning`, `{reasoning}`. The default
            is the package's own prompt, which has the rules of the authors' prompt in their order
            and its examples, eight topics of TREC DL 2019.
        prompt_without_reasoning: With `reasoning`, path of the prompt for searches before any
            reasoning, with `{query}`.
        reasoning_effort: Of the model's reply; None leaves it to the model's settings.
        max_output_tokens: Of the model's reply, reasoning included; None leaves it to the model's
            settings. A model that reasons at length needs more than the paper's 512.
        cache: Folder of the cached replies. The default is that of the collection.
        apply_to: See `Rewriter`.

    Raises:
        InputError: For impossible arguments, and for a prompt that cannot be read or has other
            placeholders.

    Example:
        >>> pipe = Q2Q(reasoning=True) >> index.bm25(k1=25, b=1.0)
        >>> pipe.search("mill built")  # doctest: +SKIP

    Source: "Revisiting Text Ranking in Deep Research" (2026), sections 3.2.5 and 3.2.7;
    searcher/query_rewriters/q2q.py of ChuanMeng/text-ranking-in-deep-research at b546046.
    """

    counted = ("queries", *_COUNTED)

    model: BlockingModel | None = field(default=None, kw_only=False)
    reasoning: bool = False
    prompt: str | None = None
    prompt_without_reasoning: str | None = None
    reasoning_effort: str | None = "low"
    max_output_tokens: int | None = 512
    cache: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_output_tokens is not None:
            check_int("max_output_tokens", self.max_output_tokens)
        if self.prompt_without_reasoning and not self.reasoning:
            raise InputError(
                "prompt_without_reasoning is set, and there is no reasoning",
                do="set prompt, or reasoning=true",
            )
        alone, self._reasoned = self.prompt, None
        if self.reasoning:
            alone, places = self.prompt_without_reasoning, ("query", "reasoning")
            self._reasoned = PromptTemplate(self.prompt, "rewriter/q2q_reasoning.txt", places)
        self._alone = PromptTemplate(alone, "rewriter/q2q.txt", ("query",))
        texts = [self._alone.text, self._reasoned.text if self._reasoned else None]
        lines = "\n".join(filter(None, texts)).splitlines()
        self._examples = {_words(line) for line in lines if line.startswith(_EXAMPLE)}
        own = {
            "reasoning_effort": self.reasoning_effort,
            "max_output_tokens": self.max_output_tokens,
        }
        settings = {name: value for name, value in own.items() if value is not None}
        self.prepare_llm("rewrite", [texts], settings=settings)

    def is_empty(self, answer: str) -> bool:
        """Whether an answer is not a question (`trouble_of`)."""
        return bool(trouble_of(answer, self._examples))

    def rewrite(self, queries: Sequence[QueryContext]) -> list[RewrittenQuery]:
        """A question for each query."""
        written = [query for query in queries if query.text.strip()]
        replies = self.ask([*map(self._filled, written)], [query.qid for query in written])
        questions = dict(zip(written, map(self._read, written, replies), strict=True))
        return [questions.get(query) or RewrittenQuery(query.text) for query in queries]

    def _filled(self, query: QueryContext) -> str:
        """The prompt for a query; white space of the reasoning is single, as in the authors'."""
        parts = {"query": query.text.strip(), "reasoning": " ".join(query.reasoning.split())}
        reasoned = self._reasoned if parts["reasoning"] else None
        return (reasoned or self._alone).filled(parts)

    def _read(self, query: QueryContext, reply: Reply) -> RewrittenQuery:
        trouble = reply.error or trouble_of(reply.text, self._examples)
        question = query.text if trouble else joined_lines(reply.text)
        events = {
            "retried": reply.retried,
            "without_reasoning": self.reasoning and not query.reasoning.strip(),
            "fell_back": trouble,
            "lost_numbers": sorted(lost_numbers(query.text, question)),
            "reply": reply.text[:_QUOTED] if trouble else "",
        }
        # Only counted, because it depends on other searches: a trajectory must not change with the
        # state of the cache.
        counted = {**events, "errors": reply.error, trouble: True}
        self._counts.add(queries=1, **{name: bool(counted.get(name)) for name in _COUNTED})
        return RewrittenQuery(question, {name: value for name, value in events.items() if value})


@dataclass(kw_only=True, eq=False, repr=False)
class HyDE(Rewriter):
    """Replaces the query by a passage that a language model writes to answer it.

    The passage comes from the model of the collection. The original method searches with the mean
    of the embeddings of several passages and the query; this class searches with the text of one
    passage, which suits dense and lexical retrievers. If there is no passage (an empty reply, a
    refusal), the query is unchanged and the note `rewrite` has `fell_back`. The cached passages are
    shared with `enrichment=hyde`, which appends the passage to the query.

    Args:
        apply_to: See `Rewriter`.
        task, prompt, max_words: See `ModelText`.

    Source: Gao et al., "Precise Zero-Shot Dense Retrieval without Relevance Labels", ACL 2023,
    arXiv 2212.10496.
    """

    needs_llm = True
    apply_to: str = "retriever"
    task: str = "general"
    prompt: str | None = None
    max_words: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        # Shared by bound copies, and with it the counts.
        self._passages = ModelText(
            method="hyde", task=self.task, prompt=self.prompt, max_words=self.max_words
        )

    @property
    def fingerprint(self) -> str:
        """Hash of the prompt and the limit."""
        return self._passages.fingerprint

    @property
    def counts(self) -> Mapping[str, float]:
        """The counts of `ModelText`."""
        return self._passages.counts

    def rewrite(self, queries: Sequence[QueryContext]) -> list[RewrittenQuery]:
        """A passage for each query. The stage must be bound to a collection with a model."""
        if self.collection is None:
            raise not_bound(self, "bind it to a collection that has a language model")
        passages = self._passages.for_queries(queries, self.collection)
        return [
            RewrittenQuery(passage[0]) if passage else RewrittenQuery(query.text, _NO_PASSAGE)
            for query, passage in zip(queries, passages, strict=True)
        ]


def trouble_of(reply: str, examples: Collection[tuple[str, ...]] = ()) -> str:
    """Why a reply is not a question: it is `empty`, or `copied` from the `examples` of the prompt,
    which are given by their words. Empty for a question."""
    if not joined_lines(reply):
        return EMPTY
    return COPIED if _words(reply) in examples else ""


def joined_lines(reply: str) -> str:
    """The lines of a reply as one."""
    return " ".join(reply.splitlines()).strip()


def lost_numbers(query: str, question: str) -> set[str]:
    """Numbers of the query that are missing from the question."""
    return set(_NUMBER.findall(query)) - set(_NUMBER.findall(question))


def _words(text: str) -> tuple[str, ...]:
    return tuple(words_of(text.casefold()))
