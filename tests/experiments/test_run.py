"""Runs: from the first start to the comparison of a sweep, what a run reports while it works, its
traces, its record in MLflow and Weights & Biases, and experiments in the cells of a notebook."""

import ast
import asyncio
import html
import json
import os
import re
import shutil
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar
from urllib.parse import unquote

import pytest
from support.benchmarks import ANSWERS, CANARY, QUESTIONS, TINY, VARIABLE, leaks, write_benchmark
from support.commands import run_command, run_entry
from support.html_page import Page
from test_run_with_model import MODEL

from soundingline.agents.base import Agent
from soundingline.experiments import Experiment, compare
from soundingline.experiments.rollouts import (
    Progress,
    Rollout,
    RolloutRunner,
    fallbacks,
)
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import ExactAnswerJudge, load_run
from soundingline.toolkit.llm import Turn, Usage
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import UNKNOWN, Price, estimate, forecast
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import SWEEP, VARIED, escape_qid
from soundingline.toolkit.search.answers import parse_answer
from soundingline.toolkit.trajectory import Answer, RecordedCall, Trajectory


@pytest.fixture
def small(beir):
    return ("benchmark=beir", f"benchmark.path={beir}")


def metrics(run):
    found = json.loads(Path(run, "metrics.json").read_text())
    return found


def test_a_run_answers_every_question_and_is_measured(entry, small):
    assert entry("run", *small, "name=first") == 0
    found = metrics("runs/first")
    wanted = {"AP", "P@30", "nDCG@10", "R@100", "R@1000", "accuracy", "search_calls", "completion"}
    assert wanted | {f"recall_{t}" for t in ("surfaced", "previewed", "opened", "cited")} <= set(
        found
    )
    assert found["completion"] == 1.0
    # q2 is judged on a document that exists and on one that does not, ../../x on one that does.
    assert found["recall_surfaced"] == pytest.approx(0.75)
    qids = {trajectory.qid for trajectory in RunFolder("runs/first").trajectories()}
    assert qids == {"../../x", "q2"}
    assert not Path("x").exists() and not Path("runs/x").exists()


def test_the_same_command_repeats_nothing_and_evaluating_again_gives_the_same_numbers(entry, small):
    assert entry("run", *small, "name=again") == 0
    first = metrics("runs/again")
    files = {path: path.stat().st_mtime_ns for path in Path("runs/again/queries").glob("*.json")}
    assert entry("run", *small, "name=again") == 0
    assert {path: path.stat().st_mtime_ns for path in files} == files
    # "Anna Kow" is in d2, "nine metres" in d1, and the agent has a ranking of three documents.
    assert first["AnswerCoverage@5"] == first["AnswerCoverage@10"] == 1.0
    Path("runs/again/metrics.json").unlink()
    for _ in range(2):
        assert entry("evaluate", "runs/again") == 0
        assert metrics("runs/again") == first
        shutil.rmtree("indexes", ignore_errors=True)  # the texts are read off the benchmark then


def test_a_ranking_says_whether_its_first_documents_hold_the_answer(entry, small, capsys):
    # d2 names the mayor and d1 the height.
    assert entry("rank", *small, "name=r", "retriever.depth=1") == 0
    covered = json.loads(Path("runs/r/evaluation/questions.json").read_text())["AnswerCoverage@5"]
    assert covered == {"../../x": 1.0, "q2": 1.0}
    assert "AnswerCoverage@5 1.0000, AnswerCoverage@10 1.0000" in capsys.readouterr().out


def test_a_run_that_goes_on_while_it_is_evaluated_is_not_taken_for_evaluated(
    entry,
    small,
    monkeypatch,
    capsys,
):
    assert entry("run", *small, "name=live") == 0
    trajectory = Path("runs/live/queries/q2.json")
    content = trajectory.read_text()
    trajectory.unlink()

    def slow_judge(*_):
        trajectory.write_text(content)  # The run answers its last question meanwhile.
        return [ExactAnswerJudge()]

    monkeypatch.setattr("soundingline.experiments.evaluate.judge_run", slow_judge)
    assert entry("evaluate", "runs/live") == 2
    assert "written while it was evaluated" in capsys.readouterr().err
    with pytest.raises(InputError, match="trajectories that are there now"):
        load_run("runs/live")
    assert entry("evaluate", "runs/live") == 0
    assert load_run("runs/live").counts["recorded"] == 2


