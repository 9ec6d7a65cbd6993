"""Sweeps on a real Slurm and on a real Ray: `make test-real PART=clusters`.

On Slurm, jobs are pre-empted, reach their time limit, are cancelled, killed and lose their node. On
a Ray cluster of two nodes, a worker is killed and then a node is lost. The sweep has six cells of
24 questions each, and its agent waits before each question.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.benchmarks import TINY
from support.local_slurm import NODE, missing, running_slurm, said
from support.needs import needs_real

from soundingline.toolkit.runs import RunFolder

CELLS, QUESTIONS = 6, 24
# Seconds that a question waits, by cell. The first cell takes longer than a minute.
PAUSES = "4,1.0,1.1,1.2,1.3,1.4"
AGENT = """
import asyncio, os
from pathlib import Path
from soundingline.agents.baselines import OneShotAgent

class Slow(OneShotAgent):
    def __init__(self, listed=50, pause=0.0):
        super().__init__(listed=listed)
        self.pause = pause

    async def run(self, topic, tool):
        Path(f"at-work-{self.pause}").write_text(str(os.getpid()))
        await asyncio.sleep(self.pause)
        return await super().run(topic, tool)
"""


class SlowSweep:
    """The sweep in `folder`, under a launcher."""

    def __init__(self, folder: Path, environment, *overrides: str) -> None:
        (folder / "options" / "agent").mkdir(parents=True)
        option = "_target_: slow_agent.Slow\nlisted: 50\npause: 0.0\n"
        (folder / "options" / "agent" / "slow.yaml").write_text(option)
        (folder / "slow_agent.py").write_text(AGENT)
        self.folder = folder
        self.environment = {**environment, "PYTHONPATH": str(folder)}
        given = [*TINY, f"benchmark.questions={QUESTIONS}", "name=s"]
        given += ["hydra.searchpath=[file://options]", "agent=slow"]
        self.command = [sys.executable, "-m", "soundingline.experiments"]
        self.arguments = [*given, f"agent.pause={PAUSES}", *overrides]
        # Built before the jobs start, as docs/operations.md says.
        one = [*self.command, "index", *given]
        subprocess.run(one, cwd=folder, env=self.environment, check=True, capture_output=True)

    def start(self):
        self.log = self.folder / "output"
        with self.log.open("a") as output:
            return subprocess.Popen(
                [*self.command, "run", "-m", *self.arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def worker(self, pause):
        """The process that asks the questions of a cell."""
        return int((self.folder / f"at-work-{pause}").read_text())

    def records(self):
        """The number of recorded questions by cell, as `agent.pause`."""
        runs = (self.folder / "runs" / "s").glob("*pause=*")
        numbers = {
            path.name.partition("pause=")[2].partition("-")[0]: len(RunFolder(path).done())
            for path in runs
        }
        return Counter(numbers)

    def check_complete(self):
        """Every cell has ended, and has each question once, at the first attempt."""
        folders = sorted(
            path.parent for path in (self.folder / "runs" / "s").glob("*/metrics.json")
        )
        assert len(folders) == CELLS
        for folder in folders:
            run = RunFolder(folder)
            qids = run.statuses()
            assert len(qids) == QUESTIONS and set(qids.values()) == {"completed"}
            assert all(run.attempts(qid) == 1 for qid in qids)
        assert sum(self.records().values()) == CELLS * QUESTIONS


def until(condition, seconds=180.0, what=""):
    """Wait until `condition()` is true, and give what it gives."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.2)
    raise TimeoutError(what() if callable(what) else what or "it has not happened")


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


@needs_real("clusters", missing=", ".join(missing()))
def test_a_sweep_survives_what_happens_on_a_cluster(slurm, tmp_path):
    sweep = SlowSweep(tmp_path, slurm, *LAUNCHER)

    def report():
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
    until(at_work, what=report)

    # A job of the higher partition needs both processors.
    said(slurm, "sbatch", "-p", "high", "-n", "2", "--output=/dev/null", "--wrap", "sleep 3")
    until(lambda: restarts() >= 2, what=report)
    events["pre-empted"] = restarts()

    # A job may end, or reach its limit, just before it is cancelled or killed: then another one is.
    def cancelled():
        if at_work() and (running := jobs()):
            said(slurm, "scancel", running[-1])
            time.sleep(2)
        return jobs("CANCELLED")

    until(cancelled, what=report)
    events["cancelled"] = 1

    def killed():
        # The cell with the longest pause stays, because it outlives its minute.
        for pause in at_work() or ():
            if pause != "4" and not jobs("FAILED"):
                with suppress(ProcessLookupError):
                    os.kill(sweep.worker(pause), signal.SIGKILL)
                    time.sleep(2)
        return jobs("FAILED")

    until(killed, what=report)
    events["killed"] = 1

    until(at_work, what=report)
    before = restarts()
    said(slurm, "scontrol", "update", f"nodename={NODE}", "state=down", "reason=test")
    until(lambda: restarts() >= before + 2, what=report)
    events["lost their node"] = restarts() - before
    said(slurm, "scontrol", "update", f"nodename={NODE}", "state=resume")

    assert process.wait(600) == 1, report()
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
    assert again, report()
    sweep.check_complete()
    release = said(slurm, "squeue", "--version").strip()
    seconds = round(time.monotonic() - began)
    sys.stdout.write(f"{release}: {seconds} s, {done} questions before the second command, ")
    sys.stdout.write(f"which was given {again} times\n")
    sys.stdout.write("".join(f"jobs {name}: {number}\n" for name, number in events.items()))
    assert subprocess.run(["squeue", "-h"], env=slurm, capture_output=True).stdout == b""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Its workers import the agent that the sweep names.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    arguments = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=arguments)
    try:
        yield cluster
    finally:
        cluster.shutdown()


@needs_real("clusters", missing="" if find_spec("ray") else "ray")
def test_a_sweep_survives_the_loss_of_a_worker_and_of_a_node(cluster, tmp_path):
    second = cluster.add_node(num_cpus=2, object_store_memory=80_000_000)
    sweep = SlowSweep(
        tmp_path, os.environ, "hydra/launcher=ray", f"hydra.launcher.init.address={cluster.address}"
    )

    def report():
        return sweep.log.read_text()[-5000:]

    def at_work():
        """The pauses of the cells that record questions now, three at a time."""
        before = sweep.records()
        time.sleep(6)
        now = sweep.records()
        moving = [pause for pause in now if now[pause] > before[pause]]
        return moving if len(moving) == 3 else None

    began = time.monotonic()
    process = sweep.start()
    pauses = until(at_work, what=report)
    killed = next(pause for pause in pauses if pause != "4")
    worker = sweep.worker(killed)
    os.kill(worker, signal.SIGKILL)
    # Ray starts the cell again, in another process.
    until(lambda: sweep.worker(killed) != worker, what=report)
    until(at_work, what=report)
    done = sum(sweep.records().values())
    cluster.remove_node(second, allow_graceful=False)
    assert process.wait(600) == 0, report()
    sweep.check_complete()
    seconds = round(time.monotonic() - began)
    sys.stdout.write(f"Ray {version('ray')}: {seconds} s, {done} questions before the node went\n")
