"""Pointwise re-ranking by any language model: each candidate alone gets a score.

The released pipeline of SIRA ends with such a re-ranker of the best 200 rows, which the "single
call" numbers of its paper contain. The rubrics have the bands and rules of that code
(`scripts/configs/rerank/prompts` at 57f9cbb: relevance_v04, rerank_claim_v03 and _v04,
rerank_multihop_v01) in our words. A score from the probabilities of one
token costs one token a pair, and distinguishes candidates to which the model would give the same
number: the expected grade as in Liu et al., "G-Eval", EMNLP 2023 (arXiv 2303.16634), the
probability of yes against no as in Zhuang et al. 2023 (arXiv 2310.14122)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from soundingline.pipelines.prompting import (
    LIKELIEST,
    TASKS,
    LlmStep,
    PromptTemplate,
    Reply,
    expected_digit,
    first_place,
    json_answer,
    share,
)
from soundingline.pipelines.rerank.reranker import Reranker
from soundingline.toolkit.errors import InputError, check_int, is_number
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.errors import OutOfMoney, Truncated
from soundingline.toolkit.llm.prompts import json_values

_PROMPT_OF = {
    "generated": "reranker/pointwise.txt",
    "expected": "reranker/pointwise_digit.txt",
    "p_yes": "reranker/pointwise_yes_no.txt",
}
_RUBRICS = ("claim", "multi_hop")  # beside the general one
_LARGEST = 100
_WHOLE_NUMBER = {"type": "integer", "minimum": 0, "maximum": _LARGEST}
_ONE_TOKEN = {"max_output_tokens": 1, "logprobs": LIKELIEST}


@dataclass(kw_only=True, eq=False, repr=False)
class Pointwise(LlmStep, Reranker):
    """Orders the rows of each query by the score that a language model gives to each
    row alone.

    `score` selects what the score of a pair is:

    - `generated`: The number under `score` of the last JSON object of the answer, 0 to 100. An
      answer without a score is requested once more; a second one is not paid for again by this
      stage, and requested again after the next start.
    - `expected`: The expectation of a grade of 0 to 9 over the digits that the server lists for the
      first token.
    - `p_yes`: P(yes) / (P(yes) + P(no)) of the first token. The probability of a word that is not
      listed is bounded by those that are (see `share`).

    The last two request one token and its log-probabilities, which the server must return; a model
    must be set not to reason before it answers.

    A row comes last if its answer has no score, was refused, or was not covered by
    the budget of its question (`budget.dollars`). Other errors of the model are raised.

    Columns and `InputError`s are those of `Reranker`; there must be a model. The `counts` are
    `pairs`; of these `unreadable`, `refused`, `unpaid` and (p_yes) `one_sided` ones, where one of
    the two words was not listed; rows with `missing_text`; and those of `LlmStep`.

    Args:
        model: A `BlockingModel`. The default is the model of the collection.
        score: `generated`, `expected` or `p_yes`.
        prompt: Path of a prompt with `{query}` and `{text}` that requests what `score` reads. The
            default is the package's own prompt.
        task: One of `TASKS`. With `generated`, `claim` and `multi_hop` have rubrics of their own;
            the other tasks, and the other scores, have the general one.
        max_characters: The first characters of a text that a prompt has.
        structured: With `generated`, whether to request one JSON object with an integer of 0 to 100
            by `response_format` (vLLM, OpenAI).
        cache: Folder of the cached replies. The default is that of the collection.
    """

    model: BlockingModel | None = field(default=None, kw_only=False)
    score: str = "generated"
    prompt: str | None = None
    task: str = "general"
    max_characters: int = 4000
    structured: bool = False
    cache: Path | None = None

    counted = ("pairs", "unreadable", "refused", "unpaid", "one_sided", "missing_text")

    def __post_init__(self) -> None:
        check_int("max_characters", self.max_characters)
        if self.score not in _PROMPT_OF:
            raise InputError(f"score is {self.score!r}", valid=", ".join(_PROMPT_OF))
        if self.task not in TASKS:
            raise InputError(f"task is {self.task!r}", valid=", ".join(TASKS))
        if self.structured and self.score != "generated":
            raise InputError(
                f"structured is set, and score={self.score} requests one token",
                do="set structured=false, or score=generated",
            )
        default = _PROMPT_OF[self.score]
        if self.score == "generated" and self.task in _RUBRICS:
            default = f"reranker/pointwise_{self.task}.txt"
        self._prompt = PromptTemplate(self.prompt, default, ("query", "text"))
        self.needs_logprobs = self.score != "generated"
        number = json_answer("score", {"score": _WHOLE_NUMBER}) if self.structured else {}
        self.prepare_llm(
            "rerank-pointwise",
            ["reranker/pointwise", self._prompt.text],
            reading=(self.max_characters, *([self.score] if self.needs_logprobs else [])),
            settings=_ONE_TOKEN if self.needs_logprobs else number,
            caches_empty=False,
            returns_unpaid=True,
        )

    def is_empty(self, answer: str) -> bool:
        """Whether an answer has no score to read. The probabilities of a token do not change when
        it is requested again."""
        return self.score == "generated" and read_score(answer) is None

    def score_rows(self, rows: pd.DataFrame) -> Sequence[float]:
        texts = rows["text"].tolist()
        prompts = [
            self._prompt.filled({"query": query, "text": text[: self.max_characters]})
            for query, text in zip(rows["query"], texts, strict=True)
        ]
        replies = dict(zip(prompts, self.ask(prompts, map(str, rows["qid"])), strict=True))
        # An equal prompt is read and counted once.
        score_of = {prompt: self._read(reply) for prompt, reply in replies.items()}
        self._counts.add(pairs=len(prompts), missing_text=texts.count(""))
        return [score_of[prompt] for prompt in prompts]

    def _read(self, reply: Reply) -> float:
        score, one_sided = self._score_in(reply)
        unpaid = reply.error == OutOfMoney.code
        # An answer that was cut off is unreadable.
        refused = reply.error not in ("", Truncated.code, OutOfMoney.code)
        unreadable = score is None and not refused and not unpaid
        self._counts.add(refused=refused, unpaid=unpaid, unreadable=unreadable, one_sided=one_sided)
        return float("nan") if score is None else score

    def _score_in(self, reply: Reply) -> tuple[float | None, bool]:
        """The score in a reply, and whether the server did not list one of its two words."""
        if self.score == "generated":
            return read_score(reply.text), False
        if self.score == "expected":
            return expected_digit(first_place(reply.tokens)), False
        return share(first_place(reply.tokens), "yes", "no") or (None, False)


def read_score(answer: str) -> float | None:
    """The number under `score` of the last JSON object that has one; None if there is none, or if
    it is not within 0 to 100."""
    score: float | None = None
    for value in json_values(answer):
        if isinstance(value, dict) and "score" in value:
            number = value["score"]
            score = float(number) if is_number(number) and 0 <= number <= _LARGEST else None
    return score
