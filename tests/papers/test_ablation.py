"""The headline ablation, and the laptop form of every experiment."""

import re
from pathlib import Path

import pytest
from sheet import cells, experiments, overrides_of_cells, plan_of
from support.benchmarks import SMALL_WORLD
from support.commands import run_entry
from support.needs import SOAK
from support.recordings import RECORDED

from soundingline.experiments.config import CONF, Settings, plain_values
from soundingline.experiments.naming import AGENT, factors, identity_of
from soundingline.experiments.validity import (
    composed_cells,
    has_factors,
    lines_of,
    threats_of,
    threats_of_runs,
)
from soundingline.toolkit.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.comparison import bound_of
from soundingline.toolkit.evaluation.threats import Threat
from soundingline.toolkit.runs import RunFolder

ABLATION = "ablation/tuned_bm25_agent"
LAPTOP = ("scale=laptop", *SMALL_WORLD, "benchmark.questions=2")
REAL = ("scale=laptop", "benchmark=wikidemo", "benchmark.limit=2")  # as in the ablations
# Experiments whose laptop forms have cells of the same kinds as those of others.
ALIKE = {"text_ranking/table4"}
ALIKE |= {*experiments("pasamaster"), *experiments("sira")} - {
    "pasamaster/components",
    "sira/table2",
}
RUNS = [
    name
    for folder in (
        "ablation",
        "browsecomp_plus",
        "pasamaster",
        "pi_serini",
        "sira",
        "text_ranking",
    )
    for name in experiments(folder)
    if not name.endswith(("cross_fitted_bm25", "figure1", "pi_serini/figure3"))
]
WITH_BASELINE = [
    name for name in RUNS if "\nbaseline:" in (CONF / f"experiment/{name}.yaml").read_text()
]


@pytest.fixture(autouse=True)
def chosen(tmp_path, monkeypatch):
    """A tuning's choice, which one cell of the ablation reads."""
    monkeypatch.chdir(tmp_path)
    for benchmark in ("fictional", "browsecomp_plus"):
        folder = tmp_path / "runs" / f"tuning-{benchmark}"
        folder.mkdir(parents=True)
        (folder / "chosen.yaml").write_text("k1: 2.0\nb: 0.7\n")


def test_the_plan_says_which_difference_its_questions_can_find():
    from statsmodels.stats.power import TTestPower

    plan = plan_of(ABLATION)
    tests = len(overrides_of_cells(ABLATION)) - 1
    expected = [
        share**0.5 * TTestPower().solve_power(None, nobs=830, alpha=0.05 / tests, power=0.8)
        for share in (0.1, 0.3)
    ]
    numbers = re.findall(r"(?:of|one of) (0\.\d{3})", plan.power_text())
    assert numbers == [f"{difference:.3f}" for difference in expected]
    assert f"830 questions and {tests} comparisons" in plan.power_text()
    assert plan_of("browsecomp_plus/closed_book").power_text() == ""


@pytest.mark.parametrize("scale", [(), ("scale=laptop",)], ids=["paper", "laptop"])
def test_every_cell_changes_one_group_of_the_baseline(scale):
    baseline, *others = cells(ABLATION, *scale)
    changed = [each for each in others if not bound_of(plain_values(each.config))]
    assert baseline.choices["retriever"] == "bm25_crossfit"
    assert baseline.choices["unit"] == "document"
    groups = []
    before = identity_of(baseline, AGENT)
    for settings in changed:
        after = identity_of(settings, AGENT)
        different = {group for group in before | after if before.get(group) != after.get(group)}
        # The language model of a stage comes with the stage.
        different = {group for group in different if not group.endswith("_llm")}
        assert len(different) == 1, settings.overrides
        groups += different
    assert set(groups) >= {"retriever", "unit", "tool"}
    assert len(changed) == (6 if scale else 16)


@pytest.mark.parametrize("experiment", [ABLATION, "ablation/factorial"])
def test_no_threat_is_found_in_the_headline_when_it_is_composed(experiment):
    words = [f"experiment={experiment}"]
    cells_of_it = [[*words, *cell] for cell in overrides_of_cells(experiment)]
    assert threats_of(composed_cells(cells_of_it)) == []
    fewer = threats_of(composed_cells([[*cell, "repeats=1"] for cell in cells_of_it]))
    assert [threat.name for threat in fewer] == ["one_repeat"]


