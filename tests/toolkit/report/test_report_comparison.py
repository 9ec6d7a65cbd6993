"""The summary, paired differences, systems by benchmarks, costs by role and unknown costs; figures,
heat maps and the report on a tuning."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from functools import partial
from itertools import product
from warnings import catch_warnings, simplefilter

import matplotlib
import numpy as np
import pytest
from report_runs import RETRIEVERS, UNITS, fake_run, paired, printed, six_runs, texts, written

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import PairedComparison, compare
from soundingline.toolkit.evaluation.comparison import by_benchmark, systems_of
from soundingline.toolkit.evaluation.funnel import LABELS, STEPS, StepRecord, step_measures
from soundingline.toolkit.evaluation.tuning import Grid, MeasureTable, tune
from soundingline.toolkit.report import (
    agents,
    benchmark_tables,
    comparison_table,
    cost_tables,
    render,
)
from soundingline.toolkit.report.comparison import (
    benchmarks_section,
    contrasts,
    differences_section,
    summary,
    warnings,
)
from soundingline.toolkit.report.effects import effects_section
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
from soundingline.toolkit.report.results import (
    ReportData,
    glossary_section,
    results_section,
    runs_by_measure,
    sorted_by_measure,
)
from soundingline.toolkit.report.tuning import render_tuning

LOW, HIGH = (replace(c, factors={}, name=n) for c, n in zip(six_runs()[:2], "AB", strict=True))
LOW = replace(LOW, metrics={"accuracy": 0.4, "calibration_error": 30.0, "search_calls": 9.0})
HIGH = replace(HIGH, metrics={"accuracy": 0.55, "calibration_error": 20.0, "search_calls": 8.0})
NUMBERS = {"mean_a": 0.55, "mean_b": 0.4, "difference": 0.15, "low": 0.05, "high": 0.25}
NUMBERS |= {"p": 0.002, "p_holm": 0.004, "questions_needed": 70}
QUESTIONS = {"n": 100, "wins": 30, "losses": 15, "ties": 55}
CLEAR = PairedComparison(measure="accuracy", a="B", b="A", **NUMBERS, **QUESTIONS)
UNCLEAR = CLEAR._replace(low=-0.02, high=0.32, p=0.05, p_holm=0.1, questions_needed=1234.2)


def data_of(*verdicts, runs=(LOW, HIGH), **arguments):
    return ReportData(runs, verdicts, **arguments)


def words_of(*verdicts, **arguments):
    return "".join(span.text for span in summary(data_of(*verdicts, **arguments)))


def test_a_significant_difference_has_its_interval_the_correction_and_the_questions():
    end = (
        "Significant means p of at most 0.05 after Holm’s correction over the 1 comparison of a "
        "measure, on 100 questions."
    )
    assert words_of(CLEAR, baseline="A") == (
        f"B raises accuracy by 0.150 [0.050, 0.250], against the baseline A (0.400). {end}"
    )
    assert words_of(CLEAR, baseline="B") == (
        f"A lowers accuracy by 0.150 [0.050, 0.250], against the baseline B (0.550). {end}"
    )
    assert words_of(CLEAR) == f"B raises accuracy by 0.150 [0.050, 0.250] against A. {end}"


def test_where_nothing_is_significant_no_run_is_named_the_best():
    ranges = "accuracy ranges from 0.400 to 0.550 over 2 runs. "
    start = (
        f"No difference in accuracy is significant: {ranges}The largest difference in accuracy is "
        "+0.150 [−0.020, 0.320], of B against A; "
    )
    about = "about 1,234 questions would make a difference of this size significant. "
    assert words_of(UNCLEAR).startswith(start + about)
    for needed in (None, float("inf")):
        said = words_of(UNCLEAR._replace(questions_needed=needed))
        assert said.startswith(f"{start}no number of questions would make it significant.")
    assert words_of() == f"{ranges}No difference between them was tested."
    equal = [replace(run, metrics={"accuracy": 0.4}) for run in (LOW, HIGH)]
    said = words_of(UNCLEAR._replace(difference=0.0, mean_a=0.4), runs=equal)
    assert said.startswith(
        "No difference in accuracy is significant: accuracy is 0.400 in all 2 runs"
    )
    assert "largest" not in said


def test_the_two_largest_significant_differences_come_first_and_the_others_are_counted():
    both = {"accuracy": 0.4, "nDCG@10": 0.3}
    runs = [replace(LOW, name=name, metrics=both) for name in "ABCDE"]
    rows = [
        CLEAR._replace(a=name, difference=difference)
        for name, difference in (("B", 0.1), ("C", -0.3), ("D", 0.2), ("E", 0.05))
    ]
    rows += [row._replace(measure="nDCG@10", p_holm=0.5) for row in rows]
    said = words_of(*rows, runs=runs, baseline="A")
    assert said.startswith("C lowers accuracy by 0.300 ")
    assert "and D raises it by 0.200" in said
    assert (
        "; 2 more of the 4 differences in accuracy are significant. No difference in nDCG" in said
    )
    # What is not significant is counted too, and the baseline is named once.
    some = [row._replace(p_holm=0.5 if row.a == "D" else 0.01) for row in rows]
    said = words_of(*some, runs=runs, baseline="A")
    assert "; 1 more of the 4 differences in accuracy is significant, 1 is not. " in said
    assert "against the baseline (0.400); 1 more of the 4 differences in nDCG@10" in said
    assert said.count("baseline A") == 1
    # What is significant comes first, whichever measure it is of.
    rows = [row._replace(p_holm=0.5 if row.measure == "accuracy" else 0.01) for row in rows]
    said = words_of(*rows, runs=runs, baseline="A")
    assert (
        said.startswith("C lowers nDCG@10") and "No difference in accuracy is significant" in said
    )


def test_the_chance_level_of_yes_no_questions_is_told_where_there_are_some():
    counts = {"questions": 100, "without_accepted_answer": 20, "yes_no": 32, "yes_no_by_chance": 20}
    runs = [replace(run, counts=counts) for run in (LOW, HIGH)]
    (line,) = [one for one in warnings(data_of(runs=runs)) if one.startswith("Yes/no")]
    assert line.startswith("Yes/no questions: 32 of 80.") and "accuracy 0.250" in line
    assert not [one for one in warnings(data_of()) if "Yes/no" in one]


def test_a_factorial_design_without_a_baseline_has_contrasts_of_one_factor_and_all_pairs_folded():
    runs = six_runs()
    data = ReportData(runs, compare(runs, ["accuracy"], test="t", resamples=99))
    page = written(data, differences_section(data))
    result = contrasts(data)
    assert len(result) == 3 + 6  # retrievers within each unit, pairs of units within each retriever
    for one in result:
        a, b = one.a.run.factors, one.b.run.factors
        assert sum(a[factor] != b[factor] for factor in a) == 1
    labels = [one.label for one in result]
    assert "bm25_tuned − bm25_default\nunit: maxp" in labels
    assert "maxp − passage\nretriever: bm25_default" in labels
    assert page.markdown.count("## Differences of one factor") == 1
    folded = page.html.partition("All pairs: paired differences on accuracy</summary>")[2]
    assert folded.partition("</table>")[0].count("<tr>") == 1 + 15


def test_a_verdict_read_from_the_other_side_is_mirrored():
    same, mirrored = CLEAR.seen_from("B"), CLEAR.seen_from("A")
    assert (same.a, same.mean_a, same.difference, same.wins) == ("B", 0.55, 0.15, 30)
    assert (mirrored.a, mirrored.b) == ("A", "B")
    assert (mirrored.mean_a, mirrored.mean_b) == (0.4, 0.55)
    assert (mirrored.difference, mirrored.low, mirrored.high) == (-0.15, -0.25, -0.05)
    assert (mirrored.wins, mirrored.losses, mirrored.ties) == (15, 30, 55)


OTHER = replace(LOW, name="C", metrics={"accuracy": 0.5})
TWIN = replace(HIGH, name="C")


@pytest.mark.parametrize(
    ("runs", "pairs", "marks"),
    [
        ((LOW, HIGH, OTHER), [CLEAR, CLEAR._replace(b="C")], {"B": "best"}),
        ((LOW, HIGH, OTHER), [CLEAR, UNCLEAR._replace(b="C")], {"B": "tie", "C": "tie"}),
        ((LOW, HIGH, OTHER), [CLEAR], {"B": "tie"}),
        ((LOW, HIGH, TWIN), [CLEAR], {"B": "tie", "C": "tie"}),
        ((HIGH, TWIN), [CLEAR], {}),
    ],
)
def test_a_run_is_best_if_it_differs_significantly_from_every_other_one(runs, pairs, marks):
    assert data_of(*pairs, runs=runs).marks("accuracy") == marks


def test_with_a_baseline_the_runs_that_differ_from_it_are_marked_and_seen_from_it():
    pairs = (CLEAR, UNCLEAR._replace(a="C"))
    for baseline, marks in (("A", {"B": "higher"}), ("B", {"A": "lower"})):
        data = data_of(*pairs, runs=(LOW, HIGH, OTHER), baseline=baseline)
        assert data.against_baseline and data.marks("accuracy") == marks
        first = data.comparisons_on("accuracy")[0]
        assert (first.b, first.difference) == (baseline, 0.15 if baseline == "A" else -0.15)


def test_means_that_differ_by_rounding_alone_are_equal():
    one = replace(HIGH, name="A", metrics={"accuracy": 0.3})
    other = replace(HIGH, name="B", metrics={"accuracy": 0.1 + 0.2})
    data = data_of(runs=(one, other))
    assert [run.name for run in runs_by_measure(data.runs, "accuracy")] == ["A", "B"]
    assert data.marks("accuracy") == {}
    low = replace(HIGH, name="C", metrics={"accuracy": 0.1})
    clear = CLEAR._replace(a="A", b="C")
    assert data_of(clear, runs=(one, other, low)).marks("accuracy") == {"A": "tie", "B": "tie"}


def test_an_error_is_best_where_it_is_lowest_and_a_cost_is_never_best():
    error = CLEAR._replace(measure="calibration_error", difference=-10.0, low=-12.0, high=-8.0)
    calls = CLEAR._replace(measure="search_calls", difference=-1.0, low=-2.0, high=-0.5)
    data = data_of(error, calls)
    assert data.marks("calibration_error") == {"B": "best"}
    assert data.marks("search_calls") == {}


def test_the_main_measure_is_the_first_tested_one_and_other_runs_are_left_out():
    calls = CLEAR._replace(measure="search_calls")
    mains = [data_of(*rows).main for rows in ((), (calls,), (CLEAR, calls))]
    assert mains == ["accuracy", "search_calls", "accuracy"]
    assert data_of(CLEAR, CLEAR._replace(a="Z")).comparisons == [CLEAR]


def test_questions_without_an_accepted_answer_are_counted_if_there_is_an_accuracy():
    run = fake_run("one", 0.5, unit="document")
    counts = {**run.counts, "without_accepted_answer": 7}
    said = "Left out of accuracy, without an accepted answer: 7 of 100 questions."
    assert said in warnings(ReportData([replace(run, counts=counts)]))
    metrics = {name: value for name, value in run.metrics.items() if name != "accuracy"}
    lists = replace(run, counts={**counts, "without_accepted_answer": 100}, metrics=metrics)
    assert "Left out of accuracy" not in " ".join(warnings(ReportData([lists])))


LEVELS = {"bm25": 0.4, "tuned": 0.5, "sira": 0.8}


def benchmark_run(benchmark, retriever, **settings):
    name = f"{benchmark}-{retriever}"
    factors = {"benchmark": "beir", "unit": "passage", "retriever": retriever, **settings}
    one = fake_run(name, LEVELS[retriever], questions=40, **factors)
    return replace(
        one,
        factors={**factors, "benchmark.limit": benchmark},
        manifest={
            "config": {"benchmark": {"name": benchmark}, "retriever": {}, "unit": {}},
            "fingerprints": {
                "benchmark": f"content of {benchmark}",
                "index": f"{benchmark}-{retriever}",
                "retriever": retriever,
                "retriever.content": f"{benchmark}-{retriever}",
                "unit": "passage",
                **settings,
            },
        },
    )


def grid(*left_out):
    runs = [benchmark_run(*names) for names in product(("nq", "fever", "quora"), LEVELS)]
    return [one for one in runs if one.name not in left_out]


def compared(runs, **arguments):
    verdicts = []
    for group in by_benchmark(runs):
        verdicts += compare(group, ["nDCG@10"], test="t", resamples=99)
    return ReportData(runs, verdicts, **arguments)


def test_rows_are_systems_columns_benchmarks_and_the_last_the_mean_of_the_row():
    runs = grid()
    (table, *_) = benchmarks_section(compared(runs)).tables
    header = ["system", "nq", "fever", "quora", "macro average"]
    assert [column.title for column in table.columns] == header
    assert [row[0] for row in texts(table)] == ["bm25", "tuned", "sira"]
    for row in texts(table):
        own = [one.metrics["nDCG@10"] for one in runs if one.factors["retriever"] == row[0]]
        assert row[1:] == [f"{value:.4f}" for value in (*own, sum(own) / 3)]
    # The best of each benchmark is marked there, not the best of all runs alone.
    assert all(entry.mark for entry in table.rows[2][1:4])


def test_macro_averages_that_differ_by_rounding_alone_keep_the_order_of_the_systems():
    values = {"bm25": (0.3, 0.3), "tuned": (0.1 + 0.2, 0.3), "sira": (0.1, 0.1)}
    runs = [
        replace(benchmark_run(benchmark, retriever), metrics={"nDCG@10": values[retriever][place]})
        for place, benchmark in enumerate(("nq", "fever"))
        for retriever in values
    ]
    systems = systems_of(runs)
    average = partial(systems.macro_average, measure="nDCG@10")
    ranked = sorted_by_measure(systems.systems, "nDCG@10", average)
    assert [system.label for system in ranked] == ["bm25", "tuned", "sira"]


def test_a_system_without_a_run_on_a_benchmark_has_no_macro_average_and_it_is_said():
    data = compared(grid("fever-sira"))
    section = benchmarks_section(data)
    page, rows = written(data, section), texts(section.tables[0])
    assert rows[2][2] == "—" and rows[2][4] == "—"
    assert rows[0][4] != "—"
    for text in (page.markdown, page.html):
        assert "sira has no macro average: missing on fever." in text
    said = "The macro average of nDCG@10 over 3 benchmarks, which is not tested, is"
    assert re.match(r" 0\.\d{3} \(bm25\) to 0\.\d{3} \(tuned\)\.", page.markdown.partition(said)[2])


def test_a_measure_that_a_benchmark_does_not_have_is_averaged_over_the_others():
    runs = grid()
    for one in runs[6:]:
        del one.metrics["nDCG@10"]
    systems = systems_of(runs)
    (bm25, *_) = systems.systems
    own = [one.metrics["nDCG@10"] for one in runs[:6] if one.factors["retriever"] == "bm25"]
    assert systems.macro_average(bm25, "nDCG@10") == pytest.approx(sum(own) / 2)
    (table, *_) = benchmarks_section(ReportData(runs, primary="nDCG@10")).tables
    assert table.note == "No system has nDCG@10 on quora."


@pytest.mark.slow
def test_differences_are_those_of_the_paired_comparison_on_each_benchmark():
    runs = grid()
    data = compared(runs, baseline="fever-tuned")
    (_, differences, *_) = benchmarks_section(data).tables
    assert differences.note.startswith("Difference in nDCG@10 from tuned")
    (sira,) = (row for row in texts(differences) if row[0] == "sira")
    for entry, benchmark in zip(sira[1:], ("nq", "fever", "quora"), strict=True):
        pair = [one for one in runs if one.name in (f"{benchmark}-sira", f"{benchmark}-tuned")]
        (row,) = compare(pair[::-1], ["nDCG@10"], baseline=f"{benchmark}-tuned", test="t")
        assert entry == f"+{row.difference:.4f}"
    # The differences of every benchmark are in the section of the baseline, and in its figures.
    section = differences_section(data)
    page = written(data, section)
    assert section.title == "Differences from the baseline"
    for change in ("| retriever=sira", "| retriever=bm25"):
        assert page.markdown.count(change) == 3
    headings = re.findall(r"<figcaption>([^<]*)</figcaption>", page.html)
    assert list(dict.fromkeys(headings)) == ["nq", "fever", "quora"]


def test_settings_distinguish_systems_and_contents_do_not():
    runs = [benchmark_run(name, "sira", task="claim") for name in ("nq", "fever")]
    for run, content in zip(runs, "ab", strict=True):
        run.manifest["fingerprints"]["splade-index"] = content
    assert len(systems_of(runs).systems) == 1
    runs = [runs[0], benchmark_run("fever", "sira", task="argument")]
    for one in runs:
        one.manifest["config"]["task"] = {}
    apart, together = systems_of(runs), systems_of(runs, by=["retriever"])
    assert [s.label for s in apart.systems] == ["claim", "argument"]
    assert [s.label for s in together.systems] == ["sira"]


def test_factors_that_do_not_distinguish_the_runs_of_a_benchmark_are_refused():
    """Else the rows of the table would be a matter of the order of the runs."""
    runs = [benchmark_run(*names) for names in product(("nq", "fever"), ("sira", "bm25"))]
    with pytest.raises(InputError, match=r"no run has the factor retreiver\. valid: retriever"):
        systems_of(runs, by=["retreiver"])
    alike = "nq-sira and nq-bm25 have the same unit and differ otherwise.*add retriever"
    with pytest.raises(InputError, match=alike):
        systems_of(runs, by=["unit"])
    again = replace(runs[0], name="nq-sira-again")
    systems = systems_of([*runs, again], by=["retriever"])
    assert len(systems.systems) == 3


def test_equal_configurations_on_one_benchmark_are_systems_of_their_own():
    again = replace(benchmark_run("nq", "bm25"), name="nq-bm25-again")
    systems = systems_of([benchmark_run("nq", "bm25"), again, benchmark_run("fever", "bm25")])
    assert [sorted(system.runs) for system in systems.systems] == [["fever", "nq"], ["nq"]]
    assert [system.label for system in systems.systems] == ["nq-bm25", "nq-bm25-again"]
    assert systems_of([benchmark_run("nq", "bm25"), again]) is None


def test_the_terminal_has_a_table_for_each_requested_measure():
    tables = benchmark_tables(ReportData(grid("nq-sira")), ["nDCG@10", "accuracy"])
    text = printed(*tables)
    assert len(tables) == 2 and "nDCG@10" in text and "accuracy" in text
    assert "macro" in text and "missing on nq" in " ".join(text.split())
    (table,) = benchmark_tables(ReportData(grid(), primary="nDCG@10"))
    assert str(table.title) == "nDCG@10"
    on_one = [benchmark_run("nq", "bm25"), benchmark_run("nq", "sira")]
    assert benchmark_tables(ReportData(on_one)) == []


@pytest.mark.slow
def test_a_table_of_many_benchmarks_is_split_and_keeps_every_number():
    benchmarks = [f"benchmark_{number}" for number in range(14)]
    runs = [benchmark_run(*names) for names in product(benchmarks, LEVELS)]
    tables = benchmark_tables(ReportData(runs), ["nDCG@10"])
    words = printed(*tables).replace("≈", "").split()
    assert len(tables) > 1
    for one in runs:
        assert f"{one.metrics['nDCG@10']:.4f}" in words
    assert words.count("macro") == 1 and words.count("sira") == len(tables)


def run_with(name, **usage):
    base = fake_run(name, 0.5, unit="document", agent=name)
    return replace(base, metrics={**base.metrics, **{f"usage_{n}": v for n, v in usage.items()}})


ONE = {"calls": 5.0, "dollars": 0.01, "agent_calls": 5.0, "agent_dollars": 0.01}
TWO = {"calls": 12.0, "dollars": 0.04, "input_tokens": 3000.0, "rewriter_calls": 0.0}
TWO |= {"agent_calls": 2.0, "agent_dollars": 0.03, "agent_input_tokens": 1000.0}
TWO |= {"reranker_calls": 10.0, "reranker_dollars": 0.01, "reranker_input_tokens": 2000.0}


def test_a_run_of_several_roles_has_a_row_for_each_and_for_all():
    report = render(ReportData([run_with("one", **ONE), run_with("two", **TWO)]))
    _, _, section = report.markdown.partition("## Cost by role")
    rows = [line.partition(" | ")[2] for line in section.partition("\n## ")[0].splitlines()]
    assert [row for row in rows if row.startswith(("agent", "reranker", "all"))] == [
        "agent | 5.00 | — | — | — | — | 0.0100 | 100% |",
        "agent | 2.00 | 1,000 | — | — | — | 0.0300 | 75% |",
        "reranker | 10.00 | 2,000 | — | — | — | 0.0100 | 25% |",
        "all | 12.00 | 3,000 | — | — | — | 0.0400 | 100% |",
    ]
    assert 'id="roles"' in report.html


def test_unknown_money_has_no_share_and_runs_of_one_role_no_such_section():
    known = {name: value for name, value in TWO.items() if "dollars" not in name}
    (table,) = agents.roles_section(ReportData([run_with("two", **known)])).tables
    assert texts(table)[0][1:] == ["agent", "2.00", "1,000", "—", "—", "—", "—", "—"]
    for run in (run_with("one", **ONE), run_with("none")):
        assert agents.roles_section(ReportData([run])) is None


def costed(name, dollars, known):
    """A run of 100 questions whose cost, `dollars` times the question's number, is `known`."""
    run = fake_run(name, 0.5, unit=name)
    values = {f"q{number}": dollars * number for number in known}
    return replace(
        run,
        per_question={**run.per_question, "usage_dollars": values},
        metrics={**run.metrics, "usage_dollars": float(np.mean(list(values.values())))},
    )


