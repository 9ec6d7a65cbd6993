"""What agents were shown, which calls they made, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np

from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.funnel import (
    LABELS,
    LEFT_OUT,
    STEP_MEASURES,
    STEPS,
    StepTerm,
    conditional_shares,
    decomposed_difference,
)
from soundingline.toolkit.queries import TURNS
from soundingline.toolkit.report.measures import (
    decimals,
    is_usage,
    number,
    percent,
)
from soundingline.toolkit.report.page import (
    DASH,
    RUN,
    Column,
    Figure,
    RunStyle,
    Section,
    Table,
    TableEntry,
    columns,
    section,
    sentences,
    texts,
)
from soundingline.toolkit.report.plots import against_cost, exposure, funnel, spreads
from soundingline.toolkit.report.results import (
    ReportData,
    measure_entry,
    measured,
    recorded_count,
    run_interval,
    run_measure,
)
from soundingline.toolkit.search.tool import LAYERS
from soundingline.toolkit.trajectory import ROLES, TIERS

_GREY = "Grey: the other runs."


def funnel_section(data: ReportData) -> Section | None:
    """Recall of judged documents in each tier of exposure; None if no run has a funnel."""
    styles = [style for style in data.styles if style.run.funnel]
    if not styles:
        return None
    levels = list(dict.fromkeys(level for style in styles for level in style.run.funnel))
    key = f"Bar: {levels[0]}" + (f"; diamond: {levels[1]}." if len(levels) > 1 else ".")
    return section(
        "funnel",
        figures=[
            Figure(funnel(style, style.run.funnel), heading=style.label, style=style)
            for style in styles
            if style.colour is not None
            and any(
                row.get("documents")
                for level in style.run.funnel.values()
                for row in level.values()
            )
        ],
        key=_all_shown(data, key),
        tables=[_funnel_table(styles, level) for level in levels],
    )


def _all_shown(data: ReportData, key: str) -> str:
    """How to read figures, which do not show all of too many runs."""
    return f"{key} {sentences('calls')['only_coloured']}" if data.too_many_colours else key


def _funnel_table(styles: Sequence[RunStyle], level: str) -> Table:
    present = {tier for style in styles for tier in style.run.funnel.get(level, {})}

    def recall(style: RunStyle, step: str) -> TableEntry | None:
        if not (of_tier := style.run.funnel.get(level, {}).get(step)):
            return None
        sub = f"{number(of_tier.get('documents'), 1)} docs"
        if "tokens" in of_tier:
            sub += f", {number(of_tier['tokens'], 0)} tokens"
        recalls = " / ".join(number(of_tier.get(mean), 3) for mean in ("macro", "micro"))
        return TableEntry(of_tier.get("macro"), recalls, sub)

    steps = [*TIERS, *(layer for layer in LAYERS if layer in present)]
    shown = columns(recall, steps, note="macro / micro, documents")
    return Table([RUN, *shown], styles, folded=f"Recall of {level} documents, in numbers")


def curves_section(data: ReportData) -> Section:
    """Mean recall against documents and tokens exposed."""
    figures, tables = [], []
    for unit in ("documents", "tokens"):
        styles = [style for style in data.styles if style.run.curves.get(unit)]
        if styles:
            curves = [(style, style.run.curves[unit]) for style in styles]
            svg = exposure(curves, axis=f"{unit} exposed per question (log scale)")
            figures.append(Figure(svg))
            tables.append(_curve_table(styles, unit))
    return section(
        "curves",
        legend=data.highlighted,
        figures=figures,
        key=_GREY if data.too_many_colours else "",
        tables=tables,
    )


def _curve_table(styles: Sequence[RunStyle], unit: str) -> Table:
    """Recall at the five largest powers of ten."""
    ends = [x for style in styles for x, _ in style.run.curves[unit] if x > 0] or [1.0]
    first, last = math.ceil(math.log10(min(ends))), math.ceil(math.log10(max(ends)))
    budgets = {f"at {10**n:,}": 10**n for n in range(first, max(first, last) + 1)[-5:]}

    def recall(style: RunStyle, name: str) -> float | None:
        reached = [recall for x, recall in style.run.curves[unit] if x <= budgets[name]]
        return reached[-1] if reached else None

    shown = columns(recall, budgets, decimals(3), unit)
    return Table([RUN, *shown], styles, folded=f"Recall by {unit} exposed, in numbers")


def steps_section(data: ReportData) -> Section:
    """Where the evidence of questions is lost, of runs that know what must be shown."""
    styles = [style for style in data.styles if STEP_MEASURES[0] in style.run.per_question]
    tables = [_step_table(styles), _term_table(data, styles), _label_table(data, styles)]
    return section("steps", tables=tables)


def _label_table(data: ReportData, styles: Sequence[RunStyle]) -> Table:
    """How many questions have each label, with links to their traces, and were left out."""

    def count(style: RunStyle, label: str) -> TableEntry:
        run = style.run
        values = run.per_question[f"label_{label}"].values()
        total = round(math.fsum(values) * run.counts.get("repeats", 1))
        pages = data.traces.get(run.name) if total else None
        share = percent(math.fsum(values) / len(values))
        return TableEntry(total, sub=share, link=f"{pages}#{label}" if pages else "")

    def left_out(style: RunStyle, name: str) -> TableEntry:
        counts, start = style.run.counts, f"{name}_"
        reasons = {name.removeprefix(start): n for name, n in counts.items() if start in name}
        reasons["no_answer_known"] = counts.get("without_accepted_answer", 0)
        each = [f"{name.replace('_', ' ')} {n}" for name, n in reasons.items() if n]
        return TableEntry(sum(reasons.values()) * counts.get("repeats", 1), sub=", ".join(each))

    counted = [*columns(count, LABELS, decimals(0)), *columns(left_out, [LEFT_OUT], decimals(0))]
    meanings = "; ".join(f"{label.replace('_', ' ')}: {text}" for label, text in LABELS.items())
    note = f"One label for each question and repeat. {meanings[0].upper()}{meanings[1:]}."
    return Table([RUN, *counted], styles, note=note)


def _term_table(data: ReportData, styles: Sequence[RunStyle]) -> Table:
    """The terms of each difference in accuracy between runs."""
    known = {style.run.name for style in styles}
    rows = []
    for row in data.comparisons_on("accuracy"):
        a, b = (data.style(name) for name in (row.a, row.b))
        if {row.a, row.b} <= known:
            label = a.change if b.run.name in data.baselines else f"{a.within} − {b.within}"
            decomposed = decomposed_difference(a.run.per_question, b.run.per_question)
            rows.append({"runs": label, **decomposed})
    terms = columns(lambda row, name: _term(row[name]), (*STEPS, "right_unsupported", "difference"))
    return Table([*texts("runs"), *terms], rows, note=sentences("steps")["terms"])


def _step_table(styles: Sequence[RunStyle]) -> Table:
    """The share of questions that passed each step, of all and of those that passed the one before
    it."""
    terms = {style.run.name: conditional_shares(style.run.per_question) for style in styles}
    measures = dict(zip(STEPS, STEP_MEASURES, strict=True))

    def share(style: RunStyle, step: str) -> TableEntry:
        entry = measured(style.run, measures[step])
        term = _term(terms[style.run.name][step], sign=False)
        return TableEntry(entry.value, f"{entry.text} {entry.sub}", f"{term.text} {term.sub}")

    return Table([RUN, *columns(share, STEPS, note="of all; of those before")], styles)


def _term(term: StepTerm, *, sign: bool = True) -> TableEntry:
    return measure_entry(term.value, STEP_MEASURES[0], term.low, term.high, sign=sign)


def calls_section(data: ReportData) -> Section | None:
    """The distribution over questions of each kind of call; None if there were no calls."""
    present = dict.fromkeys(n for r in data.runs for n in r.per_question if n.endswith("_calls"))
    usual = [n for n in ("search_calls", "browse_calls", "read_calls") if n in present]
    kinds = list(dict.fromkeys([*usual, *present]))
    if not kinds:
        return None
    figures = []
    for kind in kinds:
        values = [(style, style.run.per_question.get(kind, {})) for style in data.highlighted]
        axis = f"{kind[:-6].replace('_', ' ')} calls per question"
        drawn = [(style, list(row.values())) for style, row in values if row]
        if any(any(counts) for _, counts in drawn):
            figures.append(Figure(spreads(drawn, axis=axis), heading=axis.capitalize()))

    def spread(style: RunStyle, kind: str) -> TableEntry | None:
        if not (calls := list(style.run.per_question.get(kind, {}).values())):
            return None
        ends = (f"{end:g}" for end in np.percentile(calls, [5, 50, 95]))
        return TableEntry(float(np.mean(calls)), sub="–".join(ends))

    shown = columns(spread, kinds, decimals(2), "mean, 5–50–95%")
    tables = [Table([RUN, *shown], data.styles, folded="Calls per question, in numbers")]
    branching = [style for style in data.styles if _BRANCHES[0] in style.run.metrics]
    if any(style.run.metrics[_BRANCHES[0]] for style in branching):
        tables.append(_branch_table(branching))
    return section(
        "calls",
        figures=figures,
        key=_all_shown(data, sentences("calls")["key"]),
        tables=tables,
    )


_BRANCHES = ("candidate_searches", "branches_abandoned", "returns_to_question")
_CACHED = Column("cached", lambda s: _spent(s, "cached"), percent, "of the input tokens")
_YES_NO: Mapping[bool | None, str] = {True: "yes", False: "no"}


def _branch_table(styles: Sequence[RunStyle]) -> Table:
    """How agents follow candidates, with what the paper on Pi-Serini reports for comparison."""
    counts = columns(run_measure, ("tool_calls", *_BRANCHES), note="per question")
    return Table([RUN, *counts, _CACHED], styles, note=sentences("calls")["branches"])


_OF_QUERIES = {
    "": ("words", "quoted", "operators", "from_question", "from_shown", "from_neither"),
    "Reformulations": ("repeated", "added", "dropped", "exchanged", "new"),
}


def queries_section(data: ReportData) -> Section:
    """The queries of the agents by turn."""
    styles = [style for style in data.styles if "text_queries" in style.run.metrics]
    tables = [_queries_table(styles, measures, folded) for folded, measures in _OF_QUERIES.items()]
    return section("queries", tables=tables)


def _queries_table(styles: Sequence[RunStyle], names: Sequence[str], folded: str) -> Table:
    """A row for each run and turn that has a value."""
    rows = []
    for style, turn in product(styles, ("", *TURNS)):
        measures = {name: f"query_{name}_{turn}".rstrip("_") for name in names}
        if present := [name for name in measures.values() if name in style.run.metrics]:
            count = style.run.denominators.get(present[0])
            values = {key: measured(style.run, name) for key, name in measures.items()}
            rows.append({"run": style.entry, "queries": turn or "all", "n": count, **values})
    n = Column("n", form=decimals(0), note="questions")
    shown = columns(lambda row, name: row[name], names)
    return Table([*texts("run", "queries"), n, *shown], rows, folded=folded)


def accuracy_cost_section(data: ReportData) -> Section | None:
    """Accuracy against dollars, or tokens if fewer than two runs have prices; None without
    these."""
    measure, known = "accuracy", dict[str, list[tuple[RunStyle, float]]]()
    styles = [style for style in data.styles if measure in style.run.metrics]
    for unit in ("dollars", "tokens"):
        known[unit] = [(s, c) for s in styles if (c := _spent(s, unit)) is not None]
    unit = next((unit for unit, rows in known.items() if len(rows) > 1), "")
    if not unit or data.systems is not None or not any(cost for _, cost in known[unit]):
        return None
    points = [_point(style, cost, measure) for style, cost in known[unit]]
    front = pareto_front([(cost, value) for _, cost, value, _ in points])
    drawn = {row[0].run.name: place in front for place, row in enumerate(points)}
    unknown = [style.label for style in styles if style.run.name not in drawn]
    key = [sentences("accuracy-cost")["key"]]
    key += [_GREY] if data.too_many_colours else []
    key += [_not_drawn(unit, unknown)] if unknown else []
    lists = sorted({date for style in styles for date in style.run.prices.values()})
    key += [f"Dollars are those of the price lists of {', '.join(lists)}."] if lists else []

    def dollars(style: RunStyle) -> TableEntry:
        spent = _spent(style, "dollars")
        total = None if spent is None else spent * recorded_count(style.run)
        return TableEntry(spent, sub="" if total is None else f"{number(total, 2)} in all")

    return section(
        "accuracy-cost",
        {"unit": unit},
        legend=data.highlighted if data.too_many_colours else (),
        figures=[
            Figure(against_cost(points, axis=f"{unit} per question", measure=measure, front=front))
        ],
        key=" ".join(key),
        tables=[
            Table(
                [
                    RUN,
                    Column(measure, partial(run_measure, measure=measure)),
                    Column("dollars", dollars, decimals(4), "per question"),
                    *columns(_spent, ["tokens"], decimals(0), "per question"),
                    _CACHED,
                    Column(
                        "prices of", lambda s: "; ".join(_price_lists(s.run)) or None, numeric=False
                    ),
                    Column(
                        "Pareto front", lambda s: _YES_NO.get(drawn.get(s.run.name)), numeric=False
                    ),
                ],
                styles,
            )
        ],
    )


def _point(
    style: RunStyle, cost: float, measure: str
) -> tuple[RunStyle, float, float, tuple[float, float] | None]:
    return style, cost, style.run.metrics[measure], run_interval(style.run, measure)


def _not_drawn(costs: str, labels: Sequence[str]) -> str:
    return f"Not drawn, because their {costs} are unknown: {', '.join(labels)}."


def _price_lists(run: EvaluatedRun) -> list[str]:
    """The dates of the price lists of the evaluation, else of those by which a run was billed."""
    groups = [name for name in run.manifest.get("config", {}) if name.endswith("llm")]
    dates = [run.setting(group, "price", "dated") for group in groups if group != "judge_llm"]
    return sorted({*(run.prices.values() or map(str, filter(None, dates)))})


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The places of the points (cost, value) that no other point dominates, cheapest first. A point
    dominates another if it costs no more and is worth no less, and differs from it.

    >>> pareto_front([(3.0, 0.9), (1.0, 0.5), (2.0, 0.4), (1.0, 0.5)])
    [1, 3, 0]
    """
    return [
        place
        for place, (cost, value) in sorted(enumerate(points), key=lambda item: item[1])
        if not any(c <= cost and v >= value and (c, v) != (cost, value) for c, v in points)
    ]


