"""A language model whose server is not there, or ends: told at once, by its address."""

from pathlib import Path

import pytest
from experiment_samples import TINY
from support.llm_server import Fail, Request, Say, running_peer

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
