"""`python -m experiments.compare runs/a runs/b ...`: runs into verdicts, a table and a report."""

from __future__ import annotations

from pathlib import Path

from experiments.comparison import compare_folders
from experiments.entry import main
from experiments.settings import Settings
from toolkit.errors import InputError
from toolkit.files import fingerprint


def compare_runs(settings: Settings) -> None:
    """Compare the runs named on the command line; the report goes to `runs/<name>/`."""
    config = settings.config
    if len(config.runs) < 2:
        raise InputError(
            f"{len(config.runs)} runs were named",
            valid="two or more run folders",
            do="python -m experiments.compare runs/a runs/b",
        )
    paths = [Path(path) for path in config.runs]
    name = config.name or f"comparison-{fingerprint(*map(str, paths))[:6]}"
    compare_folders(
        paths,
        Path(config.paths.runs) / name,
        title=name,
        tested=list(config.comparison.measures) or None,
        baseline=config.comparison.baseline,
        test=config.comparison.test,
    )


if __name__ == "__main__":
    main(compare_runs, takes_runs=True)