@pytest.mark.parametrize("unit", ["document", "document_head", "passage", "maxp"])
@pytest.mark.parametrize("tool", ["ranked_browsing", "top_k"])
def test_units_and_tools_measure_documents(unit, tool, entry, small):
    assert entry("run", *small, f"unit={unit}", f"tool={tool}", "name=x") == 0
    shown = [
        unit_id
        for trajectory in RunFolder("runs/x").trajectories()
        for call in trajectory.calls
        if call.name == "search"
        for unit_id in call.ranking
    ]
    assert shown
    assert all(("%p" in unit_id) is (unit == "passage") for unit_id in shown)
    assert metrics("runs/x")["recall_surfaced"] == pytest.approx(0.75)


def test_a_sweep_is_compared_and_reported(entry, capsys):
    code = entry("run", "-m", *TINY, "unit=document,maxp", "retriever=bm25_default", "name=sweep")
    assert code == 0
    cells = sorted(path.parent.name for path in Path("runs/sweep").glob("*/metrics.json"))
    # The benchmark and the retriever, which both cells have, are not in their names.
    assert [cell.split("-")[:-1] for cell in cells] == [["document"], ["maxp"]]
    report = Path("runs/sweep/report.html").read_text()
    assert "document" in report and "maxp" in report and not re.search("https?:", report)
    assert SWEEP not in os.environ  # a process that goes on waits for no other's lock
    assert VARIED not in os.environ
    output = capsys.readouterr().out
    assert "runs/sweep/report.html" in output and "HYDRA" not in output
    assert "difference in" in output and "interval]" in output
    paths = [f"runs/sweep/{cell}" for cell in cells]
    assert entry("compare", *paths, "name=both", "--measure", "AP") == 0
    verdicts = json.loads(Path("runs/both/verdicts.json").read_text())
    assert [(row["measure"], row["n"]) for row in verdicts] == [("AP", 6)]
    # The folder of a sweep, and what a pattern of the shell matches in it.
    matched = [str(path) for path in sorted(Path("runs/sweep").glob("[!.]*"))]
    assert len(matched) > len(paths)
    for given in (["runs/sweep"], matched):
        assert entry("compare", *given, "name=again", "--measure", "AP") == 0
        assert json.loads(Path("runs/again/verdicts.json").read_text()) == verdicts
    assert entry("compare", "runs/sweep/report.html", "runs/nowhere") == 2


def test_a_whole_sweep_is_compared_with_the_baseline_that_it_declares(entry, capsys):
    given = (*TINY, "unit=document,passage,maxp", "comparison.baseline={unit: maxp}")
    assert entry("run", "-m", *given, "name=sweep") == 0
    verdicts = json.loads(Path("runs/sweep/verdicts.json").read_text())
    (maxp,) = {row["b"] for row in verdicts}
    assert maxp.startswith("maxp-")
    assert entry("compare", "runs/sweep", "name=again") == 0
    assert json.loads(Path("runs/again/verdicts.json").read_text()) == verdicts
    some = [str(path) for path in Path("runs/sweep").iterdir() if path.name[:2] in ("ma", "pa")]
    assert entry("compare", *some, "name=some", "--measure", "AP") == 0
    assert "Differences from " in capsys.readouterr().out


def test_a_sweep_without_a_name_finds_its_folder_again(entry):
    given = (*TINY, "unit=document", "retriever.k1=1,2", "-m")
    assert entry("run", "--multirun", *given[:-1]) == 0
    made = sorted(Path("runs").iterdir())
    assert entry("run", *given) == 0
    assert sorted(Path("runs").iterdir()) == made
    cells = sorted(path.parent.name for path in made[0].glob("*/metrics.json"))
    assert [re.findall(r"^k1=(\d)-", cell) for cell in cells] == [["1"], ["2"]]


