"""Repeats of questions: the question is the unit of the statistics."""

import json
import math

import numpy as np
import pytest
from scipy import stats
from support.benchmarks import SmallBenchmark

from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation.agent_run import evaluate_run_folder
from soundingline.toolkit.evaluation.answers import ExactAnswerJudge
from soundingline.toolkit.evaluation.comparison import compare
from soundingline.toolkit.evaluation.evaluation import load_run
from soundingline.toolkit.evaluation.statistics import variance_components
from soundingline.toolkit.runs.manifest import make_manifest
from soundingline.toolkit.runs.run_folder import RunFolder
from soundingline.toolkit.trajectory import Answer, Trajectory


@pytest.mark.parametrize("sizes", [[4, 4, 4, 4, 4], [2, 5, 1, 3, 7]], ids=["balanced", "unequal"])
def test_components_are_those_of_a_one_way_analysis_of_variance(sizes):
    random = np.random.default_rng(3)
    groups = [random.normal(random.normal(0, 2), 1, size).tolist() for size in sizes]
    result = variance_components({f"q{place}": row for place, row in enumerate(groups)})
    total = sum(sizes)
    pooled = sum((len(row) - 1) * np.var(row, ddof=1) for row in groups if len(row) > 1)
    mean_square = pooled / (total - len(sizes))
    assert result.within == pytest.approx(math.sqrt(mean_square))
    # F is the ratio of the mean squares, and scipy's own.
    size = (total - sum(size**2 for size in sizes) / total) / (len(sizes) - 1)
    ratio = stats.f_oneway(*groups).statistic
    assert result.between**2 == pytest.approx((ratio - 1) * mean_square / size)
    assert result.share == pytest.approx(result.within**2 / (result.within**2 + result.between**2))
    assert (result.questions, result.repeats) == (5, pytest.approx(total / 5))


@pytest.mark.parametrize(
    ("values", "components"),
    [
        ({"a": [1.0, 1.0], "b": [1.0, 1.0]}, (0.0, 0.0, None, 2, 2.0)),
        # The mean of three times 0.1 is not 0.1 in floating point, and 0.1 + 0.2 is not 0.3.
        ({"a": [0.1] * 3, "b": [0.1] * 3}, (0.0, 0.0, None, 2, 3.0)),
        ({"a": [0.3, 0.3], "b": [0.1 + 0.2] * 2}, (0.0, 0.0, None, 2, 2.0)),
        ({"a": [0.0, 1.0], "b": [1.0, 0.0]}, (0.5**0.5, 0.0, 1.0, 2, 2.0)),
        ({"a": [0.0], "b": [1.0]}, None),
        ({"a": [0.0, 1.0]}, None),
    ],
)
def test_what_does_not_vary_has_no_share_and_single_values_have_no_components(values, components):
    assert variance_components(values) == components


TOPICS = [Topic(f"q{n}", "?") for n in range(4)]


BENCHMARK = SmallBenchmark(
    TOPICS,
    {"evidence": {topic.qid: {"d": 1} for topic in TOPICS}},
    {topic.qid: ["Ada"] for topic in TOPICS},
)


def trajectory(qid, right, rank, status="completed"):
    docids = [*(f"x{place}" for place in range(rank - 1)), "d"]
    answer = Answer(exact="Ada" if right else "Bob", confidence=80.0)
    tiers = {"surfaced": docids, "previewed": docids[:1], "opened": (), "cited": ()}
    return Trajectory(qid, "?", status, answer=answer, tiers=tiers)


def recorded(path, rights, rank=2):
    """A run whose answer to question i in repeat j is right where `rights[j, i]`."""
    folder = RunFolder(path)
    with folder.writing(make_manifest({}, {"benchmark": "b"}, {"run": path.name})):
        for number, row in enumerate(rights, start=1):
            for topic, right in zip(TOPICS, row, strict=True):
                folder.repeat(number).write(trajectory(topic.qid, bool(right), rank))
    return folder


def evaluated(folder):
    judges = [ExactAnswerJudge() for _ in folder.repeats()]
    return evaluate_run_folder(folder, BENCHMARK, judges, ("AP",), state=folder.state())


RIGHTS = np.array([[1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]], dtype=bool)


def test_a_question_counts_once_with_the_mean_of_its_repeats(tmp_path):
    run = evaluated(recorded(tmp_path / "a", RIGHTS))
    assert run.per_question["accuracy"] == pytest.approx(
        {"q0": 1.0, "q1": 2 / 3, "q2": 2 / 3, "q3": 0.0}
    )
    assert run.metrics["accuracy"] == pytest.approx(7 / 12)
    assert run.repeats["accuracy"]["q1"] == [0.0, 1.0, 1.0]
    assert run.counts["questions"] == 4 and run.counts["completed"] == 12
    assert run.counts["repeats"] == 3
    # Every answer claims 80 %: the distance to the share that is right, of each repeat.
    distances = np.abs(100 * RIGHTS.mean(axis=1) - 80)
    assert run.metrics["calibration_error"] == pytest.approx(distances.mean())
    assert load_run(tmp_path / "a") == run


def test_a_test_between_runs_is_over_questions_and_not_over_repeats(tmp_path):
    others = ~RIGHTS[:2]
    one, other = recorded(tmp_path / "a", RIGHTS), recorded(tmp_path / "b", others)
    (verdict,) = compare([evaluated(one), evaluated(other)], ["accuracy"], test="t")
    expected = stats.ttest_rel(others.mean(axis=0), RIGHTS.mean(axis=0))
    assert verdict.n == 4
    assert verdict.p == pytest.approx(expected.pvalue)


def test_a_missing_repeat_of_a_question_counts_as_wrong(tmp_path):
    folder = recorded(tmp_path / "a", RIGHTS)
    (folder.path / "repeats" / "3" / "queries" / "q0.json").unlink()
    run = evaluated(folder)
    assert run.per_question["accuracy"]["q0"] == pytest.approx(2 / 3)
    assert run.counts["missing"] == 1


def test_a_run_without_repeats_has_no_files_of_them(tmp_path):
    once = recorded(tmp_path / "a", RIGHTS[:1])
    run = evaluated(once)
    assert not (once.path / "repeats").exists()
    assert not (once.path / "evaluation" / "repeats.json").exists()
    assert "repeats" not in run.counts and not run.repeats
    # The same trajectories as the first of several repeats are found as they were.
    several = recorded(tmp_path / "b", RIGHTS)
    assert several.statuses() == once.statuses() and several.state() != once.state()


def test_a_new_repeat_makes_an_evaluation_outdated(tmp_path):
    folder = recorded(tmp_path / "a", RIGHTS[:2])
    evaluated(folder)
    with folder.writing(make_manifest({}, {"benchmark": "b"}, {"run": "a"})):
        folder.repeat(3).write(trajectory("q0", True, 1))
    with pytest.raises(Exception, match="trajectories that are there now"):
        load_run(folder.path)
    told = json.loads((folder.path / "evaluation" / "repeats.json").read_text())
    assert set(told) == {"values", "variance"}
