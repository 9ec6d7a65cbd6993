"""A sweep of six cells of 24 questions each, whose agent waits before each question."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from support.benchmarks import TINY

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