def test_an_experiment_that_is_a_sweep_needs_no_name_and_no_flag(entry, tmp_path):
    option = tmp_path / "options" / "experiment" / "units.yaml"
    option.parent.mkdir(parents=True)
    option.write_text(
        "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {unit: 'document,maxp'}}}\n"
    )
    before = list(sys.argv)
    given = (*TINY, "--config-dir", str(option.parents[1]), "experiment=units")
    assert entry("rank", *given) == 0
    assert sys.argv == before
    (sweep,) = Path("runs").iterdir()
    assert sweep.name.startswith("fictional-")
    assert sorted(path.parent.name.split("-")[0] for path in sweep.glob("*/metrics.json")) == [
        "document",
        "maxp",
    ]
    # How a sweep is launched is no part of its name.
    assert entry("rank", *given, "hydra/launcher=basic", "hydra.verbose=false") == 0
    assert list(Path("runs").iterdir()) == [sweep]


def test_a_sweep_over_benchmarks_keeps_them_apart(entry, data_root):
    Path("data").mkdir()
    Path("data/cacm").symlink_to(data_root / "cacm")
    Path("data/wikimix").symlink_to(data_root / "musique100")  # which is smaller
    given = ("benchmark=cacm,wikimix", "paths.data=data", "name=both")
    assert entry("rank", "-m", *given) == 0
    cacm, wikimix = sorted(path.parent.name for path in Path("runs/both").glob("*/metrics.json"))
    assert re.fullmatch(r"cacm-[0-9a-f]{8}", cacm)
    assert re.fullmatch(r"wikimix-[0-9a-f]{8}", wikimix)
    assert metrics(f"runs/both/{cacm}")["AP"] == pytest.approx(0.3123, abs=1e-3)


def test_an_agent_of_rules_searches_literature_by_layers_and_links(entry):
    """The operators are those of the benchmark; what was read is on record by layer."""
    given = (*TINY, "benchmark.questions=sets:6", "tool=literature", "name=literature")
    assert entry("run", *given) == 0
    folder = Path("runs/literature")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {"links", "evidence"} <= set(manifest["fingerprints"])
    funnel = json.loads((folder / "evaluation" / "funnel.json").read_text())["evidence"]
    assert {"metadata", "abstract"} <= set(funnel)
    assert funnel["abstract"]["tokens"] > 0
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["hallucination_rate"] == 0
    assert metrics["read_calls"] > 0
    assert {"F1@20", "checklist@20"} <= set(metrics)


def test_the_navigator_answers_sets_without_a_model_and_invents_nothing(entry):
    given = (*TINY, "benchmark.questions=sets:4", "agent=navigator")
    assert entry("run", *given, "agent.pool=6", "name=navigator") == 0
    folder = RunFolder("runs/navigator")
    trajectories = list(folder.trajectories())
    assert all(trajectory.status == "completed" for trajectory in trajectories)
    assert all(trajectory.answer.documents for trajectory in trajectories)
    assert all(trajectory.rounds for trajectory in trajectories)
    metrics = json.loads(Path("runs/navigator/metrics.json").read_text())
    assert metrics["hallucination_rate"] == 0
    assert metrics["documents_returned"] <= 50
    prints = json.loads(folder.manifest_path.read_text())["fingerprints"]
    assert prints["calibration"] == "none" and {"scorer", "scorer.content"} <= set(prints)
    # A replay serves the same calls: links and evidence are there too.
    assert run_entry("replay", "runs/navigator", "name=again") == 0
    calls = json.loads(next(Path("runs/again").glob("*/replay.json")).read_text())
    assert calls
    replayed = RunFolder(next(Path("runs/again").glob("*/replay.json")).parent)
    assert {"links", "evidence"} <= set(replayed.manifest()["fingerprints"])


