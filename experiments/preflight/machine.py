"""Whether this machine has the disk, the memory and the time that a run needs, and the run the
dollars."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from soundingline.experiments.pipeline import BoundPipeline
from soundingline.experiments.planning import (
    ExperimentEstimate,
    ExperimentPlan,
    Model,
    models_of,
)
from soundingline.experiments.preflight.findings import Finding
from soundingline.pipelines.device import free_disk, free_memory
from soundingline.toolkit.evaluation.threats import ComposedCell

GB = 1e9
PROCESS = 0.5  # gigabytes of memory that a run takes without models
QUESTION = 0.001  # gigabytes of disk that the trajectory and the traces of a question take
_SMI = ("nvidia-smi", "--query-gpu=memory.total,memory.free", "--format=csv,noheader,nounits")


class Memory(NamedTuple):
    """The gigabytes of a memory, all of them and those that are free."""

    total: float
    free: float


class Machine(NamedTuple):
    """What a machine has: its memory, that of each NVIDIA GPU, the free gigabytes of the disk of a
    folder, and the `hours` until the end of a job of Slurm (None without one)."""

    memory: Memory
    gpus: Sequence[Memory] = ()
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
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(Memory(total / GB, free_memory() / GB), gpus(), hours=hours)


def gpus() -> list[Memory]:
    """The GPUs that `nvidia-smi` lists; none where it is missing or fails."""
    try:
        rows = subprocess.run(_SMI, capture_output=True, text=True, timeout=10, check=True).stdout
        mebibytes = [[int(cell) for cell in row.split(",")] for row in rows.splitlines()]
        return [Memory(*(number * 2**20 / GB for number in row)) for row in mebibytes]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


def loaded_models(config: Mapping[str, Any]) -> list[Model]:
    """The models of a configuration that its run loads on this machine, each once. Those of servers
    that run already, here or elsewhere, are left out."""
    models = models_of(config).items()
    loaded = [model for group, model in models if not config[group].get("base_url")]
    return list({model.name: model for model in loaded if model.gigabytes}.values())


def expected(
    config: Mapping[str, Any], choices: Mapping[str, str], questions: int
) -> ExperimentEstimate | None:
    """The dollars and hours of a run over so many questions by the formula of a plan; None where a
    plan has no estimate. `choices` are the options by group. Runs on disk are not read, which takes
    longer than a check may."""
    plan = ExperimentPlan([ComposedCell("", config, choices)], questions=questions)
    return next(plan.estimates())


def disk_uses(
    built: BoundPipeline, rollouts: int, runs: Path, caches: Path | None, caches_gb: float | None
) -> list[DiskUse]:
    """What a run of `rollouts` questions, repeats included, still writes: an index that is missing
    (a lexical one takes a quarter of its document store to all of it), the run folder, and what
    stages other than the retriever cache, at most `caches_gb`."""
    collection, uses = built.collection, [DiskUse(runs, rollouts * QUESTION, "the run")]
    if not collection.path.exists():
        texts = sum(file.stat().st_size for file in collection.store.path.rglob("*")) / GB
        uses.append(DiskUse(collection.folder, texts, "the index"))
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
    """What is missing of a machine and a budget for a run that still writes `disk` and loads
    `models` (`loaded_models`), by its `estimate` (None: unknown) and `cap`, its
    `budget.run_dollars` (None: no cap)."""
    return [*_disk(machine, disk), *_models(machine, models), *_estimate(machine, estimate, cap)]


def _disk(machine: Machine, uses: Iterable[DiskUse]) -> Iterator[Finding]:
    by_disk: dict[int, list[DiskUse]] = {}
    for use in uses:
        absolute = use.folder.absolute()
        folder = next(path for path in (absolute, *absolute.parents) if path.is_dir())
        by_disk.setdefault(folder.stat().st_dev, []).append(use)
    for group in by_disk.values():
        folder, free = group[0].folder, machine.disk(group[0].folder)
        for uses, most in (([use for use in group if not use.at_most], ""), (group, "at most ")):
            needed = sum(use.gigabytes for use in uses)
            if needed > free:
                parts = ", ".join(f"{use.what} {use.gigabytes:.1f}" for use in uses)
                message = (
                    f"the disk of {folder} has {free:.1f} GB free, and the run needs {most}"
                    f"{needed:.1f} GB ({parts})"
                )
                do = "free space there, name another disk by paths.indexes, paths.runs and "
                do += "paths.caches, or lower paths.caches_gb"
                yield Finding("machine", "note" if most else "fault", message, do)
                break


def _models(machine: Machine, models: Iterable[Model]) -> Iterator[Finding]:
    """Weights against the GPUs; without any, against the memory, where a stage computes in float32,
    twice the size. What is not free may be held by the server of an earlier cell."""
    sizes = {
        model.name: (model.gigabytes or 0.0)
        * (1 if machine.gpus or model.group.endswith("llm") else 2)
        for model in models
    }
    needed, pools = sum(sizes.values()), machine.gpus or [machine.memory]
    total, free = (sum(pool[place] for pool in pools) for place in (0, 1))
    listed = ", ".join(f"{name} {size:.1f}" for name, size in sizes.items())
    where = "GPU memory" if machine.gpus else "memory, and no NVIDIA GPU"
    message = f"the weights ({listed}) take {needed:.1f} GB, and this machine has {total:.1f} GB of"
    if needed > total:
        do = "choose smaller models, or serve them on another machine"
        yield Finding("machine", "fault", f"{message} {where}", do)
    elif needed > free:
        do = "end what else uses it, unless it is the server of these models"
        yield Finding("machine", "note", f"{message} {where}; {free:.1f} GB are free", do)
    if machine.memory.free < PROCESS:
        message = f"{machine.memory.free:.1f} GB of memory are free, and a run takes {PROCESS:g} GB"
        yield Finding("machine", "fault", message, "end other programs")


def _estimate(
    machine: Machine, estimate: ExperimentEstimate | None, cap: float | None
) -> Iterator[Finding]:
    if estimate is None:
        return
    dollars, hours = estimate.total.dollars, estimate.total.seconds / 3600
    if cap is not None and dollars is not None and dollars > cap:
        message = (
            f"{estimate.questions:,} questions are expected to cost ${dollars:,.2f} "
            f"({estimate.typical.source}), and budget.run_dollars is ${cap:,.2f}"
        )
        do = "raise it, or set a smaller benchmark.limit; the run stops there and can be continued"
        yield Finding("machine", "note", message, do)
    if machine.hours is not None and hours > machine.hours:
        message = f"the run is expected to take {hours:,.1f} hours, and the job ends in "
        message += f"{machine.hours:,.1f}"
        do = "raise its time limit or concurrency=; the same command continues the run"
        yield Finding("machine", "note", message, do)
