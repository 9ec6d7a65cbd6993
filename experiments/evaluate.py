"""Recorded runs are evaluated again, compared with paired tests, and their judges are compared."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from omegaconf import DictConfig
from rich.table import Table

from soundingline.experiments.collection import texts_under
from soundingline.experiments.config import Settings
from soundingline.experiments.judging import (
    check_judge,
    judge_run,
    judges_of,
    judging_alone,
)
from soundingline.experiments.published_figures import compare_with_published
from soundingline.experiments.recorded import recorded_benchmark
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.benchmarks.slices import pi_serini_slices, stratum
from soundingline.toolkit.console import Console, notify, print_next
from soundingline.toolkit.data import DocumentStore
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import (
    EvaluatedRun,
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
from soundingline.toolkit.evaluation.evaluation import read_rankings
from soundingline.toolkit.evaluation.funnel import relevant_documents
from soundingline.toolkit.evaluation.judge import RecordedVerdicts
from soundingline.toolkit.evaluation.statistics import Agreement, agreement
from soundingline.toolkit.files import fingerprint, write_json, write_text
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import AGENTS, ANSWERING, Price, PriceTables
from soundingline.toolkit.llm.server import Servers
from soundingline.toolkit.obfuscation import is_obfuscated
from soundingline.toolkit.report import benchmark_tables, comparison_table, render, write_report
from soundingline.toolkit.report.traces import PAGE, write_traces
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import repeat_id

ALL_PAIRS = 8  # with more runs, each is compared only with the baseline (or the first run)
_RECALL_OF_CHANGES = "recall_surfaced"  # is tested too where there is a baseline
_QUESTIONS = 8  # questions on which two judges differ that are named


def evaluate(settings: Settings, runs: Sequence[Path]) -> None:
    """Evaluate recorded trajectories again, without an agent.

    Questions and judgements are those of the run's own benchmark, opened by this installation's
    option of that name, or those of `benchmark=`. `measures=`, `judge=` and `forced_answers=` may
    differ from the first evaluation; `prices=2026-05` computes dollars by the lists of that month.
    """
    if not runs:
        raise InputError("no run was named", do="soundingline evaluate runs/<name>")
    check_judge(settings.config)
    evaluated_runs = []
    for run in runs:
        folder = RunFolder(run)
        benchmark = recorded_benchmark(folder, settings)
        evaluated_runs.append(evaluate_recorded(folder, benchmark, settings.config))
    Console().print(comparison_table(evaluated_runs))
    others = "" if len(runs) > 1 else " ANOTHER_RUN"
    print_next(f"soundingline compare {' '.join(map(str, runs))}{others}")


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
    run = evaluate_run_folder(
        folder,
        benchmark,
        judges,
        list(config.measures),
        state=state,
        texts=partial(texts_under, Path(config.paths.indexes), benchmark),
        forced_answers=config.forced_answers,
        prices=price_tables(folder.manifest(), config.prices) if config.prices else {},
    )
    if config.traces is True and is_obfuscated(folder.path / PAGE):
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

    RUN is `soundingline rank benchmark=browsecomp_plus retriever=bm25_default`. The slices are
    strata by its recall of the first 1,000 documents and by the number of evidence documents.
    """
    folder = RunFolder(run)
    relevant = relevant_documents(recorded_benchmark(folder, settings).qrels["evidence"])
    ranked: dict[str, set[str]] = {}
    for line in read_rankings(folder).splitlines():
        qid, _, docid, rank, *_ = line.split()
        if int(rank) <= 1000:
            ranked.setdefault(qid, set()).add(docid)
    strata = {
        qid: stratum(len(documents & ranked.get(qid, set())) / len(documents), len(documents))
        for qid, documents in relevant.items()
    }
    for name, qids in zip(("q100", "q300"), pi_serini_slices(strata), strict=True):
        path = Path(f"pi_serini_{name}.txt")
        write_text(path, "".join(f"{qid}\n" for qid in qids))
        Console(soft_wrap=True).print(f"{path}: {len(qids)} questions")
    print_next("soundingline run with benchmark.qids=pi_serini_q100.txt")


def compare(
    settings: Settings,
    runs: Sequence[Path],
    *,
    measure: Annotated[
        Sequence[str],
        "a measure to test; may be given again (accuracy, recall_opened, nDCG@10 and AP, where all "
        "runs have them)",
    ] = (),
    baseline: Annotated[str | None, "the run to compare with (all pairs)"] = None,
    test: Annotated[Literal["randomisation", "t"], "the paired test"] = "randomisation",
    by: Annotated[
        Sequence[str],
        "over several benchmarks: a factor that tells systems apart, such as retriever; may be "
        "given again (all settings but the benchmark's)",
    ] = (),
    published: Annotated[
        bool, "print the figures of runs, or of the cells of a sweep, next to the paper's"
    ] = False,
) -> None:
    """Compare evaluated runs with paired tests; the report goes to `runs/<name>/`.

    `soundingline compare --published runs/<name>` takes the folder of a sweep, or runs. It prints
    our figures next to those of the paper, and marks published values outside our 95 % intervals.
    """
    if published and runs:
        compare_with_published(runs)
        return
    if len(runs) < 2:
        raise InputError(
            f"{len(runs)} runs were named",
            valid="two or more run folders",
            do="soundingline compare runs/a runs/b",
        )
    name = settings.config.name or f"comparison-{fingerprint(*map(str, runs))[:6]}"
    compare_folders(
        runs,
        Path(settings.config.paths.runs) / name,
        title=name,
        tested=list(measure) or None,
        baseline=baseline,
        test=test,
        by=by,
    )


