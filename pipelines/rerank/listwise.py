"""Listwise re-ranking by any language model: it reads a window of passages and returns their order;
the window slides from the end of the rows to their front (Sun et al., "Is ChatGPT Good at Search?",
EMNLP 2023). The prompt is our own."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from soundingline.pipelines.prompting import LlmStep, PromptTemplate, Reply
from soundingline.pipelines.rerank.reranker import Reranker
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.llm.blocking import BlockingModel

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
    """An order of passages: places from 0, each once, best first. `repaired`: the answer was not
    a permutation. `empty`: it had no order, so that this is the old one."""

    order: tuple[int, ...]
    repaired: bool
    empty: bool


def read_permutation(answer: str, size: int) -> Permutation:
    """The order of `size` passages, numbered from 1, in a model's answer. A number that is repeated
    or that no passage has is ignored; passages that are missing follow in their order."""
    numbers = identifiers(answer)
    named = list(dict.fromkeys(number - 1 for number in numbers if 1 <= number <= size))
    missing = [position for position in range(size) if position not in named]
    complete = not missing and len(numbers) == size
    return Permutation((*named, *missing), bool(named) and not complete, not named)


def identifiers(answer: str) -> list[int]:
    """The numbers that an answer puts in an order; none if it has no order.

    They are the longest chain of numbers in brackets, the last one of equally long chains, because
    reasons before it may name passages too; without a chain all numbers in brackets, such as those
    of a list; without any brackets a chain of bare numbers, or an answer of only numbers.
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
    `step` places before the last one; the one at the front may be shorter. No span for fewer than
    two places, which have one order."""
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


class _Rows(NamedTuple):
    """The rows of one query: the texts as they are shown, their order so far, and the windows that
    are left."""

    qid: str
    query: str
    texts: list[str]
    order: list[int]
    windows: deque[slice]


@dataclass(kw_only=True, eq=False, repr=False)
class Listwise(LlmStep, Reranker):
    """Puts the rows of each query in the order that a language model returns (Sun et
    al., EMNLP 2023). Scores count down to 1.

    The windows of a query follow each other, from the end of the rows to their front; those of
    different queries are requested together. An answer that is not a permutation is repaired (see
    `read_permutation`). An answer without any order is requested once more; then the window keeps
    its order, as it does if the model refuses, or the prompt or the answer is too long. Other
    errors of the model are raised. Replies are cached by prompt, model and sampling settings.

    Columns and `InputError`s are those of `Reranker`; there must be a model. The `counts` are
    `windows`; of these `repaired`, `empty` and `refused` ones; rows with `missing_text`; and those
    of `LlmStep`.

    Args:
        model: A `BlockingModel`. The default is the model of the collection.
        window: Passages of a request, at least 2.
        step: Passages from one window to the next, less than `window`, so that the best
            `window - step` are compared again.
        passes: How often the windows pass over the rows.
        prompt: Path of a prompt with `{query}`, `{passages}` and `{count}`. The default is the
            package's own prompt.
        max_words: The first words of a passage that a request has.
        cache: Folder of the cached replies. The default is that of the collection.

    Example:
        >>> order = RerankTop(Listwise(window=10, step=5), depth=20, texts=index.texts)
        >>> pipe = index.bm25() >> order >> MaxP()
        >>> pipe.search("old river")  # doctest: +SKIP
    """

    model: BlockingModel | None = field(default=None, kw_only=False)
    window: int = 20
    step: int = 10
    passes: int = 1
    prompt: str | None = None
    max_words: int = 300
    cache: Path | None = None

    counted = ("windows", "repaired", "empty", "refused", "missing_text")

    def __post_init__(self) -> None:
        check_int("window", self.window, ge=2)
        for name in ("step", "passes", "max_words"):
            check_int(name, getattr(self, name))
        if self.step >= self.window:
            raise InputError(
                f"step is {self.step} and window is {self.window}",
                valid="a step below the window, so that the best of one window reach the next",
                do="set step to half of the window",
            )
        self._prompt = PromptTemplate(self.prompt, "reranker/listwise.txt", _PLACES)
        self.prepare_llm(
            "rerank-listwise",
            ["listwise", self._prompt.text],
            reading=(self.window, self.step, self.passes, self.max_words),
        )

    def is_empty(self, answer: str) -> bool:
        """Whether an answer has no order."""
        return not identifiers(answer)

    def score_rows(self, rows: pd.DataFrame) -> Sequence[float]:
        self._counts.add(missing_text=int((rows["text"] == "").sum()))
        queries = []
        for qid, own in rows.groupby("qid", sort=False, dropna=False):
            spans = list(sliding(len(own), self.window, self.step)) * self.passes
            windows = deque(slice(start, end) for start, end in spans)
            order, query = list(range(len(own))), own["query"].iloc[0]
            texts = list(map(self._shown, own["text"].tolist()))
            queries.append(_Rows(str(qid), query, texts, order, windows))
        self._order(queries)
        scores: list[float] = []
        for each in queries:
            # The place of each row in the order, and scores that fall with it.
            scores += (len(each.order) - np.argsort(each.order)).tolist()
        return scores

    def _order(self, queries: Sequence[_Rows]) -> None:
        """Bring the rows of every query into their new order, one window of each at a time."""
        while turn := [(rows, rows.windows.popleft()) for rows in queries if rows.windows]:
            prompts = [self._filled(rows, window) for rows, window in turn]
            replies = self.ask(prompts, [rows.qid for rows, _ in turn])
            for reply, (rows, window) in zip(replies, turn, strict=True):
                shown = rows.order[window]
                positions = self._read(reply, len(shown))
                rows.order[window] = [shown[position] for position in positions]

    def _filled(self, rows: _Rows, window: slice) -> str:
        texts = [rows.texts[number] for number in rows.order[window]]
        lines = (f"[{number}] {text}" for number, text in enumerate(texts, start=1))
        query = without_identifiers(" ".join(rows.query.split()))
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
