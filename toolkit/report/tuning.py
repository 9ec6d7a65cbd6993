"""The report on a tuning: the chosen parameters, its optimism, heat maps and the best points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from soundingline.toolkit.evaluation.grid import DEFAULT_POINT, GridPoint, point_settings
from soundingline.toolkit.evaluation.tuning import (
    CrossValidated,
    HeldOut,
    TuningResult,
    best_point,
    ordered_points,
)
from soundingline.toolkit.report.measures import describe, interval_text, number, probability
from soundingline.toolkit.report.page import (
    Column,
    Figure,
    Report,
    Section,
    Table,
    TableEntry,
    TextSpan,
    page,
)
from soundingline.toolkit.report.plots import heat_map
from soundingline.toolkit.report.results import flat

_POINT = Column("point", numeric=False)
_TOP = 20


def render_tuning(
    result: TuningResult,
    *,
    title: str,
    splits: tuple[str, str],
    cutoffs: Sequence[int],
    manifest: Mapping[str, Any],
) -> Report:
    """Render the report on a tuning.

    Args:
        result: the tuning.
        title: the heading.
        splits: names of the questions on which the parameters are chosen, and of those on which
            the results are reported.
        cutoffs: depths whose recall `R@<cutoff>` is in the tables.
        manifest: the manifest of the command, for its settings and versions.

    Returns:
        The report as HTML and as Markdown.
    """
    held_out = result.method == "held_out"
    sections = [
        _choices(result, splits),
        *([_planes(result, splits)] if len(result.grid.planes) > 1 else []),
        _maps(result, splits, selecting=True),
        *([_maps(result, splits, selecting=False)] if held_out else []),
        *([_depths(result, cutoffs, splits)] if cutoffs else []),
        _top(result, splits),
        _setup(manifest),
    ]
    axes = []
    for name in result.grid.names:
        values = getattr(result.grid, name)
        single = f"{name} {values[0]:g}"
        many = f"{len(values)} values of {name} from {values[0]:g} to {values[-1]:g}"
        axes.append(single if len(values) == 1 else many)
    subtitle = (
        f"{len(result.grid):,} points of the grid {result.grid.name}: {', '.join(axes)}; objective "
        f"{result.objective}"
    )
    warnings = [
        "The parameters are chosen and reported on the same questions, so that the differences of "
        "the chosen point from others are too large. The cross-validated value is not affected."
    ]
    summary = _summary(result, splits)
    return page(title, subtitle, summary, [] if held_out else warnings, sections)


def described(point: GridPoint) -> str:
    """`k1 0.9, b 0.4`."""
    return ", ".join(f"{name} {value:g}" for name, value in point_settings(point).items())


def _summary(result: TuningResult, splits: tuple[str, str]) -> list[TextSpan]:
    choice, objective = result.choices[result.objective], result.objective
    digits = describe(objective).digits
    if isinstance(choice, HeldOut):
        text = (
            f" is chosen by {objective} on {choice.selecting:,} questions ({splits[0]}). It has "
            f"{number(choice.chosen_value, digits)} on {choice.reported:,} other questions "
            f"({splits[1]}). A choice on these questions themselves would have reported "
            f"{number(choice.best_value, digits)} with {described(result.points[choice.best])}: "
            f"optimism {number(choice.optimism, digits)}."
        )
    else:
        text = (
            f" is the best point by {objective} on all {choice.questions:,} questions, with "
            f"{number(choice.selected, digits)}. Chosen by cross-validation "
            f"({len(choice.folds)} folds, {result.method}), BM25 has "
            f"{number(choice.value, digits)}: optimism {number(choice.optimism, digits)}."
        )
    gains = result.gains[objective]
    gain = next((gain for point, gain in gains.items() if point[:2] == DEFAULT_POINT), None)
    if gain is not None:
        text += (
            f" Difference from the default: {number(gain.difference, digits, sign=True)}, 95% "
            f"interval {interval_text(gain.low, gain.high, digits)}, p {probability(gain.p)}."
        )
    others = int(result.plateaus[objective].inside.sum()) - 1
    text += (
        f" {others:,} of the {len(result.grid) - 1:,} other points do not differ significantly "
        "from it."
    )
    return [TextSpan(described(result.chosen()), True), TextSpan(text)]


def _choices(result: TuningResult, splits: tuple[str, str]) -> Section:
    held_out = result.method == "held_out"
    columns = [Column("objective", numeric=False), Column("chosen point", numeric=False)]
    columns += [Column("its value", splits[0])]
    columns += [Column("its value" if held_out else "cross-validated", splits[1])]
    if held_out:
        columns += [Column("best point", splits[1], numeric=False), Column("its value", splits[1])]
    columns += [Column("optimism"), Column("plateau", f"of {len(result.grid):,} points")]
    references = result.gains[result.objective]
    columns += [Column(f"gain over {described(point)}", splits[1]) for point in references]
    return Section(
        "choices",
        "The choice of each objective",
        lead="Optimism is the value of a choice on the reported questions themselves, minus the "
        "value that a choice on other questions has on them.",
        note="Gains are differences of means, with the 95% bootstrap interval in brackets, and the "
        "uncorrected p value of a paired randomisation test.",
        tables=[Table(columns, [_choice(result, *item) for item in result.choices.items()])],
    )


def _choice(result: TuningResult, name: str, choice: HeldOut | CrossValidated) -> list[TableEntry]:
    digits = describe(name).digits
    texts = [described(result.points[choice.chosen]), number(choice.selected, digits)]
    if isinstance(choice, HeldOut):
        texts += [
            number(choice.chosen_value, digits),
            described(result.points[choice.best]),
            number(choice.best_value, digits),
        ]
    else:
        texts.append(number(choice.value, digits))
    texts += [number(choice.optimism, digits), f"{int(result.plateaus[name].inside.sum()):,}"]
    row = [TableEntry(name, mark="best" if name == result.objective else "")]
    row += map(TableEntry, texts)
    for gain in result.gains[name].values():
        sub = f"{interval_text(gain.low, gain.high, digits)} p {probability(gain.p)}"
        row.append(TableEntry(number(gain.difference, digits, sign=True), sub=sub))
    return row


def _maps(result: TuningResult, splits: tuple[str, str], *, selecting: bool) -> Section:
    side = splits[0] if selecting else splits[1]
    figures = []
    for name, choice in result.choices.items():
        chosen = result.points[choice.chosen]
        marks = {"default": DEFAULT_POINT, "chosen": (chosen[0], chosen[1])}
        if isinstance(choice, HeldOut) and not selecting:
            best = result.points[choice.best]
            if best[2:] == chosen[2:]:
                marks = {"best": (best[0], best[1]), **marks}  # below the others
        plateau = _square(result, result.plateaus[name].inside, choice.chosen)
        svg = heat_map(
            result.grid.k1,
            result.grid.b,
            _square(result, result.means(name, selecting=selecting), choice.chosen),
            label=f"Heat map of {name} on {side}",
            marks=marks,
            outline=plateau if selecting else None,
        )
        figures.append(Figure(svg, heading=name))
    key = "✖ default (k1 0.9, b 0.4), ★ chosen"
    if selecting:
        key += (
            ". The line surrounds the plateau: points that do not differ significantly from the "
            "chosen one in a paired test with Holm’s correction."
        )
    else:
        key += ", ○ best on these questions themselves."
    lead = "Mean of each measure at every point of the grid. Each map has its own colour scale."
    anchor = "maps-chosen" if selecting else "maps-reported"
    return Section(anchor, f"Heat maps, {side}", lead=lead, figures=figures, key=key)


def _square(result: TuningResult, values: NDArray[Any], chosen: int) -> NDArray[Any]:
    """Values of shape [k1, b] in the plane of the chosen weight and tau."""
    grid = result.grid
    plane = grid.planes.index(tuple(result.points[chosen][2:]))
    planes: NDArray[Any] = values.reshape(len(grid.planes), len(grid.k1), len(grid.b))
    return planes[plane]


def _planes(result: TuningResult, splits: tuple[str, str]) -> Section:
    """The best k1 and b for each weight and tau."""
    name, grid = result.objective, result.grid
    digits = describe(name).digits
    held_out = result.method == "held_out"
    size = len(grid.k1) * len(grid.b)
    selecting, reported = result.means(name, selecting=True), result.means(name)
    values = result.selecting.of(name)[:, : len(grid)]
    rows = []
    for first, plane in zip(range(0, len(grid), size), grid.planes, strict=True):
        points = slice(first, first + size)
        best = first + best_point(values[:, points], grid.points[points])
        mark = "best" if plane == tuple(result.chosen()[2:]) else ""
        row = [TableEntry(f"{value:g}", mark=mark) for value in plane]
        row.append(TableEntry(described(result.points[best][:2])))
        row.append(TableEntry(number(float(selecting[best]), digits)))
        if held_out:
            row.append(TableEntry(number(float(reported[best]), digits)))
        rows.append(row)
    columns = [Column("weight"), Column("tau"), Column("its k1, b", splits[0], numeric=False)]
    columns += [Column(name, split) for split in splits[: 1 + held_out]]
    return Section(
        "enrichment",
        "Weight and tau",
        lead="For each weight of the expansion and each limit tau of the filters, the k1 and b "
        f"that are best by {name} on the selecting questions. Weight 0 is the query without "
        "expansion.",
        note="Bold: chosen. The heat maps are those of the chosen weight and tau.",
        tables=[Table(columns, rows)],
    )


def _depths(result: TuningResult, cutoffs: Sequence[int], splits: tuple[str, str]) -> Section:
    """Recall by depth of the chosen point, the references and the best point of each depth."""
    grid, names = result.grid, [f"R@{cutoff}" for cutoff in cutoffs]
    digits = describe(names[0]).digits
    chosen = result.choices[result.objective].chosen
    references = map(list(result.points).index, result.gains[result.objective])
    rows = []
    for place in dict.fromkeys([chosen, *references]):
        values = (float(result.reported.of(name)[:, place].mean()) for name in names)
        mark = "best" if place == chosen else ""
        entries = (TableEntry(number(value, digits)) for value in values)
        rows.append([TableEntry(described(result.points[place]), mark=mark), *entries])
    row = [TableEntry("best point of each depth")]
    for name in names:
        best = best_point(result.reported.of(name)[:, : len(grid)], grid.points)
        value = number(float(result.means(name)[best]), digits)
        row.append(TableEntry(value, sub=described(result.points[best])))
    return Section(
        "depths",
        "Recall by depth",
        lead="The best point of a depth is chosen on the reported questions themselves, so that "
        "its recall is optimistic.",
        tables=[Table([_POINT, *(Column(name, splits[1]) for name in names)], [*rows, row])],
    )


def _top(result: TuningResult, splits: tuple[str, str]) -> Section:
    name, digits = result.objective, describe(result.objective).digits
    held_out, plateau = result.method == "held_out", result.plateaus[result.objective]
    sides = [result.means(name, selecting=True), *([result.means(name)] if held_out else [])]
    points = len(sides[0])
    order = ordered_points(result.selecting.of(name)[:, :points], result.grid.points)[:_TOP]
    rows = []
    for place in order:
        row = [TableEntry(described(result.points[place]))]
        row += [TableEntry(number(float(means[place]), digits)) for means in sides]
        is_chosen = place == result.choices[name].chosen
        row.append(TableEntry("—" if is_chosen else probability(float(plateau.p_holm[place]))))
        rows.append(row)
    columns = [_POINT, *(Column(name, split) for split in splits[: len(sides)])]
    columns.append(Column("p (Holm)", "compared with the chosen point"))
    return Section(
        "top",
        f"The {len(order)} best points by {name}",
        lead=f"Paired t-tests over the selecting questions ({splits[0]}).",
        tables=[Table(columns, rows)],
    )


def _setup(manifest: Mapping[str, Any]) -> Section:
    parts = {"config": manifest.get("config", {})}
    parts |= {key: manifest.get(key) for key in ("created", "fingerprints", "versions", "git")}
    columns = [Column("setting", numeric=False), Column("value", numeric=False)]
    rows = [[TableEntry(key), TableEntry(value or "—")] for key, value in flat(parts).items()]
    table = Table(columns, rows, folded="All settings and versions")
    return Section("setup", "Setup", tables=[table])
