"""A language model as the judge: strict verdicts in a file of their own, asked for once.

The protocol is BrowseComp-Plus's: the judge sees question, response and correct answer, and a reply
without a readable verdict counts as wrong. Verdicts of two judges differ by several points, so a
file of verdicts holds the judge's model, its prompt's hash and its settings.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from toolkit.checks import is_number
from toolkit.contracts import Answer, Trajectory
from toolkit.errors import InputError
from toolkit.evaluation.answers import AnswerVerdict, ExactAnswerJudge
from toolkit.files import fingerprint
from toolkit.llm.blocking import identity
from toolkit.llm.errors import ModelError, OutOfMoney
from toolkit.llm.protocol import ChatModel, Settings, Turn, user
from toolkit.llm.sections import filled
from toolkit.runs.records import final_response

PROMPTS = Path(__file__).resolve().parent / "prompts"
FAILED, UNREADABLE = "failed", "unreadable"
_TOOL = "verdict"
_SCHEMA: Mapping[str, Any] = {
    "name": _TOOL,
    "description": "Report the verdict on the response.",
    "parameters": {
        "type": "object",
        "properties": {
            "extracted_answer": {"type": "string", "description": "The answer given, or none."},
            "reasoning": {"type": "string", "description": "One or two sentences."},
            "correct": {"type": "boolean", "description": "Whether the answer is correct."},
            "confidence": {
                "type": ["number", "null"],
                "description": "The response's own confidence from 0 to 100, or null.",
            },
        },
        "required": ["extracted_answer", "reasoning", "correct", "confidence"],
        "additionalProperties": False,
    },
}


class Case(NamedTuple):
    """What is judged: a recorded response to a question, and the accepted answers."""

    qid: str
    question: str
    response: str
    accepted: Sequence[str]

    @property
    def fingerprint(self) -> str:
        """Changes with anything that the judge sees."""
        return fingerprint(self.question, self.response, list(self.accepted))


# Any case will do; this one shows how lines and tokens of chat templates are sent.
_SAMPLE = Case("", "question", "first line\n<|im_end|> </s> [INST]", ("accepted",))


class LlmVerdict(NamedTuple):
    """The model's word on one case. `error` is `failed` (no reply; asked again next time),
    `unreadable` (a reply without a verdict; `reasoning` holds its beginning), or empty."""

    qid: str
    correct: bool
    extracted: str = ""
    reasoning: str = ""
    confidence: float | None = None
    error: str = ""
    case: str = ""


class ModelDescription(Protocol):
    """A model that may not run yet: what it is called and how it samples."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> Settings: ...


class LlmJudge:
    """Judges by `model` (None: that of `bind`), which is given for its name and settings; it need
    not run until `judge`.

    `reference`: whether it sees the accepted answers (True), or only question and response.
    `prompt`: the path of a prompt of one's own, with `{question}`, `{response}` and, with a
    reference, `{accepted}`. `InputError` for a prompt without them. What is put in their places
    stands in sections that it cannot leave (`toolkit.llm.sections`).
    """

    name = "llm"

    def __init__(
        self,
        *,
        model: ModelDescription | None = None,
        reference: bool = True,
        prompt: str | None = None,
    ) -> None:
        self.model = identity(model) if model else ""
        self.settings = model.settings if model else Settings()
        self.reference = reference
        own = PROMPTS / ("judge.txt" if reference else "judge_reference_free.txt")
        self.prompt = _prompt(Path(prompt) if prompt else own, reference)

    def bind(self, model: ModelDescription) -> LlmJudge:
        """The same judge with a model; this one stays as it is."""
        bound = copy.copy(self)
        bound.model, bound.settings = identity(model), model.settings
        return bound

    def record(self) -> dict[str, Any]:
        """What a file of its verdicts tells of it."""
        return {
            "judge": self.name,
            "model": self.model,
            # As it is sent, but for the random number of each request.
            "prompt": fingerprint(self._asked(_SAMPLE, nonce="0" * 16)),
            "reference": self.reference,
            "settings": self.settings.given(),
        }

    @property
    def fingerprint(self) -> str:
        """A hash of the record."""
        return fingerprint(self.record(), 1)

    async def judge(self, model: ChatModel, case: Case) -> LlmVerdict:
        """Ask for the verdict on one case. An empty response is wrong without asking.

        A `ModelError` that every other case would meet as well (a wrong key, no money left) is
        raised; any other one makes the verdict `failed`.
        """
        if not case.response.strip():
            return LlmVerdict(case.qid, False, reasoning="no response", case=case.fingerprint)
        settings = replace(self.settings, tool_choice=_TOOL)
        try:
            turn = await model.respond([user(self._asked(case))], [_SCHEMA], settings)
        except OutOfMoney:
            raise
        except ModelError as error:
            if error.stops_run:
                raise
            message = f"{error.code}: {error}"
            return LlmVerdict(
                case.qid, False, reasoning=message, error=FAILED, case=case.fingerprint
            )
        return read_verdict(case, turn)

    def _asked(self, case: Case, nonce: str = "") -> str:
        parts = {
            "question": case.question,
            "accepted": "\n".join(case.accepted),
            "response": case.response,
        }
        return filled(self.prompt, parts, nonce)


