"""`python -m experiments.bench.startup`: how long a command takes to start.

Each command runs in a fresh process, in turns, with the files in the system's cache; medians, and
their ratio to importing PyTerrier and Hydra, which every command does. Argument: `--rounds`
(default 7).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

from experiments.bench.harness import ROOT, Arguments, Section, Table, report, run, take_turns

BASE = "import pyterrier, hydra"
# The arguments of Python, and the ratio that is to be kept.
COMMANDS: dict[str, tuple[tuple[str, ...], float | None]] = {
    f'python -c "{BASE}"': (("-c", BASE), None),
    "python -m experiments.run --help": (("-m", "experiments.run", "--help"), 1.5),
    'python -c "import pipelines"': (("-c", "import pipelines"), 0.3),
    'python -c "from experiments import Experiment"': (
        ("-c", "from experiments import Experiment"),
        1.5,
    ),
}


def start(arguments: Sequence[str], more: Sequence[str] = ()) -> None:
    """Run Python with the arguments, to its end."""
    command = [sys.executable, *arguments, *more]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


def main(arguments: Sequence[str]) -> None:
    parser = Arguments("startup", rounds=(7, 5))
    options = parser.read(arguments)
    systems = {name: partial(start, given) for name, (given, _) in COMMANDS.items()}
    turns = take_turns(systems, [[()]] * options.rounds, [()], "Starting")
    medians = {name: statistics.median(turn.seconds) for name, turn in turns.items()}
    base = next(iter(medians.values()))
    rows = [
        [f"`{name}`", f"{seconds:.2f}", f"{seconds / base:.2f}", _goal(COMMANDS[name][1])]
        for name, seconds in medians.items()
    ]
    table = Table(["command", "s, median", "times the first", "at most"], rows)
    text = f"Medians of {options.rounds} starts in turns."
    packages = ("pyterrier", "hydra-core", "pandas")
    section = Section("startup", "Start-up", parser.command(options), [text, table], packages)
    report(section, write=options.write)


def _goal(ratio: float | None) -> str:
    return "—" if ratio is None else f"{ratio:g}"


if __name__ == "__main__":
    run(main)
