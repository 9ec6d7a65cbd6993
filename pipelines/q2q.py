"""Query to question (Q2Q): keyword queries as natural-language questions, by a language model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from soundingline.pipelines.enrich.phrases import QueryContext
from soundingline.pipelines.prompting import CachedLLM, PromptTemplate, Reply, last_words, model_of
from soundingline.pipelines.rewrite import Rewriter, RewrittenQuery
from soundingline.pipelines.stage import Counts
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.blocking import BlockingModel

EMPTY, PROSE, COPIED = "empty", "prose", "copied"
_COUNTED = (
    "fell_back",
    "cleaned",
    "without_reasoning",
    "lost_numbers",
    PROSE,
    COPIED,
    "errors",
)
_QUOTED = 500  # characters of a reply in the record of a search


@dataclass(kw_only=True, eq=False, repr=False)
class Q2Q(Rewriter):
    """Rewrites each query as one natural-language question.

    Columns as in `Rewriter`: the question is the new `query`, and `query_0` the query before it.

    Neural rankers are trained on questions, whereas agents type keywords. The question is written
    from the query alone (Q), or with `reasoning` also from the agent's newest reasoning (Q+R).

    The query itself is used if there is no usable question: after two empty or truncated replies,
    after a refusal, if the prompt is too long for the model, and if the reply is prose or repeats
    the prompt (see `read_question`). Other errors of the model are raised, so that an outage is not
    mistaken for a result. Blank queries are unchanged.

    Replies are cached by prompt, model, sampling settings and input. Equal inputs are requested
    once, also from several threads and processes.

    Args:
        model: A `BlockingModel`. The default is the model of the collection.
        reasoning: Whether the prompt includes the agent's newest reasoning.
        prompt: Path of a prompt with `{query}` and, with `reasoning`, `{reasoning}`. The default
            is the package's own prompt; that of the paper is not published.
        prompt_without_reasoning: With `reasoning`, path of the prompt for searches before any
            reasoning, with `{query}`.
        reasoning_effort: Of the model's reply; None leaves it to the model's settings.
        max_output_tokens: Of the model's reply, reasoning included; None leaves it to the model's
            settings. A model that reasons at length needs more than the paper's 512.
        max_words: Most words of a question. A longer reply is prose.
        max_reasoning_words: The prompt includes this many last words of the reasoning.
        cache: Folder of the cached replies. The default is that of the collection.
        apply_to: See `Rewriter`.

    Raises:
        InputError: For impossible arguments, and for a prompt that cannot be read or has other
            placeholders.

    Example:
        >>> pipe = Q2Q(reasoning=True) >> index.bm25(k1=25, b=1.0)
        >>> pipe.search("mill built")  # doctest: +SKIP

    Source: "Revisiting Text Ranking in Deep Research" (2026), section 3.2.5.
    """

    needs_llm: ClassVar[bool] = True
    model: BlockingModel | None = field(default=None, kw_only=False)
    reasoning: bool = False
    prompt: str | None = None
    prompt_without_reasoning: str | None = None
    reasoning_effort: str | None = "low"
    max_output_tokens: int | None = 512
    max_words: int = 64
    max_reasoning_words: int = 512
    cache: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("max_words", self.max_words)
        if self.max_output_tokens is not None:
            check_int("max_output_tokens", self.max_output_tokens)
        check_int("max_reasoning_words", self.max_reasoning_words)
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
        texts = [self._alone.text, self._reasoned and self._reasoned.text]
        own = ("reasoning_effort", "max_output_tokens")
        settings = {name: getattr(self, name) for name in own if getattr(self, name) is not None}
        # Shared by bound copies.
        self._counts = Counts("queries", "asked", "retried", "shared", *_COUNTED)
        self._llm = CachedLLM(
            name="rewrite", parts=[texts], is_empty=is_empty, counts=self._counts, settings=settings
        )

    @property
    def fingerprint(self) -> str:
        """Hash of the prompts, and of the model and its sampling settings if it is known."""
        key = self._llm.key(model_of(self))
        return fingerprint(key, self.max_words, self.max_reasoning_words)

    @property
    def counts(self) -> Mapping[str, float]:
        """Cumulative counts of the stage and its bound copies.

        `queries` that were rewritten; of these those that `fell_back` to the query, were `cleaned`,
        were `prose` or `copied`, brought `errors`, came `without_reasoning`, or have `lost_numbers`
        (the question lacks a number of the query and is used all the same); prompts `asked`,
        `retried`, and `shared` with another thread's request; with a cache `cache_hits` and
        `cache_misses`.
        """
        return {**self._counts(), **self._llm.lookups}

    def rewrite(self, queries: Sequence[QueryContext]) -> list[RewrittenQuery]:
        """A question for each query."""
        llm = self._llm.of_stage(self)
        prompts = [(query, *self._filled(query)) for query in queries]
        qids: dict[str, str] = {}
        for query, filled, _, _ in prompts:
            if query.text.strip():
                qids.setdefault(filled, query.qid)
        replies = llm.replies(qids)
        return [
            self._read(query, replies.get(filled), template, reasoning)
            for query, filled, template, reasoning in prompts
        ]

    def _filled(self, query: QueryContext) -> tuple[str, PromptTemplate, str]:
        """The prompt for a query, its template, and the reasoning in it."""
        reasoning = last_words(query.reasoning, self.max_reasoning_words) if self._reasoned else ""
        if self._reasoned and reasoning:
            parts = {"query": query.text, "reasoning": reasoning}
            return self._reasoned.filled(parts), self._reasoned, reasoning
        return self._alone.filled({"query": query.text}), self._alone, ""

    def _read(
        self, query: QueryContext, reply: Reply | None, template: PromptTemplate, reasoning: str
    ) -> RewrittenQuery:
        if reply is None:
            return RewrittenQuery(query.text)
        reading = read_question(
            reply.text, query.text, self.max_words, prompt=template.text, reasoning=reasoning
        )
        question = reading.question or query.text
        events = {
            "retried": reply.retried,
            "without_reasoning": self.reasoning and not reasoning,
            "cleaned": reading.cleaned,
            "fell_back": reply.error or reading.trouble,
            "lost_numbers": sorted(lost_numbers(query.text, question)),
            "reply": reply.text[:_QUOTED] if reading.cleaned or reading.trouble else "",
        }
        # Only counted, because it depends on other searches: a trajectory must not change with the
        # state of the cache.
        counted = {**events, "cached": reply.cached, "errors": reply.error, reading.trouble: True}
        self._counts.add(queries=1, **{name: bool(counted.get(name)) for name in _COUNTED})
        return RewrittenQuery(question, {name: value for name, value in events.items() if value})


# A reply may be a megabyte of anything, so no expression may look at a character again for each
# position that a match could start from.
_THINK = re.compile(r"<(/?)think>", re.IGNORECASE)
_TAGS = re.compile(r"</?(?:question|query|answer|output|rewrite)>", re.IGNORECASE)
_FENCE = re.compile(r"^[^\S\n]*```.*$", re.MULTILINE)
_PREFIXES = (
    re.compile(r"(?:[-*•>#]+|\d{1,2}[.)])\s+"),
    re.compile(
        r"[*_]*(?:(?:the|natural[- ]language|rewritten|reformulated|search|final|web)\s+)*"
        r"(?:question|query|rewrite|output|q)[*_]*\s*[:：][*_]*\s*",
        re.IGNORECASE,
    ),
    re.compile(
        r"(?:(?:sure|certainly|of course|okay|ok)[,!.:]+\s+"
        r"|here(?:['’]s| is)\b[^:：?]{0,60}[:：]\s*)",
        re.IGNORECASE,
    ),
)
_QUOTES = (
    ("**", "**"),
    ("__", "__"),
    ('"', '"'),
    ("'", "'"),
    ("`", "`"),
    ("“", "”"),
    ("‘", "’"),
    ("«", "»"),
    ("„", "“"),
)
_OPENING = re.compile(
    r"(?:who|whose|whom|what|when|where|which|why|how|is|are|was|were|do|does|did|has|have|had|can"
    r"|could|in what|in which|at what|on what|by what|for what|to what)\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a about all an and any are as at be been but by can could did do does find for from had has
        have how i in into is it its many me most much of on or some such than that the their them
        there these they this those to was were what when where which who whom whose why will with
        would you your
        """,
    )
)
_STEM = 5  # letters, so that `shark` and `sharks` are one word