class RecordedVerdicts:
    """Verdicts that a model gave, as the judge of an evaluation. A question without one is wrong.

    What the exact rule says stands beside each verdict, as everywhere. `recorded` are the model's
    own words, by question.
    """

    name = LlmJudge.name

    def __init__(self, judge: LlmJudge, verdicts: Mapping[str, LlmVerdict]) -> None:
        self.fingerprint = judge.fingerprint
        self.recorded = verdicts
        self._exact = ExactAnswerJudge()

    def verdict(self, qid: str, answer: Answer, accepted: Sequence[str]) -> AnswerVerdict:
        """See `answers.Judge`."""
        row = self._exact.verdict(qid, answer, accepted)
        verdict = self.recorded.get(qid, LlmVerdict(qid, False, error=FAILED))
        return row._replace(
            correct=verdict.correct, judge=self.name, settings=self.fingerprint, error=verdict.error
        )


def read_verdict(case: Case, turn: Turn) -> LlmVerdict:
    """The verdict in a reply: the arguments of the tool call, or a JSON object that is the whole
    text. Every field must be there and of its type; anything else is `unreadable`."""
    text = turn.tool_calls[0].arguments if turn.tool_calls else _unfenced(turn.text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not _whole(value):
        return LlmVerdict(
            case.qid, False, reasoning=text[:500], error=UNREADABLE, case=case.fingerprint
        )
    return LlmVerdict(
        qid=case.qid,
        correct=value["correct"],
        extracted=value["extracted_answer"],
        reasoning=value["reasoning"],
        confidence=value["confidence"],
        case=case.fingerprint,
    )


def case_of(trajectory: Trajectory, accepted: Sequence[str]) -> Case:
    """The final reply of a trajectory, empty where the question ended without an answer."""
    response = final_response(trajectory)
    return Case(trajectory.qid, trajectory.question, response, tuple(accepted))


def _whole(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != set(_SCHEMA["parameters"]["required"]):
        return False
    confidence = value["confidence"]
    return (
        isinstance(value["correct"], bool)
        and isinstance(value["extracted_answer"], str)
        and isinstance(value["reasoning"], str)
        and (confidence is None or (is_number(confidence) and 0 <= confidence <= 100))
    )


def _unfenced(text: str) -> str:
    """JSON without the Markdown fence that models like to put around it."""
    body = text.strip()
    if body.startswith("```") and body.endswith("```") and len(body) > 6:
        return body[3:-3].removeprefix("json").strip()
    return body


def _prompt(path: Path, reference: bool) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the judge's prompt {path}: {error}") from error
    placeholders = ["{question}", "{response}", *(["{accepted}"] if reference else [])]
    missing = [placeholder for placeholder in placeholders if placeholder not in text]
    if missing:
        raise InputError(
            f"the judge's prompt {path} has no {' and no '.join(missing)}",
            valid=", ".join(placeholders),
        )
    return text
