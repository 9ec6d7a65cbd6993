"""What every benchmark shares: arguments, timing, memory, tables, and the page of results.

A benchmark is a module with `main(arguments)`, which reads its arguments by `Arguments`, measures,
and hands a `Section` to `report`.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.table import Table as RichTable

from soundingline.toolkit.console import Console, notify, track
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import write_text
from soundingline.toolkit.optional import import_optional

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "bench-data"  # corpora and indexes, kept for the next run
PAGE = Path(os.environ.get("SOUNDINGLINE_BENCH_PAGE") or ROOT / "docs" / "benchmarks.md")
LIMITS = "other sizes, machines or collections"
Q = TypeVar("Q")
_PROC = Path("/proc")


class Arguments(argparse.ArgumentParser):
    """A benchmark's arguments, as `--documents 1000` or `documents=1000`.

    `integers`: name -> (default, least value). `--write` puts the results into docs/benchmarks.md.
    """

    def __init__(self, name: str, **integers: tuple[int, int]) -> None:
        super().__init__(prog=f"python -m soundingline.experiments.bench.{name}")
        self._least = {key: least for key, (_, least) in integers.items()}
        for key, (default, _) in integers.items():
            self.add_argument(f"--{key.replace('_', '-')}", type=int, default=default)
        self.add_argument("--write", action="store_true", help="write the page of results too")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The values given; `InputError` for one below its least."""
        options = self.parse_args(
            [f"--{item}" if "=" in item and item[0] != "-" else item for item in arguments]
        )
        for name, least in self._least.items():
            if getattr(options, name) < least:
                raise InputError(f"{name}={getattr(options, name)}", valid=f"{least} or more")
        return options

    def command(self, options: argparse.Namespace, *more: str) -> str:
        """The command that gives these results; `more`: arguments beside the integers."""
        integers = [f"--{name.replace('_', '-')} {getattr(options, name)}" for name in self._least]
        return " ".join([self.prog, *integers, *more, "--write"])


def run(main: Callable[[Sequence[str]], None]) -> None:
    """`main` with the command line's arguments; bad input is one line and exit code 2."""
    try:
        main(sys.argv[1:])
    except InputError as error:
        notify(str(error))
        sys.exit(2)


class Turns(NamedTuple):
    """Seconds and result of each request, in order."""

    seconds: list[float]
    results: list[Any]


def take_turns(
    systems: Mapping[str, Callable[[Q], Any]],
    rounds: Sequence[Sequence[Q]],
    warm_up: Sequence[Q] = (),
    note: str = "",
    clock: Callable[[], float] | None = None,
) -> dict[str, Turns]:
    """Each system answers the requests of a round, then the next system, then the next round, so
    that what else the machine does hits all of them. `warm_up` is answered before and not counted;
    `note`: what a progress bar says (empty: no bar). `clock` gives the seconds; None: wall-clock
    time."""
    now = clock or time.perf_counter
    for system in systems.values():
        for request in warm_up:
            system(request)
    turns = {name: Turns([], []) for name in systems}
    for requests in track(rounds, note, len(rounds)) if note else rounds:
        for name, system in systems.items():
            for request in requests:
                start = now()
                result = system(request)
                turns[name].seconds.append(now() - start)
                turns[name].results.append(result)
    return turns


def unit(vectors: NDArray[Any]) -> NDArray[Any]:
    """Rows of length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: NDArray[Any] = vectors / np.maximum(lengths, 1e-12)
    return scaled


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median, the least and the most."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"


class Latency(NamedTuple):
    """Milliseconds a request: the median, what 95% of the requests stay below, and the lowest and
    the highest of the rounds' own medians."""

    median: float
    p95: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def latencies(
    systems: Mapping[str, Callable[[Q], Any]], requests: Sequence[Q], rounds: int = 3
) -> dict[str, Latency]:
    """Of each system, over `rounds` in turns."""

    def without_result(system: Callable[[Q], Any]) -> Callable[[Q], None]:
        def answer(request: Q) -> None:
            system(request)

        return answer

    timed = {name: without_result(system) for name, system in systems.items()}
    turns = take_turns(timed, [requests] * rounds, requests[:10])
    return {name: _latency(turn.seconds, rounds) for name, turn in turns.items()}


def _latency(seconds: Sequence[float], rounds: int) -> Latency:
    milliseconds = 1000 * np.asarray(seconds)
    medians = np.median(milliseconds.reshape(rounds, -1), axis=1)
    middle, high = np.percentile(milliseconds, (50, 95)).tolist()
    return Latency(middle, high, float(medians.min()), float(medians.max()))


def bandwidth(megabytes: int = 512) -> float:
    """Bytes a second that one thread reads from memory, best of five passes over a large array."""
    data = np.ones(megabytes << 17, dtype=np.int64)
    turns = take_turns({"reading": np.max}, [[data]] * 5)
    return data.nbytes / min(turns["reading"].seconds)


