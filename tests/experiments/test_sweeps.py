"""Sweeps: the cells that parameters, axes and changes describe; failed cells are failed jobs, the
others finish, and the same command completes them. Every command outlives every disturbance."""

import importlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hydra.core.plugins import Plugins
from hydra_plugins.soundingline import Cells
from omegaconf import OmegaConf
from support.benchmarks import SMALL_WORLD, TINY
from support.commands import CommandProcess, run_command, run_entry
from support.needs import SOAK

from soundingline.experiments import slurm
from soundingline.experiments.sweep import (
    CELLS,
    DONE,
    FAILED,
    RUNNING,
    CellStatus,
    CommandSweep,
)
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import load_runs
from soundingline.toolkit.runs import RunFolder

ROOT = Path(__file__).resolve().parents[2]
# A stranger's retriever, which fails in one of the ways that cells fail.
FAILING = """
import os, signal, time
from pathlib import Path
from soundingline.pipelines.retrieve import BM25
from soundingline.toolkit.errors import InputError

class Failing(BM25):
    def __init__(self, *, k1=0.9, b=0.4, depth=1000, way=""):
        super().__init__(k1=k1, b=b, depth=depth)
        self.way = way

    def index_in(self, collection):
        if self.way == "bad":
            raise InputError("way=bad", do="choose another")
        if self.way == "defect":
            return open("/nowhere/at all")
        if self.way == "kill" and not Path("mended").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        if self.way == "preempt":
            # As a cluster does it: submitit's signal, which queues the job again.
            from submitit.core.job_environment import JobEnvironment
            with open("starts", "a") as starts:
                starts.write("started ")
            if Path("starts").read_text().split() == ["started"]:
                os.kill(os.getpid(), JobEnvironment._usr_sig())
                time.sleep(60)
        if self.way == "slow":
            Path(f"begun-{os.getpid()}").touch()
            time.sleep(1)
        if self.way == "together":
            Path(f"begun-{os.getpid()}").touch()
            until = time.monotonic() + 120
            while len(list(Path().glob("begun-*"))) < 2 and time.monotonic() < until:
                time.sleep(0.01)
        return super().index_in(collection)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "options" / "retriever").mkdir(parents=True)
    option = "_target_: stranger.Failing\nk1: 0.9\nb: 0.4\ndepth: 1000\nway: ''\n"
    (tmp_path / "options" / "retriever" / "failing.yaml").write_text(option)
    (tmp_path / "stranger.py").write_text(FAILING)
    return tmp_path


def command(*overrides, task="rank"):
    return (task, "-m", *TINY, "name=s", "hydra.searchpath=[file://options]", *overrides)


def paths(folder):
    return {"PYTHONPATH": str(folder)}


def sweep(folder, *overrides, task="rank"):
    words = command(*overrides, task=task)
    return run_command(*words, folder=folder, environment=paths(folder))


def cells(folder):
    """Finished cells, and when their numbers were written."""
    found = (folder / "runs" / "s").glob("*/metrics.json")
    return {path.parent.name: path.stat().st_mtime_ns for path in found}


def report(folder):
    return (folder / "runs" / "s" / "report.md").read_text()


# Jobs have a test of their own.
LAUNCHERS = ["basic", "processes"]


@pytest.mark.parametrize("launcher", LAUNCHERS if SOAK else ["basic"])
def test_a_failed_cell_is_a_failed_job_and_the_others_finish(folder, launcher):
    given = (f"hydra/launcher={launcher}", "retriever.b=-1,0.4,0.5")
    done = sweep(folder, *given)
    assert done.returncode == 2, done.stderr
    assert "b=-1" in done.stderr and "Traceback" not in done.stderr
    assert len(cells(folder)) == 2
    assert "failed" in report(folder) and "b=-1" in report(folder)


@pytest.mark.parametrize("launcher", LAUNCHERS if SOAK else ["basic"])
def test_a_defect_keeps_its_traceback_and_the_report_is_written(folder, launcher):
    given = (f"hydra/launcher={launcher}", "retriever=failing", "retriever.way=defect,bad,''")
    done = sweep(folder, *given)
    assert done.returncode == 1
    # A file that is missing because of a defect is no bad input.
    assert "FileNotFoundError" in done.stderr and "stranger.py" in done.stderr
    assert "way=bad. choose another" in done.stderr
    assert len(cells(folder)) == 1
    assert "FileNotFoundError" in report(folder) and "way=bad" in report(folder)


def test_jobs_are_pre_empted_fail_or_are_killed_and_the_same_command_completes_them(folder):
    ways = "retriever.way=kill,preempt,defect"
    given = ("hydra/launcher=jobs_here", "retriever=failing", ways)
    done = sweep(folder, *given)
    assert done.returncode == 1
    assert "FileNotFoundError" in done.stderr and "stranger.py" in done.stderr
    page = report(folder)
    assert "killed" in page and "FileNotFoundError" in page and page.count("failed:") == 2
    # The job that was pre-empted was started again, and the report waited for it, although the
    # launcher raises as soon as it sees the one that was killed.
    assert (folder / "starts").read_text().split() == ["started", "started"]
    before = cells(folder)
    assert len(before) == 1 and any("preempt" in name for name in before)
    (folder / "mended").touch()
    # Cells are the same under every launcher; in one process they start much faster.
    again = given if SOAK else given[1:]
    assert sweep(folder, *again).returncode == 1  # the defect is still one
    assert len(cells(folder)) == 2
    page = report(folder)
    assert "killed" not in page and page.count("failed:") == 1


def test_cells_that_mean_the_same_are_one_cell_also_at_once(folder):
    """No stage asks the model, and no re-ranker has the depth."""
    twins = "[['llm.model=one','reranker.depth=10'],['llm.model=two','reranker.depth=20']]"
    given = (
        *("agent=keyword", "llm=openai_compatible", "reranker=none"),
        *("retriever=failing", "retriever.way=together,defect"),
        *(f"+hydra.sweeper.axes.twins={twins}", "hydra/launcher=processes"),
        "hydra.launcher.n_jobs=2",
    )
    done = sweep(folder, *given, task="run")
    assert done.returncode == 1, done.stderr
    # Each job was in a process of its own, and neither wrote before both had begun.
    assert len(list(folder.glob("begun-*"))) == 2
    (cell,) = cells(folder)
    assert "llm" not in cell
    run = RunFolder(folder / "runs" / "s" / cell)
    assert sorted(run.statuses().values()) == ["completed"] * 6
    assert all(run.attempts(qid) == 1 for qid in run.statuses())
    states = [json.loads(path.read_text())["state"] for path in statuses(folder)]
    assert sorted(states) == ["done", "done", "failed", "failed"]
    # The two that are reported are the other way, with both models.
    assert report(folder).count("FileNotFoundError") == 2


def statuses(folder):
    return sorted((folder / "runs" / "s" / ".cells").glob("*/*.json"))


def test_a_sweep_may_be_widened_and_touches_no_old_cell(folder):
    assert sweep(folder, "retriever.k1=1").returncode == 0
    (old,) = (folder / "runs" / "s").glob("*/manifest.json")
    manifest = old.read_bytes()
    assert sweep(folder, "retriever.k1=1,2").returncode == 0
    assert len(cells(folder)) == 2
    assert old.read_bytes() == manifest


@pytest.mark.parametrize("launcher", [*LAUNCHERS, "jobs_here"] if SOAK else ["basic"])
def test_an_interrupted_sweep_says_so_and_goes_on(folder, launcher):
    six = ("retriever=failing", "retriever.way=slow,''", "retriever.k1=1,2,3")
    interrupted = command(f"hydra/launcher={launcher}", *six)
    process = CommandProcess(*interrupted, folder=folder, environment=paths(folder))
    until = time.monotonic() + 120
    while not list(folder.glob("begun-*")) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    ended = process.wait(timeout=120)
    assert ended.returncode == 130, ended.stderr
    goes_on = launcher == "jobs_here"
    (told,) = [each for each in ended.stderr.splitlines() if "the same command continues" in each]
    # Cells that had ended, or that had not begun, when the signal came vary with the launcher.
    open_cells = "submitted and may still run" if goes_on else "interrupted"
    states = "1 interrupted, 5 not started" if launcher == "basic" else ".*"
    assert re.fullmatch(f"soundingline: {states}; the same command continues", told)
    counts = {words: int(n) for n, words in re.findall(r"(\d) (\D+?)[,;]", told)}
    assert counts.keys() <= {open_cells, "not started"} and counts.keys()
    done = [path for path in statuses(folder) if '"done"' in path.read_text()]
    assert sum(counts.values()) == 6 if not goes_on else sum(counts.values()) >= 6 - len(done)
    assert "Traceback" not in ended.stderr
    while goes_on and len(cells(folder)) < 6 and time.monotonic() < until:
        time.sleep(0.05)  # The jobs hold their cells until they end.
    assert sweep(folder, *six).returncode == 0
    assert len(cells(folder)) == 6


def test_cells_that_had_not_begun_are_counted_with_those_that_had_not_ended(tmp_path, capsys):
    (tmp_path / CELLS / "s").mkdir(parents=True)
    rows = [CellStatus(["k=1"], DONE), CellStatus(["k=2"], RUNNING)]
    rows.append(CellStatus(["k=3"], FAILED, "it broke"))
    for number, row in enumerate(rows):
        (tmp_path / CELLS / "s" / f"{number}.json").write_text(json.dumps(row._asdict()))
    for jobs, second in ((False, "interrupted"), (True, "submitted and may still run")):
        sweep = CommandSweep("run", tmp_path, "s", 7, submits_jobs=jobs, interrupted=True)
        sweep.end()
        assert len(sweep.unfinished) == 2
        told = capsys.readouterr().err
        assert "k=2" not in told and "The cell k=3 failed: it broke" in told
        assert f"soundingline: 1 {second}, 1 failed, 4 not started; correct the cause, " in told
    CommandSweep("run", tmp_path, "s", 7).end()
    assert "The cell k=2 failed: it was killed" in capsys.readouterr().err


def test_a_complete_start_removes_its_own_statuses_alone(tmp_path):
    """Two starts of one sweep may overlap."""
    for start in ("first", "second"):
        (tmp_path / CELLS / start).mkdir(parents=True)
        status = json.dumps(CellStatus(["k=1"], DONE)._asdict())
        (tmp_path / CELLS / start / "1.json").write_text(status)
    CommandSweep("run", tmp_path, "second", cells=2).end()  # a cell has not begun
    assert (tmp_path / CELLS / "second").is_dir()
    CommandSweep("run", tmp_path, "second", cells=1).end()
    assert [path.name for path in (tmp_path / CELLS).iterdir()] == ["first"]


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_single_run_and_a_sweep_never_share_a_folder(entry, capsys):
    assert entry("rank", *TINY, "name=single") == 0
    assert entry("rank", "-m", *TINY, "name=sweep", "retriever.k1=1,2") == 0
    single, swept = contents(Path("runs/single")), contents(Path("runs/sweep"))
    capsys.readouterr()
    for task in ("rank", "run", "tune"):
        assert entry(task, *TINY, "name=sweep") == 2
        assert "runs/sweep holds the cells of a sweep (-m), not a single run" in told(capsys)
        assert entry(task, "-m", *TINY, "name=single", "retriever.k1=1,2") == 2
        assert "runs/single holds a single run, not the cells of a sweep (-m)" in told(capsys)
    assert run_entry("serve", *TINY, "name=sweep", "port=0") == 2
    assert "runs/sweep holds the cells of a sweep" in told(capsys)
    for name in ("single", "sweep"):
        assert run_entry("replay", "runs/single", f"name={name}") == 2
        assert "not replays of a run" in told(capsys)
    assert contents(Path("runs/single")) == single and contents(Path("runs/sweep")) == swept
    assert entry("run", *TINY, "name=r") == 0
    assert run_entry("replay", "runs/r", "name=replays", "retriever.k1=2") == 0
    before = contents(Path("runs/replays"))
    capsys.readouterr()
    assert entry("rank", *TINY, "name=replays") == 2
    assert "runs/replays holds replays of a run, not a single run" in told(capsys)
    assert entry("rank", "-m", *TINY, "name=replays", "retriever.k1=1,2") == 2
    assert "runs/replays holds replays of a run, not the cells of a sweep" in told(capsys)
    assert contents(Path("runs/replays")) == before


def told(capsys):
    """The one line that a refused command ends with."""
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("soundingline: ") and line.endswith("choose another name=.")
    return line


def test_the_slurm_preset_hands_its_settings_on(entry, capsys):
    given = ("hydra/launcher=slurm", "hydra.launcher.partition=gpu", "--cfg", "hydra")
    assert entry("run", *given) == 0
    page = capsys.readouterr().out
    for line in ("partition: gpu", "max_num_timeout: 20", "gpus_per_node: 1", "timeout_min: 720"):
        assert line in page
    assert "submitit_launcher.SlurmLauncher" in page


def test_jobs_that_slurm_refuses_are_told_in_one_line(entry, capsys, monkeypatch, tmp_path):
    pytest.importorskip("submitit")
    for name in ("sbatch", "srun", "squeue"):
        (tmp_path / name).write_text(
            "#!/bin/sh\necho sbatch: error: invalid partition specified: gpu >&2\n"
            "echo sbatch: error: Batch job submission failed >&2\nexit 1\n"
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    given = ("-m", *TINY, "hydra/launcher=slurm", "hydra.launcher.partition=gpu", "name=s")
    assert entry("rank", *given, "retriever.k1=1,2") == 2
    told = capsys.readouterr().err
    assert "Slurm refuses the jobs: invalid partition specified: gpu; Batch job sub" in told
    assert "Traceback" not in told and "hydra.launcher.partition" in told


SQUEUE = """#!{python}
import sys
from pathlib import Path
place = Path({place!r})
with (place / "asked").open("a") as asked:
    print(*sys.argv[1:], file=asked)