def test_a_mean_over_the_known_costs_has_their_number():
    known = [("few", 0.5, 10), ("one", 0.25, 1), ("all", 0.5, 100)]
    runs = [costed(name, dollars, range(count)) for name, dollars, count in known]
    data = ReportData(runs)
    table = printed(comparison_table(data, ["usage_dollars"]))
    report = written(data, results_section(data), glossary_section(data))
    for text in (report.html, report.markdown, table):
        assert "2.2500 (n=10)" in text and "0.0000 (n=1)" in text
        assert "24.7500" in text and "n=100" not in text
    assert "over the questions for which this is known" in report.html


def test_the_section_on_queries_has_a_row_for_each_run_and_turn_with_values():
    values = {
        "text_queries": {"q1": 3.0, "q2": 1.0},
        "query_words": {"q1": 4.0, "q2": 7.0},
        "query_words_first": {"q1": 3.0, "q2": 7.0},
        "query_words_later": {"q1": 4.5},
        "query_new": {"q1": 0.5},
        "query_new_later": {"q1": 0.25},
    }
    other, run = (fake_run(unit, 0.5, unit=unit) for unit in ("document", "passage"))
    data = ReportData([run.with_values({**run.per_question, **values}), other])
    form, changes = agents.queries_section(data).tables
    assert [column.title for column in form.columns[:4]] == ["run", "queries", "n", "words"]
    assert [row[1:4] for row in texts(form)] == [
        ["all", "2", "5.50"],
        ["first", "2", "5.00"],
        ["later", "1", "4.50"],
    ]
    assert [row[1:3] + row[-1:] for row in texts(changes)] == [
        ["all", "1", "0.500"],
        ["later", "1", "0.250"],
    ]
    shown = written(data, results_section(data), glossary_section(data)).markdown
    assert "query_new" in shown and "query_new_later" not in shown
    assert agents.queries_section(ReportData([other])).tables == []


