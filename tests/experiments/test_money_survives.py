"""What a run has spent outlives kill -9, replies without usage, and damaged files."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.commands import CommandProcess, run_command
from support.llm_server import Say, running_peer
from support.runs import starts

from soundingline.toolkit.runs import RunFolder

Entry = Callable[..., int]
OPTIONS = Path(__file__).resolve().parent / "options"
SCRIPTED = (f"hydra.searchpath=[file://{OPTIONS}]", "agent=pi_serini", "llm=scripted")
FLIGHT = 6
# 100 tokens of input at 1,000 dollars a million.
DOLLARS = 0.1


@pytest.fixture
def peer():
    with running_peer() as server:
        arguments = json.dumps({"reason": "to find it", "query": "mill"})
        usage = {"input": 100, "cached": 0, "reasoning": 0, "output": 0}
        # It never answers, so that no question ends.
        server.default = Say(calls=[("c1", "search", arguments)], usage=usage)
        yield server


def command(peer, *arguments):
    llm = (
        *("llm=openai_compatible", "llm.model=m", f"llm.base_url={peer.openai_url}"),
        *("llm.price.input=1000", "llm.price.output=0"),
    )
    run = ("agent=pi_serini", "budget=none", "name=r", "preflight=0", f"concurrency={FLIGHT}")
    return ("run", *TINY, *run, *llm, *arguments)


def test_the_cap_of_a_run_holds_over_a_start_that_was_killed(tmp_path, peer):
    cap = ("budget.run_dollars=8",)
    # The start cannot reach its cap: of 80 requests that the money allows, 60 are answered.
    killed, reply = threading.Event(), peer.default
    peer.script.extend([reply] * 60)

    def held(request):
        killed.wait(120)
        return reply

    peer.default = held
    process = CommandProcess(*command(peer, *cap), folder=tmp_path)
    until = time.monotonic() + 90
    while len(peer.requests) < 40 and time.monotonic() < until:
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    served = len(peer.requests)
    assert 40 <= served <= 60 + FLIGHT
    peer.script.clear()
    peer.default = reply
    killed.set()
    assert not list(RunFolder(tmp_path / "runs" / "r").trajectories())

    resumed = run_command(*command(peer, *cap), folder=tmp_path)
    assert resumed.returncode == 2 and "budget.run_dollars" in resumed.stderr
    first, second = starts(tmp_path / "runs/r")
    # What had a reply when the kill came is on the ledger, all of it.
    assert DOLLARS * (served - FLIGHT) <= first["dollars"] + 1e-9
    assert first["dollars"] <= DOLLARS * served + 1e-9
    # The second start spends what the first has left, and no more.
    assert first["dollars"] + second["dollars"] == pytest.approx(8.0, abs=DOLLARS)
    assert len(peer.requests) * DOLLARS <= 8.0 + FLIGHT * DOLLARS + 1e-9

    again = run_command(*command(peer, *cap), folder=tmp_path)
    before = len(peer.requests)
    assert again.returncode == 2 and len(peer.requests) == before
    assert len(starts(tmp_path / "runs/r")) == 2


def test_a_reply_without_usage_stops_a_capped_run_and_its_known_money_still_counts(tmp_path, peer):
    reply = peer.default
    peer.script.extend([reply] * 30 + [Say(calls=reply.calls, usage=None)])
    run = command(peer, "budget.run_dollars=5")
    stopped = run_command(*run, folder=tmp_path)
    assert stopped.returncode == 2 and "reported no usage for 1 replies" in stopped.stderr
    (first,) = starts(tmp_path / "runs/r")
    assert first["unpriced"] == 1 and "dollars" not in first
    assert first["known_dollars"]["agent"] >= 30 * DOLLARS - 1e-9

    resumed = run_command(*run, folder=tmp_path)
    assert resumed.returncode == 2
    assert "1 replies of earlier starts reported no usage" in " ".join(resumed.stderr.split())
    assert starts(tmp_path / "runs/r")[1]["dollars"] + first["known_dollars"]["agent"] <= 5.0 + 1e-9


def test_replies_that_are_tried_again_are_paid_for_and_count_towards_the_cap(tmp_path, peer):
    reply, useless = peer.default, Say(text="half", finish="abort", usage=peer.default.usage)
    peer.script.extend([reply, useless, useless] * 8)
    stopped = run_command(*command(peer, "budget.run_dollars=1.75"), folder=tmp_path)
    assert stopped.returncode == 2 and "budget.run_dollars" in stopped.stderr
    (start,) = starts(tmp_path / "runs/r")
    # Every reply that was sent is paid for, and no more were sent than the cap allows.
    assert start["known_dollars"]["agent"] == pytest.approx(len(peer.requests) * DOLLARS)
    assert start["calls"] + start["retries"] == len(peer.requests) <= 17 + FLIGHT
    assert start["retries"] > 0 and start["unpriced"] == 0


@pytest.mark.parametrize("count", [-5, 10**400], ids=["negative", "beyond all floats"])
def test_an_impossible_count_stops_a_capped_run_and_the_next_start_reads_the_ledger(
    tmp_path, peer, count
):
    reply = peer.default
    peer.script.extend([reply, replace(reply, usage={**reply.usage, "input": count})])
    run = command(peer, "budget.run_dollars=5", "concurrency=1")
    for started in (1, 2):
        ended = run_command(*run, folder=tmp_path)
        assert ended.returncode == 2
        first = starts(tmp_path / "runs/r")[0]
        assert (first["unpriced"], first["known_dollars"]["agent"]) == (1, DOLLARS)
        assert len(starts(tmp_path / "runs/r")) == started
    spent = sum(row["known_dollars"]["agent"] for row in starts(tmp_path / "runs/r"))
    assert 4.5 <= spent <= 5.0 + 1e-9


def test_a_damaged_ledger_stops_a_run_before_its_first_request(entry, capsys, tmp_path):
    log = tmp_path / "asked"
    run = (*TINY, *SCRIPTED, "name=m", f"llm.log={log}")
    assert entry("run", *run, "llm.failing=e") == 2
    path = Path("runs/m/ledger.jsonl")
    path.write_text('{"starts": [{"dollars"\n')
    asked, damaged = log.read_bytes(), path.read_bytes()
    capsys.readouterr()
    assert entry("run", *run, "llm.failing=e") == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "soundingline:" in each]
    assert "cannot read the ledger runs/m/ledger.jsonl" in line and "restore" in line
    assert log.read_bytes() == asked and path.read_bytes() == damaged


def test_a_disk_without_room_for_the_ledger_stops_the_run(entry, capsys, monkeypatch):
    def full(journal, value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("soundingline.toolkit.files.JsonLinesLog.append", full)
    assert entry("run", *TINY, *SCRIPTED, "name=m") == 2
    assert "the run's ledger cannot be written: No space left" in capsys.readouterr().err
    assert list(RunFolder("runs/m").statuses().values()) == ["failed"]
