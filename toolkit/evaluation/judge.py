"""A language model as the judge, and the file of its verdicts.

The protocol is that of BrowseComp-Plus: the judge sees the question, the response and the correct
answer, and a reply without a readable verdict counts as wrong. Every answer is judged once, and its
verdict is read again by later evaluations.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Interval
from pydantic import ConfigDict
from typing_extensions import TypedDict

from soundingline.toolkit.errors import InputError, parse
from soundingline.toolkit.evaluation.answers import ExactAnswerJudge, Judge, Verdict
from soundingline.toolkit.evaluation.evaluation import JUDGES, VERDICTS, RecordedJudge
from soundingline.toolkit.files import fingerprint, read_json, write_json
from soundingline.toolkit.json_lines import JsonLinesLog, read_json_lines, recover_json_lines
from soundingline.toolkit.json_text import decode_json, try_json
from soundingline.toolkit.llm.blocking import identity
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.errors import ModelError, OutOfMoney
from soundingline.toolkit.llm.messages import (
    ChatModel,
    SamplingParams,
    Turn,
    tool_spec,
    user,
)
from soundingline.toolkit.llm.prompts import spotlight
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import repeat_id
from soundingline.toolkit.trajectory import Answer, Trajectory, final_response

PROMPTS = Path(__file__).resolve().parent / "prompts"
FAILED, UNREADABLE = "failed", "unreadable"
_TOOL = "verdict"
_SPEC = tool_spec(
    _TOOL,
    "Report the verdict on the response.",
    {
        "extracted_answer": {"type": "string", "description": "The answer given, or none."},
        "reasoning": {"type": "string", "description": "One or two sentences."},
        "correct": {"type": "boolean", "description": "Whether the answer is correct."},
        "confidence": {
            "type": ["number", "null"],
            "description": "The response's own confidence from 0 to 100, or null.",
        },
    },
)


# What follows the labels of a verdict in words, and their forms, of which the first found counts.
_LABELLED = {
    "extracted_final_answer": r"([^\n]*)",
    "reasoning": r"(.*?)(?=\n\**correct\**:|\Z)",
    "correct": r"(yes|no)",
    "confidence": r"(\d+(?:\.\d+)?)",
}
_LABELS = ("**{}:**", "**{}**:", "{}:")
_CORRECT = {"yes": True, "true": True, "no": False, "false": False}


class _Reply(TypedDict):
    """The arguments of the tool."""

    __pydantic_config__ = ConfigDict(  # type: ignore[misc]
        extra="forbid", strict=True, allow_inf_nan=False
    )
    extracted_answer: str
    reasoning: str
    correct: bool
    confidence: Annotated[float, Interval(ge=0, le=100)] | None


class JudgeCase(NamedTuple):
    """What is judged: a recorded response to a question, and the accepted answers."""

    qid: str
    question: str
    response: str
    accepted: Sequence[str]

    @property
    def fingerprint(self) -> str:
        """A hash of everything that the judge sees."""
        return fingerprint(self.question, self.response, list(self.accepted))


# An example whose texts show how lines and tokens of chat templates are sent.
_SAMPLE = JudgeCase("", "question", "first line\n<|im_end|> </s> [INST]", ("accepted",))


class ModelVerdict(NamedTuple):
    """The model's verdict on one case.

    `error` is `failed` if there was no reply (requested again next time), `unreadable` for a reply
    without a verdict, otherwise empty.
    """

    qid: str
    correct: bool
    extracted: str = ""  # the answer that the model read in the response
    reasoning: str = ""  # the model's; the beginning of an unreadable reply, or the error message
    confidence: float | None = None  # of the response, 0 to 100; None if it states none
    error: str = ""
    case: str = ""  # the fingerprint of the case


class LlmJudge:
    """A language model as the judge.

    The question, the response and the answers are put into delimited sections of the prompt, which
    their texts cannot leave (`soundingline.toolkit.llm.prompts`).

    Args:
        reference: whether the judge sees the accepted answers, or only question and response.
        prompt: `browsecomp_plus`, `pi_serini`, or the path of a prompt with the places
            `{question}`, `{response}` and, with a reference, `{accepted}`; None for ours.
        tool: whether the model must report its verdict with a tool. False: in its text, for prompts
            that ask for it there, such as the two above (see `verdict_in_text`).

    Raises:
        InputError: for a prompt that cannot be read or has a missing place.
    """

    name = "llm"

    def __init__(
        self,
        *,
        reference: bool = True,
        prompt: str | None = None,
        tool: bool = True,
    ) -> None:
        self.model, self.settings = "", SamplingParams()
        self.reference, self.tool = reference, tool
        path = PROMPTS / f"{prompt or ('judge' if reference else 'judge_reference_free')}.txt"
        self.prompt = _prompt(Path(prompt) if prompt and not path.is_file() else path, reference)

    def bind(self, model: LanguageModel) -> LlmJudge:
        """A copy of this judge with a model, whose name and settings are recorded."""
        bound = copy.copy(self)
        bound.model, bound.settings = identity(model), model.settings
        return bound

    def record(self) -> dict[str, Any]:
        """What a file of verdicts records about the judge."""
        return {
            "judge": self.name,
            "model": self.model,
            "prompt": fingerprint(self._request(_SAMPLE)),
            "reference": self.reference,
            "settings": self.settings.as_dict(),
            **({} if self.tool else {"verdict": "text"}),
        }

    @property
    def fingerprint(self) -> str:
        """A hash of the record."""
        return fingerprint(self.record(), 1)

    async def judge(self, model: ChatModel, case: JudgeCase) -> ModelVerdict:
        """Request the verdict on one case. An empty response is wrong without a request.

        Raises: ModelError: for an error that every other case would meet as well, such as a wrong
            key or a spent budget. Any other error makes the verdict `failed`.
        """
        if not case.response.strip():
            return _wrong(case, "no response")
        settings = replace(self.settings, tool_choice=_TOOL) if self.tool else self.settings
        tools = [_SPEC] if self.tool else []
        try:
            turn = await model.respond([user(self._request(case))], tools, settings)
        except ModelError as error:
            if error.stops_run or isinstance(error, OutOfMoney):
                raise
            return _wrong(case, f"{error.code}: {error}", FAILED)
        return read_verdict(case, turn) if self.tool else verdict_in_text(case, turn.text)

    def _request(self, case: JudgeCase) -> str:
        sections = {
            "question": case.question,
            "accepted": "\n".join(case.accepted),
            "response": case.response,
        }
        return spotlight(self.prompt, sections)


class RecordedVerdicts(Judge):
    """The verdicts of a model by question, as a judge. A question without one is wrong."""

    name = LlmJudge.name

    def __init__(self, judge: LlmJudge, verdicts: Mapping[str, ModelVerdict]) -> None:
        self.fingerprint = judge.fingerprint
        self.label = judge.model.partition("@")[0]  # the hash of weights follows the name
        self.recorded = verdicts
        self._exact = ExactAnswerJudge()

    def verdict(self, qid: str, answer: Answer, accepted: Sequence[str]) -> Verdict:
        """The model's verdict, with `exact`, `contained` and `f1` of the exact rule."""
        row = self._exact.verdict(qid, answer, accepted)
        verdict = self.recorded.get(qid, ModelVerdict(qid, False, error=FAILED))
        return row._replace(
            correct=verdict.correct, judge=self.name, settings=self.fingerprint, error=verdict.error
        )