def matmul_peak(device: str, dtype: str) -> float:
    """FLOP a second of a large square product by torch, best of some."""
    torch = import_optional("torch")
    side = 2048 if device == "cpu" else 8192
    a, b = (torch.randn(side, side, device=device, dtype=getattr(torch, dtype)) for _ in "ab")

    def multiply(_: int) -> None:
        a @ b
        if device != "cpu":
            torch.cuda.synchronize()

    turns = take_turns({dtype: multiply}, [range(12)])
    return float(2 * side**3 / min(turns[dtype].seconds))


class Cost(NamedTuple):
    """`peak_mb` is the largest sum, over the process and its children, of memory in use (shared
    pages divided among those who share them; MiB); 0 where the system does not tell. `processor`:
    seconds of all its cores, those of its children included once they have ended."""

    seconds: float
    peak_mb: float
    processor: float


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Cost:
    """Run `function(*arguments)` in a fresh process; its own time, and the memory of its tree."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_timed, args=(sender, function, arguments))
    process.start()
    sender.close()
    peak = 0.0
    while process.is_alive():
        peak = max(peak, _tree_memory(process.pid or 0))
        process.join(0.25)
    if process.exitcode != 0:
        raise RuntimeError(f"{function.__name__} failed with exit code {process.exitcode}")
    seconds, processor = receiver.recv()
    return Cost(seconds, peak / 1024, processor)


def _timed(sender: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    start, before = time.perf_counter(), os.times()
    function(*arguments)
    seconds, after = time.perf_counter() - start, os.times()
    sender.send((seconds, sum(after[:4]) - sum(before[:4])))


def _tree_memory(pid: int) -> float:
    """KiB of a process and all below it."""
    try:
        rollup = (_PROC / str(pid) / "smaps_rollup").read_text()
        children = " ".join(
            path.read_text() for path in (_PROC / str(pid) / "task").glob("*/children")
        )
    except OSError:
        return 0.0
    own = next(float(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return own + sum(_tree_memory(int(child)) for child in children.split())


def machine() -> str:
    """Processor and cores, in words."""
    model = platform.processor() or platform.machine()
    info = _PROC / "cpuinfo"
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return f"{model}, {multiprocessing.cpu_count()} cores, Python {platform.python_version()}"


def device_name(device: str) -> str:
    """What torch computes on, in words."""
    torch = import_optional("torch")
    if device == "cpu":
        return f"{machine()}, {torch.get_num_threads()} threads"
    return f"{torch.cuda.get_device_name(device)}, {machine()}"


def load() -> str:
    """How busy the machine is, in words: processes that compute or wait, over the last minute."""
    return f"The machine's load was {os.getloadavg()[0]:.1f} at the end."


def size_mb(folder: Path) -> float:
    """MiB of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20


class Table(NamedTuple):
    """A table of results: its headings and its rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def rich(self) -> RichTable:
        table = RichTable(*self.head)
        for row in self.rows:
            table.add_row(*row)
        return table


class Section(NamedTuple):
    """A section of docs/benchmarks.md: the benchmark's `mark` there, its title, the command, and
    paragraphs and tables in their order. `packages` are those whose versions matter; `device` is
    what computed (empty: this machine); `limits`: what the results say nothing about."""

    mark: str
    title: str
    command: str
    parts: Sequence[str | Table]
    packages: Sequence[str] = ("numba",)
    device: str = ""
    limits: str = LIMITS

    def setup(self) -> str:
        """How the numbers were made: command, day, device, versions; and what they do not show."""
        versions = ", ".join(f"{name} {version(name)}" for name in self.packages)
        today = datetime.date.today().isoformat()
        origin = f"`{self.command}`, {today}, {self.device or machine()}, {versions}."
        return f"{origin} The results support no claim about {self.limits}."


def report(section: Section, *, write: bool) -> None:
    """Print a section's parts; with `write`, put it into the page of results too: that of
    SOUNDINGLINE_BENCH_PAGE, or docs/benchmarks.md."""
    console = Console()
    for part in section.parts:
        if isinstance(part, Table):
            console.print(part.rich())
        else:
            console.print(part, highlight=False)
    if write:
        write_section(section)


def write_section(section: Section) -> None:
    """Put a section between its markers `bench:<mark>`, in place of its former self; one that the
    page does not have yet goes to its end."""
    opening, closing = f"<!-- bench:{section.mark} -->", f"<!-- /bench:{section.mark} -->"
    text = PAGE.read_text("utf-8") if PAGE.exists() else "# Benchmarks\n"
    if opening not in text:
        text += f"\n## {section.title}\n\n{opening}\n{closing}\n"
    before, rest = text.split(opening, 1)
    after = rest.split(closing, 1)[1]
    parts = [part.markdown() if isinstance(part, Table) else part for part in section.parts]
    body = "\n\n".join([section.setup(), *parts])
    write_text(PAGE, f"{before}{opening}\n\n{body}\n\n{closing}{after}")