if (place / "down").exists():
    sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
sys.stdout.write((place / "jobs").read_text())
"""


def test_states_of_slurm_jobs_are_read_without_accounting(tmp_path, monkeypatch, caplog, capfd):
    pytest.importorskip("submitit")
    from submitit.slurm.slurm import SlurmJob

    program = tmp_path / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(SQUEUE.format(python=sys.executable, place=str(tmp_path)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))  # which has no sacct
    monkeypatch.setattr(SlurmJob, "watcher", SlurmJob.watcher)
    watcher = slurm.slurm_watcher.__wrapped__()
    job = SlurmJob(tmp_path / "%j", "7_0")
    for listed, state, done in (
        ("7_0|PENDING\n8|RUNNING\n", "PENDING", False),
        ("8|RUNNING\n7_0|CONFIGURING\n", "CONFIGURING", False),  # a node that starts
        ("7_0|SUSPENDED\n", "SUSPENDED", False),
        ("7_0|REQUEUE_HOLD\n", "REQUEUE_HOLD", False),
        (None, "REQUEUE_HOLD", False),  # the controller does not answer
        ("7_0|OUT_OF_MEMORY\n", "OUT_OF_MEMORY", True),
    ):
        (tmp_path / "down").unlink(missing_ok=True)
        (tmp_path / ("down" if listed is None else "jobs")).write_text(listed or "")
        time.sleep(0.002)
        assert job.done(force_check=True) is done
        assert watcher.get_state("7_0", mode="cache") == state
    # What the controller has forgotten has ended.
    (tmp_path / "jobs").write_text("8|RUNNING\n9|COMPLETED\n")
    waited = threading.Thread(target=slurm.wait_for_slurm, args=(["8", "9", "10"],))
    monkeypatch.setattr(slurm, "slurm_watcher", lambda: watcher)
    waited.start()
    time.sleep(0.5)
    assert waited.is_alive()
    (tmp_path / "jobs").write_text("8|TIMEOUT\n")
    waited.join(30)
    assert not waited.is_alive() and watcher.get_state("10") == slurm.FORGOTTEN
    asked = set((tmp_path / "asked").read_text().splitlines())
    assert asked == {f"--noheader --array --states=all --format=%i|%T --user={os.getuid()}"}
    # Nothing warns of sacct, nor of the controller.
    assert not caplog.records and capfd.readouterr() == ("", "")


def test_a_launcher_of_a_package_that_is_missing_names_the_extra(entry, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    find = importlib.util.find_spec
    absent = "soundingline.toolkit.optional.find_spec"
    monkeypatch.setattr(absent, lambda name: None if name == "ray" else find(name))
    assert entry("rank", "-m", *TINY, "hydra/launcher=ray", "retriever.k1=1,2") == 2
    assert f"pip install -e '{Path(__file__).resolve().parents[2]}[ray]'" in capsys.readouterr().err


def test_jobs_that_are_processes_of_ours_are_waited_for_and_no_others(tmp_path):
    job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])
    for name in (str(job.pid), str(os.getppid()), "123_0"):
        (tmp_path / ".submitit" / name).mkdir(parents=True)
    began = time.monotonic()
    CommandSweep(folder=tmp_path).wait_for_jobs()
    assert time.monotonic() - began > 0.5
    assert not Path(f"/proc/{job.pid}").exists()
    job.returncode = 0  # it has been waited for


def test_a_status_that_cannot_be_read_is_that_of_a_killed_cell(tmp_path):
    (tmp_path / CELLS / "s").mkdir(parents=True)
    (tmp_path / CELLS / "s" / "a.json").write_text(json.dumps({"state": "done"}))
    (tmp_path / CELLS / "s" / "b.json").write_text("{")
    assert [status.state for status in CommandSweep(folder=tmp_path, start="s").statuses()] == [
        RUNNING,
        RUNNING,
    ]


def test_a_sweep_over_one_question_has_a_table_and_no_comparisons(entry, capsys):
    small = tuple(text for text in TINY if not text.startswith("benchmark.questions"))
    given = (*small, "benchmark.questions=1", "retriever.k1=0.9,2", "name=one")
    assert entry("run", "-m", *given) == 0
    assert "paired comparisons need two or more" in capsys.readouterr().err
    assert json.loads(Path("runs/one/verdicts.json").read_text()) == []


# A sweeper that optimises, on Hydra's public interface: it changes a setting by a step as long as
# the value that a cell returns increases. Hydra takes plugins from this package only.
CLIMBER = """
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

