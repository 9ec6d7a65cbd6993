"""The verdict in words, orientation of differences, and which value is marked as best."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_cells import fake_cell, six_cells

from toolkit.evaluation import Verdict
from toolkit.report import render
from toolkit.report.compared_pairs import ComparedPair
from toolkit.report.data import ReportData, report_data
from toolkit.report.words import verdict

LOW, HIGH = (replace(c, factors={}, name=n) for c, n in zip(six_cells()[:2], "AB", strict=True))
LOW = replace(LOW, metrics={"accuracy": 0.4, "calibration_error": 30.0, "search_calls": 9.0})
HIGH = replace(HIGH, metrics={"accuracy": 0.55, "calibration_error": 20.0, "search_calls": 8.0})
CLEAR = Verdict(
    measure="accuracy",
    a="B",
    b="A",
    mean_a=0.55,
    mean_b=0.4,
    difference=0.15,
    low=0.05,
    high=0.25,
    p=0.002,
    p_holm=0.004,
    n=100,
    needed=70,
    wins=30,
    losses=15,
    ties=55,
)
UNCLEAR = CLEAR._replace(low=-0.02, high=0.32, p=0.05, p_holm=0.1, needed=1234.2)


def data_of(*verdicts: Verdict, cells=(LOW, HIGH), **arguments: object) -> ReportData:
    given = {"main": None, "baseline": None, "measures": (), "alpha": 0.05, **arguments}
    return report_data(cells, verdicts, **given)


def words_of(*verdicts: Verdict, **arguments: object) -> str:
    return "".join(span.text for span in verdict(data_of(*verdicts, **arguments)))


def test_a_resolved_difference_is_told_with_interval_p_and_questions() -> None:
    assert words_of(CLEAR) == (
        "B has the highest accuracy of 2 cells: 0.550 over 100 questions. The difference to A "
        "(the baseline) is resolved: +0.150, 95% interval [0.050, 0.250], p (Holm) 0.004, "
        "100 paired questions."
    )


def test_an_unresolved_difference_tells_how_many_questions_it_would_take() -> None:
    said = words_of(UNCLEAR)
    assert "is not resolved: +0.150, 95% interval [−0.020, 0.320]" in said
    assert said.endswith("about 1,234 questions would be needed, before correction.")


@pytest.mark.parametrize("needed", [None, float("inf")])
def test_where_no_number_of_questions_would_do_it_says_so(needed: float | None) -> None:
    assert "no number of questions" in words_of(UNCLEAR._replace(needed=needed))


def test_a_pair_that_nobody_tested_is_said_to_be_untested() -> None:
    assert words_of().endswith("Against A (the baseline) it was not tested.")


def test_the_next_best_is_told_beside_the_baseline() -> None:
    third = replace(LOW, name="C", metrics={"accuracy": 0.5})
    said = words_of(CLEAR, UNCLEAR._replace(b="C"), cells=(LOW, HIGH, third))
    assert "to A (the baseline) is resolved" in said
    assert "to C (the next best) is not resolved" in said


def test_the_best_is_told_against_the_next_best_when_it_is_the_baseline() -> None:
    said = words_of(UNCLEAR, baseline="B")
    assert "to A (the next best) is not resolved" in said


def test_a_verdict_read_from_the_other_side_is_mirrored() -> None:
    same, mirrored = ComparedPair.of(CLEAR, "B"), ComparedPair.of(CLEAR, "A")
    assert (same.one, same.mean_one, same.difference, same.wins) == ("B", 0.55, 0.15, 30)
    assert (mirrored.one, mirrored.other) == ("A", "B")
    assert (mirrored.mean_one, mirrored.mean_other) == (0.4, 0.55)
    assert (mirrored.difference, mirrored.low, mirrored.high) == (-0.15, -0.25, -0.05)
    assert (mirrored.wins, mirrored.losses, mirrored.ties) == (15, 30, 55)


def test_differences_are_shown_against_the_baseline_whichever_way_they_were_computed() -> None:
    for baseline, difference in (("A", 0.15), ("B", -0.15)):
        (pair,) = data_of(CLEAR, baseline=baseline).pairs("accuracy")
        assert pair.other == baseline
        assert pair.difference == difference


def test_the_best_value_is_marked_best_only_where_every_other_cell_is_separated() -> None:
    third = replace(LOW, name="C", metrics={"accuracy": 0.5})
    cells = (LOW, HIGH, third)
    clear = CLEAR._replace(b="C")
    assert data_of(CLEAR, clear, cells=cells).marks("accuracy") == {"B": "best"}
    unclear = UNCLEAR._replace(b="C")
    assert data_of(CLEAR, unclear, cells=cells).marks("accuracy") == {"B": "tie", "C": "tie"}
    assert data_of(CLEAR, cells=cells).marks("accuracy") == {"B": "tie"}


def test_equal_best_values_are_all_marked_as_ties() -> None:
    twin = replace(HIGH, name="C")
    assert data_of(CLEAR, cells=(LOW, HIGH, twin)).marks("accuracy") == {"B": "tie", "C": "tie"}


def test_where_all_cells_are_equal_none_is_marked() -> None:
    assert data_of(CLEAR, cells=(HIGH, replace(HIGH, name="C"))).marks("accuracy") == {}


def test_an_error_is_best_where_it_is_lowest_and_a_cost_is_never_best() -> None:
    error = CLEAR._replace(measure="calibration_error", difference=-10.0, low=-12.0, high=-8.0)
    calls = CLEAR._replace(measure="search_calls", difference=-1.0, low=-2.0, high=-0.5)
    data = data_of(error, calls)
    assert data.marks("calibration_error") == {"B": "best"}
    assert data.marks("search_calls") == {}


def test_the_main_measure_is_the_first_tested_one_by_rank_of_interest() -> None:
    assert data_of().main == "accuracy"
    assert data_of(CLEAR._replace(measure="search_calls")).main == "search_calls"
    assert data_of(CLEAR, CLEAR._replace(measure="search_calls")).main == "accuracy"


def test_verdicts_on_cells_that_are_not_reported_are_left_out() -> None:
    assert data_of(CLEAR, CLEAR._replace(a="Z")).verdicts == [CLEAR]


def test_questions_without_an_accepted_answer_are_told_where_there_is_an_accuracy() -> None:
    cell = fake_cell("one", 0.5, unit="document")
    counts = {**cell.counts, "without_accepted_answer": 7}
    assert "Left out of accuracy: 7 of 100 questions" in render([replace(cell, counts=counts)]).html
    metrics = {name: value for name, value in cell.metrics.items() if name != "accuracy"}
    lists = replace(cell, counts={**counts, "without_accepted_answer": 100}, metrics=metrics)
    assert "Left out of accuracy" not in render([lists]).html
