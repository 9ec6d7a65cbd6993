"""Recorded runs are evaluated again, compared with paired tests, and their judges are compared."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote

from omegaconf import DictConfig
from rich.table import Table

from soundingline.agents.base import Budget
from soundingline.experiments.build import check_price, language_model, make
from soundingline.experiments.collection import texts_under
from soundingline.experiments.config import Settings
from soundingline.experiments.recorded import names_benchmark, recorded_benchmark
from soundingline.experiments.run_context import RunJudge, running
from soundingline.experiments.validity import has_factors, threats_of_runs
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.benchmarks.formats import lines
from soundingline.toolkit.benchmarks.slices import pi_serini_slices, stratum
from soundingline.toolkit.console import (
    Console,
    counted_questions,
    notify,
    print_next,
    progress_bar,
)
from soundingline.toolkit.data import DocumentStore
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import (
    EvaluatedRun,
    Judge,
    PairedComparison,
    evaluate_run_folder,
    load_runs,
)
from soundingline.toolkit.evaluation.comparison import (
    TESTED,
    baselines_of,
    by_benchmark,
    systems_of,
)
from soundingline.toolkit.evaluation.comparison import compare as compare_runs
from soundingline.toolkit.evaluation.evaluation import RANKINGS
from soundingline.toolkit.evaluation.funnel import relevant_documents
from soundingline.toolkit.evaluation.judge import (
    ImportedVerdicts,
    JudgeCase,
    LlmJudge,
    ModelVerdict,
    RecordedVerdicts,
    VerdictFile,
    case_of,
    judge_cases,
    record_judges,
)
from soundingline.toolkit.evaluation.statistics import Agreement, agreement
from soundingline.toolkit.files import fingerprint, write_json, write_text
from soundingline.toolkit.llm.blocking import interruptible, run_coroutine
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.errors import ModelError, OutOfMoney
from soundingline.toolkit.llm.ledger import Ledger, MeteredModel, last_cap, open_ledger
from soundingline.toolkit.llm.local_servers import Servers
from soundingline.toolkit.llm.messages import ChatModel
from soundingline.toolkit.llm.prices import AGENTS, ANSWERING, Price, PriceTables, UsageTotals
from soundingline.toolkit.report import (
    ReportData,
    benchmark_tables,
    comparison_table,
    cost_tables,
    evidence_line,
    pairs_tables,
    render,
    write_report,
)
from soundingline.toolkit.report.traces import PAGE, write_side_by_side, write_traces
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import evaluated_runs, repeat_id

# The judge of a run: the exact rule, or a language model, whose requests the ledger records.


ROLE = "judge"


def make_judge(config: DictConfig, budget: Budget) -> RunJudge:
    """The judge of a configuration. `InputError` for impossible settings."""
    judge, llm = make(config.judge), language_model(config, "judge_llm")
    if not isinstance(judge, LlmJudge):
        return RunJudge(judge, None, budget.run_dollars)
    if llm is None:
        raise InputError(
            "the judge asks a language model, and none is chosen",
            do="choose one: llm@judge_llm=..., or judge=exact",
        )
    check_price(budget, ROLE, llm.price, "judge_llm")
    return RunJudge(judge.bind(llm), llm, budget.run_dollars)


@contextmanager
def judging_alone(by: RunJudge, folder: RunFolder) -> Iterator[Ledger]:
    """The ledger for the judge of a run that no agent is answering.

    For a language model this is the run's own ledger, with everything that the run has spent, and
    the run is locked meanwhile. The cap is `budget.run_dollars` of the command line, or that of the
    run's newest start.
    """
    if by.llm is None:
        yield Ledger()
        return
    cap = by.cap
    if cap is None:
        budget = folder.manifest().get("config", {}).get("budget") or {}
        recorded = Budget(run_dollars=budget.get("run_dollars"))
        cap = last_cap(folder.ledger_path, otherwise=recorded.run_dollars)
    with folder.locked(), open_ledger(folder.ledger_path, cap=cap) as ledger:
        yield ledger


def judge_run(
    by: RunJudge,
    folder: RunFolder,
    benchmark: Benchmark,
    ledger: Ledger,
    concurrency: int,
    servers: Servers | None = None,
) -> list[Judge]:
    """The judges of a run, one for each of its repeats. Verdicts that were imported with the run
    precede the exact rule. A language model first judges all answers
    without a verdict; its requests are entered in `ledger`, and each verdict is written as soon as
    it is received. No agent runs.

    The caller holds the run's lock; `servers` as in `running`.

    Raises: InputError: if judging cannot go on, because of a wrong key or the budget: an accuracy
        over a part of the verdicts would be wrong.
    """
    judge, llm, _ = by
    repeats = folder.repeats()
    if llm is None:
        shipped = (folder.path / ImportedVerdicts.path).exists()
        return [ImportedVerdicts(folder.path)] if shipped else [judge] * len(repeats)
    work = [_work(repeat, judge, benchmark) for repeat in repeats]
    if any(repeat.left() for repeat in work):
        ledger.check_price(ROLE, llm.price, "judge_llm.price.input and judge_llm.price.output")
        try:
            with running(llm, folder.path / "judge-server.log", servers) as served:
                run_coroutine(_judge_all(judge, llm, served["model"], work, ledger, concurrency))
        except ModelError as error:
            raise _judging_stopped(folder, work, ledger, error) from error
    verdicts = [repeat.record.read() for repeat in work]
    errors = Counter(row.error for rows in verdicts for row in rows.values() if row.error)
    if errors:
        listed = ", ".join(f"{count} {error}" for error, count in sorted(errors.items()))
        Console(stderr=True, soft_wrap=True).print(
            f"{errors.total()} of {sum(map(len, verdicts))} answers have no verdict ({listed}) and "
            "count as wrong; evaluating again asks the failed ones again"
        )
    return [RecordedVerdicts(judge, rows) for rows in verdicts]


class JudgeWork(NamedTuple):
    """The answers of one repeat of a run, and the file of their verdicts."""

    repeat: int
    cases: Sequence[JudgeCase]
    record: VerdictFile

    def left(self) -> list[JudgeCase]:
        """The answers without a verdict."""
        return self.record.left(self.cases)


def _work(repeat: RunFolder, judge: LlmJudge, benchmark: Benchmark) -> JudgeWork:
    answers = benchmark.answers
    cases = [
        case_of(trajectory, answers.get(trajectory.qid, ()))
        for trajectory in repeat.trajectories()
        if trajectory.status != "failed" and (answers.get(trajectory.qid) or not judge.reference)
    ]
    return JudgeWork(repeat.number, cases, VerdictFile(repeat.path, judge))


def _judging_stopped(
    folder: RunFolder, work: Sequence[JudgeWork], ledger: Ledger, error: ModelError
) -> InputError:
    answers = sum(len(repeat.cases) for repeat in work)
    judged = answers - sum(len(repeat.left()) for repeat in work)
    do = "correct it"
    if isinstance(error, OutOfMoney):
        do = "raise budget.run_dollars"
        if ledger.unpriced:
            do = "choose a server that reports the usage of every reply, "
            do += f"move {folder.ledger_path} away"
    return InputError(
        f"judging {folder.path} stopped: {error}. {judged} of {answers} answers have a verdict, "
        "which is stored",
        do=f"{do} and run the same command, which requests the others",
    )


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

    async def judge_repeat(repeat: JudgeWork) -> None:
        async def ask(case: JudgeCase) -> ModelVerdict:
            qid = repeat_id(case.qid, repeat.repeat)
            metered = MeteredModel(model, ledger, role=ROLE, qid=qid, price=llm.price)
            return await judge.judge(metered, case)

        def done(verdict: ModelVerdict) -> None:
            usage = ledger.by_role(repeat_id(verdict.qid, repeat.repeat))
            write(verdict, usage.get(ROLE, UsageTotals()).flatten())
            advance()

        left = repeat.left()
        with progress_bar() as progress, repeat.record.writing() as write:
            name = f"Judging ({judge.model})"
            advance = counted_questions(progress, name, len(left), concurrency)
            await judge_cases(left, ask, concurrency=concurrency, done=done)

    try:
        with interruptible():
            for repeat in work:
                await judge_repeat(repeat)
    finally:
        await model.close()


ALL_PAIRS = 8  # with more runs, each is compared only with the baseline (or the first run)
_RECALL_OF_CHANGES = "recall_surfaced"  # is tested too where there is a baseline
_QUESTIONS = 8  # questions on which two judges differ that are named


def evaluate(settings: Settings, runs: Sequence[Path]) -> None:
    """Evaluate recorded trajectories again, without an agent.

    Questions and judgements are those of the run's own benchmark, opened by this installation's
    option of that name, or those of `benchmark=`. `measures=`, `judge=` and
    `evaluation.forced_answers=` may differ from the first evaluation; `evaluation.prices=2026-05`
    computes dollars by the lists of that month.
    """
    if not runs:
        raise InputError("no run was named", do="soundingline evaluate runs/<name>")
    config = settings.config
    judge = make_judge(config, make(config.budget))
    evaluations = []
    for run in runs:
        folder = RunFolder(run)
        benchmark = recorded_benchmark(folder, settings)
        evaluations.append(evaluate_recorded(folder, benchmark, config, judge))
    Console().print(comparison_table(ReportData(evaluations)))
    others = "" if len(runs) > 1 else " ANOTHER_RUN"
    print_next(f"soundingline compare {' '.join(map(str, runs))}{others}")


def evaluate_recorded(
    folder: RunFolder, benchmark: Benchmark, config: DictConfig, judge: RunJudge
) -> EvaluatedRun:
    """Judge a recorded run, and evaluate it with the measures of `config`. `InputError` for a run
    without trajectories, whose evaluation would replace that of a ranking without an agent."""
    if not folder.has_trajectories():
        raise InputError(
            f"{folder.path} has no trajectories to evaluate",
            valid="a run of an agent, with at least one trajectory",
            do="run again the command that made it",
        )
    with judging_alone(judge, folder) as ledger:
        return evaluated(folder, benchmark, config, judge, ledger)


def evaluated(
    folder: RunFolder,
    benchmark: Benchmark,
    config: DictConfig,
    by: RunJudge,
    ledger: Ledger,
    servers: Servers | None = None,
    passages: DocumentStore | None = None,
) -> EvaluatedRun:
    """Judge and evaluate the trajectories of a run, and write its traces: by
    `config.traces` always (`plain`), unless the run is obfuscated (true), or never (false).
    `passages` has the texts that a navigator's scores refer to. The judge's requests are
    entered in `ledger`; see `judge_run`."""
    state, prices = folder.state(), config.evaluation.prices
    judges = judge_run(by, folder, benchmark, ledger, config.concurrency, servers)
    run = evaluate_run_folder(
        folder,
        benchmark,
        judges,
        list(config.measures),
        state=state,
        texts=partial(texts_under, Path(config.paths.indexes), benchmark),
        forced_answers=config.evaluation.forced_answers,
        prices=price_tables(folder.manifest(), prices) if prices else {},
    )
    if config.traces is True and folder.manifest().get("sealed"):
        notify("no traces are written of an obfuscated run; traces=plain writes them in plain text")
    elif config.traces:
        reasons = [
            judge.recorded if isinstance(judge, RecordedVerdicts) else {} for judge in judges
        ]
        page = write_traces(folder, benchmark, run, reasons, passages)
        Console(stderr=True, soft_wrap=True).print(f"Traces: {page}")
    return run


def price_tables(manifest: Mapping[str, Any], month: str) -> PriceTables:
    """The recorded prices of a run's models by role, and their lists of a month. `InputError` for a
    model that has prices, but no such list."""
    config, tables = manifest.get("config", {}), {}
    for role in ANSWERING:
        group = "llm" if role in AGENTS else f"{role}_llm"
        table = (config.get(group) or {}).get("price")
        if isinstance(table, Mapping):
            price = Price.of_record(table)
            try:
                tables[role] = price, price.listed(month)
            except InputError as error:
                model = config[group].get("model")
                raise InputError(f"{model}: {error}", do="") from error
    return tables


def slices(settings: Settings, run: Path) -> None:
    """Draw Pi-Serini's slices of BrowseComp-Plus, and write their ids to pi_serini_q100.txt and
    pi_serini_q300.txt in the working directory.

    RUN is `soundingline rank benchmark=browsecomp_plus retriever=bm25_default`, or with
    benchmark=browsecomp_plus a TREC run file, such as the authors' bm25_pure.trec. The slices are
    strata by its recall of the first 1,000 documents and by the number of evidence documents.
    """
    if not run.is_file():
        benchmark = recorded_benchmark(RunFolder(run), settings)
        run /= RANKINGS
    elif names_benchmark(settings):
        benchmark = make(settings.config.benchmark)
    else:
        raise InputError(
            f"the run file {run} names no benchmark", do="add benchmark=browsecomp_plus"
        )
    relevant = relevant_documents(benchmark.qrels["evidence"])
    ranked: dict[str, set[str]] = {}
    for location, line in lines(run):
        fields = line.split()
        if len(fields) != 6 or not fields[3].isdecimal():
            raise InputError(
                f"{location} is {line[:80]!r}",
                valid="a line of a TREC run: qid, Q0, docid, rank, score, tag",
            )
        if int(fields[3]) <= 1000:
            ranked.setdefault(fields[0], set()).add(fields[2])
    strata = {
        qid: stratum(len(documents & ranked.get(qid, set())) / len(documents), len(documents))
        for qid, documents in relevant.items()
    }
    for name, qids in zip(("q100", "q300"), pi_serini_slices(strata), strict=True):
        path = Path(f"pi_serini_{name}.txt")
        write_text(path, "".join(f"{qid}\n" for qid in qids))
        Console(soft_wrap=True).print(f"{path}: {len(qids)} questions")
    print_next("soundingline run with benchmark.qids=pi_serini_q100.txt")


@dataclass(frozen=True)
class ComparisonOptions:
    """What a comparison tests, and against what: the flags of `soundingline compare`.

    `test`, `family` and `margin` are those of `soundingline.toolkit.evaluation.compare`, and `by`
    that of `systems_of`. A primary measure and a margin (`comparison.primary`, `comparison.margin`)
    of None are those that the manifests of the runs declare, if they agree.
    """

    measure: Annotated[
        Sequence[str],
        "a measure to test; may be repeated (accuracy, recall_opened, nDCG@10 and AP, where all "
        "runs have them)",
    ] = ()
    baseline: Annotated[str | None, "the run to compare with (all pairs)"] = None
    test: Annotated[Literal["randomisation", "t"], "the paired test"] = "randomisation"
    family: Annotated[
        Literal["measure", "all"], "what Holm's correction runs over: each measure, or all of them"
    ] = "measure"
    by: Annotated[
        Sequence[str],
        "over several benchmarks: a factor that distinguishes systems, such as retriever; may "
        "be repeated (all settings but the benchmark's)",
    ] = ()
    primary: str | None = None
    margin: float | None = None


def compare(
    settings: Settings,
    runs: Sequence[Path],
    *,
    options: ComparisonOptions,
    published: Annotated[
        bool, "print the figures of runs, or of the cells of a sweep, next to the paper's"
    ] = False,
) -> None:
    """Compare evaluated runs with paired tests; the report goes to `runs/<name>/`.

    The folder of a sweep stands for its evaluated cells. If these are all compared, it is with the
    baseline that the sweep declares.

    `soundingline compare --published runs/<name>` takes the folder of a sweep, or runs. It prints
    our figures next to those of the paper, and the interval of each difference by the run-to-run
    noise of both. Runs of others that were imported are compared with ours by question.
    """
    if published and runs:
        # Here, so that a command starts without it.
        from soundingline.experiments.published_figures import compare_with_published

        compare_with_published(runs)
        return
    runs = list(dict.fromkeys(chain.from_iterable(map(_runs_at, runs))))
    if len(runs) < 2:
        raise InputError(
            f"{len(runs)} runs were named",
            valid="two or more run folders, or the folder of a sweep",
            do="soundingline compare runs/a runs/b",
        )
    config, declared = settings.config, settings.config.comparison
    name = config.name or f"comparison-{fingerprint(*map(str, runs))[:6]}"
    whole = set(runs) == set(evaluated_runs(runs[0].parent))
    compare_folders(
        runs,
        Path(config.paths.runs) / name,
        replace(options, primary=declared.primary, margin=declared.margin),
        title=name,
        factors=None if whole else {},
        accept=list(declared.accept),
    )


def _runs_at(path: Path) -> list[Path]:
    """The evaluated cells of the folder of a sweep; none for a file beside cells, such as their
    report, which a pattern of the shell matches; else the path itself."""
    if path.is_file() and any(path.parent.glob("*/manifest.json")):
        return []
    return [path] if (path / "manifest.json").exists() else evaluated_runs(path) or [path]


def compare_folders(
    paths: Sequence[Path],
    folder: Path,
    options: ComparisonOptions = ComparisonOptions(),
    *,
    title: str,
    factors: Mapping[str, str] | None = None,
    accept: Sequence[str] = (),
    unfinished: Sequence[str] = (),
) -> None:
    """Compare evaluated runs, print a table, and write `report.html`, `report.md` and
    `verdicts.json` to `folder`.

    Only runs over the same benchmark content are compared. Runs over several benchmarks are
    compared within each, with the run of the baseline's system, and have a table of systems by
    benchmarks with macro averages.

    Args:
        factors: if the options name no baseline, the run with these factors is the baseline; of
            several, the one that sets the fewest single values, then the one of which the others
            are changes. A factor is an option of a group, or a single value by its key. None: those
            that the manifests of the runs declare, if they agree.
        accept: the threats to validity that are accepted; empty for those of the runs.
        unfinished: lines about runs without an evaluation, for the report.

    Raises:
        MissingBaseline: for factors that no run has. The report is written without tests.
    """
    runs = load_runs(paths)
    missing = ""
    if factors is None:
        factors = _declared(runs, "baseline")
    if factors and options.baseline is None:
        options = replace(options, baseline=_baseline_with(factors, runs))
        if options.baseline is None:
            missing = ", ".join(f"{name}={value}" for name, value in factors.items())
            unfinished = [*unfinished, f"No run has the baseline's {missing}: nothing was tested."]
    # The runs are those of these folders, in this order.
    located = list(zip(dict.fromkeys(path.resolve() for path in paths), runs, strict=True))
    located.sort(key=lambda pair: pair[1].name != options.baseline)  # the baseline first
    runs = [run for _, run in located]
    declared = _declared(runs, "primary")
    options = replace(
        options,
        primary=options.primary or declared,
        margin=options.margin or _declared(runs, "margin"),
    )
    systems = systems_of(runs, options.by)
    baselines = baselines_of(runs, options.baseline or runs[0].name, systems)
    comparisons: list[PairedComparison] = []
    for group in [] if missing else by_benchmark(runs):
        comparisons += _compared(group, baselines, options)
    write_json(folder / "verdicts.json", [row._asdict() for row in comparisons])
    side_by_side = write_side_by_side(folder, located)
    threats = threats_of_runs(
        runs,
        baselines=baselines if options.baseline else (),
        primary=options.primary,
        margin=options.margin,
        accept=accept,
    )
    data = ReportData(
        runs,
        comparisons,
        baseline=options.baseline or "",
        traces={
            run.name: quote(os.path.relpath(path / PAGE, folder.resolve()))
            for path, run in located
            if (path / PAGE).is_file()
        },
        side_by_side=side_by_side.name if side_by_side else "",
        by=options.by,
        primary=options.primary or "",
        declared=options.primary == declared,
        margin=options.margin,
        family=options.family,
    )
    report = render(data, title=title, unfinished=unfinished, threats=threats)
    report_path = write_report(folder, report)
    _print_tables(data, list(dict.fromkeys(options.measure)))
    console = Console(soft_wrap=True)
    console.print(f"Report: {report_path}")
    if side_by_side:
        console.print(f"Questions side by side: {side_by_side}")
    if missing:
        raise MissingBaseline(
            f"no run in {folder} has {missing}, which the baseline is to have: nothing was tested",
            do="run the cell that has them, or name another: comparison.baseline.retriever=...",
        )


def _baseline_with(factors: Mapping[str, str], runs: Sequence[EvaluatedRun]) -> str | None:
    """The name of the run that has these factors and is nearest to a baseline; None without any."""
    having = [
        run for run in runs if has_factors(run.manifest.get("config", {}), run.factors, factors)
    ]
    return min(having, key=lambda run: _distance(run, runs)).name if having else None


def _compared(
    group: Sequence[EvaluatedRun], baselines: Collection[str], options: ComparisonOptions
) -> Sequence[PairedComparison]:
    """The comparisons of the runs over one benchmark, with the one that is among `baselines`, or
    without any of all pairs; none, and a line that says so, of fewer than two questions."""
    if len(group) < 2:
        return ()
    questions = max((len(values) for values in group[0].per_question.values()), default=0)
    if questions < 2:
        number = "one question" if questions else "no judged question"
        notify(f"{group[0].name} has {number}: paired comparisons need two or more")
        return ()
    many = len(group) > ALL_PAIRS
    baseline = None
    if options.baseline is not None or many:
        baseline = next((run.name for run in group if run.name in baselines), None)
        baseline = baseline or (group[0].name if many else None)
    usual = TESTED if options.baseline is None else (*TESTED, _RECALL_OF_CHANGES)
    shared = [measure for measure in usual if all(measure in run.per_question for run in group)]
    primary = [options.primary] if options.primary else []
    return compare_runs(
        group,
        list(dict.fromkeys([*primary, *(options.measure or shared)])),
        baseline,
        test=options.test,
        family=options.family,
        margin=options.margin,
    )


def _print_tables(data: ReportData, tested: Sequence[str]) -> None:
    console = Console()
    for table in (
        comparison_table(data),
        *pairs_tables(data),
        *benchmark_tables(data, tested),
        *cost_tables(data.runs),
    ):
        console.print(table)
    if line := evidence_line(data):
        console.print(line)


class MissingBaseline(InputError):
    """No run of a sweep has the factors of its baseline."""


def _distance(run: EvaluatedRun, runs: Sequence[EvaluatedRun]) -> tuple[int, int, int]:
    """How far a run is from a baseline: its single values, the factors in which others differ from
    it (one each from a baseline with one change at a time), and all its factors."""
    values = sum("." in name for name in run.factors)
    differences = [run.factors.items() ^ other.factors.items() for other in runs]
    changes = sum(len({name for name, _ in each}) for each in differences)
    return values, changes, len(run.factors)


def _declared(runs: Sequence[EvaluatedRun], key: str) -> Any:
    """The value below `comparison` that the manifests of all runs have; None if they differ."""
    configs = [run.manifest.get("config") or {} for run in runs]
    values = [(config.get("comparison") or {}).get(key) for config in configs]
    return values[0] if values.count(values[0]) == len(values) else None


def judge(settings: Settings, runs: Sequence[Path]) -> None:
    """Measure how far the judges of a run agree.

    Compares the exact rule and every model whose verdicts are in the run folder, pairwise, and
    writes `evaluation/agreement.json`. With `judge=llm llm@judge_llm=...` that model first judges
    the answers that it has not judged. The measures of the run stay those of its own judge.
    """
    if not runs:
        raise InputError("no run was named", do="soundingline judge runs/<name>")
    config = settings.config
    by = make_judge(config, make(config.budget))
    for run in runs:
        folder = RunFolder(run)
        if by.llm:
            benchmark = recorded_benchmark(folder, settings)
            with judging_alone(by, folder) as ledger:
                judge_run(by, folder, benchmark, ledger, config.concurrency)
        Console().print(agreement_table(folder.name, _agreements(folder)))
        page = folder.path / PAGE
        opened = f", and the answers in {page}" if page.is_file() else ""
        print_next(f"open {folder.path}/evaluation/agreement.json{opened}")


def _agreements(folder: RunFolder) -> dict[tuple[str, str], Agreement]:
    """The agreement of each pair of judges of a run, which is written to its folder. `InputError`
    for a single judge."""
    judges = {name: row["verdicts"] for name, row in record_judges(folder).items()}
    if len(judges) < 2:
        raise InputError(
            f"only {', '.join(judges)} has judged {folder.path}",
            do=f"soundingline judge judge=llm llm@judge_llm=... {folder.path}",
        )
    questions = {
        repeat_id(qid, repeat.number): qid
        for repeat in folder.repeats()
        for qid in repeat.statuses()
    }
    pairs = {
        (a, b): agreement(judges[a], judges[b], questions)
        for a, b in combinations(sorted(judges), 2)
    }
    rows = [{"a": a, "b": b, **row._asdict()} for (a, b), row in pairs.items()]
    write_json(folder.path / "evaluation" / "agreement.json", rows)
    return pairs


def agreement_table(title: str, pairs: Mapping[tuple[str, str], Agreement]) -> Table:
    """A table with a row for each pair of judges."""
    judges = Table("judges", "n", "raw", "kappa (95 %)", "correct", "they differ on", title=title)
    for (a, b), row in pairs.items():
        kappa = "undefined" if row.kappa is None else f"{row.kappa:.3f}"
        if row.low is not None:
            kappa += f" ({row.low:.3f} to {row.high:.3f})"
        differing = [*row.only_a, *row.only_b]
        more = f" and {len(differing) - _QUESTIONS} more" if len(differing) > _QUESTIONS else ""
        judges.add_row(
            f"{a}\n{b}",
            str(row.n),
            f"{row.raw:.3f}",
            kappa,
            f"{row.correct_a:.3f}\n{row.correct_b:.3f}",
            ", ".join(differing[:_QUESTIONS]) + more,
        )
    return judges
