"""What we add to Hydra's launchers: the states of Slurm jobs without accounting, and Ray."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins import basic_launcher
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import run_job, setup_globals
from hydra.plugins.launcher import Launcher
from omegaconf import open_dict

from soundingline.toolkit.console import notify
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import import_optional
from soundingline.toolkit.runs.run_folder import SWEEP

NAME = f"{basic_launcher.__name__}.RayLauncher"
# States of a Slurm job that has ended and is not queued again (man squeue, JOB STATE CODES).
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "REVOKED", "TIMEOUT"),
    }
)
FORGOTTEN = "FORGOTTEN"  # ended longer ago than the controller remembers (MinJobAge)
_SQUEUE = ("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T")


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


def register_launcher() -> None:
    """Make the launcher known to Hydra, as `register_sweeper` does with our sweeper."""
    # The search for plugins comes first, because it executes the module of a launcher once more.
    plugins = Plugins.instance()
    basic_launcher.RayLauncher = RayLauncher  # type: ignore[attr-defined]
    plugins.class_name_to_class[NAME] = RayLauncher
