"""What we add to Hydra: a sweeper with axes and single changes, the states of Slurm jobs without
accounting, and a launcher for Ray.

The cells of a sweep are the product of its parameters and axes, each cell as it is and with one
change at a time. With `shards=4` that product has a cell for each shard, from `shard=0`. An
experiment lists its cells below `hydra.sweeper`::

    hydra:
      mode: MULTIRUN
      sweeper:
        params: {unit: "document,passage"}     # every combination, as in Hydra's own sweeper
        axes:                                  # crossed likewise; an entry may set several keys
          benchmarks:
            - benchmark=vaswani
            - [benchmark=ir_datasets, benchmark.dataset=beir/scifact/test]
        changes:                               # each cell as it is, and once with each entry
          - retriever=bm25_default
          - [reranker=monot5_3b, reranker.depth=10]
        laptop: {params: {}, axes: {}, changes: []}  # in their place with scale=laptop

An override of the command line replaces the values of `params` with its key, and each axis whose
entries begin with its key: `benchmark=cacm` replaces the axis above.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal.core_plugins import basic_launcher, basic_sweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import run_job, setup_globals
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf, open_dict

from soundingline.toolkit.console import notify
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import import_optional
from soundingline.toolkit.runs.run_folder import SWEEP

# The search for plugins executes the modules of Hydra's own once more, so that it comes first.
Plugins.instance()
BasicSweeper: Any = basic_sweeper.BasicSweeper
SWEEPER = f"{basic_sweeper.__name__}.ChangeSweeper"
LAUNCHER = f"{basic_launcher.__name__}.RayLauncher"
# States of a Slurm job that has ended and is not queued again (man squeue, JOB STATE CODES).
ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "REVOKED",
        "TIMEOUT",
    ]
)
FORGOTTEN = "FORGOTTEN"  # ended longer ago than the controller remembers (MinJobAge)
_SQUEUE = ("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T")


class ChangeSweeper(BasicSweeper):  # type: ignore[misc]
    """Hydra's sweeper with axes and single changes (see the module).

    Args:
        max_batch_size: See Hydra's `BasicSweeper`.
        params: Swept values by key, with commas between them.
        axes: Lists of entries by a name. An entry is one override or a list of overrides.
        changes: Entries as those of an axis.
        laptop: `params`, `axes` and `changes` that replace these with `scale=laptop`.

    Raises:
        InputError: If an entry is no override, or sweeps over several values.
    """

    def __init__(
        self,
        max_batch_size: int | None = None,
        params: Mapping[str, str] | None = None,
        axes: Mapping[str, Sequence[Any]] | None = None,
        changes: Sequence[Any] | None = None,
        laptop: Mapping[str, Any] | None = None,
    ) -> None:
        # `setup` reads axes, changes and laptop from the composed configuration.
        super().__init__(max_batch_size, dict(params or {}))
        self._cells = Cells()

    def setup(self, *, config: DictConfig, **context: Any) -> None:
        super().setup(config=config, **context)
        self._cells = Cells.of(config) or self._cells
        self.params = self._cells.params

    def split_arguments(  # type: ignore[override]  # Hydra calls its static method on the object.
        self, overrides: list[Override], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        cells = self._cells.overrides(overrides)
        return list(map(list, self.split_overrides_to_chunks(cells, max_batch_size)))


class Cells(NamedTuple):
    """The cells of a sweep: swept parameters, axes and changes, at the scale of a run."""

    params: Mapping[str, str] = {}
    axes: Sequence[Sequence[Sequence[str]]] = ()
    changes: Sequence[Sequence[str]] = ()

    @classmethod
    def of(cls, config: DictConfig) -> Cells | None:
        """Those of a composed configuration; None for a sweeper that chooses cells as it goes."""
        if config.hydra.sweeper._target_ != SWEEPER:
            return None
        sweeper: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
        cells = cls.read(sweeper, laptop=config.laptop)
        if config.get("shards", 1) > 1 and config.shard is None:
            shards = ",".join(map(str, range(config.shards)))
            return cells._replace(params={"shard": shards, **cells.params})
        return cells

    @classmethod
    def read(cls, sweeper: Mapping[str, Any], *, laptop: bool) -> Cells:
        """Those of the values below `hydra.sweeper`."""
        chosen = (laptop and sweeper.get("laptop")) or sweeper
        axes = (chosen.get("axes") or {}).items()
        return cls(
            {str(key): str(value) for key, value in (chosen.get("params") or {}).items()},
            [[_words(entry, f"axes.{name}") for entry in entries] for name, entries in axes],
            [_words(entry, "changes") for entry in chosen.get("changes") or ()],
        )

    def named(self, loader: ConfigLoader, words: Sequence[str] = ()) -> list[list[str]]:
        """The overrides of each cell of the sweep that a command line with these `words` starts.
        `loader` has the options that a `glob` may name."""
        swept = [f"{key}={value}" for key, value in self.params.items()]
        parser = OverridesParser.create(loader)
        return self.overrides(parser.parse_overrides([*swept, *words]))

    def overrides(self, given: Sequence[Override]) -> list[list[str]]:
        """The overrides of each cell, from those of `params` and the command line. An entry of an
        axis wins over an override of the same key, and a change over both. `InputError` for a
        `glob` that no option matches."""
        for override in given:
            if isinstance(override.value(), Glob) and not list(override.sweep_iterator()):
                raise InputError(
                    f"{override.input_line} matches no option",
                    do=f"soundingline list {override.key_or_group} prints the options; those in "
                    "folders are named with commas between them",
                )
        (combinations,) = BasicSweeper.split_arguments(list(given), None)
        keys = {override.get_key_element() for override in given}
        axes = [axis for axis in self.axes if axis and axis[0][0].partition("=")[0] not in keys]
        return [
            [word for words in parts for word in words]
            for parts in product(combinations, *axes, ((), *self.changes))
        ]


@cache
def override_parser() -> Any:
    """Hydra's, which keeps nothing of what it has parsed."""
    return OverridesParser.create()


