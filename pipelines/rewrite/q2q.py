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
from pipelines.made_once import MadeOnce
from pipelines.prompt_client import BlockingChatModel, Counts, PromptClient, Reply
from pipelines.prompt_template import PromptTemplate, last_words
from pipelines.rewrite.reading import PROSE, is_empty, lost_numbers, read_question
from pipelines.rewrite.stage import Ask, Rewriter, Rewritten, check_apply_to
from pipelines.stage import not_bound
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.llm.protocol import Settings

PROMPTS = Path(__file__).resolve().parent / "prompts"
_OF_QUERIES = ("fell_back", "cleaned", "without_reasoning", "lost_numbers", "prose", "errors")
_QUOTED = 500  # characters of a reply that a trajectory keeps


class QuestionWriter:
    """Questions from queries, by `model`.

    `alone` is the prompt that sees the query only. Where there is `reasoned`, it is asked with the
    last `max_reasoning_words` words of the agent's reasoning, and `alone` where there is none.

    The query itself is used where no question comes back: after two empty or truncated replies, on
    a refusal, where the prompt is too long for the model, and for prose (`read_question`,
    `max_words`). Other errors of the model are raised: a search without a server or money is no
    experiment. A blank query is left alone.

    `cache` is a folder for replies (None: kept nowhere), by prompt, model, settings and input.
    `reasoning_effort` (None: the model's own) and the model's settings say how it samples.

    `counts`, since it was made: `queries` (each time one was rewritten), of them `fell_back`,
    `cleaned`, `prose`, `errors`, `without_reasoning`, `lost_numbers` (a number of the query is not
    in the question, which is used all the same); prompts `asked`, `retried`, and `shared` with
    another thread's request; `cache_hits` and `cache_misses` of prompts.
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
        self.max_words = _positive("max_words", max_words)
        self.max_reasoning_words = _positive("max_reasoning_words", max_reasoning_words)
        self._alone, self._reasoned = alone, reasoned
        self._label = f"{'Q+R' if reasoned else 'Q'}, {model.name!r}"
        effort = reasoning_effort or model.settings.reasoning_effort
        settings = replace(model.settings, reasoning_effort=effort)
        texts = [alone.text, reasoned.text if reasoned else None]
        key = fingerprint(texts, model.name, _sampling(settings))
        self.fingerprint = fingerprint(key, max_words, max_reasoning_words)
        self._counts = Counts("queries", "asked", "retried", "shared", *_OF_QUERIES)
        self._cache = ResultCache(cache / f"rewrite-{key}.sqlite" if cache else None)
        self._asker = PromptClient(
            model, settings, key=key, cache=self._cache, is_empty=is_empty, counts=self._counts
        )

    def __repr__(self) -> str:
        return f"QuestionWriter({self._label})"

    @property
    def counts(self) -> Mapping[str, int]:
        return {**self._counts(), **self._cache.lookups}

    def rewrite(self, asks: Sequence[Ask]) -> list[Rewritten]:
        """The questions, in the order of the queries. Equal inputs are asked once."""
        wanted = [(self._wanted(ask), ask) for ask in asks]
        accounts: dict[str, str] = {}
        for prompt, ask in wanted:
            if ask.query.strip():
                accounts.setdefault(prompt.text, ask.qid)
        replies = self._asker.replies(accounts)
        return [self._read(each, ask, replies.get(each.text)) for each, ask in wanted]

    def _wanted(self, ask: Ask) -> _Wanted:
        if self._reasoned is None:
            return _Wanted(self._alone.filled({"query": ask.query}))
        thoughts = last_words(ask.reasoning, self.max_reasoning_words)
        if not thoughts:
            return _Wanted(self._alone.filled({"query": ask.query}), without_reasoning=True)
        return _Wanted(self._reasoned.filled({"query": ask.query, "reasoning": thoughts}))

    def _read(self, wanted: _Wanted, ask: Ask, reply: Reply | None) -> Rewritten:
        if reply is None:
            return Rewritten(ask.query)
        reading = read_question(reply.text, ask.query, self.max_words)
        question = reading.question or ask.query
        happened = {
            "retried": reply.retried,
            "cached": reply.cached,
            "without_reasoning": wanted.without_reasoning,
            "cleaned": reading.cleaned,
            "fell_back": reply.error or reading.trouble,
            "lost_numbers": sorted(lost_numbers(ask.query, question)),
            "reply": reply.text[:_QUOTED] if reading.cleaned or reading.trouble else "",
        }
        self._counts.add("queries")
        prose = reading.trouble == PROSE
        for name, held in {**happened, "prose": prose, "errors": reply.error}.items():
            if held and name in _OF_QUERIES:
                self._counts.add(name)
        return Rewritten(question, {name: value for name, value in happened.items() if value})


class _Wanted(NamedTuple):
    """A filled prompt."""

    text: str
    without_reasoning: bool = False


class Q2Q(Rewriter):
    """Queries as questions: from the query alone (Q), or with `reasoning` from the agent's newest
    reasoning too (Q+R). Columns as in `Rewriter`.

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
        if prompt_without_reasoning and not reasoning:
            raise InputError(
                "prompt_without_reasoning is set, and there is no reasoning",
                do="set prompt, or reasoning=true",
            )
        self.reasoning, self.apply_to = reasoning, apply_to
        self.prompt, self.prompt_without_reasoning = prompt, prompt_without_reasoning
        self.reasoning_effort = reasoning_effort
        self.max_words = _positive("max_words", max_words)
        self.max_reasoning_words = _positive("max_reasoning_words", max_reasoning_words)
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
            (id(model), folder), lambda: self._made(model, folder)
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

    def _made(self, model: BlockingChatModel, folder: Path | None) -> QuestionWriter:
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
    given = settings.given()
    return {name: given[name] for name in sorted(set(given) - {"timeout", "tool_choice"})}


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {value!r}", valid="a whole number from 1")
    return value
