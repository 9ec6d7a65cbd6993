"""Figures and heat maps, and the report on a tuning: what they show, and that they load nothing."""

import re
import warnings
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from report_runs import six_runs

from soundingline.toolkit.evaluation.tuning import Grid, MeasureTable, tune
from soundingline.toolkit.report.page import COLOURS, RunStyle
from soundingline.toolkit.report.plots import (
    INK,
    MUTED,
    PAPER,
    ForestPanel,
    exposure,
    forest,
    funnel,
    heat_map,
    spreads,
)
from soundingline.toolkit.report.tuning import render_tuning

RUN = six_runs()[0]
LOOK = RunStyle(RUN, "document · bm25_default", 0)


def texts(svg):
    return [e.text or "" for e in ElementTree.fromstring(svg).iter("text")]


def paths(svg, shade):
    """Points of the lines that are drawn in a colour."""
    found = []
    for element in ElementTree.fromstring(svg).iter("path"):
        if f"stroke: {shade}" in element.get("style", "") and "clip-path" in element.attrib:
            numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", element.get("d", ""))]
            found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found


def drawn(*values, label="B − A", significant=True, axis="d"):
    rows = [(value, value - 0.1, value + 0.1) for value in values]
    labels, filled = [label] * len(values), [significant] * len(values)
    return forest(labels, [ForestPanel(axis, rows, filled, 3)])


def test_intervals_are_drawn_to_scale_around_a_common_zero():
    svg = drawn(0.2, -0.2)
    first, second = paths(svg, INK)
    zero = paths(svg, MUTED)[0][0][0]
    assert first[0][0] - zero == pytest.approx(zero - second[1][0], abs=0.05)
    assert (first[1][0] - zero) / (first[0][0] - zero) == pytest.approx(3, abs=0.02)


def test_panels_share_their_rows_and_have_axes_of_their_own():
    values = [(0.1, 0.0, 0.2), (-0.1, -0.2, 0.0)]
    panels = [
        ForestPanel("difference in accuracy", values, [True, True], 3),
        ForestPanel("difference in nDCG", [(5.0, 4.0, 6.0), (-5.0, -6.0, -4.0)], [True, True], 1),
    ]
    svg = forest(["unit: passage", "tool: top_k"], panels, ("dollars", ["0.12", "0.34"]))
    shown = texts(svg)
    assert {"+0.100", "−0.100", "+5.0", "−5.0", "0.12", "0.34", "dollars"} <= set(shown)
    assert {"difference in accuracy", "difference in nDCG"} <= set(shown)
    assert shown.count("unit: passage") == 1
    lines = [line for line in paths(svg, INK) if len(line) == 2]
    first, second = lines[:2], lines[2:4]
    assert [line[0][1] for line in first] == [line[0][1] for line in second]
    assert max(x for line in first for x, _ in line) < min(x for line in second for x, _ in line)


def test_differences_that_are_not_significant_are_hollow():
    hollow = f"fill: {PAPER}; stroke: {MUTED}"
    assert hollow not in drawn(0.2)
    assert hollow in drawn(0.2, significant=False)


def test_a_funnel_prints_recall_and_documents_of_every_tier():
    said = texts(funnel(LOOK, RUN.funnel))
    for tier, row in RUN.funnel["evidence"].items():
        assert tier in said
        assert f"{row['macro']:.3f} · {row['documents']:,.1f} docs" in said


def test_curves_rise_where_recall_does_and_stay_small_for_many_points():
    points = [(float(x), 1 - float(np.exp(-x / 500))) for x in range(1, 20001)]
    svg = exposure([(LOOK, points)], axis="documents")
    (line,) = [p for p in paths(svg, COLOURS[0]) if len(p) > 2]
    assert [x for x, _ in line] == sorted(x for x, _ in line)
    assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)
    assert len(svg) < 20_000
    assert {"1", "10", "100", "1,000", "10,000"} <= set(texts(svg))


def test_a_curve_starts_where_something_is_first_found():
    points = [(1.0, 0.0), (10.0, 0.0), (100.0, 0.0), (1000.0, 0.3), (9000.0, 0.4)]
    said = texts(exposure([(LOOK, points)], axis="tokens"))
    assert "1,000" in said and "10" not in said
    for few in ([(0.0, 0.0), (5.0, 0.5)], [(1.0, 0.0)], [(0.0, 0.0)]):
        assert "<path" in exposure([(LOOK, few)], axis="documents")


