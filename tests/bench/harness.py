"""What every benchmark shares: its registration, timing, memory, tables and the record of results.

A benchmark is a generator function with the decorator `benchmark`. It receives its options and
yields paragraphs and tables, which `run` prints and, with `--write`, records.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import statistics
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import psutil
from rich.table import Table as RichTable

from soundingline.toolkit.console import Console
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import write_text

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "bench-data"  # corpora and indexes, which the next run reuses
RESULTS = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "results.md"
COLLECTIONS = Path(os.environ.get("SOUNDINGLINE_DATA") or ROOT.parent / "shared" / "data")
BENCHMARKS = {}


class Table(NamedTuple):
    head: list
    rows: list

    def markdown(self):
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)

    def rich(self):
        shown = RichTable(*map(str, self.head))
        for row in self.rows:
            shown.add_row(*map(str, row))
        return shown


def benchmark(title, *, packages=("numba",), limits="", options=None, **integers):
    """Register the decorated generator function under its own name.

    `packages`: those whose versions matter; `limits`: what the results do not show; `integers`:
    options as `name=(default, default with --small)`; `options`: others, as `name: arguments of
    add_argument`."""

    def register(function):
        BENCHMARKS[function.__name__] = SimpleNamespace(
            function=function,
            title=title,
            packages=packages,
            limits=limits or "other sizes, machines or collections",
            integers=integers,
            options=options or {},
        )
        return function

    return register


def run(name, arguments):
    """Run a benchmark with the arguments of a command line."""
    chosen = BENCHMARKS[name]
    command = f"python tests/bench {name}"
    description = f"{chosen.title}. {chosen.function.__doc__ or ''}"
    parser = argparse.ArgumentParser(prog=command, description=description)
    place = 1 if "--small" in arguments else 0
    for option, defaults in chosen.integers.items():
        parser.add_argument(f"--{option}", type=int, default=defaults[place])
    for option, settings in chosen.options.items():
        parser.add_argument(f"--{option}", **settings)
    parser.add_argument("--small", action="store_true", help="small sizes, for a quick look")
    parser.add_argument("--write", action="store_true", help="record the results in docs/results")
    options = parser.parse_args(arguments)
    for option in chosen.integers:
        if getattr(options, option) < 0:
            raise InputError(f"--{option} {getattr(options, option)}", valid="0 or more")
    console, parts = Console(), []
    for part in chosen.function(options):
        parts.append(part)
        console.print(part.rich() if isinstance(part, Table) else part, highlight=False)
    if options.write:
        values = {
            option: getattr(options, option) for option in [*chosen.integers, *chosen.options]
        }
        words = [f"--{option} {value}" for option, value in values.items() if value is not None]
        record(name, " ".join([command, *words]), parts)


def record(name, command, parts):
    """Write the results as JSON, and their tables into the page of results."""
    chosen, versions = BENCHMARKS[name], {}
    for package in chosen.packages:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    result = {
        "title": chosen.title,
        "command": command,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions,
        "limits": chosen.limits,
        "parts": [part._asdict() if isinstance(part, Table) else part for part in parts],
    }
    RESULTS.mkdir(exist_ok=True)
    write_text(RESULTS / f"{name}.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    names = ", ".join(f"{package} {number}" for package, number in versions.items())
    body = [
        f"`{command}`, {result['date']}, {result['machine']}, {names}. "
        f"The results say nothing about {chosen.limits}."
    ]
    body += [part.markdown() if isinstance(part, Table) else part for part in parts]
    opening, closing = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    text = PAGE.read_text("utf-8")
    if opening not in text:
        text += f"\n### {chosen.title}\n\n{opening}\n{closing}\n"
    before, rest = text.split(opening, 1)
    after = rest.split(closing, 1)[1]
    write_text(PAGE, before + "\n\n".join([opening, *body, closing]) + after)


def interleaved(systems, rounds, warm_up=(), clock=time.perf_counter, keep_results=True):
    """For each system the seconds and the results of all requests, in order.

    Each system answers the requests of a round, then the next system, then the next round, so that
    other load on the machine affects all of them. `warm_up` is answered first and not counted."""
    for system in systems.values():
        for request in warm_up:
            system(request)
    seconds, results = {name: [] for name in systems}, {name: [] for name in systems}
    for requests in rounds:
        for name, system in systems.items():
            for request in requests:
                start = clock()
                result = system(request)
                seconds[name].append(clock() - start)
                if keep_results:
                    results[name].append(result)
    return seconds, results


def median_range(values, digits=1):
    """The median, and the smallest and the largest value."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def milliseconds(systems, requests, rounds=5):
    """For each system the median of each round, in milliseconds a request."""
    seconds, _ = interleaved(systems, [requests] * rounds, requests[:10], keep_results=False)
    return {
        name: np.median(1000 * np.reshape(taken, (rounds, -1)), axis=1).tolist()
        for name, taken in seconds.items()
    }


def rows_of_times(systems, requests, rounds=5, share=None):
    """A row for each system: its name, and for each size in `requests` the median and the range of
    the rounds, in milliseconds a request, or a part of it: divided by `share[size]`."""
    rows = {name: [name] for name in systems}
    for size, of_size in requests.items():
        for name, medians in milliseconds(systems, of_size, rounds).items():
            parts = share[size] if share else 1
            rows[name].append(median_range([median / parts for median in medians], 2))
    return list(rows.values())


class Cost(NamedTuple):
    """Of a process and its children: seconds, largest sum of proportional set sizes in MiB, and
    processor seconds."""

    seconds: float
    peak_mb: float
    processor: float


def in_own_process(function, *arguments):
    """Run `function(*arguments)` in a new process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_timed, args=(sender, function, arguments))
    process.start()
    sender.close()
    watched, peak = psutil.Process(process.pid), 0.0
    while process.is_alive():
        peak = max(peak, _memory_mb(watched))
        process.join(0.25)
    if process.exitcode != 0:
        raise RuntimeError(f"{function} ended with exit code {process.exitcode}")
    seconds, processor = receiver.recv()
    return Cost(seconds, peak, processor)


def _timed(sender, function, arguments):
    start, before = time.perf_counter(), os.times()
    function(*arguments)
    seconds, after = time.perf_counter() - start, os.times()
    sender.send((seconds, sum(after[:4]) - sum(before[:4])))


def _memory_mb(process):
    total = 0.0
    with suppress(psutil.Error):  # it has ended
        for member in (process, *process.children(recursive=True)):
            total += member.memory_full_info().pss / 2**20
    return total


def resident_mb():
    """Memory of this process."""
    return psutil.Process().memory_info().rss / 2**20


def size_mb(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def bandwidth(megabytes=512):
    """Bytes a second that one thread reads from memory: the best of five passes."""
    data = np.ones(megabytes << 17, dtype=np.int64)
    seconds, _ = interleaved({"read": np.max}, [[data]] * 5)
    return data.nbytes / min(seconds["read"])


def lower_bound(what, sizes, speed, *before):
    """A row: the milliseconds in which one thread can read so many bytes of each size."""
    times = (f"{1000 * size / speed:.2f}" for size in sizes)
    return [*before, f"{what} at {speed / 1e9:.1f} GB/s", *times]


def machine():
    """Processor, cores and Python version."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def load():
    return f"Load of the machine: {os.getloadavg()[0]:.1f}."
