"""Calibration error: how far stated confidence is from accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def calibration_error(
    confidences: Sequence[float], correct: Sequence[bool], bin_size: int = 100
) -> float:
    """Root mean squared gap of confidence and accuracy over bins, in per cent (0 to 100).

    Answers are sorted by confidence (0 to 100; ties keep the order given) and cut into bins of
    `bin_size`; the last bin takes the remainder, and every answer counts. This is the RMS
    calibration error with adaptive bins of Hendrycks et al. (2019). `ValueError` without answers.
    """
    if not confidences:
        raise ValueError("calibration needs at least one answer")
    return _error(confidences, correct, bin_size, skip_last=False)


def calibration_error_published(
    confidences: Sequence[float], correct: Sequence[bool], bin_size: int = 100
) -> float:
    """The figure that BrowseComp-Plus's evaluator gives for the same answers.

    It leaves the last, most confident bin out of the sum, but keeps its answers in the total:
    130 answers at full confidence, all wrong, give 0. Reported only beside the right one, for
    comparison with published tables. 0 below `bin_size` answers, as that evaluator has it.
    """
    if len(confidences) < bin_size:
        return 0.0
    return _error(confidences, correct, bin_size, skip_last=True)


def _error(
    confidences: Sequence[float], correct: Sequence[bool], bin_size: int, *, skip_last: bool
) -> float:
    stated = np.asarray(confidences, dtype=float) / 100
    right = np.asarray(correct, dtype=float)
    order = np.argsort(stated, kind="stable")
    total = 0.0
    bins = list(_bins(len(stated), bin_size))
    for start, end in bins[:-1] if skip_last else bins:
        rows = order[start:end]
        total += len(rows) * (stated[rows].mean() - right[rows].mean()) ** 2
    return float(100 * np.sqrt(total / len(stated)))


def _bins(count: int, bin_size: int) -> Iterable[tuple[int, int]]:
    starts = [index * bin_size for index in range(max(1, count // bin_size))]
    return zip(starts, [*starts[1:], count], strict=True)
