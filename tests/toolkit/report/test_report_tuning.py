"""Heat maps and the report on a tuning."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from toolkit.evaluation.tuning import Grid, MeasureTable, Study, study
from toolkit.report.heatmaps import Mark, heat_map
from toolkit.report.tuning import render_tuning

K1, B = [0.5, 1.0, 2.0, 4.0], [0.0, 0.5, 1.0]
VALUES = np.arange(12.0).reshape(4, 3) / 20


def drawn(**more: Any) -> str:
    return heat_map(K1, B, VALUES, key="m0", label="Heat map", **more)


def test_a_heat_map_shows_its_lowest_and_highest_value_and_its_axes() -> None:
    svg = drawn()
    assert ">0.000<" in svg
    assert ">0.550<" in svg
    assert all(f">{k1:g}<" in svg for k1 in K1)
    assert svg == drawn()


def test_marks_lie_between_cells_and_not_outside_the_grid() -> None:
    plain, inside = drawn(), drawn(marks=[Mark("default", 0.9, 0.4)])
    assert len(inside) > len(plain)
    assert drawn(marks=[Mark("default", 25.0, 1.0)]) == plain
    places = [
        [float(x) for x in re.findall(r'<use [^>]*x="([\d.]+)"', drawn(marks=[Mark(*mark)]))][-1]
        for mark in (("chosen", 0.5, 0.5), ("chosen", 0.75, 0.5), ("chosen", 1.0, 0.5))
    ]
    # A k1 midway between two columns is drawn midway, whatever the steps.
    assert places[1] == pytest.approx((places[0] + places[2]) / 2, abs=0.02)


def test_only_a_plateau_is_framed() -> None:
    none, some = np.zeros((4, 3), bool), VALUES > 0.3
    assert len(drawn(outline=some)) > len(drawn(outline=none))


def test_a_constant_map_is_drawn() -> None:
    svg = heat_map(K1, B, np.full((4, 3), 0.25), key="m", label="x")
    assert svg.count(">0.250<") == 2


def tuned(method: str) -> Study:
    rng = np.random.default_rng(0)
    grid = Grid(K1, B, "tiny")
    cells = [*grid.cells, (0.9, 0.4)]
    names = ["nDCG@10", "R@5"]
    sides = [
        MeasureTable(names, [f"{side}{n}" for n in range(9)], cells, rng.random((2, 9, 13)))
        for side in "ab"
    ]
    selecting = sides[0] if method == "held_out" else sides[1]
    return study(
        grid, "nDCG@10", selecting, sides[1], references=[(0.9, 0.4)], method=method, folds=3
    )


@pytest.mark.parametrize(("method", "maps"), [("held_out", 4), ("kfold", 2)])
def test_the_report_tells_choice_optimism_and_plateau_and_needs_no_network(
    method: str, maps: int
) -> None:
    found = tuned(method)
    made = render_tuning(
        found, title="T", splits=("dev", "test"), cutoffs=[5], manifest={"config": {"a": 1}}
    )
    k1, b = found.chosen()
    optimism = f"{found.choices['nDCG@10'].optimism:.4f}"
    for text in (made.html, made.markdown):
        assert f"k1 {k1:g}, b {b:g}" in text
        assert f"optimism {optimism}" in text
        assert "other cells cannot be distinguished from it" in text
    assert made.html.count("<svg") == maps
    assert not re.search(r"(src|href)=\"(?!#|data:)", made.html)
    assert len(set(re.findall(r' id="([^"]+)"', made.html))) == made.html.count(' id="')
    warned = "has seen these questions" in made.html
    assert warned == (method == "kfold")