def test_a_comparison_of_cost_has_the_number_of_its_questions():
    runs = [costed("one", 0.5, range(10)), costed("two", 0.25, range(4, 30))]
    data = ReportData(runs, paired(runs, "usage_dollars"))
    report = written(data, differences_section(data))
    for text in (report.html, report.markdown):
        assert "for which it is known in both runs, 6 of 100" in text
    runs = [costed("one", 0.5, range(100)), costed("two", 0.25, range(100))]
    data = ReportData(runs, paired(runs, "usage_dollars"))
    report = written(data, differences_section(data))
    assert "known in both runs" not in report.html


def test_a_run_of_unknown_cost_is_not_drawn_and_one_without_cost_is_at_zero(monkeypatch):
    """The first run has an enriched corpus with dollars, the second one without, the third none."""
    once = [{"documents": 9, "seconds": 2.0, "dollars": 4.0}, {"documents": 9, "seconds": 2.0}, {}]
    query = [
        {"seconds": 0.1, "input_tokens": 5.0, "output_tokens": 1.0, "dollars": 0.01},
        {"seconds": 0.1, "input_tokens": 5.0, "output_tokens": 1.0},
        {"seconds": 0.1},
    ]
    runs = [
        replace(run, manifest={**run.manifest, "costs": {"once": a, "query": b}})
        for run, a, b in zip(six_runs()[:3], once, query, strict=True)
    ]
    drawn = []
    monkeypatch.setattr(agents, "against_cost", lambda points, **_: drawn.append(points) or "")
    data = ReportData(runs)
    section = agents.costs_section(data)
    first, second, third = (style.label for style in data.styles)
    for words in ("dollars (once, for the corpus)", "dollars (per query)"):
        assert f"because their {words} are unknown: {second}." in section.key
    assert first not in section.key and third not in section.key
    costs = [{style.label: cost for style, cost, *_ in points} for points in drawn]
    assert costs == [{first: 4.0, third: 0.0}, {first: 0.01, third: 0.0}]


