"""Pointwise re-ranking by any language model: each candidate alone gets a score.

SIRA's released pipeline ends in such a re-rank of the best 200, which its paper's "single call"
numbers contain. The prompts are our own. A score from the probabilities of one token takes one
token a pair, and tells candidates apart to which the model would give the same number: the expected
grade as Liu et al., "G-Eval", EMNLP 2023 (arXiv 2303.16634), and the probability of yes against no
as Zhuang et al. 2023 (arXiv 2310.14122) compare them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from soundingline.pipelines.counts import Counts
from soundingline.pipelines.prompt_client import (
    BlockingChatModel,
    PromptClient,
    PromptClients,
    Reply,
    json_answer,
)
from soundingline.pipelines.prompt_template import PromptTemplate
from soundingline.pipelines.rerank.answer_tokens import (
    LIKELIEST,
    expected_digit,
    first_place,
    share,
)
from soundingline.pipelines.rerank.reranker import (
    check_columns,
    merge_head_and_tail,
    split_head,
    texts_for,
    texts_of,
)
from soundingline.pipelines.stage import Stage, Texts, not_bound
from soundingline.toolkit.errors import InputError, check_int, is_number
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.errors import OutOfMoney, Truncated
from soundingline.toolkit.llm.prompts import json_values

_PROMPT_OF = {
    "generated": "reranker/pointwise.txt",
    "expected": "reranker/pointwise_digit.txt",
    "p_yes": "reranker/pointwise_yes_no.txt",
}
SCORES = tuple(_PROMPT_OF)
_PLACES = ("query", "text")
_COUNTS = (
    *("pairs", "unreadable", "refused", "unpaid", "one_sided", "missing_text"),
    *("asked", "retried", "shared"),
)
_LARGEST = 100
_WHOLE_NUMBER = {"type": "integer", "minimum": 0, "maximum": _LARGEST}
_ONE_TOKEN = {"max_output_tokens": 1, "logprobs": LIKELIEST}


class _Reading(NamedTuple):
    """What one reply says; `score` None: nothing that can be read."""

    score: float | None = None
    one_sided: bool = False


class Pointwise(Stage):
    """Puts the best `depth` rows of each query in the order of the scores that `model` gives each
    of them alone; the other rows stay below in the retriever's order (see
    `head_and_tail.merge_head_and_tail`).

    In: as `Reranker`. `model` (a `BlockingModel`), `texts` and `cache` (a folder) None: the
    collection's. A prompt shows the query and the first `max_characters` of the text. Equal scores
    stand in the retriever's order. `score` says what a pair's score is:

    - `generated`: the number under `score` of the last JSON object of the answer, 0 to 100; a
      number elsewhere is none. An answer without a score is asked for once more; a second one is
      not paid for again by this stage, and the next start asks again.
    - `expected`: the expectation of a grade of 0 to 9 over the digits that the server lists for the
      first token, normalised over these.
    - `p_yes`: P(yes) / (P(yes) + P(no)) of the first token. A word that is not listed is bounded by
      what is (`share`).

    The last two ask for one token and its log-probabilities, which the server must give; a model
    that thinks before it answers must be told not to.

    What has no score, was refused, or could not be paid for with the money of its question
    (`budget.dollars`), stands at the end of the head, in the retriever's order. Other errors of the
    model are raised.

    `structured`: the server is asked for one JSON object with an integer of 0 to 100 and nothing
    else, where it knows `response_format` (vLLM, OpenAI); with `generated` alone. `prompt` is the
    path of a prompt of one's own with `{query}` and `{text}`, which asks for what `score` reads.

    `counts`: `pairs`; of these `unreadable`, `refused`, `unpaid` and (p_yes) `one_sided`, where one
    of the two words was not listed; `missing_text`; prompts `asked`, `retried`, and `shared` with
    another thread's request; with a cache `cache_hits` and `cache_misses`."""

    asks_model = True

    def __init__(
        self,
        model: BlockingChatModel | None = None,
        *,
        depth: int = 200,
        score: str = "generated",
        prompt: str | None = None,
        max_characters: int = 4000,
        structured: bool = False,
        texts: Texts | None = None,
        cache: Path | None = None,
    ) -> None:
        check_int("depth", depth)
        check_int("max_characters", max_characters)
        if score not in SCORES:
            raise InputError(f"score is {score!r}", valid=", ".join(SCORES))
        if structured and score != "generated":
            raise InputError(
                f"structured is set, and score={score} asks for one token",
                do="set structured=false, or score=generated",
            )
        self.depth, self.prompt, self.max_characters = depth, prompt, max_characters
        self.model, self.texts, self.cache = model, texts, cache
        self.score, self.structured = score, structured
        self._prompt = PromptTemplate(prompt, _PROMPT_OF[score], _PLACES)
        self._counts = Counts(*_COUNTS)
        generated = score == "generated"
        json_object = json_answer("score", {"score": _WHOLE_NUMBER}) if structured else {}
        self._clients = PromptClients(
            "rerank-pointwise",
            ["reranker/pointwise", self._prompt.text],
            # A token's probabilities do not change when it is asked for again.
            lambda answer: generated and read_score(answer) is None,
            self._counts,
            json_object if generated else _ONE_TOKEN,
            keeps_empty=False,
            as_far=True,
        )

    @property
    def asks_logprobs(self) -> bool:  # type: ignore[override]
        """Whether its model must give log-probabilities."""
        return self.score != "generated"

    @property
    def fingerprint(self) -> str:
        """Of the prompt and the settings, and of the model and how it samples where that is known
        already."""
        model = self._model
        key = self._clients.key(model) if model else fingerprint(self._prompt.text)
        # As it was before there were other scores, so that caches and runs stay valid.
        settings = () if self.score == "generated" else (self.score,)
        return fingerprint(key, self.max_characters, *settings)

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
            reading = _READERS[self.score](reply)
            # An answer that was cut off is one that cannot be read.
            unpaid = reply.error == OutOfMoney.code
            refused = reply.error not in ("", Truncated.code, OutOfMoney.code)
            unreadable = reading.score is None and not refused and not unpaid
            self._counts.add(
                refused=refused,
                unpaid=unpaid,
                unreadable=unreadable,
                one_sided=reading.one_sided,
            )
            by_prompt[prompt] = float("nan") if reading.score is None else reading.score
        self._counts.add(pairs=len(prompts))
        scores = np.array([by_prompt[prompt] for prompt in prompts], dtype=np.float64)
        return merge_head_and_tail(head.assign(score=scores), tail)

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
            score = float(number) if is_number(number) and 0 <= number <= _LARGEST else None
    return score


def _generated(reply: Reply) -> _Reading:
    return _Reading(read_score(reply.text))


def _expected(reply: Reply) -> _Reading:
    return _Reading(expected_digit(first_place(reply.tokens)))


def _p_yes(reply: Reply) -> _Reading:
    relevance = share(first_place(reply.tokens), "yes", "no")
    return _Reading(*relevance) if relevance else _Reading()


_READERS = {"generated": _generated, "expected": _expected, "p_yes": _p_yes}
