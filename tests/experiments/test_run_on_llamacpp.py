"""Runs that start llama.cpp's server by themselves: with a tiny random model, and with the real one
that SOUNDINGLINE_GGUF names, where it names a file."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from experiment_samples import TINY
from processes import CommandProcess, run_command

from toolkit.runs import RunFolder

NEEDED = ("xllamacpp", "gguf", "openai")
ABSENT = [name for name in NEEDED if importlib.util.find_spec(name) is None]
REAL = os.environ.get("SOUNDINGLINE_GGUF", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(ABSENT) and not os.environ.get("CI"), reason=f"not installed: {', '.join(ABSENT)}"
    ),
]


def command(weights: Path | str, *overrides: str) -> tuple[str, ...]:
    return (
        *("run", "-m", *TINY, "name=local", "agent=chat", "llm=llamacpp/gguf"),
        *(f"llm.server.gguf='{weights}'", "llm.server.threads=1"),
        *("budget=none", "budget.turns=2", *overrides),
    )


SHORT = (
    "retriever=bm25_default,bm25_tuned",
    "llm.context_window=8192",
    "llm.settings.max_output_tokens=40",
    "budget.answer_tokens=100",
    "benchmark.questions=3",
)


def processes_of(weights: Path | str) -> list[int]:
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


def until(condition: Callable[[], object], process: CommandProcess | None = None) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        assert process is None or process.poll() is None, process.wait()
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_cells_share_one_server_which_ends_with_the_run_however_that_ends(tmp_path: Path) -> None:
    from tiny_gguf import save_gguf

    weights = save_gguf(tmp_path / "tiny.gguf", [f"fw{number:07d}" for number in range(64)])
    sweep = tmp_path / "runs" / "local"
    for number in (signal.SIGINT, signal.SIGKILL):
        process = CommandProcess(*command(weights, *SHORT), folder=tmp_path)
        until(lambda: processes_of(weights), process)
        process.send_signal(number)
        process.wait()
        until(lambda: not processes_of(weights))
    done = run_command(*command(weights, *SHORT), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert processes_of(weights) == []
    cells = sorted(path.parent for path in sweep.glob("*/metrics.json"))
    assert len(cells) == 2
    assert [(cell / "server.log").exists() for cell in cells].count(True) == 1
    for cell in cells:
        trajectories = list(RunFolder(cell).trajectories())
        assert len(trajectories) == 3
        assert all(trajectory.usage["input_tokens"] > 0 for trajectory in trajectories)


def test_a_file_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    done = run_command(*command(tmp_path / "no.gguf", *SHORT), folder=tmp_path)
    assert done.returncode == 2
    assert "there is no file" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(not REAL, reason="SOUNDINGLINE_GGUF names no file of a real model")
def test_a_real_model_searches_first_and_every_question_ends(tmp_path: Path) -> None:
    """Nothing is asked of how good its answers are."""
    given = command(REAL, "retriever=bm25_default", "benchmark.questions=2", "budget.turns=4")
    done = run_command(*given, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (metrics,) = (tmp_path / "runs" / "local").glob("*/metrics.json")
    trajectories = list(RunFolder(metrics.parent).trajectories())
    assert len(trajectories) == 2
    assert {trajectory.status for trajectory in trajectories} <= {"completed", "out_of_turns"}
    assert any(call.name == "search" for trajectory in trajectories for call in trajectory.calls)
    assert json.loads(metrics.read_text())["usage_output_tokens"] > 0
