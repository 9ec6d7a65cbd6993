"""The report on a tuning: the chosen parameters, its optimism, heat maps and the best points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from soundingline.toolkit.evaluation.grid import DEFAULT_POINT, GridPoint, point_settings
from soundingline.toolkit.evaluation.tuning import HeldOut, TuningResult, best_point, ordered_points
from soundingline.toolkit.report.measures import decimals, interval_text, probability, value_text
from soundingline.toolkit.report.page import (
    Column,
    Figure,
    Report,
    Section,
    Table,
    TableEntry,
    TextSpan,
    page,
    section,
    texts,
)
from soundingline.toolkit.report.plots import heat_map
from soundingline.toolkit.report.results import flat, measure_entry, settings_table

_TOP = 20


def render_tuning(
    result: TuningResult,
    *,
    title: str,
    splits: tuple[str, str],
    cutoffs: Sequence[int],
    manifest: Mapping[str, Any],
) -> Report:
    """Render the report on a tuning as HTML and as Markdown.

    Args:
        result: the tuning.
        title: the heading.
        splits: names of the questions that choose, and of those that are reported.
        cutoffs: depths whose recall `R@<cutoff>` is in the tables.
        manifest: the manifest of the command, for its settings and versions.
    """
    held_out = result.method == "held_out"
    settings = {"config": manifest.get("config", {})}
    settings |= {key: manifest.get(key) for key in ("created", "fingerprints", "versions", "git")}
    table = settings_table(flat(settings), folded="All settings and versions")
    sections = [
        _choices(result, splits),
        _planes(result, splits) if len(result.grid.planes) > 1 else None,
        _maps(result, splits[0], selecting=True),
        _maps(result, splits[1], selecting=False) if held_out else None,
        _depths(result, cutoffs, splits[1]) if cutoffs else None,
        _top(result, splits),
        section("setup", tables=[table]),
    ]
    grid = result.grid
    axes = ", ".join(_axis_text(name, getattr(grid, name)) for name in grid.names)
    subtitle = f"{len(grid):,} points of the grid {grid.name}: {axes}; objective {result.objective}"
    return page(title, subtitle, _summary(result, splits), [], sections)


def _axis_text(name: str, values: Sequence[float]) -> str:
    """`b 0.4`, or `3 values of b from 0.2 to 0.8`."""
    if len(values) == 1:
        return f"{name} {values[0]:g}"
    return f"{len(values)} values of {name} from {values[0]:g} to {values[-1]:g}"


def conclusion(result: TuningResult, splits: tuple[str, str]) -> str:
    """The report's first sentences as plain text."""
    return "".join(span.text for span in _summary(result, splits))


def point_text(point: GridPoint) -> str:
    """`k1 0.9, b 0.4`."""
    return ", ".join(f"{name} {value:g}" for name, value in point_settings(point).items())


def _summary(result: TuningResult, splits: tuple[str, str]) -> list[TextSpan]:
    choice, objective = result.choices[result.objective], result.objective
    optimism = value_text(choice.optimism, objective)
    if isinstance(choice, HeldOut):
        text = (
            f" is chosen by {objective} on {choice.selecting:,} questions ({splits[0]}). It has "
            f"{value_text(choice.chosen_value, objective)} on {choice.reported:,} other questions "
            f"({splits[1]}). A choice on these questions themselves would have reported "
            f"{value_text(choice.best_value, objective)} with "
            f"{point_text(result.points[choice.best])}: optimism {optimism}."
        )
    else:
        text = (
            f" is the best point by {objective} on all {choice.questions:,} questions, with "
            f"{value_text(choice.selected, objective)}. Chosen by cross-validation "
            f"({len(choice.folds)} folds, {result.method}), BM25 has "
            f"{value_text(choice.value, objective)}: optimism {optimism}."
        )
    gains = result.gains[objective]
    difference = "Difference" if isinstance(choice, HeldOut) else "Its difference"
    gain = next((gain for point, gain in gains.items() if point[:2] == DEFAULT_POINT), None)
    if gain is not None:
        text += (
            f" {difference} from the default: {value_text(gain.difference, objective, sign=True)}, "
            f"95% interval {interval_text(gain.low, gain.high, objective)}, "
            f"p {probability(gain.p)}."
        )
    others = int(result.plateaus[objective].inside.sum()) - 1
    text += (
        f" {others:,} of the {len(result.grid) - 1:,} other points do not differ significantly "
        "from it."
    )
    return [TextSpan(point_text(result.chosen()), True), TextSpan(text)]


def _choices(result: TuningResult, splits: tuple[str, str]) -> Section:
    """A row for the choice of each measure."""
    held_out = result.method == "held_out"
    rows = []
    for name, choice in result.choices.items():
        gains = {
            point_text(point): replace(
                entry := measure_entry(gain.difference, name, gain.low, gain.high, sign=True),
                sub=f"{entry.sub} p {probability(gain.p)}",
            )
            for point, gain in result.gains[name].items()
        }
        values = {"selected": choice.selected, "optimism": choice.optimism}
        best = ""
        if isinstance(choice, HeldOut):
            values |= {"reported": choice.chosen_value, "best": choice.best_value}
            best = point_text(result.points[choice.best])
        else:
            values["reported"] = choice.value
        rows.append(
            {
                "objective": TableEntry(name, mark="best" if name == result.objective else ""),
                "chosen point": point_text(result.points[choice.chosen]),
                "best point": best,
                "plateau": int(result.plateaus[name].inside.sum()),
                **{key: measure_entry(value, name) for key, value in values.items()},
                **gains,
            }
        )
    best_column = Column("best point", note=splits[1], numeric=False)
    gained = splits[1] if held_out else "cross-validated"
    shown = [
        *texts("objective", "chosen point"),
        Column("its value", "selected", note=splits[0]),
        Column("its value" if held_out else "cross-validated", "reported", note=splits[1]),
        *([best_column, Column("best value", "best", note=splits[1])] if held_out else []),
        Column("optimism"),
        Column("plateau", form=decimals(0), note=f"of {len(result.grid):,} points"),
        *(
            Column(f"gain over {point}", point, note=gained)
            for point in map(point_text, result.gains[result.objective])
        ),
    ]
    return section("choices", also=[] if held_out else ["folds"], tables=[Table(shown, rows)])