class Tally:
    """A progress of questions `a` and `b`, its clock and its ledger."""

    def __init__(self):
        self.now = 0.0
        self.ledger = Ledger(clock=lambda: self.now)
        accepted = {"a": ["Ada"], "b": ["Bob"]}
        self.progress = Progress(self.ledger, accepted, lambda: self.now)

    def spend(self, usage, price=UNKNOWN):
        with self.ledger.request("agent", "q", price) as entry:
            entry.reply(Turn(usage=usage))

    def add(self, qid, status="completed", exact="", **fields):
        self.progress.add(Trajectory(qid, "?", status, Answer(exact=exact), **fields))


@pytest.fixture
def tally():
    return Tally()


def test_the_line_tells_failures_accuracy_money_and_speed(tally):
    usage = Usage(input=1_000_000, cached=250_000, output=500)
    tally.spend(usage, Price(input=2.0, output=0.0))
    tally.now = 10.0
    assert tally.progress.line() == "$2.00 · 50 tokens/s", "before the first question ends"
    tally.add("a", exact="Ada")
    assert tally.progress.line() == "accuracy 1.00 · $2.00 · 50 tokens/s"
    tally.add("b", "failed", "Bob")
    tally.add("c")  # no accepted answer
    assert tally.progress.line() == "1 failed · accuracy 0.50 · $2.00 · 50 tokens/s"
    assert tally.progress.closing() == ["25.0% of the input tokens came from the prefix cache"]


def test_what_is_unknown_is_left_out_of_the_line(tally):
    tally.add("x")
    assert tally.progress.line() == "" and tally.progress.closing() == []
    tally.spend(Usage(input=10, output=0))
    tally.add("y")
    assert "$" not in tally.progress.line()


def test_an_answer_is_judged_while_the_event_loop_goes_on(tally, monkeypatch):
    verdict, judging, go_on = ExactAnswerJudge.verdict, threading.Event(), threading.Event()

    def slow(*arguments):
        judging.set()
        assert go_on.wait(timeout=10), "the event loop stood still"
        return verdict(*arguments)

    class Immediate(Agent):
        name = "immediate"

        async def run(self, topic, tool):
            return Trajectory(topic.qid, topic.text, "completed", Answer(exact="Ada"))

    class Folder:
        def repeat(self, number):
            return self

        def write(self, trajectory): ...

    def open_tool(qid):
        return SimpleNamespace(answer=parse_answer)

    async def run():
        answering = RolloutRunner([Immediate()], open_tool, Folder(), tally.progress, 1)
        task = asyncio.create_task(answering.answer([Rollout(Topic("a", "?"))]))
        while not judging.is_set() and not task.done():
            await asyncio.sleep(0.001)
        go_on.set()
        await task

    monkeypatch.setattr(ExactAnswerJudge, "verdict", slow)
    asyncio.run(run())
    assert tally.progress.line() == "accuracy 1.00"


def test_refused_calls_and_few_warnings_are_told_at_the_end(tally):
    errors = ("missing_argument", "", "unknown_tool", "missing_argument")
    calls = [RecordedCall("search", {}, "", error=error) for error in errors]
    for number in range(5):
        warnings = (f"warning {number}",)
        tally.add(f"q{number}", calls=calls[number : number + 1], warnings=warnings)
    assert tally.progress.closing() == [
        "3 of 4 tool calls were refused (missing_argument 2, unknown_tool 1)",
        *(f"question q{number}: warning {number}" for number in range(3)),
        "and 2 more warnings; each trajectory holds its own",
    ]


