"""Exports read by the programs that they are for: Inspect AI, and BrowseComp-Plus's evaluator."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.benchmarks import SmallBenchmark
from support.runs import answer, browsecomp, call, search, thought, trajectory

from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation import evaluate_run
from soundingline.toolkit.exchange import browsecomp_plus, inspect_ai
from soundingline.toolkit.exchange.inspect_ai import sample, sample_messages
from soundingline.toolkit.exchange.transcript import Transcript, trajectory_of

PEERS = Path(os.environ.get("SOUNDINGLINE_PEERS", ""))
BROWSECOMP_PLUS = os.environ.get("SOUNDINGLINE_BROWSECOMP_PLUS", "")
CLIENTS = Path(__file__).parent / "clients"
QUESTIONS = 260
pytestmark = pytest.mark.peers


def answers():
    return {str(number): "Ada" for number in range(QUESTIONS)}


def judged():
    rng = random.Random(3)
    return {qid: dict.fromkeys(map(str, rng.sample(range(50), 3)), 1) for qid in answers()}


def trajectories(count):
    """With reasoning, failed calls, wrong answers, citations of passages, no answer at all."""
    rng = random.Random(5)
    made = []
    for number in range(count):
        docids = [str(n) for n in rng.sample(range(50), 5)]
        items = [thought(f"thought {number}"), search(f"query {number}", docids)]
        items += [call("search", {"query": ""}, "Error executing search: empty")] * (number % 3)
        exact = rng.choice(["Ada", "Grace"])
        cited = f"[{docids[0]}] [{docids[1]}_3] 【{docids[2]}†L1】" if number % 5 else ""
        items += [answer(exact, f"{rng.random() * 100:.4f}%", cited)] if number % 11 else []
        usage = {"input_tokens": 90, "input_tokens_cached": 40, "output_tokens": 10}
        status = "completed" if number % 11 else "incomplete"
        content = browsecomp(str(number), items, usage=usage, status=status)
        made.append(trajectory(content))
    return made


def python(name):
    place = PEERS / name / "bin" / "python"
    if not PEERS.is_absolute() or not place.exists():
        pytest.skip("SOUNDINGLINE_PEERS has no environment of that name")
    return place


def run(*command, **options):
    texts = [str(part) for part in command]
    done = subprocess.run(texts, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_log(folder, form, rows):
    """A log of the trajectories, under the name that an export gives it."""
    head = inspect_ai.header(
        "a_run",
        created="2026-01-01T00:00:00+00:00",
        identity="x",
        benchmark="b",
        model="m",
        factors={},
        versions={},
        means={"accuracy": 0.25},
        sample_ids=[row.qid for row in rows],
    )
    samples = (sample(row, model="m", target=["Ada"], scores=right(row)) for row in rows)
    path = folder / inspect_ai.log_name(head, form)
    inspect_ai.write(path, head, samples)
    return path


def right(row):
    return {"accuracy": float(row.answer.exact == "Ada")}


@pytest.mark.parametrize("form", ["eval", "json"])
def test_inspect_reads_every_message_call_and_score_of_a_hundred_questions(tmp_path, form):
    rows = trajectories(100)
    path = write_log(tmp_path, form, rows)
    output = run(python("inspect"), CLIENTS / "with_inspect.py", "read", path)
    content = json.loads(output.splitlines()[-1])
    assert content["status"] == "success"
    assert content["means"] == {"accuracy": 0.25}
    seen = {row["id"]: row for row in content["samples"]}
    assert sorted(seen) == sorted(row.qid for row in rows)
    for row in rows:
        theirs = seen[row.qid]
        assert [role for role, _ in theirs["messages"]] == [m["role"] for m in row.messages]
        assert [text for _, text in theirs["messages"]] == [
            str(message["content"]) for message in row.messages
        ]
        assert theirs["calls"] == [
            [record.name, dict(record.arguments), record.output, bool(record.error)]
            for record in row.calls
        ]
        places = [n for n, m in enumerate(sample_messages(row)) if m["role"] == "assistant"]
        assert theirs["sent"] == places  # each reply was sent all that stands before it
        assert theirs["scores"] == right(row)
        assert theirs["tokens"] == {"none/m": 100}


@pytest.mark.parametrize("form", ["eval", "json"])
def test_inspect_lists_a_folder_with_our_log_and_reads_its_samples_one_at_a_time(tmp_path, form):
    rows = trajectories(10)
    write_log(tmp_path, form, rows)
    (log,) = json.loads(run(python("inspect"), CLIENTS / "with_inspect.py", "list", tmp_path))
    assert (log["task"], log["task_id"], log["header"]) == ("a-run", "x", "x")
    assert log["ids"] == [row.qid for row in rows]


@pytest.mark.parametrize("form", ["eval", "json"])
def test_inspect_scores_our_log_and_the_scored_log_is_the_same_run(tmp_path, form):
    rows = trajectories(20)
    path = write_log(tmp_path, form, rows)
    command = python("inspect").parent / "inspect"
    scorer = CLIENTS / "inspect_scorer.py"
    for way in ([], ["--stream"]):
        flags = ["--scorer", scorer, "--action", "append", "--overwrite", *way]
        run(command, "score", path, *flags)
    content = json.loads(run(python("inspect"), CLIENTS / "with_inspect.py", "scores", path))
    share = sum("Ada" in str(row.messages[-1]["content"]) for row in rows) / len(rows)
    assert 0 < share < 1
    names = ("holds_the_answer", "holds_the_answer1")
    assert content == {"accuracy": 0.25, **dict.fromkeys(names, pytest.approx(share))}
    assert {row.qid: row for row in inspect_ai.read(path)} == {row.qid: row for row in rows}


def test_inspect_bundles_our_logs_for_its_viewer(tmp_path):
    (tmp_path / "logs").mkdir()
    paths = [write_log(tmp_path / "logs", form, trajectories(3)) for form in ("eval", "json")]
    command = python("inspect").parent / "inspect"
    out = tmp_path / "bundle"
    run(command, "view", "bundle", "--log-dir", tmp_path / "logs", "--output-dir", out)
    listing = json.loads((out / "logs" / "listing.json").read_text(encoding="utf-8"))
    assert set(listing) == {path.name for path in paths}


def test_a_log_that_inspect_wrote_is_read(tmp_path):
    pytest.importorskip("zstandard")
    path = tmp_path / "theirs.eval"
    run(python("inspect"), CLIENTS / "with_inspect.py", "write", path)
    (recorded,) = inspect_ai.read(path)
    assert isinstance(recorded, Transcript)
    trajectory = trajectory_of(recorded, "question")
    assert trajectory.tiers["previewed"] == ("12",)
    assert trajectory.answer.exact == "Ada"
    assert trajectory.usage["input_tokens"] == 8


@pytest.mark.skipif(not BROWSECOMP_PLUS, reason="SOUNDINGLINE_BROWSECOMP_PLUS is not set")
def test_browsecomp_pluss_evaluator_gives_our_published_figures_on_an_export(
    tmp_path,
):
    """Their script as it is; only the judge's model is scripted."""
    rows = trajectories(QUESTIONS - 20)
    runs = tmp_path / "exported"
    runs.mkdir()
    for row in rows:
        content = browsecomp_plus.write(row, {"model": "m"})
        (runs / f"run_{row.qid}.json").write_text(json.dumps(content), encoding="utf-8")
    truth = [
        json.dumps({"query_id": qid, "query": "question?", "answer": text})
        for qid, text in answers().items()
    ]
    (tmp_path / "truth.jsonl").write_text("\n".join(truth), encoding="utf-8")
    qrels = [f"{q} 0 {docid} 1" for q, docids in judged().items() for docid in docids]
    (tmp_path / "qrels.txt").write_text("\n".join(qrels), encoding="utf-8")
    script = Path(BROWSECOMP_PLUS).resolve() / "scripts_evaluation" / "evaluate_run.py"
    flags = ["--input_dir", runs, "--ground_truth", tmp_path / "truth.jsonl"]
    flags += ["--qrel_evidence", tmp_path / "qrels.txt", "--eval_dir", tmp_path / "evals"]
    run(
        sys.executable,
        script,
        *flags,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CLIENTS / "evaluator")},
    )
    (summary,) = tmp_path.rglob("evaluation_summary.json")
    theirs = json.loads(summary.read_text(encoding="utf-8"))
    accepted = {qid: [text] for qid, text in answers().items()}
    topics = [Topic(qid, "question?") for qid in answers()]
    evaluation = evaluate_run(rows, SmallBenchmark(topics, {"evidence": judged()}, accepted))
    right = {row.qid: row.correct for row in evaluation.verdicts}
    ours = browsecomp_plus.leaderboard_entry(
        rows, right, accepted, judged(), llm="m", retriever="r", date="2026-01-01"
    )
    assert list(ours) == list(theirs)
    for name in ("LLM", "Accuracy (%)", "Recall (%)", "avg_tool_stats", "Calibration Error (%)"):
        assert ours[name] == pytest.approx(theirs[name]), name
    by_qid = {row["query_id"]: row for row in theirs["per_query_metrics"]}
    assert {row["query_id"]: row for row in ours["per_query_metrics"]} == by_qid
