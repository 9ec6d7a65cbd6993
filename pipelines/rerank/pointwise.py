"""Pointwise re-ranking by any language model: each candidate alone gets a score of 0 to 100.

SIRA's released pipeline ends in such a re-rank of the best 200, which its paper's "single call"
numbers contain. The prompt is our own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipelines.json_answers import json_values
from pipelines.prompt_client import BlockingChatModel, PromptClient, PromptClients, json_answer
from pipelines.prompt_template import PromptTemplate
from pipelines.rerank.head_and_tail import rejoin, split_head
from pipelines.rerank.texts import check_columns, texts_for, texts_of
from pipelines.stage import Stage, Texts, not_bound
from toolkit.checks import check_integer
from toolkit.counts import Counts
from toolkit.files import fingerprint

_PROMPT = Path(__file__).resolve().parent / "prompts" / "pointwise.txt"
_PLACES = ("query", "text")
_COUNTS = (
    *("pairs", "unreadable", "refused", "missing_text"),
    *("asked", "retried", "shared"),
)
_LARGEST = 100


class Pointwise(Stage):
    """Puts the best `depth` rows of each query in the order of the scores that `model` gives each
    of them alone; the other rows stay below in the retriever's order (see `head_and_tail.rejoin`).

    In: as `Reranker`. `model` (a `BlockingModel`), `texts` and `cache` (a folder) None: the
    collection's. A prompt shows the query and the first `max_characters` of the text. Equal scores
    stand in the retriever's order.

    A score is the number under `score` of the last JSON object of the answer, 0 to 100; a number
    elsewhere is none. An answer without a score is asked for once more. What then has none, or was
    refused, stands at the end of the head, in the retriever's order.
    Other errors of the model are raised. `structured`: the server is asked for one JSON object with
    an integer and nothing else, where it knows `response_format` (vLLM, OpenAI). `prompt` is the
    path of a prompt of one's own with `{query}` and `{text}`.

    `counts`: `pairs`; of these `unreadable` and `refused`; `missing_text`; prompts `asked`,
    `retried`, and `shared` with another thread's request; with a cache `cache_hits` and
    `cache_misses`."""

    asks_model = True

    def __init__(
        self,
        model: BlockingChatModel | None = None,
        *,
        depth: int = 200,
        prompt: str | None = None,
        max_characters: int = 4000,
        structured: bool = False,
        texts: Texts | None = None,
        cache: Path | None = None,
    ) -> None:
        check_integer("depth", depth)
        check_integer("max_characters", max_characters)
        self.depth, self.prompt, self.max_characters = depth, prompt, max_characters
        self.model, self.texts, self.cache = model, texts, cache
        self.structured = structured
        self._prompt = PromptTemplate(prompt, _PROMPT, _PLACES)
        self._counts = Counts(*_COUNTS)
        self._clients = PromptClients(
            "rerank-pointwise",
            ["pointwise", self._prompt.text],
            lambda answer: read_score(answer) is None,
            self._counts,
            json_answer("score", {"score": {"type": "integer"}}) if structured else None,
        )

    @property
    def fingerprint(self) -> str:
        """Of the prompt and the settings, and of the model and how it samples where that is known
        already."""
        model = self._model
        key = self._clients.key(model) if model else fingerprint(self._prompt.text)
        return fingerprint(key, self.max_characters)

    @property
    def counts(self) -> Mapping[str, float]:
        return {**self._counts(), **self._clients.lookups}

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        texts = texts_for(inp, self.texts, self.collection)
        check_columns(inp, texts, self)
        head, tail = split_head(inp, self.depth)
        contents = texts_of(head, texts)
        self._counts.add(missing_text=contents.count(""))
        prompts = [
            self._prompt.filled({"query": str(query), "text": text[: self.max_characters]})
            for query, text in zip(head["query"], contents, strict=True)
        ]
        accounts = dict(zip(prompts, map(str, head["qid"]), strict=True))
        replies = self._client().replies(accounts) if prompts else {}
        by_prompt: dict[str, float] = {}
        for prompt, reply in replies.items():
            score = None if reply.error else read_score(reply.text)
            refused = bool(reply.error)
            self._counts.add(refused=refused, unreadable=score is None and not refused)
            by_prompt[prompt] = float("nan") if score is None else score
        self._counts.add(pairs=len(prompts))
        scores = np.array([by_prompt[prompt] for prompt in prompts], dtype=np.float64)
        return rejoin(head.assign(score=scores), tail)

    @property
    def _model(self) -> BlockingChatModel | None:
        return self.model or (self.collection.model if self.collection else None)

    def _client(self) -> PromptClient:
        model = self._model
        if model is None:
            raise not_bound(self, "give it a model, or bind it to a collection that has one")
        return self._clients.of(
            model, self.cache or (self.collection.caches if self.collection else None)
        )

    def _identity(self) -> Any:
        return self.fingerprint, self.depth, self.texts


def read_score(answer: str) -> float | None:
    """The number under `score` of the last JSON object of an answer that has one; None where there
    is none, or it is not within 0 to 100."""
    score: float | None = None
    for value in json_values(answer):
        if isinstance(value, dict) and "score" in value:
            number = value["score"]
            usable = isinstance(number, int | float) and not isinstance(number, bool)
            score = float(number) if usable and 0 <= number <= _LARGEST else None
    return score
