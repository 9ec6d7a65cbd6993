"""Figures: what they show, and that they stay text, themed, small and without side effects."""

from __future__ import annotations

import re
import warnings
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from report_cells import six_cells

from toolkit.report.figures import Interval, Spread, exposure, forest, funnel, spreads
from toolkit.report.tables import CellStyle

CELL = six_cells()[0]
LOOK = CellStyle(CELL, "document · bm25_default", 0)


def texts(svg: str) -> list[str]:
    return [e.text or "" for e in ElementTree.fromstring(svg).iter("text")]


def paths(svg: str, shade: str) -> list[list[tuple[float, float]]]:
    """Points of the lines that are drawn in a colour."""
    found = []
    for element in ElementTree.fromstring(svg).iter("path"):
        if f"stroke: var(--{shade})" in element.get("style", "") and "clip-path" in element.attrib:
            numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", element.get("d", ""))]
            found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found


def interval(value: float, **changes: object) -> Interval:
    given = Interval("B", "A", value, value - 0.1, value + 0.1, True, 3)
    return given._replace(**changes)


def test_a_forest_plot_names_both_cells_and_the_signed_difference() -> None:
    said = texts(forest([interval(0.15), interval(-0.05)], axis="difference in AP", key="f"))
    assert "B − A" in said and "+0.150" in said and "−0.050" in said
    assert "difference in AP" in said


def test_intervals_are_drawn_to_scale_around_a_common_zero() -> None:
    svg = forest([interval(0.2), interval(-0.2)], axis="d", key="f")
    first, second = paths(svg, "ink")
    zero = paths(svg, "muted")[0][0][0]
    assert first[0][0] - zero == pytest.approx(zero - second[1][0], abs=0.05)
    assert (first[1][0] - zero) / (first[0][0] - zero) == pytest.approx(3, abs=0.02)


def test_unresolved_differences_are_hollow() -> None:
    assert "fill: var(--paper)" not in forest([interval(0.2)], axis="d", key="f")
    assert "fill: var(--paper)" in forest([interval(0.2, resolved=False)], axis="d", key="f")


def test_a_funnel_prints_recall_and_documents_of_every_tier() -> None:
    said = texts(funnel(LOOK, CELL.funnel, key="f"))
    for tier, row in CELL.funnel["evidence"].items():
        assert tier in said
        assert f"{row['macro']:.3f} · {row['documents']:,.1f} docs" in said


def test_curves_rise_where_recall_does_and_stay_small_for_many_points() -> None:
    points = [(float(x), 1 - float(np.exp(-x / 500))) for x in range(1, 20001)]
    svg = exposure([(LOOK, points)], axis="documents", key="c")
    (line,) = [p for p in paths(svg, "k0") if len(p) > 2]
    assert [x for x, _ in line] == sorted(x for x, _ in line)
    assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)
    assert len(svg) < 20_000
    assert {"1", "10", "100", "1,000", "10,000"} <= set(texts(svg))


def test_a_curve_starts_where_something_is_first_found() -> None:
    points = [(1.0, 0.0), (10.0, 0.0), (100.0, 0.0), (1000.0, 0.3), (9000.0, 0.4)]
    said = texts(exposure([(LOOK, points)], axis="tokens", key="c"))
    assert "1,000" in said and "10" not in said


def test_a_curve_from_zero_exposure_and_one_of_a_single_point_are_drawn() -> None:
    for points in ([(0.0, 0.0), (5.0, 0.5)], [(1.0, 0.0)]):
        assert "<path" in exposure([(LOOK, points)], axis="documents", key="c")


def test_a_spread_tells_median_and_mean() -> None:
    svg = spreads([Spread(LOOK, [1, 2, 3, 10])], axis="search calls", key="s")
    assert "median 2.5 · mean 4.00" in texts(svg)


def test_calls_that_are_all_zero_are_drawn() -> None:
    assert "median 0 · mean 0.00" in texts(spreads([Spread(LOOK, [0, 0])], axis="c", key="s"))


def test_names_are_taken_literally_and_never_as_markup_or_formulas() -> None:
    odd = "a$_2$ <b> & 漢字"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = forest([interval(0.1, label=odd, against="")], axis=odd, key="f")
    assert texts(svg).count(odd) == 2
    assert "<b>" not in svg


def test_long_names_are_cut_to_two_lines_a_side() -> None:
    svg = forest([interval(0.1, label="x" * 400, against="y" * 400)], axis="d", key="f")
    lines = [text for text in texts(svg) if "xx" in text or "yy" in text or text == "…"]
    assert max(len(line) for line in lines) <= 46
    assert len(lines) <= 4


def test_colours_are_variables_of_the_page_and_the_font_is_its_own() -> None:
    svg = funnel(replace(LOOK, colour=3), CELL.funnel, key="f")
    assert "var(--k3)" in svg and "var(--ink)" in svg
    assert not re.search(r"#[0-9a-f]{6}", svg)
    assert "font-family" not in svg


def test_figures_with_other_keys_share_no_ids() -> None:
    ids = [
        set(re.findall(r' id="([^"]+)"', exposure([(LOOK, [(1.0, 0.1)])], axis="d", key=key)))
        for key in ("one", "two")
    ]
    assert ids[0] and not ids[0] & ids[1]


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    funnel(LOOK, CELL.funnel, key="f")
    assert dict(matplotlib.rcParams) == before