def test_the_cost_of_a_run_has_the_spread_over_its_questions_and_its_local_models():
    first, second = six_runs()[:2]
    tokens = {"q0": [1.0, 2.0], "q1": [3.0, 4.0], "q2": [5.0]}
    spent = {
        "usage_input_tokens": tokens,
        "usage_output_tokens": {qid: [10 * n for n in row] for qid, row in tokens.items()},
    }
    stages = {"reranker": {"gpu_seconds": 30.0, "seconds": 30.0}, "llm": {"gpu_seconds": 70.0}}
    costs = {"index_seconds": {"all": 9.0, "gpu": 4.0}, "once": {"seconds": 2, "dollars": 0.5}}
    manifest = {**first.manifest, "stages": stages, "costs": costs}
    first = replace(first, repeats=spent, manifest=manifest)
    table = agents.cell_costs_table(ReportData([first, second]))
    shown, empty = (dict(zip([c.title for c in table.columns], r, strict=True)) for r in table.rows)
    # 11, 22, 33, 44 and 55 tokens: the 90th percentile is between the last two.
    assert shown["tokens"].text == "33 / 51" and shown["tokens"].sub == "165 in 5"
    assert "dollars" not in shown and empty["tokens"].text == empty["GPU seconds"].text == "—"
    assert shown["GPU seconds"].text == "100" and shown["GPU seconds"].sub == "reranker 30, llm 70"
    assert shown["index"].text == "9.0" and shown["index"].sub == "4 on a GPU"
    assert shown["phrases"].text == "2.0" and shown["phrases"].sub == "0.50 dollars"
    assert agents.cell_costs_table(ReportData([second])) is None
    assert cost_tables([second]) == []
    (printed,) = cost_tables([first, second])
    assert [str(column.header) for column in printed.columns][1:3] == ["tokens", "GPU seconds"]
    ranking = replace(second, manifest={"costs": {"query": {"seconds": 0.25}}})
    ((_, seconds),) = agents.cell_costs_table(ReportData([ranking])).rows
    assert (seconds.text, seconds.sub) == ("0.2", "mean") and cost_tables([ranking]) == []


