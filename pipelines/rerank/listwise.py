"""Listwise re-ranking by any language model: it reads a window of passages and returns their order;
the window slides from the end of the head to its front (Sun et al., "Is ChatGPT Good at Search?",
EMNLP 2023). The prompt is our own."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soundingline.pipelines.counts import Counts
from soundingline.pipelines.prompt_client import (
    BlockingChatModel,
    PromptClient,
    PromptClients,
    Reply,
)
from soundingline.pipelines.prompt_template import PromptTemplate
from soundingline.pipelines.rerank.reranker import (
    check_columns,
    merge_head_and_tail,
    split_head,
    texts_for,
    texts_of,
)
from soundingline.pipelines.stage import Stage, Texts, not_bound
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint

_NUMBER = re.compile(r"\d+")
_IDENTIFIER = re.compile(r"\[\s*(\d+)\s*\]")
_CHAIN = re.compile(r"\[\s*\d+\s*\](?:[\s>=≥≻»,;]*\[\s*\d+\s*\])+")
# Not from inside a number, which would read its digits once for each of them.
_BARE_CHAIN = re.compile(r"(?<!\d)\d+(?:\s*>\s*\d+)+")
_NUMBERS_ONLY = re.compile(r"[\d\s>,;\[\]]+")
# What a citation in a passage has between its brackets: [7], [1, 2], [3-5].
_CITATION = re.compile(r"\[([\s,;–-]*\d[\d\s,;–-]*)\]")
# No passage has a longer number, and `int` refuses some thousand digits.
_MOST_DIGITS = 18


class Permutation(NamedTuple):
    """`order`: places from 0, each once, best first. `repaired`: the answer had to be made into a
    permutation. `empty`: it had no order at all, and this is the order as it was."""

    order: tuple[int, ...]
    repaired: bool
    empty: bool


def read_permutation(answer: str, size: int) -> Permutation:
    """The order of `size` passages, numbered from 1, in a model's answer. A number that comes again
    or that no passage has is dropped; passages that are missing follow in their order."""
    numbers = identifiers(answer)
    named = list(dict.fromkeys(number - 1 for number in numbers if 1 <= number <= size))
    missing = [position for position in range(size) if position not in named]
    complete = not missing and len(numbers) == size
    return Permutation((*named, *missing), bool(named) and not complete, not named)


def identifiers(answer: str) -> list[int]:
    """The numbers that an answer puts in an order; none where it has no order.

    That is its longest chain of numbers in brackets, the last one of equals, since reasons before
    it may name passages too; without a chain all numbers in brackets (a list, say); without any
    brackets a chain of bare numbers, or an answer of nothing but numbers.
    """
    numbers = _longest(_CHAIN.findall(answer)) or _IDENTIFIER.findall(answer)
    if not numbers:
        bare = [answer] if _NUMBERS_ONLY.fullmatch(answer) else _BARE_CHAIN.findall(answer)
        numbers = _longest(bare)
    # Passages are numbered from 1, so that 0 names none of them.
    return [int(number) if len(number) <= _MOST_DIGITS else 0 for number in numbers]


def without_identifiers(text: str) -> str:
    """`text` with what looks like the number of a passage in round brackets."""
    return _CITATION.sub(r"(\1)", text)


def sliding(size: int, window: int, step: int) -> Iterator[tuple[int, int]]:
    """Half-open spans of `window` places, from the end of `size` places to their front, each
    `step` places before the last one; the one at the front may be shorter. None for fewer than two
    places, which have one order."""
    end = size
    while end > 1:
        start = max(0, end - window)
        yield start, end
        end = end - step if start else 0


def _longest(chains: Sequence[str]) -> list[str]:
    """The numbers of the chain with the most of them, the last one of equals."""
    return max((_NUMBER.findall(chain) for chain in reversed(chains)), key=len, default=[])


_PLACES = ("query", "count", "passages")
# Scripts without spaces have words of any length.
_CHARACTERS_A_WORD = 10
_COUNTS = (
    *("windows", "repaired", "empty", "refused", "missing_text"),
    *("asked", "retried", "shared"),
)


@dataclass
class _HeadOrder:
    """One query's head: its rows in the frame, their texts, and the order so far."""

    qid: str
    query: str
    rows: NDArray[np.intp]
    texts: list[str]
    order: list[int]


