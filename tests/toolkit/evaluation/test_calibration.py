"""Calibration error, and the published figure beside it."""

from __future__ import annotations

import pytest

from soundingline.toolkit.evaluation.published import (
    calibration_error,
    calibration_error_published,
)


def test_one_bin_is_the_gap_of_mean_confidence_and_accuracy():
    # Mean confidence 60 %, one of four right: 25 %.
    assert calibration_error([30, 50, 70, 90], [True, False, False, False]) == pytest.approx(35)


def test_bins_of_sorted_confidences_are_averaged_by_size_in_squares():
    # Sorted: (10, wrong) (20, right) | (80, right) (90, wrong) (100, right).
    # Gaps: |.15 - .5| = .35 over 2, |.9 - 2/3| = .2333 over 3.
    error = calibration_error([90, 10, 100, 80, 20], [False, False, True, True, True], bin_size=2)
    assert error == pytest.approx(100 * ((2 * 0.35**2 + 3 * (0.9 - 2 / 3) ** 2) / 5) ** 0.5)


def test_perfectly_calibrated_answers_have_none():
    assert calibration_error([50] * 4, [True, False, True, False]) == 0
    assert calibration_error([100, 100, 0], [True, True, False], bin_size=1) == 0


def test_the_published_variant_misses_130_wrong_answers_at_full_confidence():
    # The case of the evaluator's fault: 700 answers at 0 % and wrong, 130 at 100 % and wrong.
    confidences, correct = [0.0] * 700 + [100.0] * 130, [False] * 830
    assert calibration_error_published(confidences, correct) == 0
    assert calibration_error(confidences, correct) == pytest.approx(100 * (130 / 830) ** 0.5)


def test_the_published_variant_keeps_dropped_answers_in_its_total():
    confidences, correct = [50.0] * 100 + [100.0] * 100, [False] * 100 + [True] * 100
    assert calibration_error_published(confidences, correct) == pytest.approx(
        100 * (0.25 * 100 / 200) ** 0.5
    )


def test_the_published_variant_is_zero_below_one_bin():
    assert calibration_error_published([50.0] * 99, [True] * 99) == 0


def test_calibration_without_answers_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        calibration_error([], [])


def test_confidences_that_differ_by_rounding_alone_are_ties():
    # Ties keep the order given: bins of (right, wrong) and (right, wrong).
    stated = [0.1 + 0.2, 0.3, 0.1 + 0.2, 0.3]
    assert calibration_error(stated, [True, False, True, False], bin_size=2) == pytest.approx(
        100 * (0.5 - 0.003)
    )
