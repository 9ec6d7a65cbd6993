"""Runs of an agent with a language model: at once, cut short, resumed, capped."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.commands import CommandProcess, run_command
from support.runs import starts

from soundingline.experiments.planning import measured_runs
from soundingline.toolkit.runs import RunFolder, read_trajectory
from soundingline.toolkit.trajectory import RUN_OUT_OF_MONEY

Entry = Callable[..., int]
OPTIONS = Path(__file__).resolve().parent / "options"
GATE = "gate"
MODEL = (f"hydra.searchpath=[file://{OPTIONS}]", "agent=pi_serini", "llm=scripted")


def contents(path):
    return json.loads(Path(path).read_text())


def statuses(run):
    return list(RunFolder(run).statuses().values())


def test_a_run_with_a_model_is_answered_measured_and_accounted_for(entry, capsys):
    assert entry("run", *TINY, *MODEL, "name=m", "concurrency=4") == 0
    metrics = contents("runs/m/metrics.json")
    assert metrics["completion"] == 1.0 and metrics["search_calls"] == 2
    assert metrics["recall_surfaced"] > 0.5
    assert metrics["usage_agent_calls"] == 3 and metrics["usage_input_tokens"] == 600
    manifest = contents("runs/m/manifest.json")
    assert {"prompt", "llm", "budget", "agent"} <= set(manifest["fingerprints"])
    assert manifest["factors"]["llm"] == "scripted" and manifest["factors"]["budget"] == "pi_serini"
    (start,) = starts("runs/m")
    assert start["calls"] == 18 and start["agent_input_tokens"] == 3600
    assert start["dollars"] == pytest.approx((3600 + 180) / 1e6)
    told = capsys.readouterr().err
    assert "50.0% of the input tokens came from the prefix cache" in told
    # What the estimates of experiments are based on: 10 tokens of output a reply.
    (measured,) = measured_runs(Path("runs"))
    assert measured.key[:3] == ("fictional", "pi_serini", "ranked_browsing")
    assert (measured.run, measured.questions, measured.calls, measured.requests) == ("m", 6, 2, 3)
    assert (measured.input, measured.cached, measured.output) == (600, 300, 30)
    assert measured.seconds == pytest.approx(metrics["seconds"])


def test_a_finished_run_is_priced_by_the_list_of_another_month(entry, capsys):
    assert entry("run", *TINY, *MODEL, "name=m") == 0
    path = Path("runs/m/manifest.json")
    manifest = contents(path)
    table = {"_target_": "soundingline.toolkit.llm.prices.Price", "dated": "2026-11-21"}
    old = {"input": 10.0, "cached_input": 2.0, "output": 100.0}
    table |= {"input": 1.0, "output": 1.0, "lists": {"2026-05": old}}
    manifest["config"]["llm"]["price"] = table
    path.write_text(json.dumps(manifest))
    assert entry("evaluate", "prices=2026-05", "runs/m") == 0
    # 600 input tokens, 300 of them from the cache, and 30 output tokens a question.
    by_hand = (300 * 10 + 300 * 2 + 30 * 100) / 1e6
    assert contents("runs/m/metrics.json")["usage_dollars"] == pytest.approx(by_hand)
    assert contents("runs/m/evaluation/summary.json")["prices"]["agent"] == "2026-05"
    assert entry("evaluate", "runs/m") == 0  # as it was billed
    assert contents("runs/m/metrics.json")["usage_dollars"] == pytest.approx(630 / 1e6)
    capsys.readouterr()
    assert entry("evaluate", "prices=2025-01", "runs/m") == 2
    assert "no price list 2025-01. valid: 2026-05, 2026-11-21." in capsys.readouterr().err


def test_the_first_questions_tell_what_the_others_will_take(entry, capsys):
    assert entry("run", *TINY, *MODEL, "name=m", "preflight=3", "llm.price=1000") == 0
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if "judged by the first" in line]
    # All questions cost the same here: 600 + 30 tokens, so that the bounds meet.
    assert "6 questions, judged by the first 3: $3.78 ($3.78 to $3.78); 3,600" in line
    assert re.search(r"output tokens; about 0\.\d minutes$", line)


def test_the_bar_tells_of_replies_while_a_question_is_under_way(entry, terminal, monkeypatch):
    monkeypatch.setattr("soundingline.experiments.run.Progress.line", lambda self: "read anew")
    assert entry("run", *TINY, *MODEL, "name=m") == 0
    first = next(line for line in terminal.getvalue().split("\r") if "Answering" in line)
    assert "0/6" in first and "read anew" in first


def test_an_agent_that_needs_a_model_says_so(entry, capsys):
    assert entry("run", *TINY, "agent=pi_serini", "name=m") == 2
    assert "llm=..." in capsys.readouterr().err
    assert not Path("runs/m").exists() and not Path("indexes").exists()


def test_a_model_whose_replies_fill_its_window_is_refused_before_anything_is_built(entry, capsys):
    # The model's own window, which the budget does not name.
    assert entry("run", *TINY, *MODEL, "name=m", "budget.answer_tokens=100000") == 2
    assert "context window of 100000" in capsys.readouterr().err
    assert not Path("runs/m").exists() and not Path("indexes").exists()


def test_failed_questions_are_counted_and_tried_again(entry, capsys):
    benchmark = (*TINY, *MODEL, "name=m", "concurrency=3")
    # A run of which nothing succeeds is a failed job.
    assert entry("run", *benchmark, "llm.failing=e") == 2
    assert "all 6 questions of the run runs/m failed (server_gone 6)" in capsys.readouterr().err
    assert statuses("runs/m") == ["failed"] * 6
    assert contents("runs/m/evaluation/summary.json")["counts"]["failed"] == 6
    # Another script is another model, so the run is not the same.
    assert entry("run", *benchmark) == 2

    one = next(Path("runs/m/queries").glob("*.json"))
    end_of_one = contents(str(one))["question"].rstrip("?")[-25:]
    some = (*TINY, *MODEL, "name=some", "concurrency=3", f"llm.failing='{end_of_one}'")
    assert entry("run", *some) == 0
    failed = statuses("runs/some").count("failed")
    assert 1 <= failed < 6
    line = f"{failed} of 6 questions failed (server_gone {failed}); the same command tries them"
    assert line in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("option", "setting", "file"),
    [("llamacpp/gguf", "gguf", "model.gguf"), ("vllm/qwen3_8b", "weights", "model.safetensors")],
)
def test_other_weights_at_the_same_place_are_another_model(
    entry,
    tmp_path,
    capsys,
    option,
    setting,
    file,
):
    weights = tmp_path / "weights" / file
    weights.parent.mkdir()
    weights.write_bytes(b"GGUF, first")
    place = weights if setting == "gguf" else weights.parent
    model = (f"llm={option}", f"llm.server.{setting}={place}", "llm.server.launcher=['false']")
    command = ("run", *TINY, "agent=chat", *model, "name=m")
    # The server ends as soon as it is started, and the run has its identity by then.
    assert entry(*command) == 2
    first = contents("runs/m/manifest.json")["fingerprints"]["llm.content"]
    assert entry(*command) == 2
    assert "made with another" not in capsys.readouterr().err
    weights.write_bytes(b"GGUF, other")
    assert entry(*command) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"was made with another llm.content (was {first}, now" in error
    assert len(contents("caches/weights.json")) == 1
    if setting == "gguf":
        weights.unlink()
        assert entry(*command) == 2
        assert "there is no file" in " ".join(capsys.readouterr().err.split())


def test_the_weights_of_a_stages_model_are_part_of_a_ranking(entry, tmp_path, capsys):
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"GGUF, first")
    model = ("llm@rewriter_llm=llamacpp/gguf", f"rewriter_llm.server.gguf={weights}")
    launcher = "rewriter_llm.server.launcher=['false']"
    command = ("rank", *TINY, "rewriter=hyde", *model, launcher, "name=m")
    assert entry(*command) == 2
    assert "rewriter_llm.content" in contents("runs/m/manifest.json")["fingerprints"]
    weights.write_bytes(b"GGUF, other")
    capsys.readouterr()
    assert entry(*command) == 2
    assert "made with another rewriter_llm.content" in " ".join(capsys.readouterr().err.split())


def test_an_address_may_change_between_the_starts_of_a_run(entry):
    assert entry("run", *TINY, *MODEL, "name=m", "llm.base_url=http://a") == 0
    assert entry("run", *TINY, *MODEL, "name=m", "llm.base_url=http://b", "llm.price=2") == 0
    assert entry("run", *TINY, *MODEL, "name=m", "llm.turns=3") == 2
    assert entry("run", *TINY, *MODEL, "name=m", "budget.turns=3") == 2


def test_a_fault_that_would_fail_every_question_stops_the_run(entry, capsys):
    assert entry("run", *TINY, *MODEL, "name=m", "llm.locked=true") == 2
    assert "the key is wrong" in capsys.readouterr().err
    assert statuses("runs/m") == ["failed"]


def test_a_cap_on_the_runs_money_stops_it_and_raising_it_goes_on(entry, capsys):
    command = (*TINY, *MODEL, "name=m", "preflight=0", "llm.price=1000")
    # A question takes 0.63 dollars, its last turn 0.31.
    assert entry("run", *command, "budget.run_dollars=1.6") == 2
    assert "budget.run_dollars" in capsys.readouterr().err
    ended = {t.qid: (t.status, t.reason) for t in RunFolder("runs/m").trajectories()}
    assert list(ended.values()).count(("completed", "")) == 2
    assert list(ended.values()).count(("out_of_money", RUN_OUT_OF_MONEY)) == 1
    first = starts("runs/m")[0]["dollars"]
    assert 1.26 <= first <= 1.6
    # What was spent counts, and so does what one more request may take.
    assert entry("run", *command, "budget.run_dollars=1.6") == 2
    assert len(starts("runs/m")) == 1
    assert entry("run", *command, "budget.run_dollars=9") == 0
    assert statuses("runs/m") == ["completed"] * 6
    rows = starts("runs/m")
    assert len(rows) == 2 and rows[0]["dollars"] == first
    cut_short = [read_trajectory(path) for path in Path("runs/m/retried").rglob("*.json")]
    wasted = sum(trajectory.usage.get("dollars", 0) for trajectory in cut_short)
    assert sum(start["dollars"] for start in rows) == pytest.approx(6 * 0.63 + wasted)


def test_a_cap_without_a_price_is_refused_before_anything_is_built(entry, capsys):
    command = (*TINY, *MODEL, "name=m", "llm.price=null", "budget.dollars=1")
    assert entry("run", *command) == 2
    assert "price" in capsys.readouterr().err
    assert not Path("indexes").exists()


def test_an_agent_that_asks_no_model_starts_none_and_has_one_cell_for_all_models(entry, tmp_path):
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"GGUF")
    server = (f"llm.server.gguf={weights}", "llm.server.launcher=['false']")
    assert entry("run", *TINY, "name=k", "agent=keyword", "llm=llamacpp/gguf", *server) == 0
    manifest = contents("runs/k/manifest.json")
    assert "llm" not in manifest["factors"]
    assert not {"llm", "llm.content"} & set(manifest["fingerprints"])

    models = (MODEL[0], "agent=keyword,pi_serini", "llm=scripted", "llm.turns=1,2")
    assert entry("run", "-m", *TINY, *models, "name=s") == 0
    cells = [contents(path.parent / "manifest.json") for path in Path("runs/s").glob("*/queries")]
    agents = sorted(cell["factors"]["agent"] for cell in cells)
    assert agents == ["keyword", "pi_serini", "pi_serini"]


def test_cells_of_a_sweep_over_models_have_folders_of_their_own(entry):
    assert entry("run", "-m", *TINY, *MODEL, "llm.turns=1,2", "budget=none", "name=s") == 0
    cells = sorted(path.parent.name for path in Path("runs/s").glob("*/metrics.json"))
    assert len(cells) == 2
    assert ["llm.turns=1" in cell for cell in cells] == [True, False]


# Processes that are ended from outside.


def command(*arguments):
    slow = ("llm.seconds=0.02", "llm.turns=3", "concurrency=8", "name=cut", "preflight=0")
    # A question takes four requests, so that no more than 25 of the 40 end before the gate opens.
    gate = (f"llm.gate={GATE}", "llm.gate_after=100")
    size = ("benchmark.documents=128", "benchmark.questions=40")
    return ("run", *TINY, *size, *MODEL, *slow, *gate, *arguments)


def started(tmp_path, least):
    """A run, as soon as it has written `least` trajectories. It cannot end: the gate is shut."""
    process = CommandProcess(*command(), folder=tmp_path)
    queries = tmp_path / "runs" / "cut" / "queries"
    until = time.monotonic() + 90
    while len(list(queries.glob("[!.]*.json"))) < least and time.monotonic() < until:
        assert process.poll() is None, process.wait()
        time.sleep(0.005)
    return process


def check_resumed(tmp_path, written):
    """The same command ends with each question answered once, what was written untouched."""
    (tmp_path / GATE).touch()
    done = run_command(*command(), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = RunFolder(tmp_path / "runs" / "cut")
    assert sorted(folder.statuses().values()) == ["completed"] * 40
    assert all(folder.attempts(qid) == 1 for qid in folder.statuses())
    assert all((folder.queries / name).read_bytes() == text for name, text in written.items())
    assert not list(folder.path.rglob("*.tmp"))


def test_kill_9_loses_no_more_than_the_questions_under_way(tmp_path):
    process = started(tmp_path, 12)
    time.sleep(random.Random(11).uniform(0, 0.1))
    process.kill()
    process.wait()
    queries = tmp_path / "runs" / "cut" / "queries"
    written = {path.name: path.read_bytes() for path in queries.glob("[!.]*.json")}
    assert 12 <= len(written) <= 25
    assert all(read_trajectory(queries / name).status == "completed" for name in written)
    check_resumed(tmp_path, written)


def test_ctrl_c_writes_what_ended_and_leaves_cleanly(tmp_path):
    process = started(tmp_path, 5)
    process.send_signal(signal.SIGINT)
    ended = process.wait(timeout=30)
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr and "interrupted" in ended.stderr
    queries = tmp_path / "runs" / "cut" / "queries"
    written = {path.name: path.read_bytes() for path in queries.glob("[!.]*.json")}
    assert 5 <= len(written) <= 25
    assert all(read_trajectory(queries / name).status == "completed" for name in written)
    # The requests of questions that were cut short are on the ledger, and nowhere else.
    (start,) = starts(tmp_path / "runs" / "cut")
    assert start["calls"] >= 4 * len(written)
    check_resumed(tmp_path, written)