def test_the_estimate_has_the_bounds_of_the_prediction_interval():
    costs = [{"dollars": value, "input_tokens": 1000 * value} for value in (1.0, 2.0, 3.0)]
    whole = estimate([1.0, 2.0, 3.0], 30)
    text = str(forecast(costs, 30, 60.0))
    assert text.startswith(f"${whole.total:,.2f} (${whole.low:,.2f} to ${whole.high:,.2f}); 60,000")
    assert text.endswith("input tokens")
    assert str(forecast([{}, {}], 30, 60.0)) == str(forecast([], 30, 60.0)) == ""
    # A cost that some question does not tell is not estimated.
    unknown = [{"dollars": 1.0, "input_tokens": 5}, {"input_tokens": 7}]
    assert str(forecast(unknown, 2, 60.0)) == "12 (12 to 12) input tokens"
    # A question that asked nothing has cost nothing.
    assert forecast([{"dollars": 1.0}, {}], 4, 60.0).dollars == 2.0
    assert [forecast([], 30, seconds).duration for seconds in (750, 5399, 10_800)] == [
        *("12.5 minutes", "90.0 minutes", "3.0 hours")
    ]


def test_queries_that_were_searched_as_typed_are_told_with_the_reasons():
    counts = {"queries": 52, "fell_back": 30, "copied": 28, "errors": 2}
    (line,) = fallbacks({"rewriter": counts, "reranker": {"fell_back": 1}})
    assert line.startswith("30 of 52 queries were searched as they were")
    assert line.endswith("(copied 28, errors 2)")
    assert fallbacks({"rewriter": {"queries": 52, "fell_back": 0}}) == fallbacks({}) == []


def links(report):
    """The files that a report's links lead to, seen from its folder."""
    page = report.read_text(encoding="utf-8")
    addresses = re.findall(r'<a href="([^#"][^"]*)"', page)
    files = [unquote(html.unescape(address.partition("#")[0])) for address in addresses]
    return {(report.parent / file).resolve() for file in files}


def test_each_cell_of_a_report_links_to_its_traces(entry):
    assert entry("run", "-m", *TINY, "unit=document,maxp", "name=s") == 0
    pages = {path.resolve() for path in Path("runs/s").glob("*/traces/index.html")}
    assert len(pages) == 2
    side_by_side = Path("runs/s/traces.html").resolve()
    assert links(Path("runs/s/report.html")) == {*pages, side_by_side}
    assert "](traces.html)" in Path("runs/s/report.md").read_text()
    assert links(side_by_side) > pages and all(path.is_file() for path in links(side_by_side))
    cells = sorted(str(path.parent) for path in Path("runs/s").glob("*/metrics.json"))
    (Path(cells[0]) / "traces" / "index.html").unlink()
    assert entry("compare", *cells, "name=both") == 0
    assert not Path("runs/both/traces.html").exists()
    (left,) = links(Path("runs/both/report.html"))
    assert left == Path(cells[1], "traces/index.html").resolve()
    assert "/traces/index.html)" in Path("runs/both/report.md").read_text()


def test_a_run_alone_has_traces_of_all_its_repeats(entry, capsys):
    command = (*TINY, *MODEL, "llm.wavering=true", "name=r", "repeats=2", "preflight.questions=0")
    assert entry("run", *command) == 0
    assert "runs/r/traces/index.html" in capsys.readouterr().err
    traces = Path("runs/r/traces")
    rows = Page(traces / "index.html").rows()
    assert len(rows) == 13 and len(list(traces.glob("[12]-*.html"))) == 12
    for repeat in (1, 2):
        for trajectory in RunFolder("runs/r").repeat(repeat).trajectories():
            page = Page(traces / f"{repeat}-{escape_qid(trajectory.qid)}.html")
            assert len(page.texts("section", "call")) == len(trajectory.calls)
            outputs = page.raw("pre")
            assert all(call.output in outputs for call in trajectory.calls)
            assert f"${trajectory.usage['dollars']:.4f}" in page.texts("span")


def test_traces_can_be_left_out_and_written_later(entry):
    assert entry("run", *TINY, "name=x", "traces=false") == 0
    assert not Path("runs/x/traces").exists()
    # Whether they are written changes no trajectory: it is the same run.
    assert entry("run", *TINY, "name=x", "traces=false") == 0
    assert entry("evaluate", "runs/x") == 0
    assert len(list(Path("runs/x/traces").glob("1-*.html"))) == 6