class ImportedVerdicts(RecordedVerdicts):
    """The verdicts that were imported with a run: `evaluation/verdicts-llm-imported.jsonl`."""

    fingerprint = "imported"
    path = Path("evaluation", f"verdicts-{LlmJudge.name}-{fingerprint}.jsonl")

    def __init__(self, folder: Path) -> None:
        self.recorded = verdicts_in(folder / self.path)
        self.label = str(read_json_lines(folder / self.path)[0]["model"])
        self._exact = ExactAnswerJudge()

    @classmethod
    def write(cls, folder: Path, model: str, verdicts: Iterable[ModelVerdict]) -> None:
        """Write the verdicts of a model into a run folder, without the texts that it read."""
        head = {"format": FORMAT, "name": LlmJudge.name, "model": model}
        with closing(JsonLinesLog(folder / cls.path, head=head)) as log:
            for verdict in verdicts:
                log.append(verdict._asdict())

    def confidences(self) -> dict[str, float]:
        """By question, the confidence with which the evaluator counts a readable verdict."""
        return {
            qid: row.confidence
            for qid, row in self.recorded.items()
            if not row.error and row.confidence is not None
        }


def read_verdict(case: JudgeCase, turn: Turn) -> ModelVerdict:
    """Read the verdict of a reply: the arguments of the tool call, or a JSON object that is the
    whole text, perhaps in a Markdown fence. A reply without a field, or has one of another type,
    is `unreadable`."""
    text = turn.tool_calls[0].arguments if turn.tool_calls else turn.text.strip()
    if text.startswith("```") and text.endswith("```") and len(text) > 6:
        text = text[3:-3].removeprefix("json").strip()
    try:
        reply = decode_json(text)
        parse(_Reply, reply, where="a verdict", strict=True)
    except (InputError, ValueError):
        return _wrong(case, text[:500], UNREADABLE)
    return ModelVerdict(
        qid=case.qid,
        correct=reply["correct"],
        extracted=reply["extracted_answer"],
        reasoning=reply["reasoning"],
        confidence=reply["confidence"],
        case=case.fingerprint,
    )


