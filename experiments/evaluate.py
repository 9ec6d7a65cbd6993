"""`python -m experiments.evaluate runs/<name> ...`: recorded trajectories into numbers, again.

Questions and judgements are those of the run's own benchmark, made again from this installation's
option, or of `benchmark=`; `measures=` and `judge=` may differ. No agent runs.
"""

from __future__ import annotations

from experiments.entry import main
from experiments.judging import check_judge, judge_run, judging_alone
from experiments.recorded import Options, recorded_benchmark
from experiments.settings import Settings
from toolkit.console import Console
from toolkit.contracts import Benchmark
from toolkit.errors import InputError
from toolkit.evaluation import Cell, Judge, evaluate_run, load_cell, write_evaluation
from toolkit.report import comparison_table
from toolkit.runs import RunFolder


def evaluate(
    folder: RunFolder, benchmark: Benchmark, judge: Judge, measures: list[str], state: str
) -> Cell:
    """Evaluate what a run folder holds, write it there, and give it back as a cell. `state` is the
    folder's from before the judge read its trajectories; `InputError` where it has changed."""
    evaluation = evaluate_run(
        folder.trajectories(),
        topics=benchmark.topics,
        judgements=benchmark.judgements,
        answers=benchmark.answers,
        measures=measures,
        judge=judge,
    )
    write_evaluation(folder.path, evaluation, state=state)
    if folder.state() != state:
        raise InputError(
            f"trajectories of {folder.path} were written while it was evaluated",
            do="evaluate it again once the run has ended",
        )
    return load_cell(folder.path)


def evaluate_folder(folder: RunFolder, benchmark: Benchmark, settings: Settings) -> Cell:
    """Judge and evaluate a recorded run by the judge and the measures of `settings`."""
    config = settings.config
    with judging_alone(config, folder) as ledger:
        state = folder.state()
        judge = judge_run(config, folder, benchmark, ledger)
        return evaluate(folder, benchmark, judge, list(config.measures), state)


def evaluate_folders(settings: Settings) -> None:
    """Evaluate each run named on the command line."""
    config = settings.config
    if not config.runs:
        raise InputError("no run was named", do="python -m experiments.evaluate runs/<name>")
    check_judge(config)
    cells, options = [], Options(settings)
    for path in config.runs:
        folder = RunFolder(path)
        benchmark = recorded_benchmark(folder, settings, options)
        cells.append(evaluate_folder(folder, benchmark, settings))
    Console().print(comparison_table(cells))


if __name__ == "__main__":
    main(evaluate_folders, takes_runs=True)
