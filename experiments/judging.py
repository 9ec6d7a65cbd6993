"""The judge of a run: by rule, or a language model whose verdicts are recorded first."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig

from agents.budget import Budget
from experiments.build import make
from experiments.models import check_price, language_model, running
from toolkit.console import Console
from toolkit.contracts import Benchmark
from toolkit.errors import InputError
from toolkit.evaluation import Cell, Judge, evaluate_folder
from toolkit.evaluation.judge_llm import Case, LlmJudge, LlmVerdict, RecordedVerdicts, case_of
from toolkit.evaluation.verdict_files import VerdictFile, judge_cases
from toolkit.llm.accounts import Account
from toolkit.llm.errors import ModelError, OutOfMoney
from toolkit.llm.language_model import LanguageModel
from toolkit.llm.ledger import Ledger, LedgeredModel
from toolkit.llm.ledger_file import last_cap, ledger_on_record
from toolkit.llm.protocol import ChatModel
from toolkit.progress import bar
from toolkit.runs import RunFolder

ROLE = "judge"


def check_judge(config: DictConfig) -> None:
    """`InputError` where the judge's settings are not possible."""
    judge, llm = _judge(config)
    if isinstance(judge, LlmJudge) and llm:
        check_price(config, ROLE, llm.price, "judge_llm")


def asks_model(config: DictConfig) -> bool:
    """Whether the judge is a language model, whose verdicts cost money."""
    return isinstance(_judge(config)[0], LlmJudge)


@contextmanager
def judging_alone(config: DictConfig, folder: RunFolder) -> Iterator[Ledger]:
    """Around the evaluation of a run that is not being answered: the ledger for its judge.

    Where that is a language model, the ledger is the run's own, with all that the run has spent,
    and nobody else may write the run meanwhile. Its cap is `budget.run_dollars` where the command
    line has one, else that of the run's newest start.
    """
    if not asks_model(config):
        yield Ledger()
        return
    with (
        folder.locked(),
        ledger_on_record(folder.ledger_path, cap=_cap(config, folder)) as ledger,
    ):
        yield ledger


def judge_run(config: DictConfig, folder: RunFolder, benchmark: Benchmark, ledger: Ledger) -> Judge:
    """The judge for an evaluation of this run. One with a language model judges first whatever has
    no verdict of its own yet; no agent runs.

    Its requests are entered in `ledger`, and each verdict is written when it is given; the caller
    holds the run's lock. `InputError` where judging cannot go on, be it for a wrong key or for
    money: an accuracy over a part of the verdicts is none.
    """
    judge, llm = _judge(config)
    if not isinstance(judge, LlmJudge) or llm is None:
        return judge
    answers = benchmark.answers
    cases = [
        case_of(trajectory, answers.get(trajectory.qid, ()))
        for trajectory in folder.trajectories()
        if trajectory.status != "failed" and (answers.get(trajectory.qid) or not judge.reference)
    ]
    record = VerdictFile(folder.path, judge)
    if left := record.left(cases):
        ledger.check_price(ROLE, llm.price, "judge_llm.price.input and judge_llm.price.output")
        try:
            with running(llm, folder.path / "judge-server.log") as served:
                work = _ask(judge, llm, served["model"], left, record, ledger, config.concurrency)
                asyncio.run(work)
        except ModelError as error:
            judged = len(cases) - len(record.left(cases))
            raise _stopped(error, folder, f"{judged} of {len(cases)}", ledger) from error
    verdicts = record.read()
    if line := without_verdict(verdicts):
        Console(stderr=True, soft_wrap=True).print(line)
    return RecordedVerdicts(judge, verdicts)


def evaluate_recorded(folder: RunFolder, benchmark: Benchmark, config: DictConfig) -> Cell:
    """Judge and evaluate a recorded run by the judge and the measures of `config`."""
    with judging_alone(config, folder) as ledger:
        state = folder.state()
        judge = judge_run(config, folder, benchmark, ledger)
        return evaluate_folder(folder, benchmark, judge, list(config.measures), state=state)


def without_verdict(verdicts: Mapping[str, LlmVerdict]) -> str:
    """A line on answers that the judge gave no verdict on; empty where there are none."""
    counts = Counter(verdict.error for verdict in verdicts.values() if verdict.error)
    parts = [f"{count} {error}" for error, count in sorted(counts.items())]
    if not parts:
        return ""
    return (
        f"{sum(counts.values())} of {len(verdicts)} answers have no verdict ({', '.join(parts)}) "
        "and count as wrong; evaluating again asks the failed ones again"
    )


def _stopped(error: ModelError, folder: RunFolder, judged: str, ledger: Ledger) -> InputError:
    do = "mend it"
    if isinstance(error, OutOfMoney):
        do = "raise budget.run_dollars"
        if ledger.unpriced:
            do = "choose a server that tells the usage of every reply"
    return InputError(
        f"judging {folder.path} stopped: {error}. {judged} answers have a verdict, which is kept",
        do=f"{do} and run the same command, which asks for the others",
    )


def _cap(config: DictConfig, folder: RunFolder) -> float | None:
    given: float | None = make(config.budget).run_dollars
    if given is not None:
        return given
    budget = folder.manifest().get("config", {}).get("budget") or {}
    recorded = Budget(run_dollars=budget.get("run_dollars"))
    return last_cap(folder.ledger_path, otherwise=recorded.run_dollars)


def _judge(config: DictConfig) -> tuple[Any, LanguageModel | None]:
    judge = make(config.judge)
    llm = language_model(config.judge_llm, "judge_llm")
    if not isinstance(judge, LlmJudge):
        return judge, llm
    if llm is None:
        raise InputError(
            "the judge asks a language model, and none is chosen",
            do="choose one: llm@judge_llm=..., or judge=exact",
        )
    return judge.bind(llm), llm


async def _ask(
    judge: LlmJudge,
    llm: LanguageModel,
    model: ChatModel,
    cases: list[Case],
    record: VerdictFile,
    ledger: Ledger,
    concurrency: int,
) -> None:
    """Judge the cases; each verdict is written when it is given, however this ends."""

    async def ask(case: Case) -> LlmVerdict:
        metered = LedgeredModel(model, ledger, role=ROLE, qid=case.qid, price=llm.price)
        return await judge.judge(metered, case)

    with bar() as progress, record.writing() as write:
        task = progress.add_task(f"Judging ({judge.model})", total=len(cases), note="")

        def done(verdict: LlmVerdict) -> None:
            write(verdict, ledger.by_role(verdict.qid).get(ROLE, Account()).flat())
            progress.advance(task)

        try:
            await judge_cases(cases, ask, concurrency=concurrency, done=done)
        finally:
            await model.close()