def test_a_report_with_a_baseline_opens_with_what_each_change_does():
    costs = {"usage_dollars": 0.25}
    runs = [replace(run, metrics={**run.metrics, **costs}) for run in six_runs()[:3]]
    tested = ["accuracy", "recall_surfaced"]
    rows = compare(runs, tested, runs[0].name, test="t", resamples=99)
    page = render(ReportData(runs, rows, baseline=runs[0].name))
    headings = re.findall(r"^## (.*)$", page.markdown, re.M)
    assert headings[:2] == ["Differences from the baseline", "Results"]
    (figure,) = re.findall(r"<svg.*?</svg>", page.html, re.S)[:1]
    shown = re.findall(r"<text[^>]*>([^<]*)</text>", figure)
    assert [text for text in shown if "=" in text] == ["retriever=bm25_tuned", "unit=passage"]
    assert {"difference in accuracy", "difference in recall_surfaced", "dollars"} <= set(shown)
    # Narrow screens and paper have the same figure.
    assert re.findall(r'<figure class="(\w+)"', page.html) == ["wide"]
    assert shown.count("0.2500") == 2


def spending(run, dollars=None, tokens=None):
    named = {"usage_dollars": dollars, "usage_input_tokens": tokens, "usage_output_tokens": tokens}
    known = {name: value for name, value in named.items() if value is not None}
    return replace(run, metrics={**run.metrics, **known})


