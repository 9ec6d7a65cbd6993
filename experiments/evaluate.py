"""`python -m experiments.evaluate runs/<name> ...`: recorded trajectories into numbers, again.

Questions and judgements are those of the run's own benchmark, made again from this installation's
option, or of `benchmark=`; `measures=` and `judge=` may differ. No agent runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.entry import CommandParser, run_command
from experiments.judging import check_judge, evaluate_recorded
from experiments.recorded import Options, recorded_benchmark
from experiments.settings import Settings
from toolkit.console import Console
from toolkit.errors import InputError
from toolkit.report import comparison_table
from toolkit.runs import RunFolder


def evaluate(settings: Settings, paths: Sequence[str]) -> None:
    """Evaluate the runs in the folders `paths`."""
    if not paths:
        raise InputError("no run was named", do="python -m experiments.evaluate runs/<name>")
    check_judge(settings.config)
    cells, options = [], Options(settings)
    for path in paths:
        folder = RunFolder(path)
        benchmark = recorded_benchmark(folder, settings, options)
        cells.append(evaluate_recorded(folder, benchmark, settings.config))
    Console().print(comparison_table(cells))


PARSER = CommandParser(__doc__, "RUN")

if __name__ == "__main__":
    run_command(evaluate, PARSER)
