"""The report on a tuning: the choice in words, its optimism, heat maps, depths, the best cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.evaluation.tuning import DEFAULT_CELL, CrossValidated, HeldOut, Study
from toolkit.evaluation.tuning.ranks import GridPoint
from toolkit.report.heatmaps import Mark, heat_map
from toolkit.report.measures import describe, number, probability
from toolkit.report.page import Report, page
from toolkit.report.provenance import flat
from toolkit.report.results import interval_text
from toolkit.report.tables import Column, Entry, Figure, Section, Span, Table

_TOP = 20


def render_tuning(
    found: Study,
    *,
    title: str,
    splits: tuple[str, str],
    cutoffs: Sequence[int],
    manifest: Mapping[str, Any],
) -> Report:
    """The report on `found`. `splits` names the questions that choose and those reported;
    `cutoffs` are the depths whose recall `R@<cutoff>` is in the tables."""
    sections = [
        _choices(found, splits),
        _maps(found, splits, selecting=True),
        *([_maps(found, splits, selecting=False)] if found.method == "held_out" else []),
        *([_depths(found, cutoffs, splits)] if cutoffs else []),
        _top(found, splits),
        _setup(manifest),
    ]
    grid = found.grid
    subtitle = (
        f"{len(grid):,} cells of the grid {grid.name}: {len(grid.k1)} k1 from {grid.k1[0]:g} to "
        f"{grid.k1[-1]:g}, {len(grid.b)} b from {grid.b[0]:g} to {grid.b[-1]:g}; "
        f"objective {found.objective}"
    )
    return page(title, subtitle, _verdict(found, splits), _notes(found), sections)


def setting(cell: GridPoint) -> str:
    return f"k1 {cell[0]:g}, b {cell[1]:g}"


def _verdict(found: Study, splits: tuple[str, str]) -> list[Span]:
    choice, objective = found.choices[found.objective], found.objective
    digits = describe(objective).digits
    said = [Span(setting(found.chosen()), True)]
    if isinstance(choice, HeldOut):
        said.append(
            Span(
                f" is chosen by {objective} on {choice.selecting:,} questions ({splits[0]}), and "
                f"reaches {number(choice.chosen_value, digits)} on {choice.reported:,} others "
                f"({splits[1]}). Choosing on those themselves would have claimed "
                f"{number(choice.best_value, digits)} with {setting(found.cells[choice.best])}: "
                f"optimism {number(choice.optimism, digits)}."
            )
        )
    else:
        said.append(
            Span(
                f" is the best cell by {objective} on all {choice.questions:,} questions, with "
                f"{number(choice.selected, digits)}. Chosen without the questions that it is "
                f"measured on ({len(choice.folds)} folds, {found.method}), BM25 reaches "
                f"{number(choice.value, digits)}: optimism {number(choice.optimism, digits)}."
            )
        )
    gain = found.gains[objective].get(DEFAULT_CELL)
    if gain is not None:
        said.append(
            Span(
                f" Against the default: {number(gain.difference, digits, sign=True)}, 95% interval "
                f"{interval_text(gain.low, gain.high, digits)}, p {probability(gain.p)}."
            )
        )
    others = int(found.plateaus[objective].inside.sum()) - 1
    said.append(
        Span(f" {others:,} of the {len(found.grid) - 1:,} other cells are not told from it.")
    )
    return said


def _notes(found: Study) -> list[str]:
    if found.method == "held_out":
        return []
    return [
        "One split chose and is reported: the chosen cell has seen these questions, and its "
        "differences to other cells are too high. Trust the cross-validated value."
    ]


def _choices(found: Study, splits: tuple[str, str]) -> Section:
    across = found.method != "held_out"
    columns = [Column("objective", numeric=False), Column("chosen cell", numeric=False)]
    columns += [Column("its value", splits[0])]
    columns += [Column("cross-validated" if across else "its value", splits[1])]
    if not across:
        columns += [Column("best cell", splits[1], numeric=False), Column("its value", splits[1])]
    columns += [Column("optimism"), Column("plateau", f"of {len(found.grid):,} cells")]
    columns += [Column(f"gain on {setting(cell)}", splits[1]) for cell in _references(found)]
    rows = [_choice(found, name, choice) for name, choice in found.choices.items()]
    return Section(
        "choices",
        "What each objective chooses",
        lead="Optimism is what choosing on the reported questions would have claimed, less what "
        "choosing elsewhere reaches on them.",
        note="Gains: difference of means, in brackets the 95% bootstrap interval, and the p value "
        "of a paired randomisation test, not corrected.",
        tables=[Table(columns, rows)],
    )


def _references(found: Study) -> list[GridPoint]:
    return list(found.gains[found.objective])


def _choice(found: Study, name: str, choice: HeldOut | CrossValidated) -> list[Entry]:
    digits = describe(name).digits
    row = [
        Entry(name, mark="best" if name == found.objective else ""),
        Entry(setting(found.cells[choice.chosen])),
        Entry(number(choice.selected, digits)),
    ]
    if isinstance(choice, HeldOut):
        row += [
            Entry(number(choice.chosen_value, digits)),
            Entry(setting(found.cells[choice.best])),
            Entry(number(choice.best_value, digits)),
        ]
    else:
        row.append(Entry(number(choice.value, digits)))
    row += [
        Entry(number(choice.optimism, digits)),
        Entry(f"{int(found.plateaus[name].inside.sum()):,}"),
    ]
    for gain in found.gains[name].values():
        sub = f"{interval_text(gain.low, gain.high, digits)} p {probability(gain.p)}"
        row.append(Entry(number(gain.difference, digits, sign=True), sub=sub))
    return row


def _maps(found: Study, splits: tuple[str, str], *, selecting: bool) -> Section:
    side = splits[0] if selecting else splits[1]
    figures = [
        _map(found, name, side, f"{'s' if selecting else 'r'}{place}", selecting=selecting)
        for place, name in enumerate(found.choices)
    ]
    lead = "Mean of each measure in every cell, each map with a colour scale of its own."
    key = "✖ default (k1 0.9, b 0.4), ★ chosen"
    if selecting:
        key += (
            ". The line frames the plateau: cells that a paired test with Holm’s correction does "
            "not tell from the chosen one."
        )
    else:
        key += ", ○ best on these questions themselves."
    anchor = "maps-chosen" if selecting else "maps-reported"
    return Section(anchor, f"Heat maps, {side}", lead=lead, figures=figures, key=key)


def _map(found: Study, name: str, split: str, key: str, *, selecting: bool) -> Figure:
    choice = found.choices[name]
    marks = [Mark("default", *DEFAULT_CELL), Mark("chosen", *found.cells[choice.chosen])]
    if isinstance(choice, HeldOut) and not selecting:
        marks.insert(0, Mark("best", *found.cells[choice.best]))
    svg = heat_map(
        found.grid.k1,
        found.grid.b,
        _square(found, found.means(name, selecting=selecting)),
        key=key,
        label=f"Heat map of {name} on {split}",
        marks=marks,
        outline=_square(found, found.plateaus[name].inside) if selecting else None,
    )
    return Figure(svg, heading=name)


def _square(found: Study, values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(len(found.grid.k1), len(found.grid.b))


def _depths(found: Study, cutoffs: Sequence[int], splits: tuple[str, str]) -> Section:
    """Recall by depth: the third axis of the grid."""
    names = [f"R@{cutoff}" for cutoff in cutoffs]
    chosen = found.choices[found.objective].chosen
    cells = list(dict.fromkeys([chosen, *map(list(found.cells).index, _references(found))]))
    best = [int(np.argmax(found.means(name))) for name in names]
    columns = [Column("cell", numeric=False), *(Column(name, splits[1]) for name in names)]
    rows = []
    for cell in cells:
        mark = "best" if cell == chosen else ""
        values = [float(found.reported.of(name)[:, cell].mean()) for name in names]
        rows.append([Entry(setting(found.cells[cell]), mark=mark)])
        rows[-1] += [Entry(number(value, describe(names[0]).digits)) for value in values]
    rows.append([Entry("best cell of each depth")])
    rows[-1] += [
        Entry(
            number(float(found.means(name).max()), describe(name).digits),
            sub=setting(found.cells[cell]),
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


def _top(found: Study, splits: tuple[str, str]) -> Section:
    name, digits = found.objective, describe(found.objective).digits
    means, others = found.means(name, selecting=True), found.means(name)
    order = np.argsort(-means, kind="stable")[:_TOP]
    columns = [Column("cell", numeric=False), Column(name, splits[0])]
    if found.method == "held_out":
        columns.append(Column(name, splits[1]))
    columns.append(Column("p (Holm)", "against the chosen cell"))
    rows = []
    for cell in order.tolist():
        row = [Entry(setting(found.cells[cell])), Entry(number(float(means[cell]), digits))]
        if found.method == "held_out":
            row.append(Entry(number(float(others[cell]), digits)))
        p = float(found.plateaus[name].p_holm[cell])
        is_chosen = cell == found.choices[name].chosen
        row.append(Entry("—" if is_chosen else probability(p)))
        rows.append(row)
    test = found.plateaus[name].test
    return Section(
        "top",
        f"The {len(order)} best cells by {name}",
        lead=f"Paired {'t-tests' if test == 't' else 'randomisation tests'} over the questions "
        f"({splits[0]}) that chose.",
        tables=[Table(columns, rows)],
    )


def _setup(manifest: Mapping[str, Any]) -> Section:
    kept = ("created", "fingerprints", "versions", "git")
    parts = {"config": manifest.get("config", {})} | {k: manifest.get(k) for k in kept}
    columns = [Column("setting", numeric=False), Column("value", numeric=False)]
    rows = [[Entry(key), Entry(value or "—")] for key, value in flat(parts).items()]
    return Section(
        "setup", "Setup", tables=[Table(columns, rows, folded="All settings and versions")]
    )
