"""Listwise re-ranking by any language model: it is shown a window of passages and gives their
order; the window slides from the end of the head to its front (Sun et al., "Is ChatGPT Good at
Search?", EMNLP 2023). The prompt is our own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipelines.prompt_client import BlockingChatModel, PromptClient, PromptClients, Reply
from pipelines.prompt_template import PromptTemplate
from pipelines.rerank.head_and_tail import rejoin, split_head
from pipelines.rerank.permutation import (
    identifiers,
    read_permutation,
    sliding,
    without_identifiers,
)
from pipelines.rerank.texts import check_columns, texts_for, texts_of
from pipelines.stage import Stage, Texts, not_bound
from toolkit.checks import check_integer
from toolkit.counts import Counts
from toolkit.errors import InputError
from toolkit.files import fingerprint

_PROMPT = Path(__file__).resolve().parent / "prompts" / "listwise.txt"
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
    2023); the other rows stay below them in the retriever's order (see `head_and_tail.rejoin`).
    Scores count down to 1 over the head.

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
        check_integer("depth", depth)
        _check(window=window, step=step, passes=passes, max_words=max_words)
        self.depth, self.prompt = depth, prompt
        self.window, self.step, self.passes, self.max_words = window, step, passes, max_words
        self.model, self.texts, self.cache = model, texts, cache
        self._prompt = PromptTemplate(prompt, _PROMPT, _PLACES)
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
        return rejoin(head.assign(score=scores), tail)

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
    check_integer("window", window, least=2)
    check_integer("step", step)
    check_integer("passes", passes)
    check_integer("max_words", max_words)
    if step >= window:
        raise InputError(
            f"step is {step} and window is {window}",
            valid="a step below the window, so that the best of one window reach the next",
            do="set step to half of the window",
        )
