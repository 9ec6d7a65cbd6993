"""Runs of the navigator with models: scores by role, calibration on dev, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.checkpoints import save_sentence_model

from soundingline.experiments.training import fit_probabilities, pairs_of
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.trajectory import Trajectory

Entry = Callable[..., int]
OPTIONS = Path(__file__).resolve().parent / "options"
PROSE = "I would rather not plan."  # so that rules do
SCORES = json.dumps(
    {
        "requirements": [
            {"number": n, "verdict": "satisfied", "score": 1, "passage": "", "rationale": "x"}
            for n in range(1, 20)
        ],
        "relevant": True,
        "probability": 0.5,
    }
)
MODELS = (
    f"hydra.searchpath=[file://{OPTIONS}]",
    "llm=scripted",
    f"llm.says='{PROSE}'",
    "scorer=chat",
    "llm@librarian_llm=scripted",
    f"librarian_llm.says='{SCORES}'",
)
SETS = (*TINY, "benchmark.questions=sets:2", "agent=navigator", "agent.pool=6", "traces=false")


def contents(path):
    return json.loads(Path(path).read_text())


def test_two_models_score_on_one_ledger_and_their_probability_is_calibrated_on_a_run(
    entry,
):
    assert entry("run", *SETS, *MODELS, "name=dev") == 0
    metrics = contents("runs/dev/metrics.json")
    assert metrics["usage_navigator_calls"] == 4 and metrics["usage_librarian_calls"] > 2
    assert metrics["hallucination_rate"] == 0
    manifest = contents("runs/dev/manifest.json")
    assert manifest["factors"]["librarian_llm"] == "scripted"
    assert manifest["factors"]["scorer"] == "chat"
    assert manifest["stages"]["scorer"]["documents"] > 0
    trajectories = list(RunFolder("runs/dev").trajectories())
    assert all("not calibrated" in " ".join(t.warnings) for t in trajectories)
    scored = [row for t in trajectories for row in t.rounds[0]["documents"].values()]
    assert {row["probability"] for row in scored} == {0.5}

    assert entry("calibrate", "runs/dev", "out=calibration.json") == 0
    fitted = contents("calibration.json")
    assert fitted["scorer"] == manifest["fingerprints"]["scorer.content"]
    share = fitted["targets"] / fitted["pairs"]
    given = (*SETS, *MODELS, "agent.calibration=calibration.json", "name=test")
    assert entry("run", *given) == 0
    trajectories = list(RunFolder("runs/test").trajectories())
    assert not any("calibra" in line for t in trajectories for line in t.warnings)
    scored = [row for t in trajectories for row in t.rounds[0]["documents"].values()]
    (calibrated,) = {row["calibrated"] for row in scored}
    assert calibrated == pytest.approx(share)
    prints = contents("runs/test/manifest.json")["fingerprints"]
    assert prints["calibration"] != "none"
    again = contents("runs/test/manifest.json")["stages"]["scorer"]
    assert again["asked"] == 0, "what the first run has paid for is not paid again"


def test_a_calibration_needs_targets_and_others(entry, capsys):
    assert entry("run", *SETS, "name=rules") == 0
    assert entry("calibrate", "runs/rules", "out=calibration.json") == 2
    assert "with a scorer that tells an overall probability" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not Path("calibration.json").exists()


def test_isotonic_regression_is_the_share_of_targets_at_each_probability():
    pytest.importorskip("sklearn")
    probabilities = [0.1] * 10 + [0.5] * 10 + [0.9] * 10
    met = [False] * 9 + [True] + [True] * 4 + [False] * 6 + [True] * 8 + [False] * 2
    fitted = fit_probabilities(probabilities, met, "isotonic")
    assert fitted["x"] == pytest.approx([0.1, 0.5, 0.9])
    assert fitted["y"] == pytest.approx([0.1, 0.4, 0.8])


def test_platts_regression_leaves_calibrated_probabilities_as_they_are():
    pytest.importorskip("sklearn")
    probabilities = [0.2] * 500 + [0.8] * 500
    met = [True] * 100 + [False] * 400 + [True] * 400 + [False] * 100
    fitted = fit_probabilities(probabilities, met, "platt")
    assert fitted["slope"] == pytest.approx(1, abs=1e-3)
    assert fitted["intercept"] == pytest.approx(0, abs=1e-3)


def test_the_newest_probability_of_a_document_counts_once():
    rounds = (
        {"documents": {"d1": {"probability": 0.2}, "d2": {"requirements": {}}}},
        {"documents": {"d1": {"probability": 0.7}}},
    )
    known = Trajectory("q1", "?", "completed", rounds=rounds)
    unknown = Trajectory("q2", "?", "completed", rounds=rounds)
    assert pairs_of([known, unknown], {"q1": {"d1"}}) == ([0.7], [True])


def test_a_final_list_is_ordered_by_any_re_ranker_on_the_librarians_account(entry):
    listwise = ("reranker@list_reranker=listwise", "llm@librarian_llm=scripted")
    says = "librarian_llm.says='[3] > [2] > [1]'"
    given = (*SETS, MODELS[0], *listwise, says, "agent.ordered=3")
    assert entry("run", *SETS, "name=plain") == 0
    assert entry("run", *given, "name=listwise") == 0
    runs = [RunFolder(f"runs/{name}") for name in ("plain", "listwise")]
    plain, ordered = ([t.answer.documents for t in run.trajectories()] for run in runs)
    assert ordered == [(*reversed(row[:3]), *row[3:]) for row in plain]
    manifest = contents("runs/listwise/manifest.json")
    assert manifest["factors"]["list_reranker"] == "listwise"
    assert manifest["stages"]["list_reranker"]["windows"] == 2
    assert contents("runs/listwise/metrics.json")["usage_librarian_calls"] == 1


def test_an_encoder_locates_the_evidence_and_its_fingerprint_is_recorded(entry, tmp_path, capsys):
    pytest.importorskip("sentence_transformers")
    model = save_sentence_model(tmp_path / "tiny")
    dense = ("retriever@scorer.locator=dense", f"scorer.locator.model={model}")
    assert entry("run", *SETS, "name=bm25") == 0
    assert entry("run", *SETS, *dense, "name=dense") == 0
    prints = [contents(f"runs/{name}/manifest.json")["fingerprints"] for name in ("bm25", "dense")]
    assert "locator.content" not in prints[0] and prints[1]["locator.content"]
    # Every requirement has evidence, also one whose words no passage contains.
    scored = [
        cell
        for trajectory in RunFolder("runs/dense").trajectories()
        for row in trajectory.rounds
        for document in row["documents"].values()
        for cell in document["requirements"].values()
    ]
    assert scored and all(cell["passage"] and cell["verdict"] != "unknown" for cell in scored)
    assert entry("run", *SETS, "retriever@scorer.locator=bm25_tuned", "name=wrong") == 2
    assert "encodes no passages" in " ".join(capsys.readouterr().err.split())
