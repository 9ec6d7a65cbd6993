"""The judge of a run: by rule, or a language model whose verdicts are recorded first."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from agents.budget import Budget
from experiments.build import check_price, language_model, make
from experiments.collection import texts_under
from experiments.models import running
from toolkit.console import Console
from toolkit.contracts import Benchmark, DocumentStore
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
from toolkit.llm.server import Servers
from toolkit.progress import bar
from toolkit.report.traces import write_traces
from toolkit.runs import RunFolder
from toolkit.runs.names import repeat_id

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


def judge_run(
    config: DictConfig,
    folder: RunFolder,
    benchmark: Benchmark,
    ledger: Ledger,
    servers: Servers | None = None,
) -> list[Judge]:
    """The judges for an evaluation of this run, one for each of its repeats. One with a language
    model judges first whatever has no verdict of its own yet; no agent runs.

    Its requests are entered in `ledger`, and each verdict is written when it is given; the caller
    holds the run's lock; `servers` as in `running`. `InputError` where judging cannot go on, be it
    for a wrong key or for money: an accuracy over a part of the verdicts is none.
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
                asking = _ask_all(judge, llm, served["model"], work, ledger, config.concurrency)
                asyncio.run(asking)
        except ModelError as error:
            cases = sum(one.cases for one in work)
            left = sum(len(_work(part, judge, benchmark).left) for part in parts)
            raise _stopped(error, folder, f"{cases - left} of {cases}", ledger) from error
    verdicts = [one.record.read() for one in work]
    if line := without_verdict([verdict for rows in verdicts for verdict in rows.values()]):
        Console(stderr=True, soft_wrap=True).print(line)
    return [RecordedVerdicts(judge, rows) for rows in verdicts]


class JudgeWork(NamedTuple):
    """What a judge has to do on one repeat of a run: of `cases` answers, those that are `left`."""

    repeat: int
    cases: int
    left: list[Case]
    record: VerdictFile


def _work(part: RunFolder, judge: LlmJudge, benchmark: Benchmark) -> JudgeWork:
    answers, record = benchmark.answers, VerdictFile(part.path, judge)
    cases = [
        case_of(trajectory, answers.get(trajectory.qid, ()))
        for trajectory in part.trajectories()
        if trajectory.status != "failed" and (answers.get(trajectory.qid) or not judge.reference)
    ]
    return JudgeWork(part.number, len(cases), record.left(cases), record)


def evaluate_recorded(folder: RunFolder, benchmark: Benchmark, config: DictConfig) -> Cell:
    """Judge and evaluate a recorded run by the judge and the measures of `config`."""
    with judging_alone(config, folder) as ledger:
        return evaluated(folder, benchmark, config, ledger)


def evaluated(
    folder: RunFolder,
    benchmark: Benchmark,
    config: DictConfig,
    ledger: Ledger,
    servers: Servers | None = None,
    passages: DocumentStore | None = None,
) -> Cell:
    """Judge and evaluate what a run has recorded, and write its traces unless `config.traces` is
    false; `passages` has the texts that a navigator's scores stand on. The judge's requests are
    entered in `ledger`; see `judge_run`."""
    state = folder.state()
    judges = judge_run(config, folder, benchmark, ledger, servers)
    texts = partial(texts_under, Path(config.paths.indexes), benchmark)
    measures = list(config.measures)
    cell = evaluate_folder(folder, benchmark, judges, measures, state=state, texts=texts)
    if config.traces:
        reasons = [
            judge.recorded if isinstance(judge, RecordedVerdicts) else {} for judge in judges
        ]
        page = write_traces(folder, benchmark, cell, reasons, passages)
        Console(stderr=True, soft_wrap=True).print(f"Traces: {page}", highlight=False)
    return cell


def without_verdict(verdicts: Sequence[LlmVerdict]) -> str:
    """A line on answers that the judge gave no verdict on; empty where there are none."""
    counts = Counter(verdict.error for verdict in verdicts if verdict.error)
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
    cap: float | None = make(config.budget).run_dollars
    if cap is not None:
        return cap
    budget = folder.manifest().get("config", {}).get("budget") or {}
    recorded = Budget(run_dollars=budget.get("run_dollars"))
    return last_cap(folder.ledger_path, otherwise=recorded.run_dollars)


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


async def _ask_all(
    judge: LlmJudge,
    llm: LanguageModel,
    model: ChatModel,
    work: Sequence[JudgeWork],
    ledger: Ledger,
    concurrency: int,
) -> None:
    """Judge what is left, one repeat after the other."""
    try:
        for one in work:
            await _ask(judge, llm, model, one, ledger, concurrency)
    finally:
        await model.close()


async def _ask(
    judge: LlmJudge,
    llm: LanguageModel,
    model: ChatModel,
    work: JudgeWork,
    ledger: Ledger,
    concurrency: int,
) -> None:
    """Judge the cases; each verdict is written when it is given, however this ends."""

    async def ask(case: Case) -> LlmVerdict:
        qid = repeat_id(case.qid, work.repeat)
        ledgered = LedgeredModel(model, ledger, role=ROLE, qid=qid, price=llm.price)
        return await judge.judge(ledgered, case)

    with bar() as progress, work.record.writing() as write:
        task = progress.add_task(f"Judging ({judge.model})", total=len(work.left), note="")

        def done(verdict: LlmVerdict) -> None:
            account = ledger.by_role(repeat_id(verdict.qid, work.repeat)).get(ROLE, Account())
            write(verdict, account.flat())
            progress.advance(task)

        await judge_cases(work.left, ask, concurrency=concurrency, done=done)
