"""Whether the judge of a run tells right answers from wrong ones, the same way each time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from soundingline.experiments.evaluate import ROLE
from soundingline.experiments.preflight.findings import Finding
from soundingline.experiments.run_context import running
from soundingline.toolkit.evaluation.judge import (
    FAILED,
    JudgeCase,
    LlmJudge,
    ModelVerdict,
    judge_cases,
)
from soundingline.toolkit.llm.blocking import run_coroutine
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.errors import ModelError
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel
from soundingline.toolkit.llm.local_servers import Servers
from soundingline.toolkit.llm.messages import ChatModel

TIMES = 2  # each answer is judged
_LONGEST = 200  # characters of a reply in a message
_QUESTION = "Which shipyard did the boatbuilder Torvald Brekke found in 1874?"
_ACCEPTED = ("Grenholm Shipyard",)


class SampleAnswer(NamedTuple):
    """An answer to the question of the check, and whether it is correct."""

    name: str
    correct: bool
    explanation: str
    exact: str

    @property
    def response(self) -> str:
        """What an agent would have written; empty for an empty answer."""
        if not self.exact:
            return ""
        return f"Explanation: {self.explanation}\nExact Answer: {self.exact}\nConfidence: 90%"


# A judge that does not see the accepted answer goes by the explanations.
_ANSWERS = (
    SampleAnswer(
        "right",
        True,
        "The town's register says that the boatbuilder Torvald Brekke founded Grenholm Shipyard "
        "in 1874 [d17].",
        "Grenholm Shipyard",
    ),
    SampleAnswer(
        "paraphrased",
        True,
        "The town's register says that the boatbuilder Torvald Brekke founded the shipyard of "
        "Grenholm in 1874 [d17].",
        "the shipyard of Grenholm",
    ),
    SampleAnswer(
        "wrong",
        False,
        "A newspaper says that the teacher Ingrid Solvang opened a bakery in Holmvik in 1931 "
        "[d23]. It names no shipyard and no boatbuilder.",
        "a bakery in Holmvik",
    ),
    SampleAnswer("empty", False, "", ""),
)


class _JudgedAnswer(NamedTuple):
    """A verdict on one of the answers: None if nothing could be read, `reply` then tells why."""

    answer: SampleAnswer
    correct: bool | None
    reply: str


def check_judge(
    judge: Any,
    llm: LanguageModel | None,
    ledger: Ledger,
    log: Path,
    servers: Servers | None = None,
) -> list[Finding]:
    """What is wrong with the verdicts of a judge on a right, a paraphrased, a wrong and an empty
    answer to a question of our own, each judged twice.

    A language model receives six requests, which `ledger` records under the judge's role without a
    question; an empty answer needs none. The exact rule needs no check.

    Args:
        judge: The judge of the run: the exact rule, or an `LlmJudge` that is bound to `llm`.
        llm: Its language model; None for the exact rule.
        ledger: The ledger of the run.
        log: The file to which a server of this machine writes if it is started.
        servers: As in `running`.
    """
    if llm is None or not isinstance(judge, LlmJudge):
        return []
    name = f"judge {judge.model.partition('@')[0]}"
    try:
        with running(llm, log, servers) as served:
            verdicts = run_coroutine(_by_model(judge, llm, served["model"], ledger))
    except ModelError as error:
        message = f"the {name} gives no verdict: {error.code}: {error}"
        return [Finding("judge", "fault", message, "correct that, or choose another judge_llm")]
    return _findings(name, verdicts)


async def _by_model(
    judge: LlmJudge, llm: LanguageModel, model: ChatModel, ledger: Ledger
) -> list[_JudgedAnswer]:
    by_name = {sample.name: sample for sample in _ANSWERS}
    metered = MeteredModel(model, ledger, role=ROLE, qid="", price=llm.price)
    cases = [JudgeCase(one.name, _QUESTION, one.response, _ACCEPTED) for one in _ANSWERS * TIMES]
    verdicts: list[_JudgedAnswer] = []

    def done(verdict: ModelVerdict) -> None:
        correct = None if verdict.error else verdict.correct
        failed = verdict.error == FAILED
        reply = verdict.reasoning if failed else repr(verdict.reasoning[:_LONGEST])
        verdicts.append(_JudgedAnswer(by_name[verdict.qid], correct, reply))

    try:
        await judge_cases(cases, partial(judge.judge, metered), concurrency=len(cases), done=done)
    finally:
        await model.close()
    return verdicts


def _findings(name: str, verdicts: Sequence[_JudgedAnswer]) -> list[Finding]:
    """The faults of verdicts that cannot be read and of those that are wrong each time, and a note
    of those that differ."""
    findings = []
    if missing := [each for each in verdicts if each.correct is None]:
        asked = sum(bool(each.answer.response) for each in verdicts)
        message = (
            f"{len(missing)} of {asked} replies of the {name} hold no verdict, for example "
            f"on the {missing[0].answer.name} answer, where this arrived: {missing[0].reply}"
        )
        do = "set judge.tool=false (or true) and its prompt as the model needs, or choose another"
        findings.append(Finding("judge", "fault", message, f"{do} judge_llm"))
    wrong, differing = [], []
    for sample in _ANSWERS:
        readable = [each for each in verdicts if each.answer == sample and each.correct is not None]
        if len({each.correct for each in readable}) > 1:
            differing.append(sample.name)
        elif len(readable) == TIMES and readable[0].correct != sample.correct:
            verdict = "correct" if readable[0].correct else "wrong"
            wrong.append(f"the {sample.name} answer as {verdict} ({readable[0].reply})")
    if wrong:
        message = f"the {name} judges, {TIMES} times of {TIMES}, {' and '.join(wrong)}"
        do = "choose another judge_llm or another prompt (judge.prompt)"
        findings.append(Finding("judge", "fault", message, do))
    if differing:
        message = f"the {name} gives different verdicts on equal requests: on the "
        message += f"{' and the '.join(differing)} answer"
        do = "set judge_llm.settings.temperature=0 or a seed, if its server follows them"
        findings.append(Finding("judge", "note", message, do))
    return findings