def test_the_settings_of_the_papers_have_the_threats_that_their_page_names():
    words = ["experiment=ablation/paper_settings"]
    cells_of_it = [[*words, *cell] for cell in overrides_of_cells("ablation/paper_settings")]
    assert [threat.name for threat in threats_of(composed_cells(cells_of_it))] == [
        "prompt",
        "wall_clock",
        "tuned_on_reported",
        "judge_is_agent",
        "one_repeat",
    ]


@pytest.mark.parametrize(
    ("count", "texts"),
    [
        (1, ["cell 0"]),
        (3, ["cell 0", "cell 1", "cell 2"]),
        (4, ["cell 0", "cell 1", "2 more, which the report lists"]),
        (18, ["cell 0", "cell 1", "16 more, which the report lists"]),
    ],
)
def test_many_threats_of_one_kind_are_counted(count, texts):
    many = [Threat("several_changes", f"cell {number}") for number in range(count)]
    assert list(lines_of([*many, Threat("one_repeat", "once")])) == [
        *(f"threat to validity (several_changes): {text}" for text in texts),
        "threat to validity (one_repeat): once",
    ]


@pytest.mark.parametrize("scale", [(), ("scale=laptop",)], ids=["paper", "laptop"])
def test_the_operators_are_all_that_differs_in_their_experiment(scale):
    words, phrases = (plain_values(each.config) for each in cells("ablation/operators", *scale))
    assert phrases["retriever"] == {**words["retriever"], "operators": "phrases"}
    assert words["retriever"].get("operators") is None
    assert {**phrases, "retriever": words["retriever"]} == words


def test_the_threats_of_a_report_are_those_against_its_baseline():
    """Of a chain of single changes, the last cell is two changes from the first."""
    chain = {"base": ("bm25", "none"), "b": ("dense", "none"), "c": ("dense", "monot5")}
    runs = [
        EvaluatedRun(
            name=name,
            factors={"retriever": retriever, "reranker": reranker},
            manifest={"config": {"retriever": {"n": retriever}, "reranker": {"n": reranker}}},
        )
        for name, (retriever, reranker) in chain.items()
    ]
    assert threats_of_runs(runs) == threats_of_runs(runs, baselines=["b"]) == []
    (threat,) = threats_of_runs(runs, baselines=["base"])
    assert threat.name == "several_changes" and "differs from the baseline" in threat.text


@pytest.mark.slow
@pytest.mark.parametrize("scale", [(), ("scale=laptop",)], ids=["paper", "laptop"])
@pytest.mark.parametrize("experiment", WITH_BASELINE)
def test_the_baseline_of_a_report_is_one_of_its_cells(experiment, scale):
    def of(cell):
        settings = Settings.compose([f"experiment={experiment}", *scale, *cell])
        return plain_values(settings.config), factors(settings)

    cells_of_it = overrides_of_cells(experiment, *scale)
    baseline = Settings.compose([f"experiment={experiment}", *scale]).config.comparison.baseline
    assert any(has_factors(*of(cell), baseline) for cell in cells_of_it)


@pytest.mark.slow
@pytest.mark.parametrize("experiment", RECORDED)
def test_a_laptop_form_with_recorded_replies_makes_the_recorded_requests(experiment, capsys):
    """Another prompt, question or setting makes another request, whose refusal names the command
    that records its reply."""
    code = run_entry(RECORDED[experiment], f"experiment={experiment}", "scale=laptop")
    assert code == 0, capsys.readouterr().err
    (sweep,) = (path for path in Path("runs").iterdir() if not path.name.startswith("tuning"))
    cells_of_it = overrides_of_cells(experiment, "scale=laptop")
    assert len(list(sweep.rglob("metrics.json"))) == len(cells_of_it)
    note = "Recorded from Qwen2.5-Coder-0.5B-Instruct (Q4_K_M): wiring on real text, not a result."
    assert note in " ".join(capsys.readouterr().out.split())
    assert note in (sweep / "report.md").read_text().replace("\\", "")


