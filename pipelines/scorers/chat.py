"""Requirements scored by a language model: one request a document, answered with one JSON object.

The paper's Scorer with a prompt of our own, because none is published (Du et al., 2026)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.prompt_client import PromptClients, Reply, json_answer
from pipelines.prompt_template import PromptTemplate
from pipelines.rerank.rank1_relevance import closing_token, verdict
from pipelines.scorers.cached import CachedScorer
from toolkit.checks import is_number
from toolkit.counts import Counts
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.llm.errors import BadRequest, LedgerFailed, ModelError, OutOfMoney
from toolkit.llm.json_answers import json_values
from toolkit.llm.protocol import Token
from toolkit.llm.sections import filled
from toolkit.search.scoring import (
    BY_LOGPROBS,
    BY_STATEMENT,
    VERDICTS,
    Candidate,
    Judgement,
    RequirementScore,
    RequirementScorer,
    ScorerResources,
)

_PROMPT = Path(__file__).resolve().parent / "prompts" / "requirements.txt"
_PLACES = ("question", "requirements", "count", "passages")
_LIKELIEST = 5  # tokens whose log-probabilities are asked for, at each place of a long reply
_VERDICT_KEY = '"relevant":'
_LONGEST_RATIONALE = 400
_ROW = {
    "number": {"type": "integer"},
    "verdict": {"type": "string", "enum": list(VERDICTS)},
    "score": {"type": "number"},
    "passage": {"type": "string"},
    "rationale": {"type": "string"},
}
_ROWS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": _ROW,
        "required": list(_ROW),
        "additionalProperties": False,
    },
}
_ANSWER = {
    "requirements": _ROWS,
    "relevant": {"type": "boolean"},
    "probability": {"type": "number"},
}
UNREADABLE = "unreadable"
_COUNTS = ("documents", UNREADABLE, "refused", "failed", "completed", "asked", "retried", "shared")


class ReadAnswer(NamedTuple):
    """What an answer says: scores by requirement number (from 1), and its stated probability."""

    scores: Mapping[int, RequirementScore]
    probability: float | None


class ChatScorer:
    """Asks the model of its resources about each candidate: all its requirements in one request.

    - `prompt`: the path of a prompt of one's own with `{question}`, `{requirements}`, `{count}` (of
      these) and `{passages}`; None: ours. Passages stand in a section that they cannot leave
      (`toolkit.llm.sections`).
    - `structured`: the server is asked for that JSON object and nothing else, by `response_format`
      (vLLM, OpenAI, llama.cpp). `log_probabilities`: it is asked for those of the tokens, from
      which P(true) / (P(true) + P(false)) of `relevant` is the overall probability; where it gives
      none, the number that the model states is taken, and the judgement says which.

    An answer without any score is asked for once more; requirements that an answer leaves out are
    asked for alone, once. What then has no score makes the document's error `unreadable`. No cache
    keeps such an answer, so that the next start asks again, and keeps what is good. A reply that
    fails leaves its own document alone unscored. Errors that every request would meet (a wrong
    setting, no money, no such model) are raised.

    `counts`: `documents`; of these `unreadable`, `refused` and `failed`, and those asked for what
    their answer left out (`completed`); prompts `asked`, `retried`, and `shared` with another
    thread's request.
    """

    asks_model = True

    def __init__(
        self,
        *,
        prompt: str | None = None,
        structured: bool = True,
        log_probabilities: bool = True,
    ) -> None:
        self.prompt, self.structured = prompt, structured
        self.log_probabilities = log_probabilities
        self._prompt = PromptTemplate(prompt, _PROMPT, _PLACES)
        self._resources = ScorerResources()
        self._counts = Counts(*_COUNTS)
        self._ask_for(log_probabilities)

    @property
    def fingerprint(self) -> str:
        """Of the prompt and the settings, and once bound of the model and how it samples."""
        model = self._resources.model
        settings = (self._prompt.text, self.structured, self.log_probabilities)
        return fingerprint(self._clients.key(model)) if model else fingerprint("chat", *settings)

    @property
    def counts(self) -> Mapping[str, float]:
        """See the class."""
        return self._counts()

    def bind(self, resources: ScorerResources) -> RequirementScorer:
        """See `RequirementScorer`: with its scores kept. `InputError` without a model."""
        if resources.model is None:
            raise InputError(
                "scorer=chat asks a language model, and none is chosen",
                do="choose one for it: llm@librarian_llm=... (or llm=..., which it shares)",
            )
        bound = copy.copy(self)
        bound._resources = resources
        if not resources.gives_logprobs:
            bound._ask_for(False)
        return CachedScorer(bound, resources.caches)

    def score(self, candidates: Sequence[Candidate]) -> list[Judgement]:
        """See `RequirementScorer`."""
        judgements = self._judgements(candidates)
        again = {
            number: _unscored(candidates[number], judgement)
            for number, judgement in enumerate(judgements)
            if judgement.error == UNREADABLE and any(judgement.requirements)
        }
        if again:
            self._counts.add(completed=len(again))
            others = self._judgements(list(again.values()))
            for number, other in zip(again, others, strict=True):
                judgements[number] = _completed(judgements[number], other)
        errors = [judgement.error for judgement in judgements]
        known = {name: errors.count(name) for name in (UNREADABLE, "refused")}
        failed = sum(map(bool, errors)) - sum(known.values())
        self._counts.add(documents=len(candidates), failed=failed, **known)
        return judgements

    def _judgements(self, candidates: Sequence[Candidate]) -> list[Judgement]:
        prompts = [self._filled(candidate) for candidate in candidates]
        accounts = {
            prompt: candidate.qid for prompt, candidate in zip(prompts, candidates, strict=True)
        }
        without = {
            prompt
            for candidate, prompt in zip(candidates, prompts, strict=True)
            if not candidate.evidence
        }
        overall = {prompt: qid for prompt, qid in accounts.items() if prompt in without}
        scored = {prompt: qid for prompt, qid in accounts.items() if prompt not in without}
        replies = {
            **(self._replies(scored, self._clients) if scored else {}),
            **(self._replies(overall, self._clients_of_overall) if overall else {}),
        }
        return [
            _judgement(candidate, replies[prompt])
            for candidate, prompt in zip(candidates, prompts, strict=True)
        ]

    def close(self) -> None:
        """See `RequirementScorer`: the model is closed by its owner."""

    def _replies(self, accounts: Mapping[str, str], clients: PromptClients) -> dict[str, Reply]:
        if self._resources.model is None:
            raise RuntimeError("the scorer has no model: bind it to one")
        client = clients.of(self._resources.model, self._resources.caches)
        try:
            return client.replies(accounts)
        except BadRequest as error:
            raise BadRequest(
                f"{error} (scorer.structured=false and scorer.log_probabilities=false ask for less)"
            ) from error
        except (OutOfMoney, LedgerFailed):
            raise
        except ModelError as error:
            if error.stops_run:
                raise
            if len(accounts) == 1:
                return {prompt: Reply("", error=error.code) for prompt in accounts}
        # One of several failed, and took what came of the others with it: each by itself now, those
        # that came from the cache.
        one_by_one = [self._replies({prompt: qid}, clients) for prompt, qid in accounts.items()]
        return {prompt: reply for replies in one_by_one for prompt, reply in replies.items()}

    def _filled(self, candidate: Candidate) -> str:
        passages = "\n".join(f"[{unit_id}] {text}" for unit_id, text in candidate.passages)
        shown = f"{candidate.title}\n{passages or 'No passage was found.'}"
        # The same prompt for the same texts, so that it is found in the cache; a text that holds
        # its own hash cannot be written.
        nonce = fingerprint(candidate.question, shown)
        numbered = [
            f"{number}. {row.requirement}" for number, row in enumerate(candidate.evidence, start=1)
        ]
        return self._prompt.filled(
            {
                "question": candidate.question,
                "requirements": "\n".join(numbered) or "None beside the request itself.",
                "count": str(len(numbered)),
                "passages": filled("{passages}", {"passages": shown}, nonce),
            }
        )

    def _ask_for(self, log_probabilities: bool) -> None:
        """Make what asks: for requirements, and for the overall probability alone."""
        settings = {
            **(json_answer("judgement", _ANSWER) if self.structured else {}),
            **({"logprobs": _LIKELIEST} if log_probabilities else {}),
        }
        self._clients, self._clients_of_overall = (
            PromptClients(
                "requirements-chat",
                ["requirements", self._prompt.text],
                is_empty,
                self._counts,
                settings,
                _telling,
                keeps_empty=False,
            )
            for is_empty in (_without_scores, _unread)
        )


def read_answer(text: str) -> ReadAnswer | None:
    """The last JSON object with a list `requirements` in an answer; None where there is none, or
    where nothing in the list can be read."""
    answer: ReadAnswer | None = None
    for value in json_values(text):
        if isinstance(value, dict) and isinstance(value.get("requirements"), list):
            rows = value["requirements"]
            scores = dict(filter(None, map(_read_row, rows)))
            readable = bool(scores) or not rows
            answer = ReadAnswer(scores, _unit(value.get("probability"))) if readable else None
    return answer


def _unread(text: str) -> bool:
    return read_answer(text) is None


def _without_scores(text: str) -> bool:
    answer = read_answer(text)
    return answer is None or not answer.scores


def _read_row(row: Any) -> tuple[int, RequirementScore] | None:
    if not isinstance(row, dict):
        return None
    number, score, word = row.get("number"), _unit(row.get("score")), row.get("verdict")
    if not isinstance(number, int) or isinstance(number, bool) or score is None:
        return None
    if word not in VERDICTS:
        return None
    rationale = " ".join(str(row.get("rationale") or "").split())[:_LONGEST_RATIONALE]
    passage = str(row.get("passage") or "").strip().strip("[]")
    return number, RequirementScore(word, score, rationale, passage)


def _unit(value: Any) -> float | None:
    return float(value) if is_number(value) and 0 <= value <= 1 else None


def _judgement(candidate: Candidate, reply: Reply) -> Judgement:
    nothing = (None,) * len(candidate.evidence)
    if reply.error:
        return Judgement(nothing, error=reply.error)
    answer = read_answer(reply.text)
    if answer is None:
        return Judgement(nothing, error=UNREADABLE)
    located = {passage.unit_id for passage in candidate.passages}
    rows = []
    for number in range(1, len(candidate.evidence) + 1):
        row = answer.scores.get(number)
        # An id that was not shown names no evidence.
        rows.append(row and row._replace(passage=row.passage if row.passage in located else ""))
    error = UNREADABLE if None in rows else ""
    relevance = verdict(reply.tokens[0].top) if reply.tokens else None
    if relevance is not None:
        return Judgement(tuple(rows), relevance.score, BY_LOGPROBS, error)
    stated = answer.probability
    return Judgement(tuple(rows), stated, BY_STATEMENT if stated is not None else "", error)


def _unscored(candidate: Candidate, judgement: Judgement) -> Candidate:
    """The candidate with the requirements alone that an answer left out."""
    rows = list(zip(candidate.evidence, judgement.requirements, strict=True))
    scored = [passage for evidence, row in rows if row for passage in evidence.passages]
    return candidate._replace(
        evidence=tuple(evidence for evidence, row in rows if row is None),
        context=tuple(dict.fromkeys([*scored, *candidate.context])),
    )


def _completed(judgement: Judgement, other: Judgement) -> Judgement:
    """A judgement with the scores that were asked for once more. Its probability stays: all
    passages were read for it."""
    rest = iter(other.requirements)
    rows = tuple(row if row is not None else next(rest) for row in judgement.requirements)
    return judgement._replace(requirements=rows, error=other.error)


def _telling(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """The token that says whether the document is `relevant`, where the server listed any in its
    place."""
    token = closing_token(tokens, _VERDICT_KEY)
    return (token,) if token and token.top else ()
