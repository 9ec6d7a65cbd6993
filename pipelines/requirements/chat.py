"""Requirements scored by a language model: one request for each document (PaSaMaster's scorer)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from soundingline.pipelines.prompting import (
    CachedLLM,
    LlmStep,
    PromptTemplate,
    Reply,
    json_answer,
)
from soundingline.pipelines.requirements.scorers import CachedRequirementScorer, without_scored
from soundingline.pipelines.rerank.rank1 import closing_token, verdict
from soundingline.toolkit.errors import is_number
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.errors import BadRequest, LedgerFailed, ModelError, OutOfMoney
from soundingline.toolkit.llm.messages import Token, object_schema
from soundingline.toolkit.llm.prompts import json_values, spotlight
from soundingline.toolkit.search.scoring import (
    BY_LOGPROBS,
    BY_STATEMENT,
    VERDICTS,
    CandidateDocument,
    DocumentScore,
    RequirementScore,
    RequirementScorer,
    ScorerResources,
)

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
_ANSWER = {
    "requirements": {"type": "array", "items": object_schema(_ROW)},
    "relevant": {"type": "boolean"},
    "probability": {"type": "number"},
}
UNREADABLE = "unreadable"


class ReadAnswer(NamedTuple):
    """The scores of an answer by the number of the requirement, and the stated probability."""

    scores: Mapping[int, RequirementScore]
    probability: float | None


@dataclass(kw_only=True, eq=False, repr=False)
class ChatScorer(LlmStep):
    """Scores requirements by a language model: one request for each candidate document.

    The model answers with a JSON object that has a score for each requirement and the probability
    that the document is relevant. An answer without any score is requested once more; requirements
    that an answer leaves out are requested alone, once. If a requirement still has no score, the
    document has the error `unreadable`. Unreadable answers are not cached, so that the next start
    requests them again and keeps the good ones. A reply that fails leaves only its own document
    unscored. Errors that every request would meet (a wrong setting, no money, no such model) are
    raised.

    Args:
        prompt: Path of a prompt with `{question}`, `{requirements}`, `{count}` (of these) and
            `{passages}`. The default is the package's own; that of the paper is not published.
            Passages are delimited (`soundingline.toolkit.llm.prompts`).
        structured: Whether to request nothing but that JSON object, by `response_format` (vLLM,
            OpenAI, llama.cpp).
        log_probabilities: Whether to request log-probabilities of the tokens. If the server
            returns them, the overall probability is P(true) / (P(true) + P(false)) of the token
            after `relevant`, otherwise the number that the model states; `DocumentScore.origin`
            says which.

    The `counts` are `documents`; of these `unreadable`, `refused`, `failed`, and those with a
    second request for left-out requirements (`completed`); prompts `asked`, `retried`, and `shared`
    with another thread's request.

    Source: the Scorer of Du et al. (2026), with another prompt.
    """

    counted = ("documents", UNREADABLE, "refused", "failed", "completed")

    prompt: str | None = None
    structured: bool = True
    log_probabilities: bool = True

    def __post_init__(self) -> None:
        self._prompt = PromptTemplate(self.prompt, "scorer/requirements.txt", _PLACES)
        self._resources = ScorerResources()
        settings = {
            **(json_answer("judgement", _ANSWER) if self.structured else {}),
            **({"logprobs": _LIKELIEST} if self.log_probabilities else {}),
        }
        self.prepare_llm(
            "requirements-chat",
            ["requirements", self._prompt.text],
            settings=settings,
            select_tokens=_verdict_token,
            caches_empty=False,
        )
        # For the overall probability alone, which an answer without scores may have.
        self._llm_of_overall = replace(self._llm, is_empty=lambda text: read_answer(text) is None)

    @property
    def fingerprint(self) -> str:
        """Hash of the prompt and the settings; once bound, of the model and its sampling too."""
        model = self._resources.model
        settings = (self._prompt.text, self.structured, self.log_probabilities)
        return fingerprint(self._llm.key(model)) if model else fingerprint("chat", *settings)

    @property
    def counts(self) -> Mapping[str, float]:
        return self._counts()  # those of the cache are in the counts of the cached scores

    def bind(self, resources: ScorerResources) -> RequirementScorer:
        """The scorer with the model and a cache of its scores. `InputError` without a model."""
        self.model_and_cache(resources)
        log_probabilities = self.log_probabilities and resources.gives_logprobs
        bound = replace(self, log_probabilities=log_probabilities)
        bound._resources = resources
        return CachedRequirementScorer(bound, resources.caches)

    def score(self, candidates: Sequence[CandidateDocument]) -> list[DocumentScore]:
        scores = self._scores(candidates)
        incomplete = {
            number: without_scored(
                candidates[number], [row is not None for row in score.requirements]
            )
            for number, score in enumerate(scores)
            if score.error == UNREADABLE and any(score.requirements)
        }
        if incomplete:
            self._counts.add(completed=len(incomplete))
            others = self._scores(list(incomplete.values()))
            for number, other in zip(incomplete, others, strict=True):
                # The probability stays, because it is based on all passages.
                rest = iter(other.requirements)
                rows = (next(rest) if row is None else row for row in scores[number].requirements)
                scores[number] = scores[number]._replace(
                    requirements=tuple(rows), error=other.error
                )
        errors = [score.error for score in scores]
        named = {name: errors.count(name) for name in (UNREADABLE, "refused")}
        failed = sum(map(bool, errors)) - sum(named.values())
        self._counts.add(documents=len(candidates), failed=failed, **named)
        return scores

    def close(self) -> None:
        """Nothing is open: the owner of the model closes it."""

    def _scores(self, candidates: Sequence[CandidateDocument]) -> list[DocumentScore]:
        pairs = [(candidate, self._filled(candidate)) for candidate in candidates]
        replies: dict[str, Reply] = {}
        for llm, has_evidence in ((self._llm, True), (self._llm_of_overall, False)):
            qids = {
                prompt: each.qid for each, prompt in pairs if bool(each.evidence) == has_evidence
            }
            if qids:
                replies |= self._replies(qids, llm)
        return [_document_score(candidate, replies[prompt]) for candidate, prompt in pairs]

    def _replies(self, qids: Mapping[str, str], llm: CachedLLM) -> dict[str, Reply]:
        try:
            return llm.of(*self.model_and_cache(self._resources)).replies(qids)
        except BadRequest as error:
            raise BadRequest(
                f"{error} (scorer.structured=false and scorer.log_probabilities=false ask for less)"
            ) from error
        except (OutOfMoney, LedgerFailed):
            raise
        except ModelError as error:
            if error.stops_run:
                raise
            if len(qids) == 1:
                return {prompt: Reply("", error=error.code) for prompt in qids}
        # One of several failed, and with it the call. Each is requested by itself now; replies that
        # have come are in the cache.
        one_by_one = [self._replies({prompt: qid}, llm) for prompt, qid in qids.items()]
        return {prompt: reply for replies in one_by_one for prompt, reply in replies.items()}

    def _filled(self, candidate: CandidateDocument) -> str:
        passages = "\n".join(f"[{unit.unit_id}] {unit.text}" for unit in candidate.passages)
        shown = f"{candidate.title}\n{passages or 'No passage was found.'}"
        numbered = [f"{n}. {row.requirement}" for n, row in enumerate(candidate.evidence, start=1)]
        return self._prompt.filled(
            {
                "question": candidate.question,
                "requirements": "\n".join(numbered) or "None beside the request itself.",
                "count": str(len(numbered)),
                "passages": spotlight("{passages}", {"passages": shown}),
            }
        )

    def is_empty(self, answer: str) -> bool:
        """Whether an answer has no score of a requirement."""
        read = read_answer(answer)
        return read is None or not read.scores


def read_answer(text: str) -> ReadAnswer | None:
    """The last JSON object with a list `requirements` in an answer; None if there is none, or if
    nothing in the list can be read."""
    answer: ReadAnswer | None = None
    for value in json_values(text):
        if isinstance(value, dict) and isinstance(value.get("requirements"), list):
            rows = value["requirements"]
            scores = dict(filter(None, map(_read_row, rows)))
            readable = bool(scores) or not rows
            answer = ReadAnswer(scores, _unit(value.get("probability"))) if readable else None
    return answer


def _read_row(row: Any) -> tuple[int, RequirementScore] | None:
    if not isinstance(row, dict):
        return None
    number, score, word = row.get("number"), _unit(row.get("score")), row.get("verdict")
    if not isinstance(number, int) or isinstance(number, bool) or score is None:
        return None
    if word not in VERDICTS:
        return None
    rationale = " ".join(str(row.get("rationale") or "").split())[:_LONGEST_RATIONALE]
    passage = str(row.get("passage") or "").strip(" []\n\t")
    return number, RequirementScore(word, score, rationale, passage)


def _unit(value: Any) -> float | None:
    return float(value) if is_number(value) and 0 <= value <= 1 else None


def _document_score(candidate: CandidateDocument, reply: Reply) -> DocumentScore:
    nothing = (None,) * len(candidate.evidence)
    if reply.error:
        return DocumentScore(nothing, error=reply.error)
    answer = read_answer(reply.text)
    if answer is None:
        return DocumentScore(nothing, error=UNREADABLE)
    located = {passage.unit_id for passage in candidate.passages}
    rows = [answer.scores.get(number) for number in range(1, len(candidate.evidence) + 1)]
    # An id that is not in the prompt names no evidence.
    rows = [
        row if row is None or row.passage in located else row._replace(passage="") for row in rows
    ]
    probability, origin = answer.probability, BY_STATEMENT
    relevance = verdict(reply.tokens[0].top) if reply.tokens else None
    if relevance is not None:
        probability, origin = relevance.score, BY_LOGPROBS
    error = UNREADABLE if None in rows else ""
    return DocumentScore(tuple(rows), probability, "" if probability is None else origin, error)


def _verdict_token(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """The token after `relevant`, if the server listed alternatives for it."""
    token = closing_token(tokens, _VERDICT_KEY)
    return (token,) if token and token.top else ()