def test_an_obfuscated_run_has_traces_only_where_plain_ones_are_asked_for(
    entry,
    tmp_path,
    monkeypatch,
    capsys,
):
    monkeypatch.setenv(VARIABLE, CANARY)
    benchmark = write_benchmark(tmp_path / "published")
    assert entry("run", *benchmark, "name=s") == 0
    assert "traces=plain" in capsys.readouterr().err
    assert not Path("runs/s/traces").exists()
    assert not list(leaks("runs"))
    for command in (("run", *benchmark, "name=p"), ("evaluate", "runs/p")):
        assert entry(*command, "traces=plain") == 0
        for qid, answer in ANSWERS.items():
            page = Page(Path(f"runs/p/traces/1-{qid}.html"))
            assert page.texts("p", "asked") == [QUESTIONS[qid]]
            assert page.texts("li", "exact") == [answer]
        # Side by side with a run that has no traces, no text is shown.
        assert entry("compare", "runs/s", "runs/p", "name=c") == 0
        assert not list(leaks("runs/c")) and not Path("runs/c/traces.html").exists()
        shutil.rmtree("runs/p/traces")
    assert not list(leaks("runs"))
    assert entry("run", *benchmark, "name=clear", "sealed=false") == 0
    shown = {text for _, text in leaks("runs/clear/traces")}
    assert shown >= {*QUESTIONS.values(), *ANSWERS.values()}


# A tracker that keeps what it is given in a file, or that is out of order.
OWN = """
import json
from pathlib import Path

class Keeping:
    def __init__(self, broken: bool = False) -> None:
        self.broken = broken

    def log(self, record):
        if self.broken:
            raise RuntimeError("the tracker is\\nout of order")
        files = sorted(path.name for path in record.files)
        line = [record.key, record.name, record.config.get("repeats"), dict(record.metrics), files]
        with Path("kept.jsonl").open("a") as kept:
            kept.write(json.dumps(line) + "\\n")
"""


@pytest.fixture
def keeping(entry, tmp_path, monkeypatch):
    (tmp_path / "own_tracker.py").write_text(OWN)
    (tmp_path / "options" / "logger").mkdir(parents=True)
    option = "# A tracker.\n_target_: own_tracker.Keeping\nbroken: false\n"
    (tmp_path / "options" / "logger" / "keeping.yaml").write_text(option)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_tracker", raising=False)
    return ("--config-dir", str(tmp_path / "options"), *TINY, "logger=keeping")


def kept():
    return [json.loads(line) for line in Path("kept.jsonl").read_text().splitlines()]


def test_a_run_and_a_sweep_are_recorded_when_their_files_are_there(entry, keeping):
    assert entry("rank", *keeping, "name=single") == 0
    ((key, name, repeats, metrics, files),) = kept()
    assert (name, repeats, files) == ("runs/single", 1, ["manifest.json", "metrics.json"])
    assert metrics == json.loads(Path("runs/single/metrics.json").read_text())
    # A repeated command has the same key, by which its record is replaced.
    assert entry("rank", *keeping, "name=single") == 0
    assert kept()[1][0] == key

    assert entry("rank", "-m", *keeping, "name=swept", "unit=document,passage") == 0
    *cells, sweep = kept()[2:]
    assert len(cells) == 2 and len({key, sweep[0], *(cell[0] for cell in cells)}) == 4
    assert all(cell[1].startswith("swept/") for cell in cells)
    assert sweep[1:3] == ["runs/swept", None]
    assert sweep[4] == ["report.html", "report.md", "verdicts.json"]


def test_a_logger_changes_no_identity_and_its_failure_costs_a_line(entry, keeping, capsys):
    assert entry("rank", *TINY, "name=r") == 0
    before = Path("runs/r/metrics.json").read_bytes()
    capsys.readouterr()
    assert entry("rank", *keeping, "logger.broken=true", "name=r") == 0
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "logger" in each]
    assert line == (
        "soundingline: runs/r is complete, and not recorded by its logger: the tracker is out of "
        "order"
    )
    assert Path("runs/r/metrics.json").read_bytes() == before