@pytest.mark.parametrize(
    ("values", "text"),
    [([1, 2, 3, 10], "median 2.5 · mean 4.00"), ([0, 0], "median 0 · mean 0.00")],
)
def test_a_spread_prints_median_and_mean(values, text):
    assert text in texts(spreads([(LOOK, values)], axis="search calls"))


def test_names_are_taken_literally_and_never_as_markup_or_formulas():
    odd = "a$_2$ <b> & 漢字"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = drawn(0.1, label=odd, axis=odd)
    assert texts(svg).count(odd) == 2
    assert "<b>" not in svg


def test_long_names_are_cut_to_two_lines_a_side():
    svg = drawn(0.1, label="x" * 400 + "\n− " + "y" * 400)
    lines = [text for text in texts(svg) if "xx" in text or "yy" in text or text == "…"]
    assert max(len(line) for line in lines) <= 46
    assert len(lines) <= 4


def test_runs_have_their_colour_on_a_light_background_in_the_font_of_the_page():
    before = dict(matplotlib.rcParams)
    svg = funnel(replace(LOOK, colour=3), RUN.funnel)
    assert f"fill: {COLOURS[3]}" in svg and f"fill: {PAPER}" in svg
    assert "font-family" not in svg
    assert dict(matplotlib.rcParams) == before


def test_figures_with_other_labels_share_no_ids():
    ids = [
        set(re.findall(r' id="([^"]+)"', exposure([(LOOK, [(1.0, 0.1)])], axis=axis)))
        for axis in ("one", "two")
    ]
    assert ids[0] and not ids[0] & ids[1]


K1, B = [0.5, 1.0, 2.0, 4.0], [0.0, 0.5, 1.0]
VALUES = np.arange(12.0).reshape(4, 3) / 20


def heat_map_of(**more):
    return heat_map(K1, B, VALUES, label="Heat map", **more)


def test_a_heat_map_shows_its_lowest_and_highest_value_and_its_axes_and_a_plateau():
    svg = heat_map_of()
    assert ">0.000<" in svg and ">0.550<" in svg
    assert all(f">{k1:g}<" in svg for k1 in K1)
    assert svg == heat_map_of(outline=np.zeros((4, 3), bool))
    assert len(heat_map_of(outline=VALUES > 0.3)) > len(svg)
    assert heat_map(K1, B, np.full((4, 3), 0.25), label="x").count(">0.250<") == 2


def test_marks_lie_between_points_and_not_outside_the_grid():
    plain, inside = heat_map_of(), heat_map_of(marks={"default": (0.9, 0.4)})
    assert len(inside) > len(plain)
    assert heat_map_of(marks={"default": (25.0, 1.0)}) == plain
    places = [
        [
            float(x)
            for x in re.findall(r'<use [^>]*x="([\d.]+)"', heat_map_of(marks={"chosen": (k1, 0.5)}))
        ][-1]
        for k1 in (0.5, 0.75, 1.0)
    ]
    # A k1 midway between two columns is drawn midway, whatever the steps.
    assert places[1] == pytest.approx((places[0] + places[2]) / 2, abs=0.02)


def tuned(method):
    rng = np.random.default_rng(0)
    grid = Grid(K1, B, "tiny")
    points = [*grid.points, (0.9, 0.4)]
    names = ["nDCG@10", "R@5"]
    sides = [
        MeasureTable(names, [f"{side}{n}" for n in range(9)], points, rng.random((2, 9, 13)))
        for side in "ab"
    ]
    selecting = sides[0] if method == "held_out" else sides[1]
    folds = None if method == "held_out" else 3
    return tune(grid, "nDCG@10", selecting, sides[1], references=[(0.9, 0.4)], folds=folds)


@pytest.mark.parametrize(("method", "maps"), [("held_out", 4), ("kfold", 2)])
def test_the_report_has_choice_optimism_and_plateau_and_needs_no_network(method, maps):
    found = tuned(method)
    made = render_tuning(
        found, title="T", splits=("dev", "test"), cutoffs=[5], manifest={"config": {"a": 1}}
    )
    k1, b = found.chosen()
    optimism = f"{found.choices['nDCG@10'].optimism:.4f}"
    for text in (made.html, made.markdown):
        assert f"k1 {k1:g}, b {b:g}" in text
        assert f"optimism {optimism}" in text
        assert "other points do not differ significantly from it" in text
    assert made.html.count("<svg") == maps
    assert not re.search(r"(src|href)=\"(?!#|data:)", made.html)
    assert len(set(re.findall(r' id="([^"]+)"', made.html))) == made.html.count(' id="')
    held = "Each question counts at the point chosen without its fold" in made.html
    assert held == (method == "kfold")
