"""`soundingline compare runs/a runs/b ...`: compare evaluated runs and write a report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from soundingline.experiments.cli import CommandParser, run_command
from soundingline.experiments.comparison import compare_folders
from soundingline.experiments.config import Settings
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.statistics import TESTS
from soundingline.toolkit.files import fingerprint


def compare(
    settings: Settings,
    paths: Sequence[str],
    *,
    measures: Sequence[str] = (),
    baseline: str | None = None,
    test: str = TESTS[0],
    by: Sequence[str] = (),
) -> None:
    """Compare the runs in the folders `paths`; the report goes to `runs/<name>/`."""
    if len(paths) < 2:
        raise InputError(
            f"{len(paths)} runs were named",
            valid="two or more run folders",
            do="soundingline compare runs/a runs/b",
        )
    name = settings.config.name or f"comparison-{fingerprint(*paths)[:6]}"
    compare_folders(
        [Path(path) for path in paths],
        Path(settings.config.paths.runs) / name,
        title=name,
        tested=list(measures) or None,
        baseline=baseline,
        test=test,
        by=by,
    )


PARSER = CommandParser(__doc__, "RUN")
PARSER.add_argument(
    "--measure",
    action="append",
    default=[],
    dest="measures",
    help="to be tested; may be given again (accuracy, recall_opened, nDCG@10 and AP, where all "
    "runs have them)",
)
PARSER.add_argument("--baseline", metavar="RUN", help="the run to compare with (all pairs)")
PARSER.add_argument(
    "--by",
    action="append",
    default=[],
    metavar="FACTOR",
    help="over several benchmarks: what tells systems apart, such as retriever; may be given again "
    "(all settings but the benchmark's)",
)
PARSER.add_argument("--test", choices=TESTS, default=TESTS[0])

start = partial(run_command, compare, PARSER)
