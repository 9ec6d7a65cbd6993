"""`python -m soundingline.experiments.bench.startup`: how long a command takes to start.

Each command runs in a fresh process, in turns, with the files in the system's cache; medians, and
their ratio to importing PyTerrier and Hydra in the same turn, which every command does. Argument:
`--rounds` (default 7).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

from soundingline.experiments.bench.harness import (
    ROOT,
    Arguments,
    Section,
    Table,
    report,
    run,
    spread,
    take_turns,
)

BASE = "import pyterrier, hydra"
# The arguments of Python, and the ratio that is to be kept.
COMMANDS: dict[str, tuple[tuple[str, ...], float | None]] = {
    f'python -c "{BASE}"': (("-c", BASE), None),
    "soundingline run --help": (("-m", "soundingline.experiments", "run", "--help"), 1.5),
    'python -c "import soundingline.pipelines"': (("-c", "import soundingline.pipelines"), 0.3),
    'python -c "from soundingline.experiments import Experiment"': (
        ("-c", "from soundingline.experiments import Experiment"),
        1.5,
    ),
}


def start(arguments: Sequence[str], more: Sequence[str] = ()) -> float:
    """Run Python with the arguments, to its end; the processor's seconds that it took."""
    before = os.times()
    command = [sys.executable, *arguments, *more]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])  # of children, in programs and in the system


def main(arguments: Sequence[str]) -> None:
    parser = Arguments("startup", rounds=(7, 5))
    options = parser.read(arguments)
    systems = {name: partial(start, words) for name, (words, _) in COMMANDS.items()}
    turns = take_turns(systems, [[()]] * options.rounds, [()], "Starting")
    base = next(iter(turns.values())).seconds
    rows = []
    for name, turn in turns.items():
        ratios = [own / first for own, first in zip(turn.seconds, base, strict=True)]
        computed = f"{statistics.median(turn.results):.2f}"
        rows.append(
            [f"`{name}`", spread(turn.seconds, 2), computed, spread(ratios, 2), _goal(name)]
        )
    table = Table(["command", "s", "processor s", "times the first", "at most"], rows)
    text = f"Medians of {options.rounds} starts in turns (least–most)."
    packages = ("pyterrier", "hydra-core", "pandas")
    section = Section("startup", "Start-up", parser.command(options), [text, table], packages)
    report(section, write=options.write)


def _goal(name: str) -> str:
    ratio = COMMANDS[name][1]
    return "—" if ratio is None else f"{ratio:g}"


if __name__ == "__main__":
    run(main)
