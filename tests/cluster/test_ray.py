"""A sweep on a Ray cluster of two nodes, one of which is lost, after one of its workers:
`make test-cluster`."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from slow_sweep import SlowSweep, until

ray = pytest.importorskip("ray", reason="not installed: ray (pip install -e '.[ray]')")


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


def test_a_sweep_survives_the_loss_of_a_worker_and_of_a_node(cluster, tmp_path):
    second = cluster.add_node(num_cpus=2, object_store_memory=80_000_000)
    sweep = SlowSweep(
        tmp_path, os.environ, "hydra/launcher=ray", f"hydra.launcher.init.address={cluster.address}"
    )

    def told():
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
    pauses = until(at_work, what=told)
    killed = next(pause for pause in pauses if pause != "4")
    worker = sweep.worker(killed)
    os.kill(worker, signal.SIGKILL)
    # Ray starts the cell again, in another process.
    until(lambda: sweep.worker(killed) != worker, what=told)
    until(at_work, what=told)
    done = sum(sweep.records().values())
    cluster.remove_node(second, allow_graceful=False)
    assert process.wait(600) == 0, told()
    sweep.check_complete()
    seconds = round(time.monotonic() - began)
    sys.stdout.write(f"Ray {ray.__version__}: {seconds} s, {done} questions before the node went\n")
