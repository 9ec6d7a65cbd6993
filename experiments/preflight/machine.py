"""Whether this machine has the disk, the memory and the time that a run needs, and the run the
dollars."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from soundingline.experiments.pipeline import BoundPipeline
from soundingline.experiments.planning import ExperimentEstimate, Model
from soundingline.experiments.preflight.findings import Finding
from soundingline.pipelines.device import free_disk, free_memory

GB = 1e9
PROCESS = 0.5  # gigabytes of memory that a run takes without models
QUESTION = 0.001  # gigabytes of disk that the trajectory and the traces of a question take
MEASURED = "measured"  # how the source of an estimate begins that is of a run on disk
SURE = 2.0  # times the cap: a measured estimate above that is a fault
_SMI = ("nvidia-smi", "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits")


class Gpu(NamedTuple):
    """The memory of a GPU in gigabytes, all of it and what is free."""

    total: float
    free: float


class Machine(NamedTuple):
    """What a machine has: `memory` that is free, in gigabytes; its NVIDIA `gpus`; the free
    gigabytes of the disk of a folder; and the `hours` until the end of a job of Slurm (None without
    one)."""

    memory: float
    gpus: Sequence[Gpu] = ()
    disk: Callable[[Path], float] = lambda path: free_disk(path) / GB
    hours: float | None = None


class DiskUse(NamedTuple):
    """Gigabytes that are still to be written below a folder; `at_most` if that is a bound."""

    folder: Path
    gigabytes: float
    what: str
    at_most: bool = False


def this_machine() -> Machine:
    """What this machine has now."""
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    hours = (int(end) - time.time()) / 3600 if end.isdecimal() else None
    return Machine(free_memory() / GB, gpus(), hours=hours)


def gpus() -> list[Gpu]:
    """The GPUs that `nvidia-smi` lists; none where it is missing or fails."""
    try:
        rows = subprocess.run(_SMI, capture_output=True, text=True, timeout=10, check=True).stdout
        mebibytes = [[int(cell) for cell in row.split(",")] for row in rows.splitlines()]
        return [Gpu(*(number * 2**20 / GB for number in row)) for row in mebibytes]
    except (OSError, subprocess.SubprocessError, TypeError, ValueError):
        return []


def disk_uses(
    built: BoundPipeline, rollouts: int, runs: Path, caches: Path | None, caches_gb: float | None
) -> list[DiskUse]:
    """What a run of `rollouts` questions, repeats included, still writes: an index that is missing
    (a lexical one takes a quarter of its document store to all of it), the run folder, and what
    stages other than the retriever cache, at most `caches_gb`."""
    prepared, uses = built.prepared, [DiskUse(runs, rollouts * QUESTION, "the run")]
    if not prepared.path.exists():
        texts = sum(file.stat().st_size for file in prepared.store.path.rglob("*")) / GB
        uses.append(DiskUse(prepared.folder, texts, "the index"))
    if caches is not None and caches_gb and built.parts.keys() - {"retriever"}:
        uses.append(DiskUse(caches, caches_gb, "the caches", at_most=True))
    return uses


def check_machine(
    machine: Machine,
    *,
    disk: Iterable[DiskUse] = (),
    models: Iterable[Model] = (),
    estimate: ExperimentEstimate | None = None,
    cap: float | None = None,
) -> list[Finding]:
    """What a machine and a budget lack for a run.

    Args:
        machine: What there is.
        disk: What is still to be written.
        models: The models of the run; those that run here count, if their names state their sizes.
        estimate: The dollars and hours of the run, if they are known.
        cap: `budget.run_dollars`; None without one.
    """
    return [
        *_disk(machine, disk),
        *_models(machine, {each.name: each for each in models if each.gigabytes}.values()),
        *_estimate(machine, estimate, cap),
    ]


def _disk(machine: Machine, uses: Iterable[DiskUse]) -> Iterator[Finding]:
    by_disk: dict[int, list[DiskUse]] = {}
    for use in uses:
        absolute = use.folder.absolute()
        there = next(path for path in (absolute, *absolute.parents) if path.is_dir())
        by_disk.setdefault(there.stat().st_dev, []).append(use)
    for group in by_disk.values():
        folder, free = group[0].folder, machine.disk(group[0].folder)
        sure = [use for use in group if not use.at_most]
        for chosen, level in ((sure, "fault"), (group, "note")):
            needed = sum(use.gigabytes for use in chosen)
            if needed > free:
                parts = ", ".join(f"{use.what} {use.gigabytes:.1f}" for use in chosen)
                most = "at most " if level == "note" else ""
                message = (
                    f"the disk of {folder} has {free:.1f} GB free, and the run needs {most}"
                    f"{needed:.1f} GB ({parts})"
                )
                do = "free space there, name another disk by paths.indexes, paths.runs and "
                do += "paths.caches, or lower paths.caches_gb"
                yield Finding("machine", "fault" if level == "fault" else "note", message, do)
                break


def _models(machine: Machine, models: Iterable[Model]) -> Iterator[Finding]:
    """Weights against the GPUs; without any, against the memory, where a stage computes in float32,
    twice the size."""
    on_gpu, parts = bool(machine.gpus), []
    needed = 0.0 if on_gpu else PROCESS
    for model in models:
        wide = 1 if on_gpu or model.group.endswith("llm") else 2
        size = wide * (model.gigabytes or 0.0)
        needed += size
        parts.append(f"{model.name} {size:.1f}")
    listed, do = ", ".join(parts), "choose smaller models, or serve them on another machine"
    if on_gpu:
        total = sum(gpu.total for gpu in machine.gpus)
        free = sum(gpu.free for gpu in machine.gpus)
        number = f"{len(machine.gpus)} GPU{'s' * (len(machine.gpus) > 1)}"
        if needed > total:
            message = f"the weights ({listed}) take {needed:.1f} GB, and {number} of this machine "
            yield Finding("machine", "fault", f"{message}have {total:.1f} GB", do)
        elif needed > free:
            message = f"the weights ({listed}) take {needed:.1f} GB, and {free:.1f} of "
            message += f"{total:.1f} GB of GPU memory are free"
            do = "end what else is on the GPUs, unless it is the server of these models"
            yield Finding("machine", "note", message, do)
    if (PROCESS if on_gpu else needed) > machine.memory:
        what = f"the weights ({listed}) and the run take" if parts and not on_gpu else "a run takes"
        least = PROCESS if on_gpu else needed
        where = "of memory are free" if on_gpu else "of memory are free, and there is no NVIDIA GPU"
        message = f"{what} {least:.1f} GB, and {machine.memory:.1f} GB {where}"
        yield Finding("machine", "fault", message, f"end other programs, or {do}")


def _estimate(
    machine: Machine, estimate: ExperimentEstimate | None, cap: float | None
) -> Iterator[Finding]:
    if estimate is None:
        return
    dollars, hours = estimate.dollars, estimate.hours
    if cap is not None and dollars is not None and dollars > cap:
        sure = estimate.source.startswith(MEASURED) and dollars > SURE * cap
        message = (
            f"{estimate.questions:,} questions are expected to cost ${dollars:,.2f} "
            f"({estimate.source}), and budget.run_dollars is ${cap:,.2f}"
        )
        do = "raise it, or set a smaller benchmark.limit; the run stops there and can be continued"
        yield Finding("machine", "fault" if sure else "note", message, do)
    if machine.hours is not None and hours > machine.hours:
        message = f"the run is expected to take {hours:,.1f} hours, and the job ends in "
        message += f"{machine.hours:,.1f}"
        do = "raise its time limit or concurrency=; the same command continues the run"
        yield Finding("machine", "note", message, do)