class Listwise(Stage):
    """Puts the best `depth` rows of each query in the order that `model` gives (Sun et al., EMNLP
    2023); the other rows stay below them in the retriever's order (see
    `head_and_tail.merge_head_and_tail`). Scores count down to 1 over the head.

    Columns as in `Reranker`. `model` (a `BlockingModel`), `texts` and `cache` None: the
    collection's. A request shows `window` passages (their first `max_words` words, on one line
    each); the next one begins `step` places before it, so that the best `window - step` go on.
    `passes` over the whole head follow each other. The windows of a query follow each other, those
    of different queries are asked together. `InputError` for settings out of range, and where there
    is no text or no model.

    `prompt` is the path of a prompt of one's own with `{query}`, `{passages}` and `{count}`; None:
    ours. Replies are kept in the folder `cache` by prompt, model and settings.

    An answer that is no permutation is repaired (see `read_permutation`). One without any order is
    asked for once more, and then the window keeps its order, as it does where the model refuses,
    or the answer or the prompt is too long for it. Other errors of the model are raised.

    `counts`: `windows`; of these `repaired`, `empty` and `refused` (all of the latter); prompts
    `asked`, `retried`, and `shared` with another thread's request; `missing_text`; with a cache
    `cache_hits` and `cache_misses`.
    """

    asks_model = True

    def __init__(
        self,
        model: BlockingChatModel | None = None,
        *,
        depth: int = 50,
        window: int = 20,
        step: int = 10,
        passes: int = 1,
        prompt: str | None = None,
        max_words: int = 300,
        texts: Texts | None = None,
        cache: Path | None = None,
    ) -> None:
        check_int("depth", depth)
        _check(window=window, step=step, passes=passes, max_words=max_words)
        self.depth, self.prompt = depth, prompt
        self.window, self.step, self.passes, self.max_words = window, step, passes, max_words
        self.model, self.texts, self.cache = model, texts, cache
        self._prompt = PromptTemplate(prompt, "reranker/listwise.txt", _PLACES)
        self._counts = Counts(*_COUNTS)
        self._clients = PromptClients(
            "rerank-listwise",
            ["listwise", self._prompt.text],
            lambda answer: not identifiers(answer),
            self._counts,
        )

    @property
    def fingerprint(self) -> str:
        """Of the prompt and the settings, and of the model and how it samples where that is known
        already."""
        model = self._chat_model
        key = self._clients.key(model) if model else fingerprint(self._prompt.text)
        return fingerprint(key, self.window, self.step, self.passes, self.max_words)

    @property
    def counts(self) -> Mapping[str, float]:
        return {**self._counts(), **self._clients.lookups}

    @property
    def _chat_model(self) -> BlockingChatModel | None:
        return self.model or (self.collection.model if self.collection else None)

    def _client(self) -> PromptClient:
        model = self._chat_model
        if model is None:
            raise not_bound(self, "give it a model, or bind it to a collection that has one")
        return self._clients.of(
            model, self.cache or (self.collection.caches if self.collection else None)
        )

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        texts = texts_for(inp, self.texts, self.collection)
        check_columns(inp, texts, self)
        head, tail = split_head(inp, self.depth)
        rankings = self._rankings(head, texts)
        self._order(rankings)
        scores = np.zeros(len(head))
        for ranking in rankings:
            scores[ranking.rows[ranking.order]] = np.arange(len(ranking.order), 0, -1)
        return merge_head_and_tail(head.assign(score=scores), tail)

    def _rankings(self, head: pd.DataFrame, texts: Texts | None) -> list[_HeadOrder]:
        contents = texts_of(head, texts)
        self._counts.add(missing_text=contents.count(""))
        queries, qids = head["query"].tolist(), head["qid"].tolist()
        codes = pd.factorize(head["qid"])[0]
        rankings = []
        # The rows of a query lie together.
        for rows in np.split(np.arange(len(head)), np.flatnonzero(np.diff(codes)) + 1):
            if len(rows):
                shown = [self._shown(contents[row]) for row in rows]
                qid, query = str(qids[rows[0]]), queries[rows[0]]
                rankings.append(_HeadOrder(qid, query, rows, shown, list(range(len(rows)))))
        return rankings

    def _order(self, rankings: Sequence[_HeadOrder]) -> None:
        """Bring every ranking into its new order, a window of each at a time."""
        waiting = [(ranking, self._windows(len(ranking.order))) for ranking in rankings]
        while waiting := [(ranking, windows) for ranking, windows in waiting if windows]:
            turn = [(ranking, windows.popleft()) for ranking, windows in waiting]
            prompts = [self._filled(ranking, window) for ranking, window in turn]
            accounts = {}
            for prompt, (ranking, _) in zip(prompts, turn, strict=True):
                accounts[prompt] = ranking.qid
            replies = self._client().replies(accounts)
            for prompt, (ranking, window) in zip(prompts, turn, strict=True):
                shown = ranking.order[window]
                positions = self._read(replies[prompt], len(shown))
                ranking.order[window] = [shown[position] for position in positions]

    def _windows(self, size: int) -> deque[slice]:
        """The windows of all passes over a head of `size` rows, in their order."""
        spans = list(sliding(size, self.window, self.step)) * self.passes
        return deque(slice(start, end) for start, end in spans)

    def _filled(self, ranking: _HeadOrder, window: slice) -> str:
        texts = [ranking.texts[number] for number in ranking.order[window]]
        lines = (f"[{number}] {text}" for number, text in enumerate(texts, start=1))
        query = without_identifiers(" ".join(ranking.query.split()))
        parts = {"query": query, "count": str(len(texts)), "passages": "\n".join(lines)}
        return self._prompt.filled(parts)

    def _shown(self, text: str) -> str:
        words = text[: _CHARACTERS_A_WORD * self.max_words].split()[: self.max_words]
        return without_identifiers(" ".join(words))

    def _read(self, reply: Reply, size: int) -> tuple[int, ...]:
        permutation = read_permutation(reply.text, size)
        self._counts.add(
            windows=1,
            repaired=permutation.repaired,
            refused=bool(reply.error),
            empty=permutation.empty and not reply.error,
        )
        return permutation.order

    def _identity(self) -> Any:
        return self.fingerprint, self.depth, self.texts


def _check(window: int, step: int, passes: int, max_words: int) -> None:
    check_int("window", window, ge=2)
    check_int("step", step)
    check_int("passes", passes)
    check_int("max_words", max_words)
    if step >= window:
        raise InputError(
            f"step is {step} and window is {window}",
            valid="a step below the window, so that the best of one window reach the next",
            do="set step to half of the window",
        )