def test_accuracy_is_shown_against_dollars_else_tokens_with_the_front():
    runs = [
        replace(run, metrics={**run.metrics, "accuracy": a})
        for run, a in zip(six_runs()[:3], (0.4, 0.6, 0.5), strict=True)
    ]
    priced = [spending(run, cost, 10.0) for run, cost in zip(runs, (0.1, 0.2, 0.3), strict=True)]
    data = ReportData(priced)
    section = agents.accuracy_cost_section(data)
    assert [row[-1].text for row in section.tables[0].rows] == ["yes", "yes", "no"]
    totals = [row[2].sub for row in section.tables[0].rows]
    assert totals == ["10.00 in all", "20.00 in all", "30.00 in all"]
    svg = section.figures[0].svg
    first, second, third = (style.label for style in data.styles)
    assert f"the Pareto front is {first}, then {second}&quot;"[:-6] in svg
    assert all(label in re.findall(r"<text[^>]*>([^<]*)</text>", svg) for label in (first, second))
    # One run without a price is named; with a single price left, tokens are drawn.
    one_unknown = ReportData([priced[0], priced[1], spending(runs[2], tokens=10.0)])
    assert f"their dollars are unknown: {third}." in agents.accuracy_cost_section(one_unknown).key
    unpriced = [
        spending(run, tokens=tokens) for run, tokens in zip(runs, (9.0, 5.0, 1.0), strict=True)
    ]
    by_tokens = agents.accuracy_cost_section(ReportData(unpriced))
    assert "the tokens" in by_tokens.lead
    assert [row[-1].text for row in by_tokens.tables[0].rows] == ["no", "yes", "yes"]
    assert agents.accuracy_cost_section(ReportData(six_runs())) is None


