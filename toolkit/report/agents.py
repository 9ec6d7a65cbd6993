"""What agents were shown, which calls they made, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.report.measures import describe, is_usage, number
from soundingline.toolkit.report.page import Column, Figure, RunStyle, Section, Table, TableEntry
from soundingline.toolkit.report.plots import against_cost, exposure, funnel, spreads
from soundingline.toolkit.report.results import ReportData, run_interval
from soundingline.toolkit.search.tool import LAYERS
from soundingline.toolkit.trajectory import ROLES, TIERS

_RUN = Column("run", numeric=False)
_ONLY_COLOURED = " Figures show the baseline and the best runs; tables show all."
_GREY = " Grey: the other runs."


def funnel_section(data: ReportData) -> Section | None:
    """Recall of judged documents in each tier of exposure; None if no run has a funnel."""
    having = [style for style in data.styles if style.run.funnel]
    if not having:
        return None
    levels = list(dict.fromkeys(level for style in having for level in style.run.funnel))
    key = f"Bar: {levels[0]}" + (f"; diamond: {levels[1]}." if len(levels) > 1 else ".")
    return Section(
        "funnel",
        "Evidence funnel",
        lead="Macro-averaged recall of the judged evidence that an agent had in a ranking "
        "(surfaced), saw on a result page (previewed), read (opened) and cited in its answer "
        "(cited), and the mean number of documents in each tier per question.",
        figures=[
            Figure(funnel(style, style.run.funnel), heading=style.label, style=style)
            for style in having
            if style.colour is not None
        ],
        key=key + (_ONLY_COLOURED if data.too_many_colours else ""),
        note="Surfaced counts all documents of a ranking down to the depth of the tool, often "
        "1,000 per search, of which the agent saw only a few. Recall in this tier is not "
        "comparable between depths; the curves below compare runs at equal exposure.",
        tables=[_funnel_table(having, level) for level in levels],
    )


def _funnel_table(styles: Sequence[RunStyle], level: str) -> Table:
    present = {tier for style in styles for tier in style.run.funnel.get(level, {})}
    steps = [*TIERS, *(layer for layer in LAYERS if layer in present)]
    rows = []
    for style in styles:
        row = [TableEntry(style.label, style=style)]
        for values in (style.run.funnel.get(level, {}).get(step) for step in steps):
            if not values:
                row.append(TableEntry("—"))
                continue
            sub = f"{number(values.get('documents'), 1)} docs"
            if "tokens" in values:
                sub += f", {number(values['tokens'], 0)} tokens"
            recalls = (number(values.get(mean), 3) for mean in ("macro", "micro"))
            row.append(TableEntry(" / ".join(recalls), sub=sub))
        rows.append(row)
    columns = [_RUN, *(Column(step, "macro / micro, documents") for step in steps)]
    return Table(columns, rows, folded=f"Recall of {level} documents, in numbers")


def curves_section(data: ReportData) -> Section | None:
    """Mean recall against documents and tokens exposed; None if no run has curves."""
    figures, tables = [], []
    for axis in ("documents", "tokens"):
        curves = [
            (style, style.run.curves[axis]) for style in data.styles if style.run.curves.get(axis)
        ]
        if curves:
            figures.append(
                Figure(exposure(curves, axis=f"{axis} exposed per question (log scale)"))
            )
            tables.append(_curve_table(curves, axis))
    if not figures:
        return None
    return Section(
        "curves",
        "Recall at equal exposure",
        lead="Mean recall of evidence among the documents that an agent was shown (previewed or "
        "opened), after a number of documents or of tokens of tool output per question. A higher "
        "curve means that the same amount of reading brought more evidence.",
        legend=data.highlighted,
        figures=figures,
        key=_GREY.strip() if data.too_many_colours else "",
        tables=tables,
    )


def _curve_table(
    curves: Sequence[tuple[RunStyle, Sequence[tuple[float, float]]]], axis: str
) -> Table:
    """Recall at the five largest powers of ten."""
    ends = [x for _, points in curves for x, _ in points if x > 0] or [1.0]
    first, last = math.ceil(math.log10(min(ends))), math.ceil(math.log10(max(ends)))
    budgets = [10**power for power in range(first, max(first, last) + 1)][-5:]
    rows = []
    for style, points in curves:
        row = [TableEntry(style.label, style=style)]
        for budget in budgets:
            reached = [recall for exposed, recall in points if exposed <= budget]
            row.append(TableEntry(number(reached[-1] if reached else None, 3)))
        rows.append(row)
    columns = [_RUN, *(Column(f"at {budget:,}", axis) for budget in budgets)]
    return Table(columns, rows, folded=f"Recall by {axis} exposed, in numbers")


def calls_section(data: ReportData) -> Section | None:
    """The distribution over questions of each kind of call; None if there were no calls."""
    present = dict.fromkeys(n for r in data.runs for n in r.per_question if n.endswith("_calls"))
    first = [n for n in ("search_calls", "browse_calls", "read_calls") if n in present]
    kinds = [*first, *(n for n in present if n not in first)]
    if not kinds:
        return None
    figures = []
    for kind in kinds:
        values = [(style, style.run.per_question.get(kind, {})) for style in data.highlighted]
        axis = f"{kind[:-6].replace('_', ' ')} calls per question"
        if drawn := [(style, list(row.values())) for style, row in values if row]:
            figures.append(Figure(spreads(drawn, axis=axis), heading=axis.capitalize()))
    rows = []
    for style in data.styles:
        row = [TableEntry(style.label, style=style)]
        for kind in kinds:
            calls = list(style.run.per_question.get(kind, {}).values())
            if not calls:
                row.append(TableEntry("—"))
                continue
            low, middle, high = np.percentile(calls, [5, 50, 95])
            sub = f"{low:g}–{middle:g}–{high:g}"
            row.append(TableEntry(number(float(np.mean(calls)), 2), sub=sub))
        rows.append(row)
    columns = [_RUN, *(Column(kind.replace("_", " "), "mean, 5–50–95%") for kind in kinds)]
    return Section(
        "calls",
        "Calls per question",
        figures=figures,
        key="Thin line: 5th to 95th percentile of the questions; thick line: 25th to 75th; dot: "
        "median." + (_ONLY_COLOURED if data.too_many_colours else ""),
        tables=[Table(columns, rows, folded="Calls per question, in numbers")],
    )


# Costs.

_TIMES = {"once": "once, for the corpus", "query": "per query"}
_UNITS = ("dollars", "tokens", "seconds")


def costs_section(data: ReportData) -> Section | None:
    """Recall against cost; None if no run has an enriched corpus."""
    costs = [(style, _costs(style.run)) for style in data.styles]
    if not any(
        style.run.manifest.get("costs", {}).get("once", {}).get("documents")
        for style in data.styles
    ):
        return None
    measure = next((name for name in data.measures if name.startswith("R@")), data.main)
    amounts = [by_time[when] for _, by_time in costs for when in _TIMES]
    # Dollars if any were paid, else tokens, else seconds.
    unit = next((unit for unit in _UNITS if any(row.get(unit) for row in amounts)), "seconds")
    figures, key = [], "Lines: 95% confidence interval of the mean."
    key += _GREY if data.too_many_colours else ""
    for when, words in _TIMES.items():
        points, unknown = [], []
        for style, row in costs:
            if measure not in style.run.metrics:
                continue
            cost = _known_cost(style.run, row, when, unit)
            if cost is None:
                unknown.append(style.label)
                continue
            interval = run_interval(style.run, measure)
            points.append((style, cost, style.run.metrics[measure], interval))
        if points:
            svg = against_cost(points, axis=f"{unit} {words}", measure=measure)
            figures.append(Figure(svg, heading=f"{measure}, {words}"))
        if unknown:
            key += f" Not drawn, because their {unit} ({words}) are unknown: {', '.join(unknown)}."
    columns = [_RUN, Column(measure)]
    columns += [Column(unit, words) for words in _TIMES.values() for unit in _UNITS]
    rows = []
    for style, row in costs:
        value = number(style.run.metrics.get(measure), describe(measure).digits)
        entries = [_amount(row[when].get(unit), unit) for when in _TIMES for unit in _UNITS]
        rows.append([TableEntry(style.label, style=style), *map(TableEntry, (value, *entries))])
    return Section(
        "costs",
        "Recall against cost",
        lead=f"{measure} against the cost of a run: the cost of phrases for the whole corpus and "
        "of their index, which are made once, and the cost per query.",
        legend=data.highlighted,
        figures=figures,
        key=key,
        note="Dollars and tokens are those of language models, including replies that were read "
        "from a cache; — where unknown. Seconds are wall time on the machine of the run, including "
        "the time to load models and indexes, without the time to wait for phrases of the corpus. "
        "The cost per query of an agent is its cost per question, without replies from a cache.",
        tables=[Table(columns, rows)],
    )


def _costs(run: EvaluatedRun) -> dict[str, dict[str, float]]:
    """The costs in a run's manifest by time and unit. If there are none per query, those of the
    agent per question."""
    costs = {when: dict(run.manifest.get("costs", {}).get(when, {})) for when in _TIMES}
    if "query" not in run.manifest.get("costs", {}) and "search_calls" in run.metrics:
        names = {f"usage_{name}": name for name in ("dollars", "input_tokens", "output_tokens")}
        names["seconds"] = "seconds"
        costs["query"] = {
            name: run.metrics[measure] for measure, name in names.items() if measure in run.metrics
        }
    for amounts in costs.values():
        if {"input_tokens", "output_tokens"} <= set(amounts):
            amounts["tokens"] = amounts["input_tokens"] + amounts["output_tokens"]
    return costs


def _known_cost(
    run: EvaluatedRun, costs: Mapping[str, Mapping[str, float]], when: str, unit: str
) -> float | None:
    """An amount of `_costs`; 0 if the run used nothing of this kind, None if it is unknown."""
    amount = costs[when].get(unit)
    if amount is None and when == "once":
        return None if costs[when].get("documents") else 0.0
    if amount is None and unit != "seconds" and costs[when]:
        stages = run.manifest.get("stages", {}).values()
        replies = any(counts for row in stages for name, counts in row.items() if "reply_" in name)
        models = "input_tokens" in costs[when] or any(map(is_usage, run.metrics))
        return None if replies or models else 0.0
    return amount


def _amount(amount: float | None, unit: str) -> str:
    if unit == "tokens":
        return number(amount, 0)
    return number(amount, 2 if amount is not None and amount >= 100 else 4)


def roles_section(data: ReportData) -> Section | None:
    """Usage of language models by role; None if no run has more than one role."""
    roles = {
        style.run.name: [role for role in ROLES if style.run.metrics.get(f"usage_{role}_calls")]
        for style in data.styles
    }
    if all(len(names) < 2 for names in roles.values()):
        return None
    quantities = ("calls", "input_tokens", "cached_tokens", "output_tokens", "seconds", "dollars")
    rows = []
    for style in data.styles:
        metrics, names = style.run.metrics, roles[style.run.name]
        for role in [*names, *(["all"] if len(names) > 1 else [])]:
            prefix = "usage_" if role == "all" else f"usage_{role}_"
            measures = [f"{prefix}{quantity}" for quantity in quantities]
            texts = [number(metrics.get(name), describe(name).digits) for name in measures]
            dollars, total = metrics.get(f"{prefix}dollars"), metrics.get("usage_dollars")
            share = None if dollars is None or not total else 100 * dollars / total
            texts.append("—" if share is None else number(share, 0) + "%")
            entries = map(TableEntry, (role, *texts))
            rows.append([TableEntry(style.label, style=style), *entries])
    columns = [_RUN, Column("role", numeric=False)]
    columns += [Column(quantity.replace("_", " ")) for quantity in quantities]
    columns.append(Column("share", "of the dollars"))
    return Section(
        "roles",
        "Cost by role",
        lead="Usage of language models per question, by the component that made the requests.",
        note="Means over the questions for which they are known; — if there are none. The judge, "
        "and phrases for a whole corpus, are not part of a question.",
        tables=[Table(columns, rows)],
    )
