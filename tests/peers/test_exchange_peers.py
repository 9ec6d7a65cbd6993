"""Exports read by the programs that they are for: Inspect AI, and BrowseComp-Plus's evaluator."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from foreign_runs import answer, browsecomp, call, search, thought

from toolkit.contracts import Topic, Trajectory
from toolkit.evaluation import evaluate_run
from toolkit.exchange import browsecomp_plus, inspect_log, leaderboard
from toolkit.exchange.inspect_samples import sample, sample_messages
from toolkit.exchange.run_files import RunFile
from toolkit.exchange.transcript import Transcript, trajectory_of

PEERS = Path(os.environ.get("SOUNDINGLINE_PEERS", ""))
BROWSECOMP_PLUS = os.environ.get("SOUNDINGLINE_BROWSECOMP_PLUS", "")
CLIENTS = Path(__file__).parent / "clients"
QUESTIONS = 260
pytestmark = pytest.mark.peers


def answers() -> dict[str, str]:
    return {str(number): "Ada" for number in range(QUESTIONS)}


def judgements() -> dict[str, dict[str, int]]:
    rng = random.Random(3)
    return {qid: dict.fromkeys(map(str, rng.sample(range(50), 3)), 1) for qid in answers()}


def trajectories(count: int) -> list[Trajectory]:
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
        made.append(trajectory_of(browsecomp_plus.transcript(RunFile("f", content)), "question?"))
    return made


def python(name: str) -> Path:
    place = PEERS / name / "bin" / "python"
    if not PEERS.is_absolute() or not place.exists():
        pytest.skip("SOUNDINGLINE_PEERS has no environment of that name")
    return place


def run(*command: str | Path, **options: Any) -> str:
    texts = [str(part) for part in command]
    done = subprocess.run(texts, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("form", ["eval", "json"])
def test_inspect_reads_every_message_call_and_score_of_a_hundred_questions(
    tmp_path: Path, form: str
) -> None:
    rows = trajectories(100)
    scores = {row.qid: {"accuracy": float(row.answer.exact == "Ada")} for row in rows}
    head = inspect_log.header(
        "run",
        created="2026-01-01T00:00:00+00:00",
        identity="x",
        benchmark="b",
        model="m",
        factors={},
        versions={},
        means={"accuracy": 0.25},
        samples=len(rows),
    )
    samples = (sample(row, model="m", target=["Ada"], scores=scores[row.qid]) for row in rows)
    path = tmp_path / f"log.{form}"
    write = inspect_log.write_eval if form == "eval" else inspect_log.write_json_log
    write(path, head, samples)
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
        assert theirs["scores"] == scores[row.qid]
        assert theirs["tokens"] == {"m": 100}


def test_a_log_that_inspect_wrote_is_read(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    path = tmp_path / "theirs.eval"
    run(python("inspect"), CLIENTS / "with_inspect.py", "write", path)
    (recorded,) = inspect_log.read(path)
    assert isinstance(recorded, Transcript)
    trajectory = trajectory_of(recorded, "question")
    assert trajectory.tiers["previewed"] == ("12",)
    assert trajectory.answer.exact == "Ada"
    assert trajectory.usage["input_tokens"] == 8


@pytest.mark.skipif(not BROWSECOMP_PLUS, reason="SOUNDINGLINE_BROWSECOMP_PLUS is not set")
def test_browsecomp_pluss_evaluator_gives_our_published_figures_on_an_export(
    tmp_path: Path,
) -> None:
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
    qrels = [f"{q} 0 {docid} 1" for q, docids in judgements().items() for docid in docids]
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
    evaluation = evaluate_run(
        rows,
        topics=[Topic(qid, "question?") for qid in answers()],
        judgements={"evidence": judgements()},
        answers=accepted,
    )
    right = {row.qid: row.correct for row in evaluation.verdicts}
    ours = leaderboard.entry(
        rows, right, accepted, judgements(), llm="m", retriever="r", date="2026-01-01"
    )
    assert list(ours) == list(theirs)
    for name in ("LLM", "Accuracy (%)", "Recall (%)", "avg_tool_stats", "Calibration Error (%)"):
        assert ours[name] == pytest.approx(theirs[name]), name
    by_qid = {row["query_id"]: row for row in theirs["per_query_metrics"]}
    assert {row["query_id"]: row for row in ours["per_query_metrics"]} == by_qid
