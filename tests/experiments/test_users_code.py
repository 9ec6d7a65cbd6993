"""Errors in classes of the user's: the line in the user's file is named, and where the trace is."""

import json
import sys
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.commands import run_command

from soundingline.toolkit.runs import RunFolder

ROOT = Path(__file__).resolve().parents[2]
STRANGER = """\
from soundingline.agents.base import Agent
from soundingline.agents.keyword import KeywordAgent
from soundingline.pipelines.retrieve import BM25
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.search import RankedBrowsing
import pyterrier as pt

class Plain(Agent):
    name = "plain"
    async def run(self, topic, tool):
        tool.call("search", {"query": topic.text, "reason": "r"})
        raise ValueError("in a plain agent")

class Forgetful(Agent):
    name = "forgetful"
    async def run(self, topic, tool):
        pass

class Based(Agent):
    name = "based"
    async def work(self, episode):
        raise ValueError("in an agent")

class Rarely(KeywordAgent):
    async def run(self, topic, tool):
        if topic.qid == "q0003":
            raise ValueError("in an agent, once")
        return await super().run(topic, tool)

class Unmade(Agent):
    def __init__(self):
        raise ValueError("in a constructor")
    async def run(self, topic, tool):
        pass

class Failing(BM25):
    def __init__(self, *, k1=0.9, b=0.4, depth=1000):
        super().__init__(k1=k1, b=b, depth=depth)
    def transform(self, inp):
        return self.rescore(super().transform(inp))
    def rescore(self, ranking):
        raise ValueError("in a stage")

class World(FictionalWorld):
    def documents(self):
        raise ValueError("in a benchmark")
"""
OPTIONS = {
    "agent/plain": "Plain",
    "agent/forgetful": "Forgetful",
    "agent/based": "Based",
    "agent/rarely": "Rarely",
    "agent/unmade": "Unmade",
    "retriever/failing": "Failing\nk1: 0.9\nb: 0.4\ndepth: 1000",
}


def place(error):
    """Where the user's code raises this."""
    lines = STRANGER[: STRANGER.index(error)].count("\n") + 1
    return f"stranger.py:{lines} raised ValueError: {error}"


@pytest.fixture
def stranger(entry, tmp_path, monkeypatch):
    """`entry` in a folder with classes and options of a user's."""
    (tmp_path / "stranger.py").write_text(STRANGER)
    for option, target in OPTIONS.items():
        path = tmp_path / "options" / f"{option}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"_target_: stranger.{target}\n")
    world = (ROOT / "conf" / "benchmark" / "fictional.yaml").read_text()
    (tmp_path / "options" / "benchmark").mkdir()
    (tmp_path / "options" / "benchmark" / "world.yaml").write_text(
        world.replace("soundingline.toolkit.benchmarks.fictional.FictionalWorld", "stranger.World")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda command, *words: entry(command, "--config-dir=options", *words)
    sys.modules.pop("stranger", None)


def in_a_process(folder, command, *words):
    environment = {"PYTHONPATH": f"{ROOT}:{folder}"}
    words = ("--config-dir=options", *words)
    return run_command(command, *words, folder=folder, environment=environment)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("agent=plain", place("in a plain agent")),
        ("agent=based", place("in an agent")),
        ("retriever=failing", place("in a stage")),
    ],
)
def test_a_run_that_fails_in_the_users_code_names_the_line_and_a_trajectory(
    stranger, capsys, given, error
):
    assert stranger("run", *TINY, given, "name=r") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("soundingline: all 6 questions of the run runs/r failed (defect 6), ")
    path = Path("runs/r/queries/q0001.json")
    assert f"for example question q0001: {error} ({path})" in line
    trajectory = json.loads(path.read_text())
    assert "in run_coroutine\n    " in trajectory["traceback"] and trajectory["status"] == "failed"
    assert len(trajectory["calls"]) == (1 if given == "agent=plain" else 0)


def test_one_question_that_fails_is_named_beside_the_count(stranger, capsys):
    assert stranger("run", *TINY, "agent=rarely", "name=r") == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "1 of 6 questions failed (defect 1)" in told
    error = place("in an agent, once")
    assert f"For example, question q0003: {error} (runs/r/queries/q0003.json)" in told
    assert RunFolder("runs/r").failures() == {"defect": 1}


def test_an_agent_that_returns_no_trajectory_is_told_so(stranger, capsys):
    assert stranger("run", *TINY, "agent=forgetful", "name=r") == 2
    error = "TypeError: Forgetful.run returned NoneType, and a run needs a Trajectory"
    assert error in capsys.readouterr().err.splitlines()[-1]


def test_a_class_that_cannot_be_made_is_named_with_its_line(stranger, capsys):
    assert stranger("run", *TINY, "agent=unmade", "name=r") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "agent: ValueError: in a constructor (stranger.py:" in line
    assert place("in a constructor").split()[0] in line


@pytest.mark.usefixtures("stranger")
@pytest.mark.parametrize(
    ("given", "error"),
    [("retriever=failing", "in a stage"), ("benchmark=world", "in a benchmark")],
)
def test_an_error_in_the_users_code_ends_with_its_line_behind_the_traceback(tmp_path, given, error):
    ended = in_a_process(tmp_path, "rank", *TINY, given, "name=r")
    assert ended.returncode == 1
    *before, last = ended.stderr.splitlines()
    assert last == f"soundingline: {place(error)}"
    assert before[-1] == f"ValueError: {error}"


def test_a_cell_that_fails_in_the_users_code_names_the_line(stranger, capsys):
    assert stranger("rank", "-m", *TINY, "retriever=failing,bm25_default", "name=s") == 1
    lines = capsys.readouterr().err.splitlines()
    assert place("in a stage") in lines
    assert lines.index(place("in a stage")) > lines.index("ValueError: in a stage")