def shared(run, share, accuracy):
    benchmark = {"name": "mill", "corpus_share": share}
    config = {**run.manifest["config"], "benchmark": benchmark}
    prints = {**run.manifest["fingerprints"], "benchmark": f"{share:.2f}0f1e2d3c4b"}
    manifest = {**run.manifest, "config": config, "fingerprints": prints}
    factors = {"benchmark": "beir", "benchmark.name": "mill", "benchmark.corpus_share": str(share)}
    factors |= run.factors
    metrics = {**run.metrics, "accuracy": accuracy}
    right = {f"q{n}": float(n < round(100 * accuracy)) for n in range(100)}
    per = {**run.per_question, "accuracy": right}
    changed = replace(run, factors=factors, manifest=manifest, metrics=metrics, per_question=per)
    return replace(changed, name=f"{run.name}-{share}")


def test_accuracy_and_recall_are_shown_against_the_size_of_the_corpus():
    figures = {0.1: (0.7, 0.8), 0.3: (0.6, 0.7), 1.0: (0.4, 0.55)}
    default, tuned = six_runs()[:2]
    runs = [
        shared(run, share, values[place])
        for share, values in figures.items()
        for place, run in enumerate((default, tuned))
    ]
    section = agents.corpus_size_section(ReportData(runs))
    rows = section.tables[0].rows
    expected = [(f"{share:.2f}", f"{value:.3f}") for share in figures for value in figures[share]]
    assert [(row[1].text, row[2].text) for row in rows] == expected
    accuracy, recall = section.figures
    assert "accuracy against the size" in accuracy.heading and "recall_" in recall.heading
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", accuracy.svg)
    assert {"bm25_default", "bm25_tuned"} <= set(texts)  # the two lines
    assert "share of the unjudged documents" in accuracy.svg
    assert all("[" in row[2].sub for row in rows)  # intervals
    # One benchmark: nothing is averaged over its shares.
    page = render(ReportData(runs)).markdown
    terminal = printed(*benchmark_tables(ReportData(runs)))
    assert "mill 0.1" in page and "0.800" in terminal and "0.1" in terminal
    assert "accuracy by size of the corpus" in page and "benchmark contents" not in page
    assert "2 systems over one benchmark with corpora of 3 sizes." in page
    assert "macro average" not in page.lower() and "macro" not in terminal
    assert "0.683" not in terminal
    assert agents.corpus_size_section(ReportData(six_runs())) is None
    other = replace(runs[0], manifest={**runs[0].manifest, "config": {"benchmark": {"name": "x"}}})
    assert agents.corpus_size_section(ReportData([other, *runs[1:]])) is None


# Main effects and interactions.


def effects(runs):
    """The first column of the section; None without a section."""
    section = effects_section(ReportData(runs))
    return None if section is None else [row[0] for row in texts(section.tables[0])]


def test_a_factor_with_two_levels_is_shown_once():
    # The baseline is the first run, with the default retriever.
    assert effects(six_runs()) == [
        "retriever: bm25_tuned",
        *(f"unit: {unit}" for unit in sorted(UNITS)),
        *(f"retriever: bm25_tuned × unit: {unit}" for unit in sorted(UNITS)),
    ]


def test_a_setting_that_its_option_determines_is_not_a_factor():
    runs = [
        replace(run, factors={**run.factors, "retriever.k1": "25"})
        if run.factors["retriever"] == "bm25_tuned"
        else run
        for run in six_runs()
    ]
    assert effects(runs) == effects(six_runs())


def test_there_are_no_effects_without_a_full_design_and_ten_questions():
    assert effects(six_runs()[:5]) is None
    assert effects(six_runs()[:2]) is None  # one factor
    few = [
        fake_run(f"{unit}-{name}", 0.4, questions=9, unit=unit, retriever=name)
        for unit, name in product(UNITS, RETRIEVERS)
    ]
    assert effects(few) is None


def test_equal_values_have_no_effects():
    right = {f"q{number}": 1.0 for number in range(20)}
    runs = [replace(run, per_question={"accuracy": right}) for run in six_runs()]
    assert effects(runs) is None


# Figures and heat maps, and the report on a tuning: what they show, and that they load nothing.


RUN = six_runs()[0]
LOOK = RunStyle(RUN, "document · bm25_default", 0)


def texts_of(svg):
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
    shown = texts_of(svg)
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
    said = texts_of(funnel(LOOK, RUN.funnel))
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
    assert {"1", "10", "100", "1,000", "10,000"} <= set(texts_of(svg))


