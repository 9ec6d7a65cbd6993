"""The judge of a run: the exact rule, or a language model, whose requests the ledger records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from omegaconf import DictConfig

from soundingline.agents.base import Budget
from soundingline.experiments.build import check_price, language_model, make
from soundingline.experiments.run_context import running
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console, progress_bar
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import ExactAnswerJudge, Judge
from soundingline.toolkit.evaluation.judge import (
    FAILED,
    JudgeCase,
    LlmJudge,
    ModelVerdict,
    RecordedVerdicts,
    VerdictFile,
    case_of,
    judge_cases,
    verdicts_in,
)
from soundingline.toolkit.llm.blocking import interruptible, run_coroutine
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.errors import ModelError, OutOfMoney
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel, last_cap, open_ledger
from soundingline.toolkit.llm.messages import ChatModel
from soundingline.toolkit.llm.prices import UsageTotals
from soundingline.toolkit.llm.server import Servers
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import repeat_id

ROLE = "judge"


def check_judge(config: DictConfig) -> None:
    """`InputError` for impossible settings of the judge."""
    judge, llm = _judge(config)
    if isinstance(judge, LlmJudge) and llm:
        check_price(config, ROLE, llm.price, "judge_llm")


def judges_by_model(config: DictConfig) -> bool:
    """Whether the judge is a language model."""
    return isinstance(_judge(config)[0], LlmJudge)


@contextmanager
def judging_alone(config: DictConfig, folder: RunFolder) -> Iterator[Ledger]:
    """The ledger for the judge of a run that no agent is answering.

    For a language model this is the run's own ledger, with everything that the run has spent, and
    the run is locked meanwhile. The cap is `budget.run_dollars` of the command line, or that of the
    run's newest start.
    """
    if not judges_by_model(config):
        yield Ledger()
        return
    cap: float | None = make(config.budget).run_dollars
    if cap is None:
        budget = folder.manifest().get("config", {}).get("budget") or {}
        recorded = Budget(run_dollars=budget.get("run_dollars"))
        cap = last_cap(folder.ledger_path, otherwise=recorded.run_dollars)
    with folder.locked(), open_ledger(folder.ledger_path, cap=cap) as ledger:
        yield ledger


def judge_run(
    config: DictConfig,
    folder: RunFolder,
    benchmark: Benchmark,
    ledger: Ledger,
    servers: Servers | None = None,
) -> list[Judge]:
    """The judges of a run, one for each of its repeats. A language model first judges all answers
    without a verdict; its requests are entered in `ledger`, and each verdict is written as soon as
    it is received. No agent runs.

    The caller holds the run's lock; `servers` as in `running`.

    Raises: InputError: if judging cannot go on, because of a wrong key or the budget: an accuracy
        over a part of the verdicts would be wrong.
    """
    judge, llm = _judge(config)
    parts = folder.repeats()
    if not isinstance(judge, LlmJudge) or llm is None:
        return [judge] * len(parts)
    work = [_work(part, judge, benchmark) for part in parts]
    if any(one.left for one in work):
        ledger.check_price(ROLE, llm.price, "judge_llm.price.input and judge_llm.price.output")
        try:
            with running(llm, folder.path / "judge-server.log", servers) as served:
                asking = _judge_all(judge, llm, served["model"], work, ledger, config.concurrency)
                run_coroutine(asking)
        except ModelError as error:
            cases = sum(one.cases for one in work)
            left = sum(len(_work(part, judge, benchmark).left) for part in parts)
            do = "correct it"
            if isinstance(error, OutOfMoney):
                do = "raise budget.run_dollars"
                if ledger.unpriced:
                    do = "choose a server that reports the usage of every reply"
            raise InputError(
                f"judging {folder.path} stopped: {error}. {cases - left} of {cases} answers have "
                "a verdict, which is kept",
                do=f"{do} and run the same command, which asks for the others",
            ) from error
    verdicts = [one.record.read() for one in work]
    errors = Counter(one.error for rows in verdicts for one in rows.values() if one.error)
    if errors:
        listed = ", ".join(f"{count} {error}" for error, count in sorted(errors.items()))
        Console(stderr=True, soft_wrap=True).print(
            f"{errors.total()} of {sum(map(len, verdicts))} answers have no verdict ({listed}) and "
            "count as wrong; evaluating again asks the failed ones again"
        )
    return [RecordedVerdicts(judge, rows) for rows in verdicts]


class JudgeWork(NamedTuple):
    """The work of a judge on one repeat of a run: how many answers there are (`cases`), and those
    without a verdict (`left`)."""

    repeat: int
    cases: int
    left: list[JudgeCase]
    record: VerdictFile


def _work(part: RunFolder, judge: LlmJudge, benchmark: Benchmark) -> JudgeWork:
    answers, record = benchmark.answers, VerdictFile(part.path, judge)
    cases = [
        case_of(trajectory, answers.get(trajectory.qid, ()))
        for trajectory in part.trajectories()
        if trajectory.status != "failed" and (answers.get(trajectory.qid) or not judge.reference)
    ]
    return JudgeWork(part.number, len(cases), record.left(cases), record)


def _judge(config: DictConfig) -> tuple[Any, LanguageModel | None]:
    judge = make(config.judge)
    llm = language_model(config, "judge_llm")
    if not isinstance(judge, LlmJudge):
        return judge, llm
    if llm is None:
        raise InputError(
            "the judge asks a language model, and none is chosen",
            do="choose one: llm@judge_llm=..., or judge=exact",
        )
    return judge.bind(llm), llm


async def _judge_all(
    judge: LlmJudge,
    llm: LanguageModel,
    model: ChatModel,
    work: Sequence[JudgeWork],
    ledger: Ledger,
    concurrency: int,
) -> None:
    """Judge the answers without a verdict, one repeat after the other, and write each verdict as
    soon as it is received."""

    async def judge_repeat(one: JudgeWork) -> None:
        async def ask(case: JudgeCase) -> ModelVerdict:
            qid = repeat_id(case.qid, one.repeat)
            metered = MeteredModel(model, ledger, role=ROLE, qid=qid, price=llm.price)
            return await judge.judge(metered, case)

        def done(verdict: ModelVerdict) -> None:
            usage = ledger.by_role(repeat_id(verdict.qid, one.repeat))
            write(verdict, usage.get(ROLE, UsageTotals()).flatten())
            progress.advance(task)

        with progress_bar() as progress, one.record.writing() as write:
            task = progress.add_task(f"Judging ({judge.model})", total=len(one.left), note="")
            await judge_cases(one.left, ask, concurrency=concurrency, done=done)

    try:
        with interruptible():
            for one in work:
                await judge_repeat(one)
    finally:
        await model.close()


def judges_of(folder: RunFolder, benchmark: Benchmark) -> Mapping[str, Mapping[str, bool]]:
    """Judge -> answer -> whether it is correct. Answers are named by `repeat_id`. A failed request
    is no verdict; an unreadable reply is a wrong answer."""
    rule = ExactAnswerJudge()
    judges: dict[str, dict[str, bool]] = {"exact_answer": {}}
    for part in folder.repeats():
        for trajectory in part.trajectories():
            accepted = benchmark.answers.get(trajectory.qid)
            if trajectory.status != "failed" and accepted:
                verdict = rule.verdict(trajectory.qid, trajectory.answer, accepted)
                name = repeat_id(trajectory.qid, part.number)
                judges["exact_answer"][name] = verdict.correct
        for path in sorted((part.path / "evaluation").glob("verdicts-*.jsonl")):
            verdicts = judges.setdefault(path.stem.removeprefix("verdicts-"), {})
            for qid, recorded in verdicts_in(path).items():
                if recorded.error != FAILED:
                    verdicts[repeat_id(qid, part.number)] = recorded.correct
    return judges
