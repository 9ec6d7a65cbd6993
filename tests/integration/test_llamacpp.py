"""A real small model on llama.cpp, by actions that the server constrains:
`make test-real PART=llamacpp SOUNDINGLINE_GGUF=<file>`."""

import json
import os
import re
from pathlib import Path

import pytest
from support.commands import CommandProcess
from support.needs import absent, needs_real

from soundingline.toolkit.runs.run_folder import RunFolder

pytestmark = [pytest.mark.slow, needs_real("llamacpp")]

QUESTIONS = 2
SECONDS = 1500  # a machine that is busy with other work is slow


@pytest.fixture(scope="module")
def model():
    """The overrides that choose the weights."""
    weights = os.environ.get("SOUNDINGLINE_GGUF", "")
    if not Path(weights).is_file():
        absent("SOUNDINGLINE_GGUF names no file of a real model")
    return (f"llm.server.gguf='{Path(weights).resolve()}'", "llm.server.threads=1")


@pytest.mark.timeout(300)
def test_the_check_before_a_run_passes(model, tmp_path):
    chat = ("preflight", "agent=chat", "llm=llamacpp/gguf", "benchmark=fictional", *model)
    done = CommandProcess(*chat, folder=tmp_path).wait(300)
    assert done.returncode == 0, done.stderr
    line = done.stdout.strip().splitlines()[-1]
    passed = re.match(r"preflight passed: 5 checks, ([\d.]+) seconds, 4 requests", line)
    assert passed and float(passed[1]) < 60, done.stdout + done.stderr
    assert "(server)" not in done.stderr, done.stderr


@pytest.fixture(scope="module")
def cells(model, tmp_path_factory):
    """The run folders of the demo by agent."""
    folder = tmp_path_factory.mktemp("demo")
    demo = ("run", "experiment=demo_agent", *model, f"benchmark.limit={QUESTIONS}")
    done = CommandProcess(*demo, folder=folder).wait(SECONDS)
    assert done.returncode == 0, done.stderr
    paths = (path.parent for path in (folder / "runs" / "demo-agent").glob("*/metrics.json"))
    return {factors(path)["agent"]: RunFolder(path) for path in paths}


def factors(path):
    return json.loads((path / "manifest.json").read_text())["factors"]


@pytest.mark.timeout(1800)
def test_a_model_that_is_too_small_to_call_tools_searches_and_answers(cells):
    assert set(cells) == {"neutral", "rag", "closed_book"}
    for agent, run in cells.items():
        trajectories = list(run.trajectories())
        assert len(trajectories) == QUESTIONS
        for trajectory in trajectories:
            # No malformed action, no reply that was cut, and an answer in the format.
            assert trajectory.status in ("completed", "out_of_turns")
            assert [call.error for call in trajectory.calls] == len(trajectory.calls) * [""]
            assert trajectory.answer.confidence is not None
            searched = [call.name for call in trajectory.calls]
            assert bool(searched) == (agent != "closed_book") and set(searched) <= {"search"}