class Reading(NamedTuple):
    """The question in a reply, or the `trouble` with it: `empty`, `prose` (not one question) or
    `copied` (a line of the prompt). `cleaned`: the question is not the whole reply."""

    question: str = ""
    cleaned: bool = False
    trouble: str = ""


def read_question(
    reply: str, query: str, max_words: int, *, prompt: str = "", reasoning: str = ""
) -> Reading:
    """The question in a reply: its only line or its first line that is a question, without labels,
    list marks and quotation marks.

    A reply is prose if it has several lines without a question, if the line has more than
    `max_words` words, and if the line is neither a question nor shares a word with the query (an
    apology, for example). It is copied if half of the content words of the question are neither in
    the query nor in the `reasoning` but in one line of the `prompt`, and are at least half of that
    line's: small models repeat an example of the prompt.
    """
    lines = _lines(reply)
    if not lines:
        return Reading(trouble=EMPTY)
    question = lines[0] if len(lines) == 1 else next(filter(is_question, lines), "")
    unrelated = not is_question(question) and not _words(question) & _words(query)
    if unrelated or len(question.split()) > max_words:
        return Reading(trouble=PROSE)
    if _is_copied(question, f"{query}\n{reasoning}", prompt):
        return Reading(trouble=COPIED)
    return Reading(question, question != reply.strip())


