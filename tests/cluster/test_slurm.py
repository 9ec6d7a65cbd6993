"""A sweep on a real Slurm, whose jobs are pre-empted, reach their time limit, are cancelled, killed
and lose their node: `make test-cluster`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from local_slurm import NODE, missing, running_slurm, said
from slow_sweep import SlowSweep, until

ABSENT = missing()
pytestmark = pytest.mark.skipif(
    bool(ABSENT),
    reason=f"not installed: {', '.join(ABSENT)} (Debian's slurmctld, slurmd, slurm-client, munge)",
)
LAUNCHER = (
    "hydra/launcher=slurm",
    "hydra.launcher.partition=main",
    "hydra.launcher.gpus_per_node=null",
    "hydra.launcher.cpus_per_task=1",
    "hydra.launcher.mem_gb=null",
    "hydra.launcher.timeout_min=1",
    "hydra.launcher.signal_delay_s=10",
)


@pytest.fixture
def slurm(tmp_path_factory):
    with running_slurm(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


def test_a_sweep_survives_what_happens_on_a_cluster(slurm, tmp_path):
    sweep = SlowSweep(tmp_path, slurm, *LAUNCHER)

    def told():
        jobs = tmp_path.glob("runs/s/.submitit/*/*_log.err")
        logs = [sweep.log, *jobs, *tmp_path.glob("*.note")]
        return said(slurm, "squeue") + "".join(path.read_text()[-1500:] for path in logs)

    def jobs(state="RUNNING"):
        listed = said(slurm, "squeue", "-h", "-r", "-t", state, "-p", "main", "-o", "%i")
        return listed.split()

    def restarts():
        shown = said(slurm, "scontrol", "show", "job")
        return sum(map(int, re.findall(r"Restarts=(\d+)", shown)))

    def at_work():
        """The pauses of two cells that record questions now."""
        before = sweep.records()
        time.sleep(6)
        now = sweep.records()
        moving = [pause for pause in now if now[pause] > before[pause]]
        return moving if len(moving) == 2 and len(jobs()) == 2 else None

    began = time.monotonic()
    events = {}
    process = sweep.start()
    until(at_work, what=told)

    # A job of the higher partition needs both processors.
    said(slurm, "sbatch", "-p", "high", "-n", "2", "--output=/dev/null", "--wrap", "sleep 3")
    until(lambda: restarts() >= 2, what=told)
    events["pre-empted"] = restarts()

    # A job may end, or reach its limit, just before it is cancelled or killed: then another one is.
    def cancelled():
        if at_work() and (running := jobs()):
            said(slurm, "scancel", running[-1])
            time.sleep(2)
        return jobs("CANCELLED")

    until(cancelled, what=told)
    events["cancelled"] = 1

    def killed():
        # The cell with the longest pause stays, because it outlives its minute.
        for pause in at_work() or ():
            if pause != "4" and not jobs("FAILED"):
                with suppress(ProcessLookupError):
                    os.kill(sweep.worker(pause), signal.SIGKILL)
                    time.sleep(2)
        return jobs("FAILED")

    until(killed, what=told)
    events["killed"] = 1

    until(at_work, what=told)
    before = restarts()
    said(slurm, "scontrol", "update", f"nodename={NODE}", "state=down", "reason=test")
    until(lambda: restarts() >= before + 2, what=told)
    events["lost their node"] = restarts() - before
    said(slurm, "scontrol", "update", f"nodename={NODE}", "state=resume")

    assert process.wait(600) == 1, told()
    output = sweep.log.read_text()
    # What the command reports is what Slurm has ended. A job is lost, too, if it is told of its
    # limit before Python has begun, which a limit of one minute makes possible.
    lost = jobs("CANCELLED,FAILED,TIMEOUT,NODE_FAIL")
    events["ended by Slurm in all"] = len(lost)
    assert len(lost) >= 2
    assert f"{len(lost)} failed; the same command continues" in output, output
    assert "sacct" not in output and "Traceback" not in output, output
    logs = "".join(path.read_text() for path in tmp_path.glob("runs/s/.submitit/*/*_log.err"))
    events["timed out"] = logs.count("this job is timed-out")
    assert events["timed out"] >= 1
    done = sum(sweep.records().values())

    again = next((number for number in range(1, 4) if sweep.start().wait(600) == 0), None)
    assert again, told()
    sweep.check_complete()
    version = said(slurm, "squeue", "--version").strip()
    seconds = round(time.monotonic() - began)
    sys.stdout.write(f"{version}: {seconds} s, {done} questions before the second command, ")
    sys.stdout.write(f"which was given {again} times\n")
    sys.stdout.write("".join(f"jobs {name}: {number}\n" for name, number in events.items()))
    assert subprocess.run(["squeue", "-h"], env=slurm, capture_output=True).stdout == b""
