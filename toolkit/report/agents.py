"""What agents were shown, which calls they made, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
    interval_text,
    is_usage,
    number,
    percent,
    value_text,
)
from soundingline.toolkit.report.page import (
    Column,
    Entries,
    Figure,
    RunStyle,
    Section,
    Table,
    TableEntry,
    texts,
)
from soundingline.toolkit.report.plots import against_cost, exposure, funnel, spreads
from soundingline.toolkit.report.results import (
    ReportData,
    interval_of,
    recorded_count,
    run_interval,
)
from soundingline.toolkit.search.tool import LAYERS
from soundingline.toolkit.trajectory import ROLES, TIERS, mapping

_ONLY_COLOURED = " Figures show the baseline and the best runs; tables show all."
_GREY = "Grey: the other runs."


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

    def entries(run: EvaluatedRun) -> Entries:
        for values in (run.funnel.get(level, {}).get(step) for step in steps):
            if not values:
                yield "—"
                continue
            sub = f"{number(values.get('documents'), 1)} docs"
            if "tokens" in values:
                sub += f", {number(values['tokens'], 0)} tokens"
            recalls = (number(values.get(mean), 3) for mean in ("macro", "micro"))
            yield TableEntry(" / ".join(recalls), sub=sub)

    columns = [Column(step, "macro / micro, documents") for step in steps]
    folded = f"Recall of {level} documents, in numbers"
    return Table.of_runs(styles, columns, entries, folded=folded)


def curves_section(data: ReportData) -> Section | None:
    """Mean recall against documents and tokens exposed; None if no run has curves."""
    figures, tables = [], []
    for unit in ("documents", "tokens"):
        having = [style for style in data.styles if style.run.curves.get(unit)]
        if having:
            curves = [(style, style.run.curves[unit]) for style in having]
            svg = exposure(curves, axis=f"{unit} exposed per question (log scale)")
            figures.append(Figure(svg))
            tables.append(_curve_table(having, unit))
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
        key=_GREY if data.too_many_colours else "",
        tables=tables,
    )


def _curve_table(styles: Sequence[RunStyle], unit: str) -> Table:
    """Recall at the five largest powers of ten."""
    ends = [x for style in styles for x, _ in style.run.curves[unit] if x > 0] or [1.0]
    first, last = math.ceil(math.log10(min(ends))), math.ceil(math.log10(max(ends)))
    budgets = [10**power for power in range(first, max(first, last) + 1)][-5:]

    def entries(run: EvaluatedRun) -> Iterator[str]:
        for budget in budgets:
            reached = [recall for exposed, recall in run.curves[unit] if exposed <= budget]
            yield number(reached[-1] if reached else None, 3)

    columns = [Column(f"at {budget:,}", unit) for budget in budgets]
    folded = f"Recall by {unit} exposed, in numbers"
    return Table.of_runs(styles, columns, entries, folded=folded)


def steps_section(data: ReportData) -> Section | None:
    """Where the evidence of questions is lost; None if no run knows what must be shown."""
    having = [style for style in data.styles if STEP_MEASURES[0] in style.run.per_question]
    if not having:
        return None

    def shares(run: EvaluatedRun) -> Entries:
        measures = zip(STEP_MEASURES, conditional_shares(run.per_question).values(), strict=True)
        for measure, conditional in measures:
            value = f"{value_text(run.metrics[measure], measure)} {interval_of(run, measure)}"
            sub = f"{_term(conditional, sign=False)} {_interval(conditional)}"
            yield TableEntry(value, sub=sub)

    def labels(run: EvaluatedRun) -> Entries:
        for label in LABELS:
            values = run.per_question[f"label_{label}"].values()
            count = math.fsum(values) * run.counts.get("repeats", 1)
            share = percent(math.fsum(values) / len(values))
            pages = data.traces.get(run.name) if count else None
            link = f"{pages}#{label}" if pages else ""
            yield TableEntry(number(round(count), 0), sub=share, link=link)
        start = f"{LEFT_OUT}_"
        reasons = {name.removeprefix(start): n for name, n in run.counts.items() if start in name}
        reasons["no_answer_known"] = run.counts.get("without_accepted_answer", 0)
        left_out = sum(reasons.values()) * run.counts.get("repeats", 1)
        each = [f"{name.replace('_', ' ')} {n}" for name, n in reasons.items() if n]
        yield TableEntry(number(left_out, 0), sub=", ".join(each))

    names = [step.replace("_", " ") for step in STEPS]
    steps = [Column(name, "of all; of those before") for name in names]
    tables = [Table.of_runs(having, steps, shares)]
    known = {style.run.name for style in having}
    rows: list[Entries] = []
    for row in data.comparisons_on("accuracy"):
        a, b = (data.style(name) for name in (row.a, row.b))
        if {row.a, row.b} <= known:
            terms = decomposed_difference(a.run.per_question, b.run.per_question)
            entries = [TableEntry(_term(term), sub=_interval(term)) for term in terms.values()]
            names_baseline = b.run.name in data.baselines
            label = a.change if names_baseline else f"{a.within} − {b.within}"
            rows.append([label, *entries])
    if rows:
        columns = [*texts("runs"), *map(Column, [*names, "right unsupported", "difference"])]
        note = (
            "The difference in accuracy over these questions (from the baseline where a row has "
            "one run), decomposed over the steps: what the change of each conditional share "
            "contributes, by the mean of the two polar decompositions (Dietzenbacher and Los, "
            "1998). The terms sum to the difference. Brackets: 95% bootstrap interval over "
            "questions."
        )
        tables.append(Table(columns, rows, note=note))
    counted = [Column(label.replace("_", " ")) for label in [*LABELS, LEFT_OUT]]
    meanings = "; ".join(f"{label.replace('_', ' ')}: {text}" for label, text in LABELS.items())
    note = f"One label for each question and repeat. {meanings[0].upper()}{meanings[1:]}."
    tables.append(Table.of_runs(having, counted, labels, note=note))
    return Section(
        "steps",
        "Where evidence is lost",
        lead="The share of questions with an evidence document in a ranking (surfaced), on a "
        "result page (previewed) and read (opened), whose answer was in the shown characters of "
        "one, and that were answered right: each step and all before it. An excerpt with the "
        "answer counts as opened.",
        note="Left out are questions without an accepted answer, with the answer yes or no, and "
        "with an accepted answer in the question or in no evidence document.",
        tables=tables,
    )


def _term(term: StepTerm, *, sign: bool = True) -> str:
    return value_text(term.value, STEP_MEASURES[0], sign=sign)


def _interval(term: StepTerm) -> str:
    return interval_text(term.low, term.high, STEP_MEASURES[0])


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
        if drawn := [(style, list(row.values())) for style, row in values if row]:
            figures.append(Figure(spreads(drawn, axis=axis), heading=axis.capitalize()))

    def entries(run: EvaluatedRun) -> Entries:
        for kind in kinds:
            calls = list(run.per_question.get(kind, {}).values())
            if not calls:
                yield "—"
                continue
            low, middle, high = np.percentile(calls, [5, 50, 95])
            spread = f"{low:g}–{middle:g}–{high:g}"
            yield TableEntry(number(float(np.mean(calls)), 2), sub=spread)

    columns = [Column(kind.replace("_", " "), "mean, 5–50–95%") for kind in kinds]
    folded = "Calls per question, in numbers"
    tables = [Table.of_runs(data.styles, columns, entries, folded=folded)]
    branching = [style for style in data.styles if _BRANCHES[0] in style.run.metrics]
    if any(style.run.metrics[_BRANCHES[0]] for style in branching):
        tables.append(_branch_table(branching))
    return Section(
        "calls",
        "Calls per question",
        figures=figures,
        key="Thin line: 5th to 95th percentile of the questions; thick line: 25th to 75th; dot: "
        "median." + (_ONLY_COLOURED if data.too_many_colours else ""),
        tables=tables,
    )


_BRANCHES = ("candidate_searches", "branches_abandoned", "returns_to_question")


def _branch_table(styles: Sequence[RunStyle]) -> Table:
    """How agents follow candidates, with what the paper on Pi-Serini reports for comparison."""

    def entries(run: EvaluatedRun) -> Entries:
        for measure in ("tool_calls", *_BRANCHES):
            yield TableEntry(
                value_text(run.metrics.get(measure), measure), sub=interval_of(run, measure)
            )
        yield percent(_spent(run).get("cached"))

    columns = [
        Column(name.replace("_", " "), "per question") for name in ("tool_calls", *_BRANCHES)
    ]
    return Table.of_runs(
        styles,
        [*columns, Column("cached", "of the input tokens")],
        entries,
        note="How agents follow candidates. A candidate search has a name that the tools showed "
        "and the question lacks; a branch is a series of such searches for one name, abandoned "
        "if no later query and not the answer has one of its names. The names are found by rules "
        "(soundingline.toolkit.evaluation.agent_run), so the counts are approximate.",
    )


_OF_QUERIES = {
    "": ("words", "quoted", "operators", "from_question", "from_shown", "from_neither"),
    "Reformulations": ("repeated", "added", "dropped", "exchanged", "new"),
}


def queries_section(data: ReportData) -> Section | None:
    """The queries of the agents by turn; None if no agent searched with a query."""
    styles = [style for style in data.styles if "text_queries" in style.run.metrics]
    tables = [_queries_table(styles, names, folded) for folded, names in _OF_QUERIES.items()]
    if not styles:
        return None
    return Section(
        "queries",
        "Queries of the agents",
        lead="The form of the queries that agents wrote, where their words come from, and how each "
        "differs from the query before it, for all queries of a question and for the first, the "
        "second and the later ones.",
        note="Means over n questions of the mean of a question’s queries, with 95% confidence "
        "intervals; shares from 0 to 1. A word’s source is that of its first use, so that it does "
        "not depend on which documents the query found. Queries that are neither added, dropped, "
        "exchanged nor new have the words of the query before.",
        tables=[table for table in tables if table.rows],
    )


def _queries_table(styles: Sequence[RunStyle], names: Sequence[str], folded: str) -> Table:
    """A row for each run and turn that has a value."""
    rows: list[Entries] = []
    for style, turn in product(styles, ("", *TURNS)):
        measures = [f"query_{name}_{turn}".rstrip("_") for name in names]
        metrics = style.run.metrics
        if known := [name for name in measures if name in metrics]:
            count = number(style.run.denominators.get(known[0]), 0)
            entries = [
                TableEntry(value_text(metrics.get(name), name), sub=interval_of(style.run, name))
                for name in measures
            ]
            rows.append([style.entry, turn or "all", count, *entries])
    columns = [Column("n", "questions"), *(Column(name.replace("_", " ")) for name in names)]
    return Table([*texts("run", "queries"), *columns], rows, folded=folded)


def accuracy_cost_section(data: ReportData) -> Section | None:
    """Accuracy against dollars, or tokens if fewer than two runs have prices; None without
    these."""
    measure, known = "accuracy", dict[str, list[tuple[RunStyle, float]]]()
    styles = [style for style in data.styles if measure in style.run.metrics]
    spent = {style.run.name: _spent(style.run) for style in styles}
    for unit in ("dollars", "tokens"):
        known[unit] = [(s, c) for s in styles if (c := spent[s.run.name].get(unit)) is not None]
    unit = next((unit for unit, rows in known.items() if len(rows) > 1), "")
    if not unit or data.systems is not None or not any(cost for _, cost in known[unit]):
        return None
    points = [_point(style, cost, measure) for style, cost in known[unit]]
    front = pareto_front([(cost, value) for _, cost, value, _ in points])
    best = {points[place][0].run.name for place in front}
    drawn = {style.run.name for style, *_ in points}
    unknown = [style.label for style in styles if style.run.name not in drawn]
    key = ["Broken line: the Pareto front. Lines: 95% confidence interval of the mean."]
    key += [_GREY] if data.too_many_colours else []
    key += [_not_drawn(unit, unknown)] if unknown else []
    lists = sorted({date for style in styles for date in style.run.prices.values()})
    key += [f"Dollars are those of the price lists of {', '.join(lists)}."] if lists else []

    def entries(run: EvaluatedRun) -> Iterator[TableEntry | str]:
        value = value_text(run.metrics[measure], measure)
        yield TableEntry(value, sub=interval_of(run, measure))
        of_question = spent[run.name]
        dollars, questions = of_question.get("dollars"), of_question["questions"]
        of_all = f"{number(dollars * questions, 2)} in all" if dollars is not None else ""
        yield TableEntry(number(dollars, 4), sub=of_all)
        yield number(of_question.get("tokens"), 0)
        yield percent(of_question.get("cached"))
        yield "; ".join(_price_lists(run)) or "—"
        yield "—" if run.name not in drawn else "yes" if run.name in best else "no"

    columns = [Column(measure), Column("dollars", "per question"), Column("tokens", "per question")]
    columns += [Column("cached", "of the input tokens"), *texts("prices of", "Pareto front")]
    return Section(
        "accuracy-cost",
        "Accuracy against cost",
        lead=f"Accuracy against the {unit} that language models used for a question.",
        legend=data.highlighted if data.too_many_colours else (),
        figures=[
            Figure(against_cost(points, axis=f"{unit} per question", measure=measure, front=front))
        ],
        key=" ".join(key),
        note="A run is on the Pareto front if no other run is at least as accurate for at most the "
        "same cost, and better in one of the two. The front is of means: neighbours on it may not "
        "differ significantly. Requests of the judge are not counted.",
        tables=[Table.of_runs(styles, columns, entries)],
    )


def _point(
    style: RunStyle, cost: float, measure: str
) -> tuple[RunStyle, float, float, tuple[float, float] | None]:
    return style, cost, style.run.metrics[measure], run_interval(style.run, measure)


def _not_drawn(costs: str, labels: Sequence[str]) -> str:
    return f"Not drawn, because their {costs} are unknown: {', '.join(labels)}."


def _price_lists(run: EvaluatedRun) -> list[str]:
    """The dates of the price lists of the evaluation, else of those by which a run was billed."""
    config = run.manifest.get("config", {})
    groups = [group for group in config if group.endswith("llm") and group != "judge_llm"]
    tables = [mapping(mapping(config[group]).get("price")) for group in groups]
    billed = [str(table["dated"]) for table in tables if table.get("dated")]
    return sorted({*(run.prices.values() or billed)})


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


def _spent(run: EvaluatedRun) -> dict[str, float]:
    """The means over questions of the dollars and tokens of all roles but the judge, as far as they
    are known, the share of cached input tokens, and the number of questions that were run."""
    amounts: dict[str, float] = {"questions": recorded_count(run)}
    names = ("usage_dollars", "usage_input_tokens", "usage_output_tokens", "usage_cached_tokens")
    dollars, read, written, cached = map(run.metrics.get, names)
    if dollars is not None:
        amounts["dollars"] = dollars
    if read is not None and written is not None:
        amounts["tokens"] = read + written
    if read and cached is not None:
        amounts["cached"] = cached / read
    return amounts


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
    for when, words in _TIMES.items():
        points, unknown = [], []
        for style in data.styles:
            run = style.run
            if measure not in run.metrics:
                continue
            cost = _known_cost(run, costs[run.name], when, unit)
            if cost is None:
                unknown.append(style.label)
            else:
                points.append(_point(style, cost, measure))
        if points:
            svg = against_cost(points, axis=f"{unit} {words}", measure=measure)
            figures.append(Figure(svg, heading=f"{measure}, {words}"))
        if unknown:
            key.append(_not_drawn(f"{unit} ({words})", unknown))

    def entries(run: EvaluatedRun) -> Iterator[str]:
        yield value_text(run.metrics.get(measure), measure)
        for when in _TIMES:
            for unit in _UNITS:
                amount = costs[run.name][when].get(unit)
                large = amount is not None and amount >= 100
                yield number(amount, 0 if unit == "tokens" else 2 if large else 4)

    columns = [Column(measure)]
    columns += [Column(unit, words) for words in _TIMES.values() for unit in _UNITS]
    return Section(
        "costs",
        "Recall against cost",
        lead=f"{measure} against the cost of a run: the cost of phrases for the whole corpus and "
        "of their index, which are made once, and the cost per query.",
        legend=data.highlighted,
        figures=figures,
        key=" ".join(key),
        note="Dollars and tokens are those of language models, including replies that were read "
        "from a cache; — where unknown. Seconds are wall time on the machine of the run, including "
        "the time to load models and indexes, without the time to wait for phrases of the corpus. "
        "The cost per query of an agent is its cost per question, without replies from a cache.",
        tables=[Table.of_runs(data.styles, columns, entries)],
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

    def entries(run: EvaluatedRun) -> Entries:
        costs = run.manifest.get("costs", {})
        for unit, (measures, digits) in _SPENT.items():
            if spent := _by_attempt(run, measures):
                levels = [number(level, digits) for level in np.percentile(spent, [50, 90])]
                total = number(math.fsum(spent), min(digits, 2))
                yield TableEntry(" / ".join(levels), sub=f"{total} in {len(spent):,}")
            else:  # a ranking without an agent knows the mean alone
                mean = _costs(run)["query"].get(unit)
                yield TableEntry(number(mean, digits), sub="mean" if mean is not None else "")
        stages = run.manifest.get("stages", {})
        gpu = {name: row["gpu_seconds"] for name, row in stages.items() if row.get("gpu_seconds")}
        each = ", ".join(f"{name} {number(seconds, 0)}" for name, seconds in gpu.items())
        yield TableEntry(number(math.fsum(gpu.values()) if gpu else None, 0), sub=each)
        index, phrases = costs.get("index_seconds", {}), _costs(run)["once"]
        used = index.get("gpu")
        sub = f"{number(used, 0)} on a GPU" if used else ""
        yield TableEntry(number(index.get("all"), 1), sub=sub)
        paid = [f"{number(phrases[unit], 2)} {unit}" for unit in _UNITS[:2] if unit in phrases]
        yield TableEntry(number(phrases.get("seconds"), 1), sub=", ".join(paid))

    columns = [Column(name, "median / 90%, sum") for name in _SPENT]
    columns += [Column(GPU, "by model"), Column("index", "seconds")]
    table = Table.of_runs(data.styles, [*columns, Column("phrases", "seconds, paid")], entries)
    known = [any(entry.text != "—" for entry in column) for column in zip(*table.rows, strict=True)]
    table.columns = [one for one, shown in zip(table.columns, known, strict=True) if shown]
    table.rows = [[e for e, shown in zip(r, known, strict=True) if shown] for r in table.rows]
    return table if len(table.columns) > 1 else None


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
    return Section(
        "cell-costs",
        "Cost of each run",
        lead="Dollars and tokens of the language models of the agent and of the pipeline, and wall "
        "seconds, by question and repeat: the median, the 90th percentile, and the sum over those "
        "for which they are known.",
        note="GPU seconds are those of local models: the seconds in the models of stages, and for "
        "a vLLM server on this machine all seconds of the run, for each of its GPUs. Indexes and "
        "phrases of a corpus are made once, and each run that uses them names their cost. Requests "
        "of the judge are not counted.",
        tables=[table],
    )


def corpus_size_section(data: ReportData) -> Section | None:
    """Measures against the share of the unjudged documents in a corpus; None for one share."""
    benchmarks = {
        run.name: mapping(mapping(run.manifest.get("config")).get("benchmark")) for run in data.runs
    }
    shares = {name: float(one.get("corpus_share") or 1.0) for name, one in benchmarks.items()}
    names = {str(one.get("name")) for one in benchmarks.values()}
    if data.systems is None or len(set(shares.values())) < 2 or len(names) > 1:
        return None
    recalls = [name for name in data.measures if name.startswith(("recall_", "R@"))]
    known = {name for run in data.runs for name in run.metrics}
    wanted = dict.fromkeys(("accuracy", *recalls[:1], data.main))
    measures = [name for name in wanted if name in known][:2]
    by_share = sorted(data.styles, key=lambda style: shares[style.run.name])
    figures = []
    for measure in measures:
        styles = [style for style in by_share if measure in style.run.metrics]
        runs = [style.run for style in styles]
        points = [_point(style, shares[style.run.name], measure) for style in styles]
        lines = {
            system.label: [n for n, run in enumerate(runs) if run in system.runs.values()]
            for system in data.systems.systems
        }
        drawn = {label: places for label, places in lines.items() if places}
        axis = "share of the unjudged documents"
        svg = against_cost(points, axis=axis, measure=measure, lines=drawn)
        figures.append(Figure(svg, heading=f"{measure} against the size of the corpus"))

    def entries(run: EvaluatedRun) -> Iterator[TableEntry | str]:
        yield number(shares[run.name], 2)
        for measure in measures:
            value = value_text(run.metrics.get(measure), measure)
            yield TableEntry(value, sub=interval_of(run, measure))

    return Section(
        "corpus-size",
        "Effect of the size of the corpus",
        lead="Each corpus keeps all judged documents and a share of the others; a smaller one is "
        "part of a larger one.",
        figures=figures,
        key="A line joins the runs of one system. Vertical: 95% confidence interval of the mean.",
        tables=[Table.of_runs(by_share, [Column("share"), *map(Column, measures)], entries)],
    )


def roles_section(data: ReportData) -> Section | None:
    """Usage of language models by role; None if no run has more than one role."""
    quantities = ("calls", "input_tokens", "cached_tokens", "output_tokens", "seconds", "dollars")
    rows: list[Entries] = []
    several = False
    for style in data.styles:
        metrics = style.run.metrics
        roles = [role for role in ROLES if metrics.get(f"usage_{role}_calls")]
        if len(roles) > 1:
            roles.append("all")
            several = True
        for role in roles:
            prefix = "usage_" if role == "all" else f"usage_{role}_"
            measures = [f"{prefix}{quantity}" for quantity in quantities]
            numbers = [value_text(metrics.get(name), name) for name in measures]
            dollars, total = metrics.get(f"{prefix}dollars"), metrics.get("usage_dollars")
            share = None if dollars is None or not total else dollars / total
            rows.append([style.entry, role, *numbers, percent(share)])
    if not several:
        return None
    columns = [*texts("run", "role"), *(Column(name.replace("_", " ")) for name in quantities)]
    return Section(
        "roles",
        "Cost by role",
        lead="Usage of language models per question, by the component that made the requests.",
        note="Means over the questions for which they are known; — if there are none. The judge, "
        "and phrases for a whole corpus, are not part of a question.",
        tables=[Table([*columns, Column("share", "of the dollars")], rows)],
    )
