"""`repeats=n`: every question asked n times, each time with another seed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.commands import CommandProcess, run_command
from support.llm_model import wavers
from support.runs import starts
from test_run_with_model import GATE, MODEL, command

from soundingline.toolkit.files import JsonLinesLog, read_json_lines
from soundingline.toolkit.runs import RunFolder

Entry = Callable[..., int]
WAVERING = (*TINY, *MODEL, "llm.wavering=true", "concurrency=4", "preflight=0", "name=r")
SEED = 7  # the scripted model's
STAGE = ("agent=one_shot", MODEL[0], "rewriter=q2q", "llm@rewriter_llm=scripted")


def contents(path):
    return json.loads(Path(path).read_text())


def searches(trajectory):
    return sum(call.name == "search" for call in trajectory.calls)


def test_each_repeat_has_its_own_seed_and_account(entry, capsys):
    assert entry("run", *WAVERING, "repeats=3") == 0
    folder = RunFolder("runs/r")
    assert [part.number for part in folder.repeats()] == [1, 2, 3]
    for repeat, part in enumerate(folder.repeats()):
        trajectories = list(part.trajectories())
        assert len(trajectories) == 6
        for trajectory in trajectories:
            expected = 2 + wavers(trajectory.question, SEED + repeat)
            assert searches(trajectory) == expected
            # Of this repeat alone, although all were under way at once.
            assert trajectory.usage["agent_calls"] == expected + 1
    metrics = contents("runs/r/metrics.json")
    # Of three seeds in a row one or two are even: 1/3 or 2/3 of the repeats search once more.
    per_question = contents("runs/r/evaluation/questions.json")["search_calls"]
    assert {round(3 * value) for value in per_question.values()} <= {7, 8}
    assert metrics["search_calls"] == pytest.approx(sum(per_question.values()) / 6)
    variance = contents("runs/r/evaluation/repeats.json")["variance"]["search_calls"]
    # One of three values differs by 1: the variance within every question is 1/3.
    assert variance["within"] == pytest.approx((1 / 3) ** 0.5)
    (start,) = starts("runs/r")
    assert start["calls"] == sum(
        searches(trajectory) + 1 for part in folder.repeats() for trajectory in part.trajectories()
    )
    assert entry("evaluate", "runs/r") == 0
    assert contents("runs/r/metrics.json") == metrics
    assert "0/18" in capsys.readouterr().out
    assert entry("run", *WAVERING, "llm.wavering=false", "repeats=1", "name=other") == 0
    assert entry("compare", "runs/r", "runs/other", "name=both") == 0
    page = Path("runs/both/report.md").read_text()
    assert "Repeats of a question" in page and "ICC" in page


def test_repeats_are_added_to_a_run_that_keeps_what_it_has(entry):
    assert entry("run", *WAVERING) == 0
    once = contents("runs/r/metrics.json")
    written = {path: path.read_bytes() for path in Path("runs/r/queries").iterdir()}
    assert not Path("runs/r/repeats").exists()
    assert entry("run", *WAVERING, "repeats=2") == 0
    assert {path: path.read_bytes() for path in Path("runs/r/queries").iterdir()} == written
    assert len(list(Path("runs/r/repeats/2/queries").iterdir())) == 6
    values = contents("runs/r/evaluation/repeats.json")["values"]["search_calls"].values()
    first = sum(row[0] for row in values) / 6
    assert first == pytest.approx(once["search_calls"])
    assert contents("runs/r/metrics.json")["search_calls"] == pytest.approx(2.5)


def test_a_judge_with_a_model_judges_every_repeat_once(entry):
    judge = ("judge=llm", "llm@judge_llm=scripted")
    assert entry("run", *WAVERING, *judge, "repeats=2") == 0
    for folder in ("runs/r", "runs/r/repeats/2"):
        (path,) = Path(folder).glob("evaluation/verdicts-llm-*.jsonl")
        verdicts = [json.loads(line) for line in path.read_text().splitlines()[1:]]
        assert len(verdicts) == 6
        assert {verdict["usage"]["calls"] for verdict in verdicts} == {1}
    (start,) = starts("runs/r")
    assert start["judge_calls"] == 12


def test_judges_are_compared_on_every_repeat(entry):
    judge = ("judge=llm", "llm@judge_llm=scripted")
    assert entry("run", *WAVERING, *judge, "repeats=2") == 0
    # One repeat whose request failed has no verdict.
    (path,) = Path("runs/r/repeats/2").glob("evaluation/verdicts-llm-*.jsonl")
    *rows, last = read_json_lines(path)
    path.unlink()
    journal = JsonLinesLog(path)
    for row in (*rows, {**last, "error": "failed", "correct": False}):
        journal.append(row)
    journal.close()
    assert entry("judge", "runs/r") == 0
    (pair,) = contents("runs/r/evaluation/agreement.json")
    assert pair["n"] == 11
    first, second = (
        {trajectory.qid: trajectory for trajectory in part.trajectories()}
        for part in RunFolder("runs/r").repeats()
    )
    names = {*first, *(f"{qid}#repeat2" for qid in second)}
    assert {*pair["only_a"], *pair["only_b"]} <= names
    differing = len(pair["only_a"]) + len(pair["only_b"])
    assert pair["raw"] == pytest.approx(1 - differing / 11)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("agent=keyword", "repeats=2"), "would do the same each time"),
        (("agent=keyword", *MODEL[::2], "repeats=2"), "would do the same each time"),
        (("agent=navigator", "repeats=2"), "would do the same each time"),
        ((*STAGE, "repeats=2"), "would do the same each time"),
        (("repeats=0",), "repeats=0. valid: 1 or more"),
    ],
)
def test_repeats_that_cannot_be_are_refused_before_anything_is_built(entry, capsys, given, message):
    assert entry("run", *TINY, *given) == 2
    assert message in capsys.readouterr().err
    assert not Path("indexes").exists()


@pytest.mark.parametrize(
    "given",
    [("agent=navigator", *MODEL[::2]), (*STAGE, "paths.caches=null")],
    ids=["a planner's model", "a stage whose replies are kept nowhere"],
)
def test_whatever_asks_a_model_anew_can_be_repeated(entry, given):
    small = (*TINY, "benchmark.questions=sets:2", "traces=false", "preflight=0")
    assert entry("run", *small, *given, "repeats=2", "name=r") == 0
    folder = RunFolder("runs/r")
    assert [len(part.statuses()) for part in folder.repeats()] == [2, 2]
    assert {status for part in folder.repeats() for status in part.statuses().values()} == {
        "completed"
    }


def test_kill_9_in_the_second_repeat_loses_no_more_than_what_was_under_way(tmp_path):
    # Of 320 requests, the first repeat takes 160, and the gate holds those beyond 240.
    gated = command("repeats=2", "llm.gate_after=240")
    process = CommandProcess(*gated, folder=tmp_path)
    run = tmp_path / "runs" / "cut"
    until = time.monotonic() + 90
    while len(list(run.glob("repeats/2/queries/[!.]*.json"))) < 5 and time.monotonic() < until:
        assert process.poll() is None, process.wait()
        time.sleep(0.005)
    process.kill()
    process.wait()
    written = {path: path.read_bytes() for path in run.glob("**/queries/[!.]*.json")}
    assert 45 <= len(written) <= 60
    (tmp_path / GATE).touch()
    ended = run_command(*gated, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert all(path.read_bytes() == text for path, text in written.items())
    parts = RunFolder(run).repeats()
    assert [sorted(part.statuses().values()) for part in parts] == [["completed"] * 40] * 2
    assert not list(run.rglob("*.tmp"))