def test_an_absent_tracker_is_told_before_anything_is_written(entry, monkeypatch, capsys):
    monkeypatch.setattr("soundingline.toolkit.optional.find_spec", lambda name: None)
    assert entry("rank", *TINY, "logger=mlflow", "name=r") == 2
    advice = r"the package mlflow is not installed\. pip install -e '\S*\[mlflow\]'"
    assert re.search(advice, capsys.readouterr().err)
    assert not RunFolder("runs/r").manifest_path.exists()


@pytest.mark.slow
def test_mlflow_records_configuration_measures_and_files(entry, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="pip install 'soundingline[mlflow]'")
    pytest.importorskip("sqlalchemy", reason="pip install 'soundingline[mlflow]'")
    uri = f"sqlite:///{tmp_path / 'ml.db'}"
    given = (*TINY, "logger=mlflow", f"logger.tracking_uri='{uri}'", "logger.experiment=mills")
    for _ in range(2):  # the second one replaces the first
        assert entry("rank", "-m", *given, "name=s", "unit=document,passage") == 0
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("mills")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 3 and {run.info.status for run in runs.values()} == {"FINISHED"}
    files = client.list_artifacts(runs.pop("runs/s").info.run_id)
    assert [file.path for file in files] == ["report.html", "report.md", "verdicts.json"]
    for name, run in runs.items():
        folder = Path("runs") / name
        assert run.data.params["unit._target_"].startswith("soundingline.toolkit.corpus")
        assert run.data.params["benchmark.documents"] == "64"
        metrics = json.loads((folder / "metrics.json").read_text())
        assert run.data.metrics["nDCG_10"] == pytest.approx(metrics["nDCG@10"])
        assert len(run.data.metrics) == len(metrics)


@pytest.mark.slow
def test_wandb_records_without_a_network(entry, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="pip install 'soundingline[wandb]'")
    given = ("logger=wandb", "logger.mode=offline", "logger.project=mills")
    assert entry("rank", *TINY, *given, "name=r") == 0
    (file,) = Path("wandb").glob("offline-run-*/*.wandb")
    # A process of wandb writes the file, and on a busy machine it is not done at once.
    until = time.monotonic() + 30
    parts, missing = (b"mills", b"nDCG@10", b"runs/r", b"metrics.json"), None
    while missing != [] and time.monotonic() < until:
        missing = [part for part in parts if part not in file.read_bytes()]
        time.sleep(0.1)
    assert missing == []


# Experiments inside an event loop, which is where a notebook executes its cells.

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
OPTIONS = Path(__file__).resolve().parent / "options"
SCRIPTED = f"hydra.searchpath=[file://{OPTIONS}]"
AGENT = ("agent=pi_serini", "llm=scripted")
JUDGE = ("judge=llm", "llm@judge_llm=scripted")
REWRITER = ("rewriter=hyde", "llm@rewriter_llm=scripted", "rewriter_llm.says='A mill.'")


def in_a_cell(function):
    async def cell():
        return function()

    return asyncio.run(cell())


def composed(*overrides):
    return Experiment.compose(*TINY, *overrides, config_dir=OPTIONS)


@pytest.mark.usefixtures("entry")
def test_every_method_of_an_experiment_works_in_a_cell():
    """An agent, a judge and a rewriter with a language model, each of which needs a loop."""

    def cell():
        experiment = composed(*AGENT, *JUDGE, *REWRITER, "name=k", "concurrency=3")
        answered = experiment.run()
        assert answered.counts["completed"] == 6
        assert answered.counts["without_verdict"] == 0
        verdicts = Path("runs/k/evaluation").glob("verdicts-llm-*.jsonl")
        assert len(next(verdicts).read_text().splitlines()) == 7
        for path in Path("runs/k/evaluation").glob("verdicts-llm-*.jsonl"):
            path.unlink()
        assert experiment.evaluate().metrics == answered.metrics
        assert experiment.run().metrics == answered.metrics
        assert composed(*REWRITER, "name=r").rank().counts["questions"] == 6
        assert len(composed().pipeline().search("mill")) > 0

    in_a_cell(cell)