def _spent(style: RunStyle, unit: str) -> float | None:
    """The mean over questions of the `dollars` or `tokens` of all roles but the judge, or the share
    of `cached` input tokens; None if it is not known."""
    names = ("usage_dollars", "usage_input_tokens", "usage_output_tokens", "usage_cached_tokens")
    dollars, read, written, cached = map(style.run.metrics.get, names)
    if unit == "dollars":
        return dollars
    if unit == "tokens":
        return None if read is None or written is None else read + written
    return cached / read if read and cached is not None else None


_TIMES = {"once": "once, for the corpus", "query": "per query"}
_UNITS = ("dollars", "tokens", "seconds")


def costs_section(data: ReportData) -> Section | None:
    """Recall against cost; None if no run has an enriched corpus."""
    recorded = [run.manifest.get("costs", {}).get("once", {}) for run in data.runs]
    if not any(once.get("documents") for once in recorded):
        return None
    measure = next((name for name in data.measures if name.startswith("R@")), data.main)
    costs = {run.name: _costs(run) for run in data.runs}
    amounts = [by_time[when] for by_time in costs.values() for when in _TIMES]
    # Dollars if any were paid, else tokens, else seconds.
    unit = next((unit for unit in _UNITS if any(row.get(unit) for row in amounts)), "seconds")
    figures, key = [], ["Lines: 95% confidence interval of the mean."]
    key += [_GREY] if data.too_many_colours else []
    shown = [RUN, Column(measure, lambda s: measured(s.run, measure, interval=False))]
    for when, words in _TIMES.items():
        having = [
            (style, _known_cost(style.run, costs[style.run.name], when, unit))
            for style in data.styles
            if measure in style.run.metrics
        ]
        points = [_point(style, cost, measure) for style, cost in having if cost is not None]
        if points:
            svg = against_cost(points, axis=f"{unit} {words}", measure=measure)
            figures.append(Figure(svg, heading=f"{measure}, {words}"))
        if unknown := [style.label for style, cost in having if cost is None]:
            key.append(_not_drawn(f"{unit} ({words})", unknown))

        def amount(style: RunStyle, unit: str, when: str = when) -> TableEntry:
            value = costs[style.run.name][when].get(unit)
            digits = 0 if unit == "tokens" else 2 if value is not None and value >= 100 else 4
            return TableEntry(value, number(value, digits))

        shown += columns(amount, _UNITS, note=words)
    return section(
        "costs",
        {"measure": measure},
        legend=data.highlighted,
        figures=figures,
        key=" ".join(key),
        tables=[Table(shown, data.styles)],
    )