def _mean_columns(result: TuningResult, splits: tuple[str, str]) -> list[Column]:
    """The objective's mean at the `place` of a point: on the selecting and, if there are others, on
    the reported questions."""
    name = result.objective

    def mean(split: str, means: NDArray[Any]) -> Column:
        return Column(name, lambda row: measure_entry(means[row["place"]], name), note=split)

    both = mean(splits[0], result.means(name, selecting=True)), mean(splits[1], result.means(name))
    return list(both[: 1 + (result.method == "held_out")])


def _maps(result: TuningResult, split: str, *, selecting: bool) -> Section:
    """A heat map of each measure, in the plane of the chosen weight and tau."""
    grid, figures = result.grid, []
    for name, choice in result.choices.items():
        chosen = result.points[choice.chosen]
        plane = grid.planes.index(tuple(chosen[2:]))

        def square(values: NDArray[Any], plane: int = plane) -> NDArray[Any]:
            planes: NDArray[Any] = values.reshape(len(grid.planes), len(grid.k1), len(grid.b))
            return planes[plane]

        marks = {"default": DEFAULT_POINT, "chosen": (chosen[0], chosen[1])}
        if isinstance(choice, HeldOut) and not selecting:
            best = result.points[choice.best]
            if best[2:] == chosen[2:]:
                marks = {"best": (best[0], best[1]), **marks}  # below the others
        svg = heat_map(
            grid.k1,
            grid.b,
            square(result.means(name, selecting=selecting)),
            label=f"Heat map of {name} on {split}",
            marks=marks,
            outline=square(result.plateaus[name].inside) if selecting else None,
        )
        figures.append(Figure(svg, heading=name))
    anchor = "maps-chosen" if selecting else "maps-reported"
    return section(anchor, {"split": split}, figures=figures)


def _planes(result: TuningResult, splits: tuple[str, str]) -> Section:
    """The best k1 and b for each weight and tau."""
    name, grid = result.objective, result.grid
    size = len(grid.k1) * len(grid.b)
    values = result.selecting.of(name)
    rows = []
    for first, plane in zip(range(0, len(grid), size), grid.planes, strict=True):
        points = slice(first, first + size)
        best = first + best_point(values[:, points], grid.points[points])
        mark = "best" if plane == tuple(result.chosen()[2:]) else ""
        weight, tau = (TableEntry(value, f"{value:g}", mark=mark) for value in plane)
        point = point_text(result.points[best][:2])
        rows.append({"weight": weight, "tau": tau, "its k1, b": point, "place": best})
    within = Column("its k1, b", note=splits[0], numeric=False)
    return section(
        "enrichment",
        {"measure": name},
        tables=[
            Table([Column("weight"), Column("tau"), within, *_mean_columns(result, splits)], rows)
        ],
    )


def _depths(result: TuningResult, cutoffs: Sequence[int], split: str) -> Section:
    """Recall by depth of the chosen point, the references and the best point of each depth."""
    chosen = result.choices[result.objective].chosen
    references = map(list(result.points).index, result.gains[result.objective])
    names = [f"R@{cutoff}" for cutoff in cutoffs]
    rows: list[dict[str, TableEntry]] = []
    for place in dict.fromkeys([chosen, *references]):
        mark = "best" if place == chosen else ""
        values = {n: measure_entry(result.reported.of(n)[:, place].mean(), n) for n in names}
        rows.append({"point": TableEntry(point_text(result.points[place]), mark=mark), **values})
    rows.append({"point": TableEntry("best point of each depth")})
    for name in names:
        best = best_point(result.reported.of(name)[:, : len(result.grid)], result.grid.points)
        entry = measure_entry(result.means(name)[best], name)
        rows[-1][name] = replace(entry, sub=point_text(result.points[best]))
    return section(
        "depths",
        tables=[Table([*texts("point"), *(Column(name, note=split) for name in names)], rows)],
    )


def _top(result: TuningResult, splits: tuple[str, str]) -> Section:
    """The best points on the selecting questions."""
    name, grid, chosen = result.objective, result.grid, result.choices[result.objective].chosen
    order = ordered_points(result.selecting.of(name)[:, : len(grid)], grid.points)[:_TOP]
    p_values = result.plateaus[name].p_holm
    rows = [
        {
            "point": point_text(result.points[place]),
            "place": place,
            "p (Holm)": None if place == chosen else float(p_values[place]),
        }
        for place in order
    ]
    p_value = Column("p (Holm)", form=probability, note="compared with the chosen point")
    return section(
        "top",
        {"count": len(order), "measure": name, "split": splits[0]},
        tables=[Table([*texts("point"), *_mean_columns(result, splits), p_value], rows)],
    )