@pytest.mark.parametrize("experiment", sorted({*RUNS} - {*RECORDED} - (set() if SOAK else ALIKE)))
def test_the_laptop_form_runs(experiment, capsys):
    paper = experiment.partition("/")[0]
    ranked = paper == "sira" and experiment != "sira/table2_agents"
    small = (*LAPTOP, *(["benchmark.questions=sets:2"] if paper == "pasamaster" else []))
    small = REAL if paper == "ablation" else small
    turns = () if paper in ("sira", "pasamaster") else ("budget.turns=3",)
    command = "rank" if ranked else "run"
    assert run_entry(command, f"experiment={experiment}", *small, *turns) == 0
    (sweep,) = (path for path in Path("runs").iterdir() if not path.name.startswith("tuning"))
    results = sorted(sweep.rglob("metrics.json"))
    assert len(results) == len(overrides_of_cells(experiment, *small))
    folders = [RunFolder(path.parent) for path in results]
    configs = [folder.manifest()["config"] for folder in folders]
    called = [any(each.calls for each in folder.trajectories()) for folder in folders]
    searches = [not ranked and each["agent"].get("max_searches") != 0 for each in configs]
    assert called == searches
    assert [each["llm"] for each in configs] == [None] * len(configs)
    # A sweep has a report, and so has its only cell.
    pages, texts = ([*sweep.glob(f"report.{form}")] for form in ("html", "md"))
    assert len(pages) == len(texts) == (not experiment.endswith("/published_runs"))
    figures = "".join(path.read_text() for path in pages).count("share of the unjudged documents</")
    assert figures == (2 if experiment == "ablation/corpus_size" else 0)
    assert any("F1@20" in path.read_text() for path in texts) == (paper == "pasamaster")
    published = plan_of(experiment).published is not None
    capsys.readouterr()
    assert run_entry("compare", "--published", str(sweep)) == (0 if published else 2)
    told = " ".join(capsys.readouterr().out.split())
    assert ("not evidence on the paper's result" in told) == published


@pytest.mark.parametrize("experiment", experiments("ablation"))
def test_the_laptop_form_of_an_ablation_has_real_texts(experiment):
    chosen = {each.choices["benchmark"] for each in cells(experiment, "scale=laptop")}
    assert chosen == {"wikidemo"}


@pytest.mark.parametrize(
    ("agent", "given", "code"),
    [
        ("closed_book", (), 2),
        ("one_shot", (), 2),
        ("one_shot", ("agent=one_shot",), 0),
        ("pi_serini", (), 0),
        ("keyword", (), 0),
    ],
)
def test_a_laptop_form_that_runs_another_agent_is_refused(agent, given, code, capsys, tmp_path):
    """The agent of `scale=laptop` searches in the place of one that searches with a model."""
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    option = f"# @package _global_\ndefaults: [override /agent: {agent}]\nname: own\n"
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(option)
    command = ("run", "--config-dir", str(tmp_path / "own"), "experiment=mine", *LAPTOP, *given)
    assert run_entry(*command) == code
    refusal = f"experiment=mine has the agent {agent}, and scale=laptop would run keyword"
    assert (refusal in capsys.readouterr().err) == (code == 2)
    assert (tmp_path / "runs" / "own").exists() == (code == 0)


@pytest.mark.parametrize("experiment", ["pi_serini/figure3", "text_ranking/figure1"])
def test_the_grids_run_on_a_laptop(experiment):
    small = ("grid.k1=[0.9,2.0]", "grid.b=[0.4]", "tuning.folds=2")
    assert run_entry("tune", f"experiment={experiment}", *LAPTOP, *small) == 0
    assert list(Path("runs").glob("*-fictional/**/chosen.yaml"))


@pytest.mark.parametrize(
    "experiment", [ABLATION, "pi_serini/bounds", "text_ranking/bounds"], ids=["ours", "pi", "text"]
)
@pytest.mark.parametrize("scale", ["paper", "laptop"])
def test_a_table_has_each_bound_once(experiment, scale):
    chosen = ["scale=laptop"] if scale == "laptop" else []
    found = [bound_of(plain_values(each.config)) for each in cells(experiment, *chosen)]
    bounds = ["closed book", "retrieve-then-read", "oracle's ranking", "evidence given"]
    assert [bound for bound in found if bound] == [*bounds, "evidence removed"]
    assert found[0] == "" and (experiment == ABLATION) == (found.count("") > 1)
