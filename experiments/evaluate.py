"""`soundingline evaluate runs/<name> ...`: evaluate recorded trajectories again, without an agent.

Questions and judgements are those of the run's own benchmark, opened by this installation's option
of that name, or those of `benchmark=`. `measures=` and `judge=` may differ from the first
evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from soundingline.agents.base import Budget
from soundingline.experiments.build import check_price, language_model, make, running
from soundingline.experiments.cli import CommandParser, run_command
from soundingline.experiments.collection import texts_under
from soundingline.experiments.config import Settings
from soundingline.experiments.recorded import Options, recorded_benchmark
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console, notify, progress_bar
from soundingline.toolkit.data import DocumentStore
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import EvaluatedRun, Judge, evaluate_run_folder
from soundingline.toolkit.evaluation.judge import (
    JudgeCase,
    LlmJudge,
    ModelVerdict,
    RecordedVerdicts,
    VerdictFile,
    case_of,
    judge_cases,
)
from soundingline.toolkit.llm.blocking import interruptible, run_coroutine
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.errors import ModelError, OutOfMoney
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel, last_cap, open_ledger
from soundingline.toolkit.llm.messages import ChatModel
from soundingline.toolkit.llm.prices import UsageTotals
from soundingline.toolkit.llm.server import Servers
from soundingline.toolkit.obfuscation import is_obfuscated
from soundingline.toolkit.report import comparison_table
from soundingline.toolkit.report.traces import PAGE, write_traces
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import repeat_id

ROLE = "judge"


def check_judge(config: DictConfig) -> None:
    """`InputError` for impossible settings of the judge."""
    judge, llm = _judge(config)
    if isinstance(judge, LlmJudge) and llm:
        check_price(config, ROLE, llm.price, "judge_llm")


def needs_llm(config: DictConfig) -> bool:
    """Whether the judge is a language model."""
    return isinstance(_judge(config)[0], LlmJudge)


@contextmanager
def judging_alone(config: DictConfig, folder: RunFolder) -> Iterator[Ledger]:
    """The ledger for the judge of a run that no agent is answering.

    For a language model this is the run's own ledger, with everything that the run has spent, and
    the run is locked meanwhile. The cap is `budget.run_dollars` of the command line, or that of the
    run's newest start.
    """
    if not needs_llm(config):
        yield Ledger()
        return
    with (
        folder.locked(),
        open_ledger(folder.ledger_path, cap=_cap(config, folder)) as ledger,
    ):
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
                asking = _ask_all(judge, llm, served["model"], work, ledger, config.concurrency)
                run_coroutine(asking)
        except ModelError as error:
            cases = sum(one.cases for one in work)
            left = sum(len(_work(part, judge, benchmark).left) for part in parts)
            raise _stopped(error, folder, f"{cases - left} of {cases}", ledger) from error
    verdicts = [one.record.read() for one in work]
    if line := without_verdict([verdict for rows in verdicts for verdict in rows.values()]):
        Console(stderr=True, soft_wrap=True).print(line)
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


def evaluate_recorded(folder: RunFolder, benchmark: Benchmark, config: DictConfig) -> EvaluatedRun:
    """Judge and evaluate a recorded run with the judge and the measures of `config`. `InputError`
    for a run without trajectories, whose evaluation would replace that of a ranking without an
    agent."""
    if not folder.has_trajectories():
        raise InputError(
            f"{folder.path} has no trajectories to evaluate",
            valid="a run of an agent that has asked a question",
            do="run again the command that made it",
        )
    with judging_alone(config, folder) as ledger:
        return evaluated(folder, benchmark, config, ledger)


def evaluated(
    folder: RunFolder,
    benchmark: Benchmark,
    config: DictConfig,
    ledger: Ledger,
    servers: Servers | None = None,
    passages: DocumentStore | None = None,
) -> EvaluatedRun:
    """Judge and evaluate the trajectories of a run, and write its traces: by
    `config.traces` always (`plain`), unless the run is obfuscated (true), or never (false).
    `passages` has the texts that a navigator's scores refer to. The judge's requests are
    entered in `ledger`; see `judge_run`."""
    state = folder.state()
    judges = judge_run(config, folder, benchmark, ledger, servers)
    texts = partial(texts_under, Path(config.paths.indexes), benchmark)
    measures = list(config.measures)
    run = evaluate_run_folder(folder, benchmark, judges, measures, state=state, texts=texts)
    if config.traces is True and is_obfuscated(folder.path / PAGE):
        notify("no traces are written of an obfuscated run; traces=plain writes them in plain text")
    elif config.traces:
        reasons = [
            judge.recorded if isinstance(judge, RecordedVerdicts) else {} for judge in judges
        ]
        page = write_traces(folder, benchmark, run, reasons, passages)
        Console(stderr=True, soft_wrap=True).print(f"Traces: {page}", highlight=False)
    return run


def without_verdict(verdicts: Sequence[ModelVerdict]) -> str:
    """A line on answers without a verdict; empty if there are none."""
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
    """Judge the answers without a verdict, one repeat after the other."""
    try:
        with interruptible():
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
    """Judge the cases of one repeat and write each verdict as soon as it is received."""

    async def ask(case: JudgeCase) -> ModelVerdict:
        qid = repeat_id(case.qid, work.repeat)
        ledgered = MeteredModel(model, ledger, role=ROLE, qid=qid, price=llm.price)
        return await judge.judge(ledgered, case)

    with progress_bar() as progress, work.record.writing() as write:
        task = progress.add_task(f"Judging ({judge.model})", total=len(work.left), note="")

        def done(verdict: ModelVerdict) -> None:
            account = ledger.by_role(repeat_id(verdict.qid, work.repeat)).get(ROLE, UsageTotals())
            write(verdict, account.flatten())
            progress.advance(task)

        await judge_cases(work.left, ask, concurrency=concurrency, done=done)


def evaluate(settings: Settings, paths: Sequence[str]) -> None:
    """Evaluate the runs in the folders `paths`."""
    if not paths:
        raise InputError("no run was named", do="soundingline evaluate runs/<name>")
    check_judge(settings.config)
    runs, options = [], Options(settings)
    for path in paths:
        folder = RunFolder(path)
        benchmark = recorded_benchmark(folder, settings, options)
        runs.append(evaluate_recorded(folder, benchmark, settings.config))
    Console().print(comparison_table(runs))


PARSER = CommandParser(__doc__, "RUN")

start = partial(run_command, evaluate, PARSER)
