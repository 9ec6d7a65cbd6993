"""What every benchmark shares: its registration, timing, memory, tables and the record of results.

A benchmark is a generator function with the decorator `benchmark`. It yields paragraphs and tables,
which `run` prints and, with `--write`, records.
"""

import argparse
import datetime
import inspect
import json
import multiprocessing
import os
import platform
import statistics
import time
from contextlib import contextmanager, suppress
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
SEED = 7
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


def benchmark(
    title, small=None, packages=("numba",), limits="other sizes, machines or collections"
):
    """Register the decorated generator function under its own name. Its parameters are the options
    of the command.

    `small`: their defaults with `--small`; `packages`: those whose versions matter; `limits`: what
    the results do not show."""

    def register(function):
        BENCHMARKS[function.__name__] = SimpleNamespace(
            function=function, title=title, small=small or {}, packages=packages, limits=limits
        )
        return function

    return register


def run(name, arguments):
    """Run a benchmark with the arguments of a command line."""
    chosen = BENCHMARKS[name]
    command = f"python tests/bench {name}"
    description = f"{chosen.title}. {chosen.function.__doc__ or ''}"
    parser = argparse.ArgumentParser(prog=command, description=description)
    parser.add_argument("--small", action="store_true", help="small sizes, for a quick look")
    parser.add_argument("--write", action="store_true", help="record the results in docs/results")
    for option, parameter in inspect.signature(chosen.function).parameters.items():
        default = parameter.default
        if "--small" in arguments:
            default = chosen.small.get(option, default)
        parser.add_argument(f"--{option}", type=type(default), default=default)
    values = vars(parser.parse_args(arguments))
    del values["small"]
    write = values.pop("write")
    for option, value in values.items():
        if isinstance(value, int) and value < 0:
            raise InputError(f"--{option} {value}", valid="0 or more")
    console, parts = Console(), []
    words = [f"--{option} {value}" for option, value in values.items() if value != ""]
    for part in chosen.function(**values):
        if not parts:
            part += f" Load of the machine: {os.getloadavg()[0]:.1f}."
        shown, last = part, parts[-1] if parts else None
        if isinstance(part, Table) and isinstance(last, Table) and part.head == last.head:
            last.rows.extend(part.rows)
            shown = "\n".join(" | ".join(map(str, row)) for row in part.rows)
        else:
            parts.append(part)
            shown = part.rich() if isinstance(part, Table) else part
        console.print(shown, highlight=False)
        if write:  # also what a later part that is interrupted would lose
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


def fastest(tried, request, clock):
    """The key of the system that answers a request in the shortest time, of two tries."""
    seconds, _ = interleaved(tried, [[request]] * 2, clock=clock, keep_results=False)
    return min(tried, key=lambda key: min(seconds[key]))


def median_range(values, digits=1):
    """The median, and the smallest and the largest value."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def ratios(values, bases):
    """Median and range of the ratios round by round."""
    return median_range([value / base for value, base in zip(values, bases, strict=True)], 2)


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
    """Of a process and its children: seconds, processor seconds, and the largest sum of
    proportional set sizes in MiB."""

    seconds: float
    processor: float
    peak_mb: float

    def cells(self):
        return [f"{self.seconds:.1f}", f"{self.processor:.1f}", f"{self.peak_mb:,.0f}"]


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
    return Cost(*receiver.recv(), peak)


def _timed(sender, function, arguments):
    start, before = time.perf_counter(), os.times()
    function(*arguments)
    seconds, after = time.perf_counter() - start, os.times()
    sender.send((seconds, sum(after[:4]) - sum(before[:4])))


def streamed(seconds, function, *arguments):
    """Yield what the generator `function(*arguments)` yields in a process of its own.

    `RuntimeError` says in a line why it ended early: its error, a signal, or `seconds` that passed,
    after which it is killed. Processes are forked from one that has imported torch and computed
    nothing."""
    context, end = multiprocessing.get_context("forkserver"), time.monotonic() + seconds
    context.set_forkserver_preload(["torch", "transformers", "sentence_transformers"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_all, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        while receiver.poll(max(0, end - time.monotonic())):
            kind, value = receiver.recv()
            if kind == "ended":
                process.join(10)
                return
            if kind == "error":
                raise RuntimeError(value)
            yield value
        raise RuntimeError(f"it took longer than {seconds:.0f} s")
    except EOFError:
        process.join()
        raise RuntimeError(f"the process ended with exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join(10)  # one that a driver holds is left behind
        receiver.close()


def _send_all(sender, function, arguments):
    try:
        for value in function(*arguments):
            sender.send(("value", value))
        sender.send(("ended", None))
    except Exception as error:
        line = next(iter(str(error).strip().splitlines()), "")
        sender.send(("error", f"{type(error).__name__}: {line}"))


@contextmanager
def background(serve, *arguments):
    """A process in which `serve(connection, *arguments)` runs, and what it sends first. At the end
    the connection is closed, and `serve` should return."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield psutil.Process(process.pid), ours.recv()
    finally:
        ours.close()
        process.join(5)
        process.kill()
        process.join()


def _memory_mb(process):
    total = 0.0
    with suppress(psutil.Error):  # it has ended
        for member in (process, *process.children(recursive=True)):
            total += member.memory_full_info().pss / 2**20
    return total


def resident_mb(process=None):
    """Memory of a process, by default of this one."""
    return (process or psutil.Process()).memory_info().rss / 2**20


def size_mb(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def lower_bound(what, sizes):
    """The name and the milliseconds in which one thread reads so many bytes from memory, at the
    speed of the best of five passes."""
    data = np.ones(1 << 26, dtype=np.int64)
    seconds, _ = interleaved({"read": np.max}, [[data]] * 5)
    speed = data.nbytes / min(seconds["read"])
    return [f"{what} at {speed / 1e9:.1f} GB/s", *(f"{1000 * size / speed:.2f}" for size in sizes)]


def machine():
    """Processor, cores and Python version."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"