def compare_folders(
    paths: Sequence[Path],
    folder: Path,
    *,
    title: str,
    tested: Sequence[str] | None = None,
    baseline: str | None = None,
    factors: Mapping[str, str] | None = None,
    test: str = "randomisation",
    unfinished: Sequence[str] = (),
    by: Sequence[str] = (),
) -> None:
    """Compare evaluated runs, print a table, and write `report.html`, `report.md` and
    `verdicts.json` to `folder`.

    Only runs over the same benchmark content are compared. Runs over several benchmarks are
    compared within each, with the run of the baseline's system, and have a table of systems by
    benchmarks with macro averages.

    Args:
        tested: the measures to test; None for those of `TESTED` that all runs have.
        baseline: the name of the run that the others are compared with.
        factors: without a baseline, the run with these factors is the baseline; of several, the
            first of those that change the fewest other settings.
        test: see `statistics.paired_test`.
        unfinished: lines about runs without an evaluation, for the report.
        by: see `systems_of`.
    """
    runs = load_runs(paths)
    if factors and baseline is None:
        having = [
            run
            for run in runs
            if all(str(run.factors.get(k)) == v.replace("/", "-") for k, v in factors.items())
        ]
        if having:
            baseline = min(having, key=lambda run: len(run.factors)).name
        else:
            named = ", ".join(f"{name}={value}" for name, value in factors.items())
            notify(f"no run has {named}: the report has no such baseline")
    # The runs are those of these folders, in this order.
    pages = [path / PAGE for path in dict.fromkeys(path.resolve() for path in paths)]
    traces = {
        run.name: quote(os.path.relpath(page, folder.resolve()))
        for run, page in zip(runs, pages, strict=True)
        if page.is_file()
    }
    runs = sorted(runs, key=lambda run: run.name != baseline)  # the baseline first
    systems = systems_of(runs, by)
    comparisons: list[PairedComparison] = []
    chosen = baselines_of(runs, baseline or runs[0].name, systems)
    for group in by_benchmark(runs):
        inside = None
        if baseline is not None or len(group) > ALL_PAIRS:
            inside = next((run.name for run in group if run.name in chosen), None)
            if len(group) > ALL_PAIRS:
                inside = inside or group[0].name
        questions = max((len(values) for values in group[0].per_question.values()), default=0)
        if len(group) > 1 and questions < 2:
            notify(f"{group[0].name} has one question: paired comparisons need two or more")
        elif len(group) > 1:
            wanted = TESTED if baseline is None else (*TESTED, _RECALL_OF_CHANGES)
            known = [m for m in wanted if all(m in run.per_question for run in group)]
            comparisons += compare_runs(group, list(tested or known), inside, test=test)
    write_json(folder / "verdicts.json", [row._asdict() for row in comparisons])
    settings: dict[str, Any] = {"title": title, "unfinished": unfinished, "traces": traces}
    report = render(runs, comparisons, baseline=baseline, by=by, **settings)
    report_path = write_report(folder, report)
    console = Console()
    console.print(comparison_table(runs, comparisons, baseline=baseline))
    shown = list(dict.fromkeys(tested or ()))
    for table in benchmark_tables(runs, comparisons, baseline=baseline, measures=shown, by=by):
        console.print(table)
    console.print(f"Report: {report_path}", soft_wrap=True)


def judge(settings: Settings, runs: Sequence[Path]) -> None:
    """Measure how far the judges of a run agree.

    Compares the exact rule and every model whose verdicts are in the run folder, pairwise, and
    writes `evaluation/agreement.json`. No model is called.
    """
    if not runs:
        raise InputError("no run was named", do="soundingline judge runs/<name>")
    for run in runs:
        folder = RunFolder(run)
        judges = judges_of(folder, recorded_benchmark(folder, settings))
        if len(judges) < 2:
            raise InputError(
                f"only {', '.join(judges)} has judged {folder.path}",
                do=f"soundingline evaluate judge=llm llm@judge_llm=... {folder.path}",
            )
        questions = {
            repeat_id(qid, part.number): qid for part in folder.repeats() for qid in part.statuses()
        }
        pairs = {
            (a, b): agreement(judges[a], judges[b], questions)
            for a, b in combinations(sorted(judges), 2)
        }
        rows = [{"a": a, "b": b, **row._asdict()} for (a, b), row in pairs.items()]
        write_json(folder.path / "evaluation" / "agreement.json", rows)
        Console().print(agreement_table(folder.name, pairs))
        page = folder.path / PAGE
        opened = f", and the answers in {page}" if page.is_file() else ""
        print_next(f"open {folder.path}/evaluation/agreement.json{opened}")


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
