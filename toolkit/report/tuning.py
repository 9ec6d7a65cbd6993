"""The report on a tuning: the choice in words, its optimism, heat maps, depths, the best cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.evaluation.tuning import DEFAULT_CELL, CrossValidated, HeldOut, Study, best_cell, named
from toolkit.evaluation.tuning.ranks import GridPoint
from toolkit.report.heatmaps import Mark, heat_map
from toolkit.report.measures import describe, number, probability
from toolkit.report.page import Report, page
from toolkit.report.provenance import flat
from toolkit.report.results import interval_text
from toolkit.report.tables import Column, Entry, Figure, Section, Span, Table

_TOP = 20


def render_tuning(
    result: Study,
    *,
    title: str,
    splits: tuple[str, str],
    cutoffs: Sequence[int],
    manifest: Mapping[str, Any],
) -> Report:
    """The report on `result`. `splits` names the questions that choose and those reported;
    `cutoffs` are the depths whose recall `R@<cutoff>` is in the tables."""
    sections = [
        _choices(result, splits),
        *([_planes(result, splits)] if len(result.grid.planes) > 1 else []),
        _maps(result, splits, selecting=True),
        *([_maps(result, splits, selecting=False)] if result.method == "held_out" else []),
        *([_depths(result, cutoffs, splits)] if cutoffs else []),
        _top(result, splits),
        _setup(manifest),
    ]
    grid = result.grid
    shown = ", ".join(_axis(name, getattr(grid, name)) for name in grid.names)
    subtitle = f"{len(grid):,} cells of the grid {grid.name}: {shown}; objective {result.objective}"
    return page(title, subtitle, _verdict(result, splits), _notes(result), sections)


def _axis(name: str, values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{name} {values[0]:g}"
    return f"{len(values)} {name} from {values[0]:g} to {values[-1]:g}"


def described(cell: GridPoint) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in named(cell).items())


def _verdict(result: Study, splits: tuple[str, str]) -> list[Span]:
    choice, objective = result.choices[result.objective], result.objective
    digits = describe(objective).digits
    spans = [Span(described(result.chosen()), True)]
    if isinstance(choice, HeldOut):
        spans.append(
            Span(
                f" is chosen by {objective} on {choice.selecting:,} questions ({splits[0]}), and "
                f"reaches {number(choice.chosen_value, digits)} on {choice.reported:,} others "
                f"({splits[1]}). Choosing on those themselves would have claimed "
                f"{number(choice.best_value, digits)} with {described(result.cells[choice.best])}: "
                f"optimism {number(choice.optimism, digits)}."
            )
        )
    else:
        spans.append(
            Span(
                f" is the best cell by {objective} on all {choice.questions:,} questions, with "
                f"{number(choice.selected, digits)}. Chosen without the questions that it is "
                f"measured on ({len(choice.folds)} folds, {result.method}), BM25 reaches "
                f"{number(choice.value, digits)}: optimism {number(choice.optimism, digits)}."
            )
        )
    gains = result.gains[objective]
    gain = next((gain for cell, gain in gains.items() if cell[:2] == DEFAULT_CELL), None)
    if gain is not None:
        spans.append(
            Span(
                f" Against the default: {number(gain.difference, digits, sign=True)}, 95% interval "
                f"{interval_text(gain.low, gain.high, digits)}, p {probability(gain.p)}."
            )
        )
    others = int(result.plateaus[objective].inside.sum()) - 1
    spans.append(
        Span(
            f" {others:,} of the {len(result.grid) - 1:,} other cells cannot be distinguished"
            " from it."
        )
    )
    return spans


def _notes(result: Study) -> list[str]:
    if result.method == "held_out":
        return []
    return [
        "One split chose and is reported: the chosen cell has seen these questions, and its "
        "differences to other cells are too high. Trust the cross-validated value."
    ]


def _choices(result: Study, splits: tuple[str, str]) -> Section:
    across = result.method != "held_out"
    columns = [Column("objective", numeric=False), Column("chosen cell", numeric=False)]
    columns += [Column("its value", splits[0])]
    columns += [Column("cross-validated" if across else "its value", splits[1])]
    if not across:
        columns += [Column("best cell", splits[1], numeric=False), Column("its value", splits[1])]
    columns += [Column("optimism"), Column("plateau", f"of {len(result.grid):,} cells")]
    columns += [Column(f"gain on {described(cell)}", splits[1]) for cell in _references(result)]
    rows = [_choice(result, name, choice) for name, choice in result.choices.items()]
    return Section(
        "choices",
        "What each objective chooses",
        lead="Optimism is what choosing on the reported questions would have claimed, less what "
        "choosing elsewhere reaches on them.",
        note="Gains: difference of means, in brackets the 95% bootstrap interval, and the p value "
        "of a paired randomisation test, not corrected.",
        tables=[Table(columns, rows)],
    )


def _references(result: Study) -> list[GridPoint]:
    return list(result.gains[result.objective])


def _choice(result: Study, name: str, choice: HeldOut | CrossValidated) -> list[Entry]:
    digits = describe(name).digits
    row = [
        Entry(name, mark="best" if name == result.objective else ""),
        Entry(described(result.cells[choice.chosen])),
        Entry(number(choice.selected, digits)),
    ]
    if isinstance(choice, HeldOut):
        row += [
            Entry(number(choice.chosen_value, digits)),
            Entry(described(result.cells[choice.best])),
            Entry(number(choice.best_value, digits)),
        ]
    else:
        row.append(Entry(number(choice.value, digits)))
    row += [
        Entry(number(choice.optimism, digits)),
        Entry(f"{int(result.plateaus[name].inside.sum()):,}"),
    ]
    for gain in result.gains[name].values():
        sub = f"{interval_text(gain.low, gain.high, digits)} p {probability(gain.p)}"
        row.append(Entry(number(gain.difference, digits, sign=True), sub=sub))
    return row


def _maps(result: Study, splits: tuple[str, str], *, selecting: bool) -> Section:
    side = splits[0] if selecting else splits[1]
    figures = [
        _map(result, name, side, f"{'s' if selecting else 'r'}{number}", selecting=selecting)
        for number, name in enumerate(result.choices)
    ]
    lead = "Mean of each measure in every cell, each map with a colour scale of its own."
    key = "✖ default (k1 0.9, b 0.4), ★ chosen"
    if selecting:
        key += (
            ". The line frames the plateau: cells that a paired test with Holm’s correction does "
            "not distinguish from the chosen one."
        )
    else:
        key += ", ○ best on these questions themselves."
    anchor = "maps-chosen" if selecting else "maps-reported"
    return Section(anchor, f"Heat maps, {side}", lead=lead, figures=figures, key=key)


def _map(result: Study, name: str, split: str, key: str, *, selecting: bool) -> Figure:
    choice = result.choices[name]
    chosen = result.cells[choice.chosen]
    marks = [Mark("default", *DEFAULT_CELL), Mark("chosen", *chosen[:2])]
    if isinstance(choice, HeldOut) and not selecting:
        best = result.cells[choice.best]
        if best[2:] == chosen[2:]:
            marks.insert(0, Mark("best", *best[:2]))
    svg = heat_map(
        result.grid.k1,
        result.grid.b,
        _square(result, result.means(name, selecting=selecting), choice.chosen),
        key=key,
        label=f"Heat map of {name} on {split}",
        marks=marks,
        outline=_square(result, result.plateaus[name].inside, choice.chosen) if selecting else None,
    )
    return Figure(svg, heading=name)


def _square(result: Study, values: NDArray[Any], chosen: int) -> NDArray[Any]:
    """Values [k1, b] in the plane of the chosen weight and tau, if there are any."""
    grid = result.grid
    plane = grid.planes.index(tuple(result.cells[chosen][2:]))
    planes: NDArray[Any] = values.reshape(len(grid.planes), len(grid.k1), len(grid.b))
    return planes[plane]


def _planes(result: Study, splits: tuple[str, str]) -> Section:
    """What each weight and tau reaches, with the (k1, b) that the selecting questions choose."""
    name, grid = result.objective, result.grid
    digits = describe(name).digits
    held_out = result.method == "held_out"
    size = len(grid.k1) * len(grid.b)
    selecting, reported = result.means(name, selecting=True), result.means(name)
    values = result.selecting.of(name)[:, : len(grid)]
    chosen_plane = tuple(result.chosen()[2:])
    columns = [Column("weight"), Column("tau"), Column("its k1, b", splits[0], numeric=False)]
    columns += [Column(name, splits[0])]
    columns += [Column(name, splits[1])] if held_out else []
    rows = []
    for number_of, plane in enumerate(grid.planes):
        first = number_of * size
        cells = grid.cells[first : first + size]
        cell = first + best_cell(values[:, first : first + size], cells)
        mark = "best" if plane == chosen_plane else ""
        row = [Entry(f"{value:g}", mark=mark) for value in plane]
        row.append(Entry(described(result.cells[cell][:2])))
        row.append(Entry(number(float(selecting[cell]), digits)))
        if held_out:
            row.append(Entry(number(float(reported[cell]), digits)))
        rows.append(row)
    return Section(
        "enrichment",
        "Weight and tau",
        lead="For each weight of the expansion and each limit of the filters the (k1, b) that is "
        f"best by {name} on the questions that choose. Weight 0 is the query without expansion.",
        note="Bold: chosen. Heat maps show the plane of the chosen weight and tau.",
        tables=[Table(columns, rows)],
    )


def _depths(result: Study, cutoffs: Sequence[int], splits: tuple[str, str]) -> Section:
    """Recall by depth: the third axis of the grid."""
    names = [f"R@{cutoff}" for cutoff in cutoffs]
    chosen = result.choices[result.objective].chosen
    cells = list(dict.fromkeys([chosen, *map(list(result.cells).index, _references(result))]))
    best = [int(np.argmax(result.means(name))) for name in names]
    columns = [Column("cell", numeric=False), *(Column(name, splits[1]) for name in names)]
    rows = []
    for cell in cells:
        mark = "best" if cell == chosen else ""
        values = [float(result.reported.of(name)[:, cell].mean()) for name in names]
        rows.append([Entry(described(result.cells[cell]), mark=mark)])
        rows[-1] += [Entry(number(value, describe(names[0]).digits)) for value in values]
    rows.append([Entry("best cell of each depth")])
    rows[-1] += [
        Entry(
            number(float(result.means(name).max()), describe(name).digits),
            sub=described(result.cells[cell]),
        )
        for name, cell in zip(names, best, strict=True)
    ]
    return Section(
        "depths",
        "Recall by depth",
        lead="All depths come from the same pass. The best cell of a depth is best on the reported "
        "questions themselves, and so optimistic.",
        tables=[Table(columns, rows)],
    )


def _top(result: Study, splits: tuple[str, str]) -> Section:
    name, digits = result.objective, describe(result.objective).digits
    means, others = result.means(name, selecting=True), result.means(name)
    order = np.argsort(-means, kind="stable")[:_TOP]
    columns = [Column("cell", numeric=False), Column(name, splits[0])]
    if result.method == "held_out":
        columns.append(Column(name, splits[1]))
    columns.append(Column("p (Holm)", "against the chosen cell"))
    rows = []
    for cell in order.tolist():
        row = [Entry(described(result.cells[cell])), Entry(number(float(means[cell]), digits))]
        if result.method == "held_out":
            row.append(Entry(number(float(others[cell]), digits)))
        p = float(result.plateaus[name].p_holm[cell])
        is_chosen = cell == result.choices[name].chosen
        row.append(Entry("—" if is_chosen else probability(p)))
        rows.append(row)
    test = result.plateaus[name].test
    return Section(
        "top",
        f"The {len(order)} best cells by {name}",
        lead=f"Paired {'t-tests' if test == 't' else 'randomisation tests'} over the questions "
        f"({splits[0]}) that chose.",
        tables=[Table(columns, rows)],
    )


def _setup(manifest: Mapping[str, Any]) -> Section:
    names = ("created", "fingerprints", "versions", "git")
    parts = {"config": manifest.get("config", {})} | {k: manifest.get(k) for k in names}
    columns = [Column("setting", numeric=False), Column("value", numeric=False)]
    rows = [[Entry(key), Entry(value or "—")] for key, value in flat(parts).items()]
    return Section(
        "setup", "Setup", tables=[Table(columns, rows, folded="All settings and versions")]
    )