class Climber(Sweeper):
    received = []  # what the cells have returned

    def __init__(self, setting, start, step):
        self.setting, self.start, self.step = setting, start, step

    def setup(self, **job):
        self.launcher = Plugins.instance().instantiate_launcher(**job)

    def sweep(self, arguments):
        self.received.clear()
        at = self.start
        while len(self.received) < 2 or self.received[-1] > self.received[-2]:
            cell = [*arguments, f"{self.setting}={at}"]
            (ended,) = self.launcher.launch([cell], initial_job_idx=len(self.received))
            self.received.append(ended.return_value)
            at += self.step
"""
OF_CLIMBER = """# Climbs.
_target_: hydra_plugins.climber.Climber
setting: retriever.k1
start: 0.5
step: 0.5
"""
CLIMBS = """# @package _global_
# An experiment that chooses the sweeper.
defaults:
  - override /hydra/sweeper: climber
hydra:
  mode: MULTIRUN
"""


@pytest.fixture
def climber(tmp_path, monkeypatch):
    """Words that add the sweeper, and an experiment that chooses it; and what it has received."""
    options = tmp_path / "options"
    for path, text in (
        (tmp_path / "hydra_plugins" / "climber.py", CLIMBER),
        (options / "hydra" / "sweeper" / "climber.yaml", OF_CLIMBER),
        (options / "experiment" / "climbs.yaml", CLIMBS),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hydra_plugins.climber", raising=False)
    plugin = importlib.import_module("hydra_plugins.climber").Climber
    Plugins.instance().register(plugin)
    return ("--config-dir", str(options)), plugin.received


@pytest.mark.parametrize(
    ("command", "given", "measure"),
    [
        ("rank", ["experiment=climbs"], "nDCG@10"),
        ("rank", ["-m", "hydra/sweeper=climber", "measures=[RR@7,P@3]"], "RR@7"),
        ("rank", ["-m", "hydra/sweeper=climber", "optimized_metric=R@100"], "R@100"),
        ("run", ["-m", "hydra/sweeper=climber"], "accuracy"),
        ("run", ["experiment=climbs", "optimized_metric=search_calls"], "search_calls"),
    ],
)
def test_a_sweeper_that_optimises_receives_the_measure_of_each_cell(
    command, given, measure, entry, climber
):
    options, received = climber
    assert entry(command, *TINY, *options, *given, "name=s") == 0
    written = {
        run.manifest["config"]["retriever"]["k1"]: run.metrics[measure]
        for run in load_runs(sorted(Path("runs/s").glob("*-*")))
    }
    assert received == [written[k1] for k1 in sorted(written)]
    assert len(received) >= 2 and received[0] > 0


def test_a_tuning_returns_its_objective(entry, climber):
    options, received = climber
    grid = ("grid.k1=[0.9]", "grid.b=[0.4,0.6]", "tuning.select=null", "tuning.folds=2")
    swept = ("-m", "hydra/sweeper=climber", "hydra.sweeper.setting=tuning.depth")
    steps = ("hydra.sweeper.start=1", "hydra.sweeper.step=1", "tuning.objective=P@3")
    assert entry("tune", *TINY, *options, *grid, *swept, *steps, "name=s") == 0
    (first, *_) = sorted(
        load_runs(sorted(Path("runs/s").glob("*-*"))),
        key=lambda run: run.manifest["config"]["tuning"]["depth"],
    )
    assert received[0] == first.metrics["P@3"] > 0


def test_a_metric_that_a_cell_does_not_have_is_refused(entry, climber, capsys):
    given = (*climber[0], "experiment=climbs", "optimized_metric=nDCG@11", "name=s")
    assert entry("rank", *TINY, *given) == 2
    assert "optimized_metric=nDCG@11 is not a measure of" in capsys.readouterr().err
    assert len(cells(Path())) == 1  # the first cell fails, and ends the sweep


def test_an_experiment_with_another_sweeper_is_described_as_one_cell(entry, climber, capsys):
    assert entry("describe", *climber[0], "experiment=climbs") == 0
    assert "cell" not in capsys.readouterr().out
    assert entry("list", "experiment", *climber[0]) == 0
    assert "climbs" in capsys.readouterr().out


def test_a_glob_is_swept_over_the_options_that_it_matches(entry, tmp_path):
    (tmp_path / "own" / "retriever").mkdir(parents=True)
    for k1, name in enumerate(("own_one", "own_two", "other"), start=1):
        text = f"_target_: soundingline.pipelines.retrieve.BM25\nk1: {k1}\nb: 0.4\ndepth: 9\n"
        (tmp_path / "own" / "retriever" / f"{name}.yaml").write_text(text)
    own = ("--config-dir", str(tmp_path / "own"))
    assert entry("rank", "-m", *TINY, *own, "retriever=glob(own_*)", "name=s") == 0
    runs = load_runs(sorted(Path("runs/s").glob("*-*")))
    assert sorted(run.factors["retriever"] for run in runs) == ["own_one", "own_two"]


def test_an_argument_that_only_the_swept_options_have_reaches_the_cells(entry, capsys):
    """`benchmark.questions` is none of the default benchmark, a BEIR folder."""
    worlds, few = ("fictional", "fictional_long"), "benchmark.questions=2"
    small = (option for option in SMALL_WORLD if not option.startswith("benchmark.questions"))
    words = ("retriever=bm25_default", "unit=document", *small, "name=s")
    assert entry("rank", "-m", f"benchmark={','.join(worlds)}", few, *words) == 0
    cells = sorted(Path("runs/s").glob("*/manifest.json"))
    assert len(cells) == 2
    for cell in cells:
        summary = json.loads((cell.parent / "evaluation/summary.json").read_text())
        assert summary["counts"]["questions"] == 2
    entries = ", ".join(f"['benchmark={name}']" for name in worlds)
    axis = f"hydra.sweeper.axes={{b: [{entries}]}}"
    assert entry("rank", "-m", axis, few, *words) == 0, axis
    assert sorted(Path("runs/s").glob("*/manifest.json")) == cells

    capsys.readouterr()
    for refused in (
        ("benchmark=fictional,fictional_long", "benchmark.qestions=2"),
        ("retriever=bm25_default,ql", few),
    ):
        assert entry("rank", "-m", *refused, "name=t") == 2
        told = capsys.readouterr().err
        assert "is not an argument of the chosen benchmark" in told and len(told.splitlines()) == 1


def test_the_baseline_of_a_sweep_is_the_cell_with_its_factors_and_the_fewest_others(entry):
    # The folder of the changed cell comes first by name.
    change = "hydra.sweeper.changes=['agent.max_searches=1']"
    sweep = ("-m", *TINY, "name=s", "comparison.baseline.retriever=bm25_default", change)
    assert entry("run", *sweep) == 0
    page = Path("runs/s/report.md").read_text()
    assert page.index("## Differences from the baseline") < page.index("## Results")
    assert "| agent.max_searches=1 " in page.replace("\\", "")


def test_the_report_concludes_on_the_measure_that_the_runs_declare(entry):
    change = "hydra.sweeper.changes=['agent.max_searches=1']"
    sweep = ("-m", *TINY, "name=s", "comparison.baseline.retriever=bm25_default", change)
    assert entry("run", *sweep, "comparison.primary=nDCG@10", "comparison.margin=0.99") == 0
    page = Path("runs/s/report.md").read_text()
    assert "nDCG@10 is the primary measure, which was declared before the runs" in page
    assert "At a margin of 0.9900, 1 of the 1 differences in nDCG@10 is equivalent." in page
    assert "Paired differences on accuracy (exploratory)" in page

    cells = [str(path.parent) for path in Path("runs/s").glob("*/manifest.json")]
    assert entry("compare", "comparison.margin=0.0001", "--family", "all", "name=c", *cells) == 0
    page = Path("runs/c/report.md").read_text()
    assert "nDCG@10 is undecided" in page and "comparisons of all measures" in page
    assert entry("compare", "comparison.primary=accuracy", "name=d", *cells) == 0
    page = Path("runs/d/report.md").read_text()
    assert "accuracy is the primary measure of this comparison" in page
    assert entry("compare", "comparison.primary=nDCG", *cells) == 2


def test_of_several_cells_the_baseline_is_the_one_that_the_others_are_changes_of(entry):
    # An agent without a language model has fewer factors than the baseline.
    options = f"hydra.searchpath=[file://{Path(__file__).resolve().parent / 'options'}]"
    changes = "hydra.sweeper.changes=['agent=keyword','retriever=bm25_tuned','retriever=ql']"
    sweep = (*TINY, "name=s", options, "agent=pi_serini", "llm=scripted", "preflight.questions=0")
    assert entry("run", "-m", *sweep, changes, "comparison.baseline.unit=document") == 0
    (baseline,) = {row["b"] for row in json.loads(Path("runs/s/verdicts.json").read_text())}
    factors = RunFolder(Path("runs/s") / baseline).manifest()["factors"]
    assert (factors["agent"], factors["retriever"]) == ("pi_serini", "bm25_default")


def test_a_baseline_is_found_by_a_setting_that_its_cell_left_as_it_was(entry):
    change = "hydra.sweeper.changes=['agent.max_searches=1']"
    sweep = ("-m", *TINY, "name=s", "comparison.baseline={agent.max_searches:3}", change)
    assert entry("run", *sweep) == 0
    page = Path("runs/s/report.md").read_text()
    assert page.index("## Differences from the baseline") < page.index("## Results")


def test_a_report_without_its_baseline_is_an_error(entry, capsys):
    sweep = (
        "-m",
        *TINY,
        "name=s",
        "retriever=bm25_default,bm25_tuned",
        "comparison.baseline.retriever=ql",
    )
    assert entry("run", *sweep) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "no run in runs/s has retriever=ql, which the baseline is to have" in told
    assert json.loads(Path("runs/s/verdicts.json").read_text()) == []
    report = Path("runs/s/report.md").read_text()
    assert "No run has the baseline's retriever=ql" in report.replace("\\", "").replace("’", "'")
    # The cell of the baseline completes the same sweep.
    assert entry("run", *sweep[:-2], "retriever=ql", sweep[-1]) == 0
    assert json.loads(Path("runs/s/verdicts.json").read_text())


SWEEPER = {
    "params": {"unit": "document,passage"},
    "axes": {
        "benchmarks": ["benchmark=vaswani", ["benchmark=beir", "benchmark.path=nq"]],
        "systems": [["retriever=ql", "enrichment=none"], "retriever=sira"],
    },
    "changes": ["reranker=monot5"],
    "laptop": {"axes": {"systems": ["retriever=ql", "retriever=bm25_rm3"]}},
}


def described(*given, scale="paper", **changed):
    indexing = {"shards": 1, "shard": None}
    values = {"hydra": {"sweeper": SWEEPER | changed}, "scale": scale, "indexing": indexing}
    return Cells.of_ours(OmegaConf.create(values)).named(None, given)


def test_params_axes_and_changes_are_crossed():
    found = described()
    assert len(found) == len(set(map(tuple, found))) == 2 * 2 * 2 * 2
    assert found[0] == ["unit=document", "benchmark=vaswani", "retriever=ql", "enrichment=none"]
    assert found[1] == [*found[0], "reranker=monot5"]
    assert found[-1] == [
        *("unit=passage", "benchmark=beir", "benchmark.path=nq"),
        *("retriever=sira", "reranker=monot5"),
    ]


def test_the_laptop_form_replaces_all_three():
    assert described(scale="laptop") == [["retriever=ql"], ["retriever=bm25_rm3"]]


def test_an_override_replaces_the_axis_that_its_key_begins():
    found = described("benchmark=cacm", "unit=maxp")
    assert len(found) == 2 * 2
    assert all(cell[:2] == ["unit=maxp", "benchmark=cacm"] for cell in found)
    # Other keys of an axis stay, and its entries win over an override.
    assert described("enrichment=feedback", scale="laptop") == [
        ["enrichment=feedback", "retriever=ql"],
        ["enrichment=feedback", "retriever=bm25_rm3"],
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"axes": {"systems": [{"retriever": "ql"}]}}, "axes.systems has the entry"),
        ({"axes": {"systems": ["retriever=ql,sira"]}}, "axes.systems has several values"),
        ({"changes": [[]]}, "changes has the entry"),
    ],
)
def test_an_entry_is_an_override_or_a_list_of_them(changed, message):
    with pytest.raises(InputError, match=message):
        described(**changed)


# Every command that writes outlives every disturbance: the same command then ends with what an
# undisturbed one gives, loses nothing, and pays for nothing twice.

OPTIONS = Path(__file__).resolve().parent / "options"
SEARCHPATH = f"hydra.searchpath=[file://{OPTIONS}]"
FLIGHT = 2


def model(group="llm"):
    """A scripted model that logs what it answers, and is gone while the file `down` exists."""
    option = group if group == "llm" else f"llm@{group}"
    return SEARCHPATH, f"{option}=scripted", f"{group}.log=asked", f"{group}.down=down"


def corpus_model():
    says = json.dumps({"keywords": ["seamark", "tidal range"]})
    return (*model("enrichment_llm"), f"enrichment_llm.says='{says}'")


class Command(NamedTuple):
    """A command; how many requests of a kill may be repeated, because they were in flight (0: it
    asks no model); whether a second start waits for the first instead of being refused."""

    words: tuple[str, ...]
    repeated: int = 0
    waits: bool = False


RUN = ("name=r", "preflight.questions=0", f"concurrency={FLIGHT}")
GRID = ("grid.k1=[0.5,1.5]", "grid.b=[0.4]", "tuning.folds=2", "tuning.select=null")
COMMANDS = {
    "index": Command(("index", *TINY, "unit=passage", "paths.indexes=new"), waits=True),
    "run": Command(("run", *TINY, *RUN)),
    # A question takes three requests, and is asked again as a whole.
    "run with a model": Command(
        ("run", *TINY, *RUN, *model(), "agent=pi_serini", "llm.wavering=true", "repeats=2"),
        repeated=4 * FLIGHT,
    ),
    "run of the navigator": Command(
        ("run", *TINY, *RUN, "benchmark.questions=sets:2", "agent=navigator", "agent.pool=4")
    ),
    "rank": Command(("rank", *TINY, *RUN, *model("rewriter_llm"), "rewriter=q2q"), repeated=64),
    "sweep": Command(
        ("rank", "-m", *TINY, *RUN, "unit=document,passage", "retriever.k1=1,2"), waits=True
    ),
    "tune": Command(("tune", *TINY, *RUN, *GRID, "unit=passage")),
    "enrich": Command(
        (
            *("enrich", *TINY, *RUN, *corpus_model()),
            *("enrichment=sira", "enrichment.sides=corpus"),
        ),
        repeated=64,
    ),
    "evaluate": Command(
        ("evaluate", *model("judge_llm"), "judge=llm", f"concurrency={FLIGHT}", "runs/made"),
        repeated=FLIGHT,
    ),
    "replay": Command(("replay", *RUN, "retriever.k1=3", "runs/made")),
}
ASKING = [name for name, command in COMMANDS.items() if command.repeated]
SIGNALS = {"SIGKILL": {-signal.SIGKILL}, "SIGTERM": {-signal.SIGTERM, 143}, "SIGINT": {130}}
_DECIDED = ("metrics.json", "questions.json", "funnel.json", "tuning.json", "replay.json")
# Times, what was spent, and that a question went on after a round.
_TIMED = re.compile(r"seconds|created|started|dollars|usage|warnings")


@pytest.fixture(scope="module")
def world(once):
    """A folder with a run and the indexes that the commands need."""

    def make(folder):
        sets = ("run", *TINY, "benchmark.questions=sets:2", "agent=navigator", "name=sets")
        for words in (("run", *TINY, "name=made"), ("index", *TINY, "unit=passage"), sets):
            assert run_command(*words, folder=folder).returncode == 0
        shutil.rmtree(folder / "runs/sets")

    return once("world-of-disturbances", make)


@pytest.fixture(scope="module")
def undisturbed(world, once):
    """What a command leaves that is not disturbed, by its name: outcome, requests, moments."""

    def make(name, folder):
        shutil.copytree(world, folder, dirs_exist_ok=True)
        ended = run(name, folder, "count:0")
        assert ended.returncode == 0, ended.stderr

    def of(name):
        folder = once(f"undisturbed-{name}", partial(make, name))
        return outcome(folder), asked(folder), int((folder / "moments").read_text())

    return of


def environment(disturbance):
    return {"SOUNDINGLINE_TEST_DISTURB": disturbance} if disturbance else {}


def run(name, folder, disturbance=""):
    words = COMMANDS[name].words
    return run_command(*words, folder=folder, environment=environment(disturbance))


def plain(value):
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if not _TIMED.search(key)}
    return [plain(item) for item in value] if isinstance(value, list) else value


def outcome(folder):
    """What the command has made, by file: indexes, trajectories, rankings, measures, verdicts."""
    made = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, place = path.name, str(path.relative_to(folder))
        if name in _DECIDED or (path.parent.name == "queries" and name[0] != "."):
            made[place] = plain(json.loads(path.read_text()))
        elif name.startswith("verdicts-"):
            rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
            made[place] = {row["qid"]: row["correct"] for row in rows}  # the newest ones
        elif name.endswith((".trec", ".csv", ".npy")) or name == "chosen.yaml":
            made[place] = path.read_bytes()
        elif name in ("selecting.npz", "reported.npz"):
            with np.load(path) as arrays:
                made[place] = {key: arrays[key].tolist() for key in arrays}
    return made


def asked(folder):
    log = folder / "asked"
    return log.read_text().splitlines() if log.exists() else []


def paid(folder):
    """How many requests with tokens are on the ledgers."""
    ledgers = (folder / "runs").rglob("ledger.jsonl")
    lines = [json.loads(line) for path in ledgers for line in path.read_text().splitlines()]
    return sum(line.get("input_tokens", 0) > 0 for line in lines)


def check(name, folder, undisturbed, lost=0):
    """The same command again: the undisturbed outcome, each request answered and paid for once, but
    for `lost` ones that a kill found in flight."""
    expected, requests, _ = undisturbed(name)
    ended = run(name, folder)
    assert ended.returncode == 0, ended.stderr
    received = outcome(folder)
    assert sorted(received) == sorted(expected)
    assert [place for place in expected if expected[place] != received[place]] == []
    assert not list(folder.rglob("*.tmp"))
    answered = asked(folder)
    assert set(answered) == set(requests)
    assert len(answered) - len(requests) <= lost
    assert len(answered) - lost <= paid(folder) <= len(answered)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.15, 0.3, 0.4, 0.5, 0.7, 0.9] if SOAK else [0.4])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in COMMANDS
        for kind in (*SIGNALS, "full")
        # All commands end alike at this signal.
        if SOAK or kind != "SIGTERM" or name == "run with a model"
    ],
)
def test_a_command_that_was_ended_goes_on(name, kind, share, world, undisturbed, tmp_path):
    moment = max(1, round(undisturbed(name)[2] * share))
    folder = shutil.copytree(world, tmp_path / "work")
    ended = run(name, folder, f"{kind}:{moment}")
    if kind == "full":
        assert ended.returncode != 0 and "No space left on device" in ended.stderr, ended.stderr
    else:
        assert ended.returncode in SIGNALS[kind], ended.stderr
    check(name, folder, undisturbed, COMMANDS[name].repeated)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_second_start_waits_or_is_refused_and_harms_nothing(name, world, undisturbed, tmp_path):
    folder = shutil.copytree(world, tmp_path / "work")
    words, _, waits = COMMANDS[name]
    moment = round(undisturbed(name)[2] * 0.4)
    first = CommandProcess(*words, folder=folder, environment=environment(f"stop:{moment}"))
    until = time.monotonic() + 60
    while not (folder / "stopped").exists() and time.monotonic() < until:
        assert first.poll(0.01) is None, first.wait()
    second = CommandProcess(*words, folder=folder)
    if waits:
        assert second.poll(3) in (None, 0), second.errors
    else:
        refused = second.wait()
        assert refused.returncode == 2, refused.stderr
        said = " ".join(refused.stderr.split())
        assert f"is being written by process {first.pid}" in said
    os.kill(first.pid, signal.SIGCONT)
    for process in (first, second)[: 1 + waits]:
        ended = process.wait()
        assert ended.returncode == 0, ended.stderr
    check(name, folder, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKING)
def test_a_model_that_goes_away_costs_nothing(name, world, undisturbed, tmp_path):
    folder = shutil.copytree(world, tmp_path / "work")
    words, half = COMMANDS[name].words, len(undisturbed(name)[1]) // 2
    process = CommandProcess(*words, folder=folder)
    while len(asked(folder)) < half and process.poll(0.001) is None:
        pass
    (folder / "down").touch()
    process.wait()
    (folder / "down").unlink()
    check(name, folder, undisturbed, COMMANDS[name].repeated)