def is_empty(reply: str) -> bool:
    """Whether a reply holds nothing but white space, quotation marks and labels."""
    return not _lines(reply)


def is_question(line: str) -> bool:
    """Whether a line ends with a question mark or begins as an English question does."""
    behind_last_word: Any = re.match(r"\W*", line[::-1])
    return any(mark in behind_last_word[0] for mark in "?？؟") or bool(_OPENING.match(line))


def lost_numbers(query: str, question: str) -> set[str]:
    """Numbers of the query that the question lacks."""
    return set(_NUMBER.findall(query)) - set(_NUMBER.findall(question))


def _is_copied(question: str, source: str, prompt: str) -> bool:
    content = _content_stems(question)
    added = content - _content_stems(source)
    shared = ((len(added & line), len(line)) for line in _stems_of_lines(prompt))
    return any(count and 2 * count >= max(len(content), length) for count, length in shared)


@lru_cache(maxsize=8)
def _stems_of_lines(prompt: str) -> tuple[frozenset[str], ...]:
    return tuple(map(_content_stems, prompt.splitlines()))


def _content_stems(text: str) -> frozenset[str]:
    return frozenset(word[:_STEM] for word in _words(text) - _FUNCTION_WORDS)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def _lines(reply: str) -> list[str]:
    text = _FENCE.sub("", _TAGS.sub(" ", _without_thoughts(reply)))
    lines = (_bare(line) for line in text.splitlines())
    return [line for line in lines if re.search(r"\w", line)]


def _without_thoughts(reply: str) -> str:
    """The reply without the text from each `<think>` to the next `</think>`, if there is one."""
    pieces, end, opened = [], 0, -1
    for tag in _THINK.finditer(reply):
        if opened < 0 and not tag[1]:
            opened = tag.start()
        elif opened >= 0 and tag[1]:
            pieces.append(reply[end:opened])
            end, opened = tag.end(), -1
    return " ".join([*pieces, reply[end:]])


def _bare(line: str) -> str:
    """The line without all list marks, labels and quotation marks around it."""
    start, end, before = 0, len(line), None
    while (start, end) != before:
        before = start, end
        while start < end and line[start].isspace():
            start += 1
        while end > start and line[end - 1].isspace():
            end -= 1
        for pattern in _PREFIXES:
            match = pattern.match(line, start, end)
            start = match.end() if match else start
        for opening, closing in _QUOTES:
            inner = start + len(opening), end - len(closing)
            if (
                inner[0] < inner[1]
                and line.startswith(opening, start, end)
                and line.endswith(closing, start, end)
                # A pair that is also inside may belong to words of the question.
                and line.find(opening, *inner) < 0
                and line.find(closing, *inner) < 0
            ):
                start, end = inner
    return line[start:end]
