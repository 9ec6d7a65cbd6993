"""A language model whose server is absent or ends is reported at once, and runs start llama.cpp's
server by themselves, with a tiny random model or with the one that SOUNDINGLINE_GGUF names."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.commands import CommandProcess, run_command
from support.llm_server import Fail, Request, Say, running_peer
from support.needs import needs

from soundingline.toolkit.runs import RunFolder

ENDED = "http://127.0.0.1:9/v1"  # Nobody listens at the port of the discard protocol.


@pytest.fixture
def peer():
    with running_peer() as running:
        yield running


def served(url, group="llm"):
    option = group if group == "llm" else f"llm@{group}"
    return (
        f"{option}=openai_compatible",
        *(f"{group}.model=m", f"{group}.base_url={url}", f"{group}.context_window=32000"),
    )


def told(capsys):
    """The one line that the entry point ended with."""
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "soundingline: " in each]
    return line


@pytest.mark.parametrize(
    "words",
    [
        ("run", *TINY, "agent=pi_serini", *served(ENDED), "name=r"),
        ("evaluate", "judge=llm", *served(ENDED, "judge_llm"), "runs/k"),
    ],
    ids=["an agent", "a judge"],
)
def test_without_its_server_nothing_is_asked(entry, capsys, words):
    assert entry("run", *TINY, "name=k") == 0
    capsys.readouterr()
    assert entry(*words) == 2
    line = told(capsys)
    assert f"no connection to the server of m at {ENDED}: " in line and "refused" in line
    assert words[0] == "evaluate" or "start the server, or set base_url" in line.lower()
    assert not list(Path("runs/r").rglob("queries/*.json"))


@pytest.mark.parametrize("command", ["run", "rank"])
def test_a_stage_without_its_server_stops_the_command_and_needs_none_for_kept_replies(
    entry, capsys, peer, command
):
    peer.default = Say(text="Which mill stands by the river?")
    rewriting = ("rewriter=q2q", "rewriter_llm.model=m")
    stage = (command, *TINY, *served("URL", "rewriter_llm"), *rewriting)
    if command == "run":
        stage += ("agent=one_shot",)

    def at(url, *more):
        return entry(*(item.replace("URL", url) for item in stage), *more)

    assert at(ENDED, "name=dead") == 2
    assert f"no connection to the server of m at {ENDED}" in told(capsys)

    assert at(peer.openai_url, "name=alive") == 0
    asked = len(peer.requests)
    assert asked > 0
    assert at(ENDED, "name=kept") == 0
    assert len(peer.requests) == asked


@pytest.mark.parametrize("launcher", ["basic", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_sweep_tells_of_a_server_that_is_not_there_once(entry, capfd, launcher):
    if launcher == "processes":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    given = (*served(ENDED)[2:], f"hydra/launcher={launcher}", "llm=openai_compatible")
    cells = ("llm.model=m,n", "unit=document,passage")
    assert entry("run", "-m", *TINY, "agent=pi_serini", *given, *cells, "name=s") == 2
    lines = capfd.readouterr().err.splitlines()
    assert len([line for line in lines if "refused" in line]) == 1
    (last,) = [line for line in lines if "cells failed" in line]
    assert last == (
        "4 cells failed (llm.model=m unit=document; llm.model=m unit=passage; "
        f"llm.model=n unit=document; llm.model=n unit=passage): no connection to {ENDED}"
    )
    assert lines[-1] == "soundingline: 4 failed; the same command continues"
    if launcher == "basic":  # A second command reports it again.
        assert entry("run", "-m", *TINY, "agent=pi_serini", *given, *cells, "name=s") == 2
        assert "refused" in capfd.readouterr().err


def test_the_version_of_a_local_vllm_is_recorded_and_must_stay(entry, capsys, peer):
    answer = "Explanation: so\nExact Answer: x\nConfidence: 5%"
    peer.default = lambda request: Fail(400) if failing else Say(text=answer)
    local = ("llm=vllm/qwen3_8b", f"llm.base_url={peer.openai_url}", "agent=pi_serini")
    run = ("run", *TINY, *local, "concurrency=1", "preflight=0")
    failing, peer.version = True, "0.32.0"
    assert entry(*run, "name=r") == 2
    assert RunFolder("runs/r").manifest()["servers"] == {"llm": "vLLM 0.32.0"}
    failing, peer.version = False, "0.33.0"
    capsys.readouterr()
    assert entry(*run, "name=r") == 2
    line = told(capsys)
    assert "was made with vLLM 0.32.0 for llm, and the server is vLLM 0.33.0 now" in line
    peer.version = "0.32.0"
    assert entry(*run, "name=r") == 0
    # A server that reports none, and one that is not said to be vLLM.
    peer.version = None
    assert entry(*run, "name=unknown") == 0
    peer.version = "0.32.0"
    assert entry("run", *TINY, *served(peer.openai_url), "agent=pi_serini", "name=api") == 0
    for name in ("unknown", "api"):
        assert "servers" not in RunFolder(f"runs/{name}").manifest()


def test_the_version_of_a_stages_server_is_recorded(entry, peer):
    peer.default, peer.version = Say(text="Which mill stands by the river?"), "0.32.0"
    stage = ("llm@rewriter_llm=vllm/qwen3_8b", f"rewriter_llm.base_url={peer.openai_url}")
    assert entry("rank", *TINY, *stage, "rewriter=q2q", "name=r") == 0
    assert RunFolder("runs/r").manifest()["servers"] == {"rewriter": "vLLM 0.32.0"}


def test_the_first_question_that_fails_is_told_with_its_trace_while_others_are_asked(
    entry, capsys, peer
):
    failed, lines = list[Request](), list[str]()

    def answer(request):
        if len(failed) < 2:
            failed.append(request)
            return Fail(400, "the mill has no wind", "invalid_request_error")
        lines.append(capsys.readouterr().err)
        return Say(text="Explanation: so\nExact Answer: x\nConfidence: 5%")

    peer.default = answer
    run = ("agent=pi_serini", "concurrency=1", "preflight=0", "name=r")
    assert entry("run", *TINY, *served(peer.openai_url), *run) == 0
    qid = next(each.qid for each in RunFolder("runs/r").trajectories() if each.status == "failed")
    path = Path(f"runs/r/queries/{qid}.json")
    # It was told before the third question was asked, and nothing was told of the second failure.
    assert f"question {qid} failed: " in lines[0] and "HTTP 400, the mill has no wind" in lines[0]
    assert str(path) in lines[0] and path.exists()
    everything = "".join([*lines, capsys.readouterr().err])
    assert everything.count("its trace: ") == 1


REAL = os.environ.get("SOUNDINGLINE_GGUF", "")
LLAMACPP = needs(("xllamacpp", "gguf", "openai"), "llm,llamacpp")
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


@LLAMACPP
@pytest.mark.slow
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


@LLAMACPP
@pytest.mark.slow
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


@LLAMACPP
@pytest.mark.slow
def test_a_file_that_is_not_there_is_told_in_one_line(tmp_path):
    done = run_command(*one_cell(tmp_path / "no.gguf", *SHORT), folder=tmp_path)
    assert done.returncode == 2
    assert "there is no file" in done.stderr and "Traceback" not in done.stderr


@LLAMACPP
@pytest.mark.slow
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