def _costs(run: EvaluatedRun) -> dict[str, dict[str, float]]:
    """The costs in a manifest by time and unit; per query, else those of an agent's question."""
    recorded = run.manifest.get("costs", {})
    costs = {when: dict(recorded.get(when, {})) for when in _TIMES}
    if "query" not in recorded and "search_calls" in run.metrics:
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


GPU = "GPU seconds"
_SPENT = {
    "dollars": (("usage_dollars",), 4),
    "tokens": (("usage_input_tokens", "usage_output_tokens"), 0),
    "seconds": (("seconds",), 1),
}


def cell_costs_table(data: ReportData) -> Table | None:
    """What each run cost: the median and the 90th percentile of a question, the GPU seconds of
    local models, and what its indexes and phrases took; None if nothing is known."""

    def spent(style: RunStyle, unit: str) -> TableEntry:
        measures, digits = _SPENT[unit]
        if not (values := _by_attempt(style.run, measures)):
            mean = _costs(style.run)["query"].get(unit)  # all that a ranking without an agent knows
            return TableEntry(mean, number(mean, digits), "" if mean is None else "mean")
        levels = np.percentile(values, [50, 90])
        text = " / ".join(number(level, digits) for level in levels)
        total = number(math.fsum(values), min(digits, 2))
        return TableEntry(float(levels[0]), text, f"{total} in {len(values):,}")

    def gpu(style: RunStyle) -> TableEntry:
        stages = style.run.manifest.get("stages", {})
        each = {name: row["gpu_seconds"] for name, row in stages.items() if row.get("gpu_seconds")}
        sub = ", ".join(f"{name} {number(seconds, 0)}" for name, seconds in each.items())
        return TableEntry(math.fsum(each.values()) if each else None, sub=sub)

    def index(style: RunStyle) -> TableEntry:
        seconds = style.run.manifest.get("costs", {}).get("index_seconds", {})
        used = seconds.get("gpu")
        return TableEntry(seconds.get("all"), sub=f"{number(used, 0)} on a GPU" if used else "")

    def phrases(style: RunStyle) -> TableEntry:
        once = _costs(style.run)["once"]
        paid = [f"{number(once[unit], 2)} {unit}" for unit in _UNITS[:2] if unit in once]
        return TableEntry(once.get("seconds"), sub=", ".join(paid))

    possible = [
        *columns(spent, _SPENT, note="median / 90%, sum"),
        Column(GPU, gpu, decimals(0), "by model"),
        Column("index", index, decimals(1), "seconds"),
        Column("phrases", phrases, decimals(1), "seconds, paid"),
    ]
    known = [each for each in possible if any(each.entry(s).text != DASH for s in data.styles)]
    return Table([RUN, *known], data.styles) if known else None


