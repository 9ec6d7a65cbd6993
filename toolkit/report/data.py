"""What every part of a report needs to know about the comparison as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from toolkit.errors import InputError
from toolkit.evaluation.cells import Cell
from toolkit.evaluation.compare import Verdict
from toolkit.evaluation.systems import Systems, by_benchmark, systems_of
from toolkit.report.compared_pairs import ComparedPair
from toolkit.report.measures import HIGHER, LOWER, describe, ordered
from toolkit.report.tables import COLOURS, CellStyle


@dataclass(frozen=True)
class ReportData:
    """The cells with their styles, the verdicts, and what they are read by. `traces`: cell name ->
    address of its traces. `systems`: the cells by benchmark, where there are several."""

    styles: Sequence[CellStyle]
    verdicts: Sequence[Verdict]
    main: str
    baseline: str
    measures: Sequence[str]
    alpha: float
    traces: Mapping[str, str] = field(default_factory=dict)
    systems: Systems | None = None

    @property
    def cells(self) -> list[Cell]:
        return [style.cell for style in self.styles]

    @property
    def crowded(self) -> bool:
        """More cells than can be told apart by colour."""
        return len(self.styles) > COLOURS

    @property
    def highlighted(self) -> list[CellStyle]:
        return [style for style in self.styles if style.colour is not None]

    def label(self, name: str) -> str:
        return next((style.label for style in self.styles if style.cell.name == name), name)

    def resolved(self, verdict: Verdict | ComparedPair) -> bool:
        """Whether the corrected test separates the two cells."""
        return verdict.p_holm <= self.alpha

    def pair(self, measure: str, first: str, second: str) -> ComparedPair | None:
        """The verdict between two cells, from the side of `first`; None if it was not tested."""
        for verdict in self.verdicts:
            if verdict.measure == measure and {verdict.a, verdict.b} == {first, second}:
                return ComparedPair.of(verdict, first)
        return None

    def pairs(self, measure: str) -> list[ComparedPair]:
        """The verdicts to show: those against the baseline, then, unless crowded, the others.

        The baseline is always the other; elsewhere the one is the larger.
        """
        rows = [v for v in self.verdicts if v.measure == measure]
        against = [
            ComparedPair.of(v, v.b if v.a == self.baseline else v.a)
            for v in rows
            if self.baseline in (v.a, v.b)
        ]
        others = [
            ComparedPair.of(v, v.a if v.difference >= 0 else v.b)
            for v in rows
            if self.baseline not in (v.a, v.b)
        ]
        return against if self.crowded and against else against + others

    def ranked(self, measure: str) -> list[Cell]:
        """Cells that have the measure, best first; ties keep their order."""
        return _ranked(self.cells, measure)

    def marks(self, measure: str) -> Mapping[str, str]:
        """Cell name -> `best` or `tie`, within each benchmark: see `marks_note` in
        `toolkit.report.results`."""
        marks: dict[str, str] = {}
        for group in by_benchmark(self.cells):
            marks |= self._marks(measure, _ranked(group, measure))
        return marks

    def _marks(self, measure: str, ranked: Sequence[Cell]) -> Mapping[str, str]:
        if len(ranked) < 2 or describe(measure).better not in (HIGHER, LOWER):
            return {}
        if ranked[0].metrics[measure] == ranked[-1].metrics[measure]:
            return {}
        top = ranked[0].name
        pairs = [self.pair(measure, top, cell.name) for cell in ranked[1:]]
        if all(pair is not None and self.resolved(pair) for pair in pairs):
            return {top: "best"}
        tied = [pair.other for pair in pairs if pair is not None and not self.resolved(pair)]
        level = [c.name for c in ranked if c.metrics[measure] == ranked[0].metrics[measure]]
        return dict.fromkeys([top, *level, *tied], "tie")


def _ranked(cells: Sequence[Cell], measure: str) -> list[Cell]:
    have = [cell for cell in cells if measure in cell.metrics]
    return sorted(have, key=lambda cell: -_direction(measure) * cell.metrics[measure])


def _direction(measure: str) -> int:
    return LOWER if describe(measure).better == LOWER else HIGHER


def report_data(
    cells: Sequence[Cell],
    verdicts: Sequence[Verdict],
    *,
    main: str | None,
    baseline: str | None,
    measures: Sequence[str],
    alpha: float,
    traces: Mapping[str, str] | None = None,
    by: Sequence[str] = (),
) -> ReportData:
    """Check the arguments of `render` and decide what they leave open."""
    names = [cell.name for cell in cells]
    if not cells:
        raise InputError(
            "a report of no cells", valid="one cell or more", do="Evaluate a run first"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"more than one cell is named {', '.join(twice)}", do="Give every cell its own name"
        )
    if baseline is not None and baseline not in names:
        raise InputError(
            f"baseline {baseline!r}", valid=", ".join(names), do="Name one of the cells"
        )
    known = ordered(name for cell in cells for name in cell.metrics)
    for name in [*([main] if main else []), *measures]:
        if name not in known:
            raise InputError(f"measure {name!r}", valid=", ".join(known) or "none", do="Name one")
    chosen = main or _main_measure(known, verdicts)
    first = baseline or names[0]
    rest = [name for name in known if name != chosen]
    return ReportData(
        styles=_styles(cells, chosen, first),
        verdicts=[v for v in verdicts if v.a in names and v.b in names],
        main=chosen,
        baseline=first,
        measures=list(measures) or [*([chosen] if chosen else []), *rest][:8],
        alpha=alpha,
        traces=traces or {},
        systems=systems_of(cells, by),
    )


def _main_measure(known: Sequence[str], verdicts: Sequence[Verdict]) -> str:
    tested = {verdict.measure for verdict in verdicts}
    return next((n for n in known if n in tested), next(iter(known), ""))


def varied_factors(cells: Sequence[Cell]) -> list[str]:
    """Factors that differ between cells, in order of first mention."""
    names = dict.fromkeys(name for cell in cells for name in cell.factors)
    return [n for n in names if len({cell.factors.get(n, "") for cell in cells}) > 1]


def factor_value(cell: Cell, name: str) -> str:
    """What a cell has of a factor: of a setting that it leaves as its option has it, the value in
    its configuration; a dash where it has none, or has not the stage."""
    if name in cell.factors:
        return str(cell.factors[name])
    group, *keys = name.split(".")
    if not keys or cell.factors.get(group, "none") == "none":
        return "—"
    value: Any = cell.manifest.get("config", {}).get(group)
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return "—" if value is None else str(value)


def telling_factors(cells: Sequence[Cell]) -> list[str]:
    """`varied_factors`, without those that are the same in all cells that have them where another
    tells these from the others already: the seed of the only language model, say, beside the agents
    of which one asks it."""
    telling: list[str] = []
    for name in varied_factors(cells):
        values = {cell.factors[name] for cell in cells if name in cell.factors}
        if len(values) > 1 or not any(_tells_apart(other, name, cells) for other in telling):
            telling.append(name)
    return telling


def _tells_apart(other: str, name: str, cells: Sequence[Cell]) -> bool:
    """Whether no cell with the factor `name` has the same value of `other` as one without."""
    having = {cell.factors.get(other) for cell in cells if name in cell.factors}
    lacking = {cell.factors.get(other) for cell in cells if name not in cell.factors}
    return not having & lacking


def _styles(cells: Sequence[Cell], main: str, baseline: str) -> list[CellStyle]:
    varied = varied_factors(cells)
    # A factor that a cell has not (the depth of no re-ranker) is not said.
    labels = [
        " · ".join(str(cell.factors[n]) for n in varied if n in cell.factors) or "—"
        for cell in cells
    ]
    if not varied or len(set(labels)) < len(labels):
        labels = [cell.name for cell in cells]
    by_score = sorted(cells, key=lambda c: -_direction(main) * c.metrics.get(main, -np.inf))
    coloured = [baseline, *(cell.name for cell in by_score if cell.name != baseline)][:COLOURS]
    colours = {cell.name: i for i, cell in enumerate(c for c in cells if c.name in coloured)}
    return [
        CellStyle(c, label, colours.get(c.name)) for c, label in zip(cells, labels, strict=True)
    ]
