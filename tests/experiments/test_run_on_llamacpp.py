"""Runs that start llama.cpp's server by themselves: with a tiny random model, and with the real one
that SOUNDINGLINE_GGUF names, where it names a file."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.commands import CommandProcess, run_command
from support.needs import needs

from soundingline.toolkit.runs import RunFolder

REAL = os.environ.get("SOUNDINGLINE_GGUF", "")
pytestmark = [
    pytest.mark.slow,
    needs(("xllamacpp", "gguf", "openai"), "llm,llamacpp"),
]


MODEL = ("name=local", "llm.server.threads=1", "budget.turns=2")
SHORT = (
    "llm.context_window=8192",
    "llm.settings.max_output_tokens=40",
    "budget.answer_tokens=100",
    "benchmark.questions=3",
)


def one_cell(weights, *overrides):
    model = ("agent=chat", "llm=llamacpp/gguf", f"llm.server.gguf='{weights}'")
    return ("run", *TINY, *model, *MODEL, "budget=none", *overrides)


def processes_of(weights):
    """The processes whose command line names the weights."""
    ids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(weights).encode() in words:
            ids.append(int(folder.name))
    return ids


def until(condition, process=None):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        assert process is None or process.poll() is None, process.wait()
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_cells_of_the_demo_share_one_server_which_ends_with_the_run_however_that_ends(tmp_path):
    from support.tool_caller import save_gguf

    weights = save_gguf(tmp_path / "tiny.gguf", ["fw0000001"])
    sweep = tmp_path / "runs" / "local"
    demo = ("run", "experiment=demo_agent", *TINY, *MODEL, *SHORT, f"llm.server.gguf='{weights}'")
    for number in (signal.SIGINT, signal.SIGKILL):
        process = CommandProcess(*demo, folder=tmp_path)
        until(lambda: processes_of(weights), process)
        process.send_signal(number)
        process.wait()
        until(lambda: not processes_of(weights))
    done = run_command(*demo, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert processes_of(weights) == []
    cells = sorted(path.parent for path in sweep.glob("*/metrics.json"))
    assert len(cells) == 4
    assert all(name in done.stdout for name in ("keyword", "chat", "bm25_tuned"))
    assert [(cell / "server.log").exists() for cell in cells].count(True) == 1
    for cell in cells:
        trajectories = list(RunFolder(cell).trajectories())
        assert len(trajectories) == 3
        asked = [trajectory.usage.get("input_tokens", 0) > 0 for trajectory in trajectories]
        assert asked == 3 * ["chat" in cell.name]


def test_rankings_of_a_sweep_share_the_rewriters_server(tmp_path):
    from support.tool_caller import save_gguf

    weights = save_gguf(tmp_path / "tiny.gguf", ["fw0000001"])
    rewriter = (
        "rewriter=q2q",
        "llm@rewriter_llm=llamacpp/gguf",
        f"rewriter_llm.server.gguf='{weights}'",
        "rewriter_llm.server.threads=1",
        "rewriter_llm.context_window=4096",
        "rewriter_llm.settings.max_output_tokens=20",
    )
    sweep = ("rank", "-m", *TINY, *rewriter, "retriever=bm25_default,bm25_tuned", "name=s")
    done = run_command(*sweep, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert processes_of(weights) == []
    cells = sorted(path.parent for path in (tmp_path / "runs" / "s").glob("*/metrics.json"))
    assert len(cells) == 2
    assert [(cell / "rewriter-server.log").exists() for cell in cells].count(True) == 1


def test_a_file_that_is_not_there_is_told_in_one_line(tmp_path):
    done = run_command(*one_cell(tmp_path / "no.gguf", *SHORT), folder=tmp_path)
    assert done.returncode == 2
    assert "there is no file" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(not REAL, reason="SOUNDINGLINE_GGUF names no file of a real model")
def test_every_question_that_a_real_model_is_asked_ends_in_a_way_that_we_know(tmp_path):
    """Nothing is asked of how good its answers are, or whether it searches."""
    given = one_cell(REAL, "benchmark.questions=2", "budget.turns=4", "llm.settings.temperature=0")
    done = run_command(*given, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    run = RunFolder(tmp_path / "runs" / "local")
    trajectories = list(run.trajectories())
    assert len(trajectories) == 2
    usual = {"", "turns", "context_window", "truncated", "empty_answer"}
    assert {trajectory.reason for trajectory in trajectories} <= usual
    metrics = run.path / "metrics.json"
    assert json.loads(metrics.read_text())["usage_output_tokens"] > 0
