"""Jobs of Slurm: their states without accounting, and refusals of `sbatch`.

submitit 1.5 asks `sacct` for states, which has no answer on a cluster without accounting, and has
no option for another command. This module alone uses private names of submitit: a subclass of its
`SlurmInfoWatcher` that fills `_info_dict` and `_finished` from `squeue`.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import import_optional

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
    lines = [line for line in str(error).splitlines() if line.startswith("sbatch: error: ")]
    if lines:
        reason = "; ".join(line.removeprefix("sbatch: error: ") for line in lines)
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
