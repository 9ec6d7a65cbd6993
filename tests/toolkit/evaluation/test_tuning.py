"""Grid, measures of all points, choice, optimism and plateau."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.needs import cases

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import grid as grid_module
from soundingline.toolkit.evaluation.grid import (
    Grid,
    MeasureTable,
    RankTable,
    distance,
    measure_table,
)
from soundingline.toolkit.evaluation.retrieval import measure_rankings
from soundingline.toolkit.evaluation.statistics import holm, paired_differences, paired_test, t_test
from soundingline.toolkit.evaluation.tuning import (
    best_point,
    cross_validated,
    held_out,
    ordered_points,
    plateau,
    tune,
)

MEASURES = ["AP", "RR", "nDCG@10", "nDCG", "P@5", "R@3", "R@100", "Rprec", "Success@1", "Bpref"]


def test_a_grid_has_decimal_steps_up_to_its_end_and_sorted_values_without_repetition():
    grid = Grid("0:32:1", "0:1:0.1")
    assert len(grid) == len(grid.points) == 363
    assert grid.b == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    assert grid.points[:2] == [(0.0, 0.0), (0.0, 0.1)] and grid.k1[-1] == 32
    assert Grid("0.5:1.2:0.2", [1, 0.4, 0.4]).k1 == (0.5, 0.7, 0.9, 1.1)
    assert Grid([3], [1, 0.4, 0.4]).b == (0.4, 1.0)
    assert Grid(3, 0.4, weight=0.5, tau=0.05).points == [(3.0, 0.4, 0.5, 0.05)]


@pytest.mark.parametrize(
    ("k1", "b", "message"),
    [
        ([], [0.4], "k1 is empty"),
        ("3:1:1", [0.4], "k1 is empty"),
        ("0:32:0", [0.4], "k1 is '0:32:0'"),
        ("0:32:-1", [0.4], "k1 is '0:32:-1'"),
        ("0:32", [0.4], "start:stop:step"),
        ("a:b:c", [0.4], "start:stop:step"),
        ("0:nan:1", [0.4], "start:stop:step"),
        ([-1], [0.4], "k1=-1"),
        ([float("inf")], [0.4], "k1=inf"),
        ([0.9], [1.1], "b=1.1"),
        ([0.9], [True], "b=True"),
        ([0.9], ["x"], "'x'"),
        ("0:1000000:0.001", [0.4], "at most"),
        ("0:1000:1", "0:1:0.001", "points"),
    ],
)
def test_bad_grids_are_refused(k1, b, message):
    with pytest.raises(InputError, match=message):
        Grid(k1, b)


def test_distance_counts_saturation_and_length_on_one_scale():
    assert distance((0.9, 0.4)) == 0
    assert distance((0.9, 0.5)) == pytest.approx(0.1)
    assert distance((1.0, 0.4)) < distance((0.9, 0.5))
    assert distance((32.0, 0.4)) - distance((16.0, 0.4)) < distance((2.0, 0.4))


# A ranking is a permutation of documents; the judged ones are d0, d1, ...
@st.composite
def tuned(draw):
    judged = {
        f"q{n}": {f"d{d}": draw(st.integers(0, 2)) for d in range(draw(st.integers(1, 4)))}
        for n in range(draw(st.integers(1, 4)))
    }
    names = [f"d{d}" for d in range(4)] + [f"x{d}" for d in range(12)]
    points = [
        {qid: draw(st.permutations(names))[: draw(st.integers(0, 16))] for qid in judged}
        for _ in range(draw(st.integers(1, 4)))
    ]
    return points, judged


def rank_table(points, judged):
    ranks = {
        qid: np.array(
            [
                [point[qid].index(docid) + 1 if docid in point[qid] else 0 for point in points]
                for docid in grades
            ],
            dtype=np.int32,
        )
        for qid, grades in judged.items()
    }
    settings_ = [(float(place), 0.4) for place in range(len(points))]
    return RankTable(settings_, {qid: list(grades) for qid, grades in judged.items()}, ranks)


@settings(max_examples=cases(60), deadline=None)
@given(tuned(), st.sampled_from([1, 10, 2_000_000]))
def test_measures_of_ranks_equal_those_of_the_rankings(drawn, batch):
    points, judged = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid_module, "_BATCH", batch)
        table = measure_table(rank_table(points, judged), judged, MEASURES)
    for place, point in enumerate(points):
        expected = measure_rankings(point, judged, MEASURES)
        for name in MEASURES:
            result = dict(zip(table.qids, table.of(name)[:, place].tolist(), strict=True))
            assert result == expected[name], name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SetP", "depends on how many"),
        ("NumRet", "depends on how many"),
        ("Judged@10", r"depends on how many|no measure"),
        ("nDGC@10", r"'nDGC@10' is no measure.*nDCG@10"),
    ],
)
def test_an_objective_that_is_unknown_or_that_ranks_do_not_determine_is_refused(name, message):
    judged = {"q": {"d": 1}}
    with pytest.raises(InputError, match=message):
        measure_table(rank_table([{"q": ["d"]}], judged), judged, [name])


def test_tables_survive_their_files(tmp_path):
    judged = {"q 1": {"d/1": 1, "ü": 0}, "q2": {"d": 1}}
    points = [{"q 1": ["x", "ü", "d/1"], "q2": []}, {"q 1": ["d/1"], "q2": ["d"]}]
    ranks = rank_table(points, judged)
    ranks.save(tmp_path / "ranks.npz")
    again = RankTable.load(tmp_path / "ranks.npz")
    assert again.points == ranks.points
    assert again.docids == ranks.docids
    assert all((again.ranks[qid] == ranks.ranks[qid]).all() for qid in judged)
    table = measure_table(again, judged, ["AP", "R@5"])
    table.save(tmp_path / "deep" / "measures.npz")
    loaded = MeasureTable.load(tmp_path / "deep" / "measures.npz")
    assert (loaded.measures, loaded.qids) == (table.measures, table.qids)
    assert loaded.points == table.points
    assert (loaded.values == table.values).all()
    with pytest.raises(InputError, match="no measure 'RR'"):
        loaded.of("RR")
    with pytest.raises(InputError, match="different points"):
        RankTable.joined([ranks, rank_table(points[:1], judged)])


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04"])
def test_a_damaged_table_is_named_by_its_path(tmp_path, content):
    path = tmp_path / "ranks.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"ranks\.npz"):
        RankTable.load(path)


NEAR, FAR = (0.9, 0.4), (25.0, 1.0)


@pytest.mark.parametrize(
    ("values", "points", "order"),
    [
        (
            [[0.5, 0.7, 0.1, 0.6], [0.5, 0.3, 0.9, 0.4]],
            [(0.0, 0.4), FAR, (1.0, 0.4), (0.9, 0.9)],
            [2, 0, 3, 1],
        ),
        # 0.1 + 0.2 is not 0.3 in floating point, but the means are equal.
        ([[0.1, 0.3], [0.2, 0.0]], [FAR, NEAR], [1, 0]),
        ([[0.1, 0.3], [0.2, 0.0]], [NEAR, FAR], [0, 1]),
        (
            [[0.1, 0.3, 0.3, 0.9], [0.2, 0.0, 0.0, 0.1]],
            [FAR, (9.0, 0.4), NEAR, (1.0, 0.4)],
            [3, 2, 1, 0],
        ),
        # Means of 1e-13 and 2e-13 differ; those of 1e6 and one more bit do not.
        ([[2e-13, 1e-13]], [FAR, NEAR], [0, 1]),
        ([[np.nextafter(1e6, 2e6), 1e6]], [FAR, NEAR], [1, 0]),
    ],
)
def test_points_are_ordered_by_their_means_and_ties_from_the_default_on(values, points, order):
    assert ordered_points(np.array(values), points) == order
    assert best_point(np.array(values), points) == order[0]


POINTS = [(0.9, 0.4), (5.0, 0.4), (25.0, 1.0)]


def test_optimism_is_the_claim_of_choosing_on_the_reported_questions_less_the_truth():
    dev = np.array([[0.1, 0.5, 0.4], [0.1, 0.5, 0.4]])
    test = np.array([[0.3, 0.4, 0.8], [0.3, 0.4, 0.6], [0.3, 0.4, 0.7]])
    result = held_out(dev, test, POINTS)
    assert (result.chosen, result.best) == (1, 2)
    assert result.selected == pytest.approx(0.5)
    assert result.chosen_value == pytest.approx(0.4)
    assert result.best_value == pytest.approx(0.7)
    assert result.optimism == pytest.approx(0.3)
    assert (result.selecting, result.reported) == (2, 3)


def test_cross_validation_of_two_questions_reports_each_in_the_others_choice():
    values = np.array([[0.2, 0.9, 0.0], [0.6, 0.1, 0.0]])
    result = cross_validated(values, POINTS, folds=2)
    # Each question would choose the point that is bad for the other.
    assert sorted(result.folds) == [0, 1]
    assert result.value == pytest.approx((0.2 + 0.1) / 2)
    assert result.chosen == 1
    assert result.optimism == pytest.approx(0.5 - 0.15)
    assert result.values == pytest.approx((0.2, 0.1))


def test_cross_validation_is_repeatable_and_honest_on_noise():
    points = [(k1 / 10, 0.4) for k1 in range(100)]
    draws = np.random.default_rng(1).random((40, 30, 100))
    result = [cross_validated(noise, points, folds=5, seed=4) for noise in draws]
    assert result[0] == cross_validated(draws[0], points, folds=5, seed=4)
    assert result[0].value != cross_validated(draws[0], points, folds=5, seed=5).value
    # On noise every point is worth 0.5; the best of 100 claims more.
    assert np.mean([row.selected for row in result]) > 0.6
    assert np.mean([row.value for row in result]) == pytest.approx(0.5, abs=0.02)


def test_many_t_tests_at_once_give_the_p_values_of_each_alone():
    values = np.random.default_rng(0).normal(0.05, 0.2, (40, 6))
    values[:, 0] = 0.0
    values[:, 1] = 0.25
    result = t_test(*paired_differences(values, np.zeros_like(values)))
    zero = dict.fromkeys(range(40), 0.0)
    for column in range(6):
        alone = paired_test(
            dict(enumerate(values[:, column].tolist())), zero, test="t", resamples=99
        )
        assert result[column] == pytest.approx(alone.p, rel=1e-12), column


def test_the_plateau_has_the_points_that_do_not_differ_significantly():
    rng = np.random.default_rng(0)
    base = rng.random(100)
    noise = rng.normal(0, 0.1, 100)
    # The last two columns are equal to the first, one of them but for rounding.
    columns = [base, base + noise - 0.01, base - 0.3, base, (base + 0.1 + 0.2) - 0.3]
    values = np.stack(columns, axis=1)
    result = plateau(values, 0)
    assert result.inside.tolist() == [True, True, False, True, True]
    assert result.p_holm[[0, 3, 4]].tolist() == [1, 1, 1]
    p = t_test(*paired_differences(values, values[:, [0]]))
    assert result.p_holm[1:].tolist() == holm(p[1:].tolist())


def test_no_optimism_is_below_zero():
    # Both points have the mean 0.3 on the reported question, but for rounding.
    dev, test = np.array([[1.0, 0.0]] * 2), np.array([[0.1 + 0.2, 0.3]])
    result = held_out(dev, test, [(25.0, 1.0), (0.9, 0.4)])
    assert (result.chosen, result.best) == (0, 1)
    assert result.optimism == 0.0


def test_folds_do_not_depend_on_the_order_of_the_questions():
    rng = np.random.default_rng(3)
    grid = Grid([1, 2], [0, 1])
    qids = [f"q{n:02}" for n in range(20)]
    values = rng.random((2, 20, 4))
    result = []
    for order in (np.arange(20), rng.permutation(20)):
        named_so = [qids[place] for place in order]
        table = MeasureTable(["AP", "RR"], named_so, grid.points, values[:, order])
        result.append(tune(grid, "AP", table, table, references=[(1.0, 0.0)], folds=5))
    assert result[0].choices == result[1].choices
    assert result[0].gains == result[1].gains


def test_bad_tests_are_refused():
    for folds in (1, 4):
        with pytest.raises(InputError, match="2 to 3 folds"):
            cross_validated(np.ones((3, 3)), POINTS, folds=folds)
    with pytest.raises(InputError, match="alpha"):
        plateau(np.ones((3, 3)), 0, alpha=0.0)
    with pytest.raises(InputError, match="1 question"):
        plateau(np.ones((1, 3)), 0)


def small_tuning(folds):
    rng = np.random.default_rng(0)
    grid = Grid([1, 2], [0, 1])
    points = [*grid.points, (0.9, 0.4)]
    qids = [f"q{n}" for n in range(20)]
    # The reference is better than every point of the grid.
    values = rng.random((2, 20, 5)) / 2 + np.array([0, 0.1, 0, 0, 0.5])
    table = MeasureTable(["AP", "RR"], qids, points, values)
    other = MeasureTable(["AP", "RR"], [f"p{n}" for n in range(20)], points, values[:, ::-1])
    selecting = table if folds else other
    return tune(grid, "AP", selecting, table, references=[(0.9, 0.4)], folds=folds)


@pytest.mark.parametrize("folds", [None, 4])
def test_a_tuning_chooses_within_the_grid_and_compares_with_the_references(folds):
    result = small_tuning(folds)
    assert result.chosen() in result.grid.points
    assert set(result.choices) == {"AP", "RR"}
    gain = result.gains["AP"][(0.9, 0.4)]
    choice = result.choices["AP"]
    value = choice.chosen_value if folds is None else choice.value
    assert gain.difference == pytest.approx(value - result.reported.of("AP")[:, 4].mean())
    assert gain.difference < 0
    assert gain.n == 20
    assert result.plateaus["AP"].inside.shape == (4,)
    summary = result.summary()
    chosen = dict(zip(("k1", "b"), result.chosen(), strict=True))
    assert summary["measures"]["AP"]["chosen"] == chosen
    assert summary["measures"]["AP"]["optimism"] >= 0