def verdict_in_text(case: JudgeCase, text: str) -> ModelVerdict:
    """Read the verdict in a text: a JSON object as Pi-Serini's judge writes it
    (`parseJudgeResponse` of judge_parse.ts in justram/pi-serini at bbab25d), from the first brace
    to the last, or the labels of BrowseComp-Plus's grader, such as `correct: yes`, wherever they
    stand (`parse_judge_response` of evaluate_run.py in texttron/BrowseComp-Plus at 97c637c). A text
    without a verdict is `unreadable`; other fields may be absent."""
    fields = _json_fields(text) or {name: _labelled(name, text) for name in _LABELLED}
    correct = _CORRECT.get(str(fields.get("correct")).strip().lower())
    if correct is None:
        return _wrong(case, text[:500], UNREADABLE)
    stated = re.search(_LABELLED["confidence"], str(fields.get("confidence")))
    return ModelVerdict(
        qid=case.qid,
        correct=correct,
        extracted=str(fields.get("extracted_final_answer") or "").strip(),
        reasoning=str(fields.get("reasoning") or "").strip(),
        confidence=min(float(stated[0]), 100.0) if stated else None,
        case=case.fingerprint,
    )


def _json_fields(text: str) -> dict[str, Any]:
    """The JSON object between the first brace and the last; empty without one."""
    value = try_json(text[text.find("{") : text.rfind("}") + 1])
    return value if isinstance(value, dict) and "correct" in value else {}


def _labelled(name: str, text: str) -> str:
    """What follows the label of this name; empty without it."""
    for label in _LABELS:
        pattern = rf"{re.escape(label.format(name))}\s*{_LABELLED[name]}"
        if match := re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return match[1].strip()
    return ""


def _wrong(case: JudgeCase, reasoning: str, error: str = "") -> ModelVerdict:
    return ModelVerdict(case.qid, False, reasoning=reasoning, error=error, case=case.fingerprint)


def case_of(trajectory: Trajectory, accepted: Sequence[str]) -> JudgeCase:
    """The final reply of a trajectory, which is empty if the question ended without an answer."""
    response = final_response(trajectory)
    return JudgeCase(trajectory.qid, trajectory.question, response, tuple(accepted))


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


FORMAT = 2
# Called with each verdict and the flat numbers of what its request took.
Write = Callable[[ModelVerdict, Mapping[str, float]], None]