@pytest.mark.usefixtures("entry")
def test_an_experiment_prints_what_it_is_asked_to_print_alone(capfd):
    tuned = Experiment.compose(*TINY, "retriever=bm25_tuned", "name=tuned").rank()
    ranked = [tuned, Experiment.compose(*TINY, "name=default").rank()]
    answering = Experiment.compose(*TINY, "name=answered")
    assert answering.run().counts["failed"] == 0 and answering.evaluate().counts["failed"] == 0
    compared = compare(ranked)
    assert [(row.measure, row.a, row.b, row.n) for row in compared] == [
        (name, "default", "tuned", 6) for name in ("nDCG@10", "AP")
    ]
    assert capfd.readouterr() == ("", "")
    assert "AP" in ranked[0]._repr_html_() and "<td>default</td>" in compared._repr_html_()
    Experiment.compose(*TINY, "name=default", verbose=True).rank()
    assert "nDCG@10" in capfd.readouterr().out
    with pytest.raises(TypeError, match=r"no argument 'conf_dir'.*did you mean config_dir"):
        Experiment.compose(*TINY, conf_dir="x")


INTERRUPTED = """
import asyncio, os, signal, sys, threading
from pathlib import Path
# A job that a shell started in the background inherits that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from soundingline.experiments import Experiment

tiny, config_dir = sys.argv[2:], sys.argv[1]
experiment = Experiment.compose(
    *tiny, "agent=pi_serini", "llm=scripted", "llm.gate=gate", "llm.gate_after=4", "name=k",
    config_dir=config_dir,
)

def interrupt_after_a_question():
    while not list(Path("runs/k/queries").glob("[!.]*.json")):
        threading.Event().wait(0.01)
    os.kill(os.getpid(), signal.SIGINT)

async def notebook():
    threading.Thread(target=interrupt_after_a_question).start()
    try:
        experiment.run()
    except KeyboardInterrupt:
        print("interrupted with", len(list(Path("runs/k/queries").glob("[!.]*.json"))))
    Path("gate").touch()
    print("completed", experiment.run().counts["completed"])

asyncio.run(notebook())
"""


def test_an_interrupted_cell_keeps_what_it_has_and_goes_on(tmp_path):
    done = run_command("-c", INTERRUPTED, str(OPTIONS), *TINY, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    # Three requests a question: the gate is shut for the second one.
    lines = [line for line in done.stdout.splitlines() if line.startswith(("inter", "comp"))]
    assert lines == ["interrupted with 1", "completed 6"]
    folder = RunFolder(tmp_path / "runs" / "k")
    assert all(folder.attempts(qid) == 1 for qid in folder.statuses())


def test_a_server_in_a_cell_ends_at_an_interrupt(tmp_path):
    program = """
import asyncio, os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from soundingline.experiments import cli
from soundingline.experiments.serve import server

def interrupt(line):
    if "serving at" in line:
        os.kill(os.getpid(), signal.SIGINT)

server.notify = interrupt

async def notebook():
    try:
        cli.main(["serve", *sys.argv[1:]])
    except SystemExit as end:
        print("code", end.code, threading.active_count())

asyncio.run(notebook())
"""
    done = run_command("-c", program, *TINY, "port=0", "name=x", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "code 0 1\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_only_one_function_of_the_product_starts_event_loops():
    """`asyncio.run` and its kin fail inside a running loop, which `run_coroutine` does not."""
    starting = {"run", "Runner", "new_event_loop", "run_until_complete", "run_forever"}
    found = set()
    for package in ("agents", "experiments", "pipelines", "toolkit"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Attribute) or node.attr not in starting:
                    continue
                module = node.value.id if isinstance(node.value, ast.Name) else ""
                if module in ("asyncio", "anyio") or node.attr.startswith("run_"):
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == {"toolkit/llm/blocking.py"}