def _words(entry: Any, where: str) -> list[str]:
    words = [entry] if isinstance(entry, str) else entry
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise InputError(
            f"hydra.sweeper.{where} has the entry {entry!r}",
            valid="an override such as unit=passage, or a list of overrides",
        )
    for override in override_parser().parse_overrides(words):
        if override.is_sweep_override():
            raise InputError(
                f"{override.input_line} in hydra.sweeper.{where} has several values",
                do="write one entry for each value",
            )
    return words


@cache
def slurm_watcher() -> Any:
    """The watcher of submitit that asks `squeue` instead of `sacct`, which has no answer on a
    cluster without accounting. It is installed for all jobs of this process.

    Every job of this user is listed, because a list of job ids is refused as a whole as soon as the
    controller has forgotten one. While the controller does not answer, states stay as they are.
    """
    slurm: Any = import_optional("submitit.slurm.slurm")

    class SqueueWatcher(slurm.SlurmInfoWatcher):  # type: ignore[misc]
        def update(self) -> None:
            self._last_status_check = time.time()
            command = [*_SQUEUE, f"--user={os.getuid()}"]
            try:
                listed = subprocess.run(
                    command, check=True, text=True, capture_output=True, timeout=60
                ).stdout
            except (OSError, subprocess.SubprocessError):
                return
            states = dict(line.split("|", 1) for line in listed.split() if "|" in line)
            for job in self._registered - self._finished:
                self._info_dict[job] = {"JobID": job, "State": states.get(job, FORGOTTEN)}
            self._finished |= set(filter(self._ended, self._registered))

        def is_done(self, job_id: str, mode: str = "standard") -> bool:
            self.get_state(job_id, mode=mode)
            return self._ended(job_id)

        def _ended(self, job_id: str) -> bool:
            return self._info_dict.get(job_id, {}).get("State") in {*ENDED, FORGOTTEN}

    watcher = slurm.SlurmJob.watcher = SqueueWatcher(delay_s=30)
    return watcher