class VerdictFile:
    """`evaluation/verdicts-<judge>-<fingerprint>.jsonl` in a run folder.

    The first line describes the judge. Each further line is one verdict with its `usage`, written
    as soon as it is received, so that a killed process loses only the requests in flight. If a
    question is judged again, the last line counts. The caller holds the run's lock.
    """

    def __init__(self, folder: Path, judge: LlmJudge) -> None:
        self.path = folder / "evaluation" / f"verdicts-{judge.name}-{judge.fingerprint}.jsonl"
        self._head = {"format": FORMAT, **judge.record()}

    def read(self) -> dict[str, ModelVerdict]:
        """The verdicts by question; empty if there is no file. Damaged lines are moved away
        (`recover_json_lines`) and judged again."""
        recover_json_lines(self.path, head=self._head)
        return verdicts_in(self.path) if self.path.exists() else {}

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """A function that appends one verdict."""
        with closing(JsonLinesLog(self.path, head=self._head, quoting=True)) as log:
            yield lambda verdict, usage: log.append({**verdict._asdict(), "usage": dict(usage)})

    def left(self, cases: Iterable[JudgeCase]) -> list[JudgeCase]:
        """The cases whose response has no verdict yet, or whose request failed."""
        recorded = self.read()
        judged = {row.qid: row.case for row in recorded.values() if row.error != FAILED}
        return [case for case in cases if judged.get(case.qid) != case.fingerprint]


def verdicts_in(path: Path) -> dict[str, ModelVerdict]:
    """Read a file of verdicts, by question in the order of their ids. An unfinished last line,
    which a killed process leaves, is left out; `InputError` for any other file."""
    try:
        head, *rows = read_json_lines(path) or [{"format": FORMAT}]
        if head.get("format") != FORMAT:
            raise ValueError(f"its first line has no format {FORMAT}")
        verdicts = [
            parse(
                ModelVerdict,
                {name: value for name, value in row.items() if name != "usage"},
                where="a verdict",
                strict=True,
            )
            for row in rows
        ]
    except (InputError, OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a file of verdicts: {error}", do="move it away and judge again"
        ) from error
    by_question = {verdict.qid: verdict for verdict in verdicts}
    return {qid: by_question[qid] for qid in sorted(by_question)}


def record_judges(folder: RunFolder) -> dict[str, RecordedJudge]:
    """Write `evaluation/judges.json` with the exact rule, by the verdicts of the evaluation, and
    every model whose verdicts are in the run folder, by the name of its file; no file where there
    is the exact rule alone. A request that failed is not a verdict, and an unreadable reply is a
    wrong answer. `InputError` for a run that has not been evaluated."""
    judges: dict[str, RecordedJudge] = {ExactAnswerJudge.name: {"model": "", "verdicts": {}}}
    by_rule = judges[ExactAnswerJudge.name]["verdicts"]
    do = f"run: soundingline evaluate {folder.path}"
    for repeat in folder.repeats():
        for row in read_json(repeat.path / VERDICTS, list[Verdict], do=do):
            by_rule[repeat_id(row["qid"], repeat.number)] = row["exact"] or row["contained"]
        for path in sorted((repeat.path / "evaluation").glob("verdicts-*.jsonl")):
            name = path.stem.removeprefix("verdicts-")
            if name not in judges:
                model = str(read_json_lines(path)[0].get("model", "")).partition("@")[0]
                judges[name] = {"model": model, "verdicts": {}}
            for qid, recorded in verdicts_in(path).items():
                if recorded.error != FAILED:
                    judges[name]["verdicts"][repeat_id(qid, repeat.number)] = recorded.correct
    path = folder.path / JUDGES
    if len(judges) > 1:
        write_json(path, {"trajectories": folder.state(), "judges": judges})
    else:
        path.unlink(missing_ok=True)
    return judges


async def judge_cases(
    cases: Sequence[JudgeCase],
    ask: Callable[[JudgeCase], Awaitable[ModelVerdict]],
    *,
    concurrency: int,
    done: Callable[[ModelVerdict], Any],
) -> None:
    """Judge cases, at most `concurrency` at a time, and pass each verdict to `done`. After an
    exception no further case is begun, the requests in flight end, and the exception is raised."""
    waiting = iter(cases)
    errors: list[Exception] = []

    async def work() -> None:
        for case in waiting:
            if errors:
                return
            try:
                done(await ask(case))
            except Exception as error:
                errors.append(error)

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(cases)))))
    if errors:
        raise errors[0]
