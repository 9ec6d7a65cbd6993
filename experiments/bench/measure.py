"""Time, memory and bandwidth, measured."""

from __future__ import annotations

import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

Q = TypeVar("Q")
_PROC = Path("/proc")


def medians(
    systems: Mapping[str, Callable[[Q], Any]], queries: Sequence[Q], rounds: int = 3
) -> dict[str, float]:
    """Median milliseconds a query of each system; they take turns, so that noise hits all."""
    for search in systems.values():
        for query in queries[:10]:
            search(query)
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, search in systems.items():
            for query in queries:
                start = time.perf_counter()
                search(query)
                seconds[name].append(time.perf_counter() - start)
    return {name: 1000 * statistics.median(times) for name, times in seconds.items()}


def bandwidth(megabytes: int = 512) -> float:
    """Bytes a second that one thread reads from memory, best of five passes over a large array."""
    data = np.ones(megabytes << 17, dtype=np.int64)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        data.max()
        best = min(best, time.perf_counter() - start)
    return data.nbytes / best


class Measured(NamedTuple):
    """`peak_mb` is the largest sum, over the process and its children, of memory in use (shared
    pages divided among those who share them; MiB); 0 where the system does not tell."""

    seconds: float
    peak_mb: float


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Measured:
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
    return Measured(receiver.recv(), peak / 1024)


def _timed(sender: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    start = time.perf_counter()
    function(*arguments)
    sender.send(time.perf_counter() - start)


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