def _by_attempt(run: EvaluatedRun, measures: Sequence[str]) -> list[float]:
    """The sum of measures in each repeat of each question for which all of them are known."""
    rows = [
        run.repeats.get(name) or {qid: [v] for qid, v in run.per_question.get(name, {}).items()}
        for name in measures
    ]
    shared = [qid for qid in rows[0] if all(qid in row for row in rows)]
    return [
        sum(parts) for qid in shared for parts in zip(*(row[qid] for row in rows), strict=False)
    ]


def cell_costs_section(data: ReportData) -> Section | None:
    """`cell_costs_table` with its explanation."""
    if (table := cell_costs_table(data)) is None:
        return None
    return section("cell-costs", tables=[table])


def corpus_size_section(data: ReportData) -> Section | None:
    """Measures against the share of the unjudged documents in a corpus; None for one share."""
    shares = {run.name: float(run.setting("benchmark", "corpus_share") or 1.0) for run in data.runs}
    names = {str(run.setting("benchmark", "name")) for run in data.runs}
    if data.systems is None or len(set(shares.values())) < 2 or len(names) > 1:
        return None
    recalls = [name for name in data.measures if name.startswith(("recall_", "R@"))]
    known = {name for run in data.runs for name in run.metrics}
    candidates = dict.fromkeys(("accuracy", *recalls[:1], data.main))
    measures = [name for name in candidates if name in known][:2]
    by_share = sorted(data.styles, key=lambda style: shares[style.run.name])
    figures = []
    for measure in measures:
        styles = [style for style in by_share if measure in style.run.metrics]
        points = [_point(style, shares[style.run.name], measure) for style in styles]
        lines = {
            system.label: [n for n, s in enumerate(styles) if data.systems.of(s.run.name) is system]
            for system in data.systems.systems
        }
        drawn = {label: places for label, places in lines.items() if places}
        axis = "share of the unjudged documents"
        svg = against_cost(points, axis=axis, measure=measure, lines=drawn)
        figures.append(Figure(svg, heading=f"{measure} against the size of the corpus"))
    share = Column("share", lambda style: shares[style.run.name], decimals(2))
    return section(
        "corpus-size",
        figures=figures,
        tables=[
            Table(
                [RUN, share, *(Column(m, partial(run_measure, measure=m)) for m in measures)],
                by_share,
            )
        ],
    )


def roles_section(data: ReportData) -> Section | None:
    """Usage of language models by role; None if no run has more than one role."""
    rows = []
    for style in data.styles:
        metrics = style.run.metrics
        roles = [role for role in ROLES if metrics.get(f"usage_{role}_calls")]
        for role in [*roles, *(["all"] if len(roles) > 1 else [])]:
            prefix = "usage_" if role == "all" else f"usage_{role}_"
            values = {n: measured(style.run, f"{prefix}{n}", interval=False) for n in _QUANTITIES}
            dollars, total = values["dollars"].value, metrics.get("usage_dollars")
            share = None if dollars is None or not total else dollars / total
            rows.append({"run": style.entry, "role": role, **values, "share": share})
    if not any(row["role"] == "all" for row in rows):
        return None
    used = columns(lambda row, name: row[name], _QUANTITIES)
    share = Column("share", form=percent, note="of the dollars")
    return section("roles", tables=[Table([*texts("run", "role"), *used, share], rows)])


_QUANTITIES = ("calls", "input_tokens", "cached_tokens", "output_tokens", "seconds", "dollars")