def check_submission(error: Exception) -> None:
    """`InputError` if an error of a launcher is that `sbatch` refused the jobs."""
    said = [line for line in str(error).splitlines() if line.startswith("sbatch: error: ")]
    if said:
        reason = "; ".join(line.removeprefix("sbatch: error: ") for line in said)
        raise InputError(
            f"Slurm refuses the jobs: {reason}",
            do="change hydra.launcher.partition, gpus_per_node, cpus_per_task, mem_gb or "
            "timeout_min; sinfo --format='%P %l %c %m %G' lists what each partition has",
        ) from error


def wait_for_slurm(jobs: Iterable[str]) -> None:
    """Wait until jobs of Slurm have ended, by their ids."""
    watcher = slurm_watcher()
    jobs = list(jobs)
    while not all(watcher.is_done(job) for job in jobs):
        time.sleep(1)


class RayLauncher(Launcher):  # type: ignore[misc]
    """Runs each cell as a task of a Ray cluster, on its public interface only.

    `hydra-ray-launcher` 1.2.2 requires `cloudpickle<3`, boto3 and Ray's dashboard, and ends the
    other cells as soon as one cannot be finished.

    Args:
        init: Arguments of `ray.init`. Without `address`, Ray takes RAY_ADDRESS, or starts on this
            machine.
        remote: Options of the task of a cell, such as `num_cpus`, `num_gpus`, `resources` and
            `max_retries`: how often Ray starts a cell again whose worker or node was lost.

    Raises:
        InputError: If Ray is not installed, or a cell was lost more often than `max_retries`.
    """

    def __init__(self, init: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
        self.init, self.remote = dict(init), dict(remote)
        self.job: dict[str, Any] = {}

    def setup(self, **job: Any) -> None:
        self.job = job

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        ray: Any = import_optional("ray")
        began = not ray.is_initialized()
        if began:
            ray.init(**self.init)
        try:
            task = ray.remote(**self.remote)(_run_cell)
            environment = {SWEEP: os.environ[SWEEP]} if SWEEP in os.environ else {}
            shared = ray.put((self.job, Singleton.get_state(), str(Path.cwd()), environment))
            cells = enumerate(job_overrides, initial_job_idx)
            tasks = [task.remote(number, list(words), shared) for number, words in cells]
            # All cells are waited for, whatever becomes of one.
            ended = [_result(ray, reference) for reference in tasks]
            if lost := sum(isinstance(each, Exception) for each in ended):
                raise InputError(f"Ray has lost {lost} of {len(ended)} cells")
            return ended
        finally:
            if began:
                ray.shutdown()


def _result(ray: Any, task: Any) -> Any:
    """What a task has returned, or the error with which Ray has lost it."""
    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        notify(f"a cell was lost by Ray: {' '.join(str(error).split())}")
        return error


def _run_cell(number: int, overrides: list[str], shared: Any) -> Any:
    """A cell, in a worker of Ray."""
    job, singletons, folder, environment = shared
    os.chdir(folder)
    os.environ.update(environment)
    setup_globals()
    Singleton.set_state(singletons)
    context = job["hydra_context"]
    config = context.config_loader.load_sweep_config(job["config"], overrides)
    with open_dict(config):
        config.hydra.job.id, config.hydra.job.num = f"{config.hydra.job.name}_{number}", number
    HydraConfig.instance().set_config(config)
    return run_job(job["task_function"], config, "hydra.sweep.dir", "hydra.sweep.subdir", context)


def register_plugins() -> None:
    """Make the sweeper and the launcher known to Hydra.

    Hydra 1.3 instantiates plugins of its own modules and of the namespace `hydra_plugins` only.
    Ours get names in the modules of their bases, so that no second top-level package is installed.
    In their own module, other processes find them when they unpickle a job.
    """
    basic_sweeper.ChangeSweeper = ChangeSweeper  # type: ignore[attr-defined]
    basic_launcher.RayLauncher = RayLauncher  # type: ignore[attr-defined]
    Plugins.instance().class_name_to_class |= {SWEEPER: ChangeSweeper, LAUNCHER: RayLauncher}
