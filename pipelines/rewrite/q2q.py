"""Query to question (Q2Q): a keyword query as one natural-language question, by a language model.

Neural rankers are trained on questions, agents type keywords; "Revisiting Text Ranking in Deep
Research" (2026), section 3.2.5, rewrites the one as the other, from the query alone (Q) or with the
agent's newest reasoning (Q+R). The prompts here are our own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pipelines.caching import ResultCache
from pipelines.prompt_client import BlockingChatModel, PromptClient, Reply
from pipelines.prompt_template import PromptTemplate, last_words
from pipelines.rewrite.reading import COPIED, PROSE, is_empty, lost_numbers, read_question
from pipelines.rewrite.stage import Rewriter, RewriteRequest, RewrittenQuery, check_apply_to
from pipelines.stage import not_bound
from toolkit.checks import check_integer
from toolkit.counts import Counts, MadeOnce
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.llm.blocking import identity
from toolkit.llm.protocol import Settings

PROMPTS = Path(__file__).resolve().parent / "prompts"
_TROUBLES = (PROSE, COPIED)
_OF_QUERIES = (
    *("fell_back", "cleaned", "without_reasoning", "lost_numbers"),
    *(*_TROUBLES, "errors"),
)
_QUOTED = 500  # characters of a reply that a trajectory keeps


class QuestionWriter:
    """Questions from queries, by `model`.

    `alone` is the prompt that sees the query only. Where there is `reasoned`, it is asked with the
    last `max_reasoning_words` words of the agent's reasoning, and `alone` where there is none.

    The query itself is used where no question comes back: after two empty or truncated replies, on
    a refusal, where the prompt is too long for the model, and for prose and lines of the prompt
    (`read_question`, `max_words`). Other errors of the model are raised: a search without a server
    or money is no experiment. A blank query is left alone.

    `cache` is a folder for replies (None: kept nowhere), by prompt, model, settings and input.
    `reasoning_effort` (None: the model's own) and the model's settings say how it samples.

    `counts`, since it was made: `queries` (each time one was rewritten), of them `fell_back`,
    `cleaned`, `prose`, `copied`, `errors`, `without_reasoning`, `lost_numbers` (a number of the
    query is not in the question, which is used all the same); prompts `asked`, `retried`, and
    `shared` with another thread's request; `cache_hits` and `cache_misses` of prompts.
    """

    def __init__(
        self,
        model: BlockingChatModel,
        alone: PromptTemplate,
        reasoned: PromptTemplate | None = None,
        *,
        cache: Path | None = None,
        reasoning_effort: str | None = "low",
        max_words: int = 64,
        max_reasoning_words: int = 512,
    ) -> None:
        _check_words(max_words, max_reasoning_words)
        self.max_words, self.max_reasoning_words = max_words, max_reasoning_words
        self._alone, self._reasoned = alone, reasoned
        self._label = f"{'Q+R' if reasoned else 'Q'}, {model.name!r}"
        effort = reasoning_effort or model.settings.reasoning_effort
        settings = replace(model.settings, reasoning_effort=effort)
        texts = [alone.text, reasoned.text if reasoned else None]
        key = fingerprint(texts, identity(model), _sampling(settings))
        self.fingerprint = fingerprint(key, max_words, max_reasoning_words)
        self._counts = Counts("queries", "asked", "retried", "shared", *_OF_QUERIES)
        self._cache = ResultCache(cache / f"rewrite-{key}.sqlite" if cache else None)
        self._client = PromptClient(
            model, settings, key=key, cache=self._cache, is_empty=is_empty, counts=self._counts
        )

    def __repr__(self) -> str:
        return f"QuestionWriter({self._label})"

    @property
    def counts(self) -> Mapping[str, int]:
        return {**self._counts(), **self._cache.lookups}

    def rewrite(self, requests: Sequence[RewriteRequest]) -> list[RewrittenQuery]:
        """The questions, in the order of the queries. Equal inputs are asked once."""
        prompts = [self._prompt(request) for request in requests]
        accounts: dict[str, str] = {}
        for prompt, request in zip(prompts, requests, strict=True):
            if request.query.strip():
                accounts.setdefault(prompt.text, request.qid)
        replies = self._client.replies(accounts)
        return [
            self._read(prompt, request, replies.get(prompt.text))
            for prompt, request in zip(prompts, requests, strict=True)
        ]

    def _prompt(self, request: RewriteRequest) -> _FilledPrompt:
        parts = {"query": request.query}
        if self._reasoned is None:
            return _FilledPrompt(self._alone.filled(parts))
        thoughts = last_words(request.reasoning, self.max_reasoning_words)
        if not thoughts:
            return _FilledPrompt(self._alone.filled(parts), without_reasoning=True)
        filled = self._reasoned.filled({**parts, "reasoning": thoughts})
        return _FilledPrompt(filled, reasoning=thoughts)

    def _read(
        self, prompt: _FilledPrompt, request: RewriteRequest, reply: Reply | None
    ) -> RewrittenQuery:
        """The question in a reply, and what its making has to tell; the query where none came."""
        if reply is None:
            return RewrittenQuery(request.query)
        template = self._reasoned if self._reasoned and prompt.reasoning else self._alone
        reading = read_question(
            reply.text,
            request.query,
            self.max_words,
            prompt=template.text,
            reasoning=prompt.reasoning,
        )
        question = reading.question or request.query
        events = {
            "retried": reply.retried,
            "cached": reply.cached,
            "without_reasoning": prompt.without_reasoning,
            "cleaned": reading.cleaned,
            "fell_back": reply.error or reading.trouble,
            "lost_numbers": sorted(lost_numbers(request.query, question)),
            "reply": reply.text[:_QUOTED] if reading.cleaned or reading.trouble else "",
        }
        troubles = {name: reading.trouble == name for name in _TROUBLES}
        counted = {**events, **troubles, "errors": reply.error}
        self._counts.add(queries=1, **{name: bool(counted[name]) for name in _OF_QUERIES})
        return RewrittenQuery(question, {name: value for name, value in events.items() if value})


class _FilledPrompt(NamedTuple):
    text: str
    reasoning: str = ""
    without_reasoning: bool = False


class Q2Q(Rewriter):
    """Queries as questions: from the query alone (Q), or with `reasoning` from the agent's newest
    reasoning too (Q+R), as in "Revisiting Text Ranking in Deep Research" (2026). Columns as in
    `Rewriter`.

    `prompt` is the path of a prompt of one's own with `{query}` and, with reasoning,
    `{reasoning}`; `prompt_without_reasoning` that of the prompt for searches before any reasoning,
    with `{query}`. `model` (a `BlockingModel`) and `cache` (a folder) None: the collection's. The
    rest as in `QuestionWriter` and `Rewriter`. `InputError` for impossible values.
    """

    asks_model = True

    def __init__(
        self,
        *,
        reasoning: bool = False,
        apply_to: str = "both",
        prompt: str | None = None,
        prompt_without_reasoning: str | None = None,
        reasoning_effort: str | None = "low",
        max_words: int = 64,
        max_reasoning_words: int = 512,
        model: BlockingChatModel | None = None,
        cache: Path | None = None,
    ) -> None:
        check_apply_to(apply_to)
        _check_words(max_words, max_reasoning_words)
        if prompt_without_reasoning and not reasoning:
            raise InputError(
                "prompt_without_reasoning is set, and there is no reasoning",
                do="set prompt, or reasoning=true",
            )
        self.reasoning, self.apply_to = reasoning, apply_to
        self.prompt, self.prompt_without_reasoning = prompt, prompt_without_reasoning
        self.reasoning_effort = reasoning_effort
        self.max_words, self.max_reasoning_words = max_words, max_reasoning_words
        self.model, self.cache = model, cache
        own = prompt_without_reasoning if reasoning else prompt
        places = ("query", "reasoning")
        self._alone = PromptTemplate(own, PROMPTS / "q2q.txt", ("query",))
        self._reasoned = (
            PromptTemplate(prompt, PROMPTS / "q2q_reasoning.txt", places) if reasoning else None
        )
        self._writers = MadeOnce()

    @property
    def writer(self) -> QuestionWriter:  # type: ignore[override]
        """What asks the model; shared by all bound copies of one model and cache."""
        model = self.model or (self.collection.model if self.collection else None)
        if model is None:
            raise not_bound(self, "give it a model, or bind it to a collection that has one")
        folder = self.cache or (self.collection.caches if self.collection else None)
        writer: QuestionWriter = self._writers.get(
            (id(model), folder), lambda: self._new_writer(model, folder)
        )
        return writer

    @property
    def counts(self) -> Mapping[str, float]:
        """See `QuestionWriter`."""
        total = Counter[str]()
        for writer in self._writers.values():
            total.update(writer.counts)
        return total

    @property
    def fingerprint(self) -> str:
        """Of the prompts, and of the model and how it samples where that is known already."""
        if self.model or (self.collection and self.collection.model):
            return self.writer.fingerprint
        return fingerprint(self._alone.text, self._reasoned and self._reasoned.text)

    def __repr__(self) -> str:
        return f"Q2Q(reasoning={self.reasoning}, apply_to={self.apply_to!r})"

    def _new_writer(self, model: BlockingChatModel, folder: Path | None) -> QuestionWriter:
        return QuestionWriter(
            model,
            self._alone,
            self._reasoned,
            cache=folder,
            reasoning_effort=self.reasoning_effort,
            max_words=self.max_words,
            max_reasoning_words=self.max_reasoning_words,
        )


def _sampling(settings: Settings) -> dict[str, object]:
    """The settings that change a reply: not how long one waits for it."""
    values = settings.given()
    return {name: values[name] for name in sorted(set(values) - {"timeout", "tool_choice"})}


def _check_words(max_words: int, max_reasoning_words: int) -> None:
    check_integer("max_words", max_words)
    check_integer("max_reasoning_words", max_reasoning_words)
