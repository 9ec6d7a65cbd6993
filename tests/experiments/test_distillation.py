"""A small scorer distilled by one command, its steps, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
from experiment_samples import TINY
from support import checkpoints

from soundingline.experiments import distillation
from soundingline.experiments.distillation import Question, cluster, examples, split, word_vectors
from soundingline.experiments.training import calibration_error
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.runs import RunFolder

pytest.importorskip("sklearn")
OPTIONS = Path(__file__).resolve().parent / "options"
SYSTEM = (*TINY, "benchmark.questions=sets:2", "agent=navigator", "agent.pool=4", "traces=false")
TEACHER = (
    f"hydra.searchpath=[file://{OPTIONS}]",
    *("llm=scripted", "llm.log=asked.txt", "scorer=chat"),
    *("llm@librarian_llm=scripted", "librarian_llm.wavering=true", "librarian_llm.log=asked.txt"),
)
QUICK = ("clusters=6", "questions=1", "steps=2", "batch=2", "held_out=0.7")


@pytest.fixture
def start(tmp_path):
    pytest.importorskip("transformers")
    return checkpoints.save_network(tmp_path / "start", *checkpoints.small_bert(["the old mill"]))


@pytest.mark.slow
def test_a_student_is_distilled_in_steps_that_are_not_repeated(entry, start, monkeypatch, capsys):
    given = ("distill", "student", *SYSTEM, *TEACHER, *QUICK, f"start={start}")

    def broken(*arguments, **settings):
        raise InputError("no training today")

    with monkeypatch.context() as patched:
        patched.setattr(distillation, "fit", broken)
        assert entry(*given) == 2
    folder = Path("student")
    assert {path.name for path in folder.iterdir()} == {
        *(".lock", "recipe.json", "questions.json", "ledger.jsonl"),
        *("candidates", "judgements.jsonl"),
    }
    asked = Path("asked.txt").read_text()
    assert entry(*given) == 0
    assert Path("asked.txt").read_text() == asked, "no request is repeated"

    written = json.loads((folder / "questions.json").read_text())
    assert all(row["by"] == "scripted" and row["text"].startswith("Find pages") for row in written)
    rows = [json.loads(line) for line in (folder / "judgements.jsonl").read_text().splitlines()]
    assert {row["query"] for row in rows} == {row["text"] for row in written}
    assert {row["overall"] for row in rows} == {0.8, 0.3}
    cells = [cell for row in rows for cell in row["requirements"]]
    assert all(cell["rationale"] for cell in cells)
    assert {cell["score"] for cell in cells if cell["passage"]} == {0.9, 0.1}
    report = json.loads((folder / "report.json").read_text())
    assert (report["teacher"], report["teacher_llm"]) == ("chat", "scripted")
    assert report["relevant"]["checking"] < report["documents"]["checking"]
    assert 0 <= report["ece"]["after"] <= 1
    assert (folder / "reliability.png").read_bytes().startswith(b"\x89PNG")

    # The system with the student in the place of the teacher.
    student = ("scorer=cross_encoder", "scorer.scorer.model=student/student", "name=after")
    assert entry("run", *SYSTEM, *student, "agent.calibration=student/calibration.json") == 0
    (first, *_) = RunFolder("runs/after").trajectories()
    assert not any("calibra" in line for line in first.warnings), "fitted for this scorer"
    scored = [row for one in first.rounds for row in one["documents"].values()]
    assert all("calibrated" in row for row in scored)

    capsys.readouterr()
    assert entry(*given, "clusters=5") == 2
    assert "was begun with another clusters" in " ".join(capsys.readouterr().err.split())
    assert entry(*given, "steps=3") == 2
    assert "was begun with another steps" in " ".join(capsys.readouterr().err.split())
    (folder / "recipe.json").unlink()
    assert entry(*given) == 2
    assert "'student' is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("tool=ranked_browsing",), "there is no teacher"),
        (("clusters=1",), "clusters=1"),
        (("held_out=1",), "held_out=1"),
        (("batch=3",), "batch=3"),
        (("start=/nowhere",), "there is no folder '/nowhere'"),
    ],
)
def test_what_cannot_be_distilled_is_refused_before_anything_is_written(
    entry, given, message, capsys
):
    pytest.importorskip("transformers")
    assert entry("distill", "student", *SYSTEM, "start=/nowhere", *given) == 2
    assert message in capsys.readouterr().err
    assert not Path("student").exists()


def test_clusters_are_those_of_k_means_nearest_to_the_centre_first():
    points = np.array([[0, 0], [10, 10], [0, 1], [10, 12], [0, 2]], np.float32)
    # The centres are (0, 1) and (10, 11).
    assert sorted(cluster(points, 2, 0)) == [[1, 3], [2, 0, 4]]
    texts = ["barley mill grinds", "mill grinds barley", "harbour tide sea", "sea tide harbour"]
    vectors = word_vectors(texts, 0)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    assert sorted(map(sorted, cluster(vectors, 2, 0))) == [[0, 1], [2, 3]]


def test_a_question_is_learnt_calibrated_or_checked():
    written = [Question(f"g{n}", f"question {n}", 0, (), "rules") for n in range(20)]
    parts = split(written, 0.4)
    assert [len(part) for part in parts] == [12, 4, 4]
    assert frozenset.union(*parts) == {one.text for one in written}
    assert [len(part) for part in split(written[:3], 0.1)] == [1, 1, 1]
    with pytest.raises(InputError, match="there are 2 questions"):
        split(written[:2], 0.4)


def test_a_student_learns_scores_at_their_passages_and_the_overall_judgement():
    cell = {"verdict": "satisfied", "rationale": "r"}
    row = {
        "query": "q",
        "chunks": [{"id": "d%p0", "text": "zero"}, {"id": "d%p1", "text": "one"}],
        "requirements": [
            {"requirement": "a", "score": 0.9, "passage": "d%p1", **cell},
            {"requirement": "b", "score": 0.3, "passage": "", **cell},
        ],
        "overall": None,
    }
    found = [(one.pair.query, one.pair.text, one.label) for one in examples(row)]
    # A teacher without an overall judgement: the mean of its scores, (0.9 + 0.3) / 2.
    assert [(query, text) for query, text, _ in found] == [
        ("a", "one"),
        ("q", "zero"),
        ("q", "one"),
    ]
    assert [label for _, _, label in found] == pytest.approx([0.9, 0.6, 0.6])


def test_the_expected_calibration_error_by_hand():
    # Bins: 0.05 and 0.06 (none met), 0.95 (one of two met).
    error = calibration_error([0.05, 0.06, 0.95, 0.95], [False, False, True, False])
    assert error == pytest.approx((2 * 0.055 + 2 * (0.95 - 0.5)) / 4)
    assert calibration_error([0.0, 1.0], [False, True]) == 0