def test_a_curve_starts_where_something_is_first_found():
    points = [(1.0, 0.0), (10.0, 0.0), (100.0, 0.0), (1000.0, 0.3), (9000.0, 0.4)]
    said = texts_of(exposure([(LOOK, points)], axis="tokens"))
    assert "1,000" in said and "10" not in said
    for few in ([(0.0, 0.0), (5.0, 0.5)], [(1.0, 0.0)], [(0.0, 0.0)]):
        assert "<path" in exposure([(LOOK, few)], axis="documents")


@pytest.mark.parametrize(
    ("values", "text"),
    [([1, 2, 3, 10], "median 2.5 · mean 4.00"), ([0, 0], "median 0 · mean 0.00")],
)
def test_a_spread_prints_median_and_mean(values, text):
    assert text in texts_of(spreads([(LOOK, values)], axis="search calls"))


def test_names_are_taken_literally_and_never_as_markup_or_formulas():
    odd = "a$_2$ <b> & 漢字"
    with catch_warnings():
        simplefilter("error")
        svg = drawn(0.1, label=odd, axis=odd)
    assert texts_of(svg).count(odd) == 2
    assert "<b>" not in svg


def test_long_names_are_cut_to_two_lines_a_side():
    svg = drawn(0.1, label="x" * 400 + "\n− " + "y" * 400)
    lines = [text for text in texts_of(svg) if "xx" in text or "yy" in text or text == "…"]
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


def run_with_steps(name, passed, right):
    """A run of 40 questions, of which so many passed each step; 2 others are right unsupported."""
    records = {
        f"q{n}": StepRecord(*(n < number for number in passed), n < right or n > 37)
        for n in range(40)
    }
    per = {
        **step_measures(records),
        "accuracy": {qid: float(record.right) for qid, record in records.items()},
    }
    means = {measure: float(np.mean([*row.values()])) for measure, row in per.items()}
    counts = {"questions": 43, "left_out_yes_no": 2, "left_out_in_question": 1}
    return replace(LOW, name=name, metrics=means, per_question=per, counts=counts)


def test_steps_labels_and_the_terms_of_each_difference_are_shown():
    first = run_with_steps("first", (30, 20, 20, 10), 6)
    second = run_with_steps("second", (40, 20, 20, 20), 20)
    data = ReportData([first, second], paired([first, second], "accuracy"), baseline="first")
    section = agents.steps_section(data)
    steps, terms, labels = section.tables
    assert [column.title for column in steps.columns[1:]] == [s.replace("_", " ") for s in STEPS]
    assert [entry.split(" ")[0] for entry in texts(steps)[0][1:]] == [
        "0.750", "0.500", "0.500", "0.250", "0.150"
    ]  # fmt: skip
    assert steps.rows[0][2].sub.startswith("0.667 [0.")
    (row,) = texts(terms)
    # Surfaced: .25 * (2/3 * .5 * .6 + 1/2) / 2; the sum is the difference of accuracies.
    assert row[1] in ("+0.087", "+0.088")
    assert row[-2:] == ["0.000", "+0.350"]
    numbers = [float(number.replace("−", "-")) for number in row[1:]]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.004)
    counted = dict(zip([column.title for column in labels.columns], texts(labels)[0], strict=True))
    assert counted == {
        "run": labels.rows[0][0].text, "not surfaced": "8", "not previewed": "10",
        "not opened": "0", "not shown": "10", "no answer": "0", "wrong": "4",
        "right unsupported": "2", "failed": "0", "right": "6", "left out": "3",
    }  # fmt: skip
    assert labels.rows[0][-1].sub == "yes no 2, in question 1"
    assert len(labels.columns) == len(LABELS) + 2
    assert agents.steps_section(ReportData([LOW, HIGH], [])).tables == []
    further = [column.title for table in results_section(data).tables for column in table.columns]
    assert "answer_shown" in further and not [n for n in further if n.startswith(("step", "label"))]


def test_panels_that_hold_only_zeros_are_left_out_and_their_tables_stay():
    first, second = (
        replace(run, per_question={**run.per_question, "read_calls": {"q0": 0.0, "q1": 0.0}})
        for run in six_runs()[:2]
    )
    per = {**second.per_question, "nDCG@10": first.per_question["nDCG@10"]}
    unexposed = {"macro": 0.0, "micro": 0.0, "documents": 0.0}
    nothing = {"evidence": dict.fromkeys(first.funnel["evidence"], unexposed)}
    runs = [first, replace(second, per_question=per, funnel=nothing)]
    rows = compare(runs, ["accuracy", "nDCG@10"], runs[0].name, test="t", resamples=99)
    made = render(ReportData(runs, rows, baseline=runs[0].name, primary="accuracy"))
    assert "difference in accuracy" in made.html and "difference in nDCG@10" not in made.html
    assert "Paired differences on nDCG@10" in made.html
    assert "Search calls per question" in made.html
    assert "Read calls per question" not in made.html and "read calls" in made.html
    assert made.html.count("Evidence funnel of") == 1
