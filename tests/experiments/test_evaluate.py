"""A language model as the judge of a run is asked once, stopped, killed and capped, and our figures
are compared with a paper's."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from support.assertions import told
from support.benchmarks import SMALL_WORLD, TINY
from support.runs import contents, starts

from soundingline.experiments import build
from soundingline.toolkit.evaluation.evaluation import Evaluation, load_run, write_evaluation
from soundingline.toolkit.evaluation.judge import verdicts_in
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.manifest import make_manifest
from soundingline.toolkit.trajectory import Answer, Trajectory

OPTIONS = Path(__file__).resolve().parent / "options"
SCRIPTED = f"hydra.searchpath=[file://{OPTIONS}]"
MODEL = (SCRIPTED, "agent=pi_serini", "llm=scripted")
JUDGE = (SCRIPTED, "judge=llm", "llm@judge_llm=scripted")
# The scripted judge's 55 tokens at 1,000 dollars a million.
DOLLARS = 0.055
DEAR = "judge_llm.price=1000"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def verdict_file(run="runs/k"):
    (path,) = (Path(run) / "evaluation").glob("verdicts-llm-*.jsonl")
    return path


def test_a_judge_with_a_model_is_asked_once_and_no_agent_runs(entry, tmp_path):
    assert entry("run", *TINY, "name=k") == 0
    exact = contents("runs/k/metrics.json")["accuracy"]
    queries = {path: path.stat().st_mtime_ns for path in Path("runs/k/queries").iterdir()}
    log = tmp_path / "asked"
    judge = (*JUDGE, f"judge_llm.log={log}", "runs/k")
    assert entry("evaluate", *judge) == 0
    asked = len(log.read_text().splitlines())
    assert 0 < asked <= 6
    head, *rows = lines(verdict_file())
    assert {"judge", "model", "prompt", "settings", "reference"} <= set(head)
    assert head["model"] == "scripted" and head["settings"]["seed"] == 7
    paid = sum((Counter(row["usage"]) for row in rows), Counter())
    assert paid["input_tokens"] == 50 * asked
    right = sum(row["correct"] for row in rows)
    assert contents("runs/k/metrics.json")["accuracy"] == pytest.approx(right / 6)
    assert entry("evaluate", *judge) == 0
    assert len(log.read_text().splitlines()) == asked
    # The exact judge is back at once, and the file is still there.
    assert entry("evaluate", "runs/k") == 0
    assert contents("runs/k/metrics.json")["accuracy"] == exact and verdict_file().exists()
    assert {path: path.stat().st_mtime_ns for path in Path("runs/k/queries").iterdir()} == queries


def test_judges_of_another_kind_keep_their_verdicts_apart(entry):
    assert entry("run", *TINY, "name=k") == 0
    assert entry("evaluate", *JUDGE, "runs/k") == 0
    assert entry("evaluate", *JUDGE, "judge.reference=false", "runs/k") == 0
    files = list(Path("runs/k/evaluation").glob("verdicts-llm-*.jsonl"))
    assert sorted(lines(path)[0]["reference"] for path in files) == [False, True]


def test_the_judges_of_a_run_are_compared(entry, capsys):
    assert entry("run", *TINY, "name=k") == 0
    assert entry("judge", "runs/k") == 2
    assert "judge=llm" in capsys.readouterr().err
    assert entry("evaluate", *JUDGE, "runs/k") == 0
    assert entry("judge", "runs/k") == 0
    (pair,) = contents("runs/k/evaluation/agreement.json")
    assert pair["a"] == "exact_answer" and pair["b"].startswith("llm-")
    differing = len(pair["only_a"]) + len(pair["only_b"])
    assert pair["n"] == 6 and pair["raw"] == pytest.approx(1 - differing / 6)
    assert "kappa" in capsys.readouterr().out


def test_a_second_judge_is_shown_beside_the_first_and_leaves_the_measures_alone(entry, capsys):
    """Its verdicts and the first judge's are the same, but for one."""
    assert entry("run", *TINY, *JUDGE, "name=k") == 0
    metrics = Path("runs/k/metrics.json").read_bytes()
    second = (*JUDGE, "judge.reference=false")
    assert entry("judge", *second, "runs/k") == 0
    assert Path("runs/k/metrics.json").read_bytes() == metrics
    assert len(contents("runs/k/evaluation/agreement.json")) == 3
    (path,) = (
        path
        for path in Path("runs/k/evaluation").glob("verdicts-llm-*.jsonl")
        if not lines(path)[0]["reference"]
    )
    rows = {row["qid"]: row["correct"] for row in lines(path)[1:]}
    judges = load_run("runs/k").judges
    assert judges[path.stem.removeprefix("verdicts-")] == {"model": "scripted", "verdicts": rows}
    assert entry("run", *TINY, "name=other") == 0 and load_run("runs/other").judges == {}
    assert entry("compare", "runs/k", "runs/other", "name=c") == 0
    report = Path("runs/c/report.md").read_text()
    share = f"{sum(rows.values()) / 6:.3f}"
    shown, *_ = re.findall(rf"scripted \({path.stem[-12:]}\) \| ([^|]*)\|", report)
    assert shown.split()[0] == share and "the exact rule / scripted" in report
    # A trajectory that is newer than the verdicts leaves them out until they are judged again.
    Path("runs/k/evaluation/judges.json").write_text(
        json.dumps({**contents("runs/k/evaluation/judges.json"), "trajectories": "older"})
    )
    assert load_run("runs/k").judges == {}


# What ends judging.


def test_a_wrong_key_ends_judging_at_once_and_leaves_the_numbers_alone(entry, tmp_path, capsys):
    assert entry("run", *TINY, "name=k") == 0
    metrics, log = Path("runs/k/metrics.json").read_bytes(), tmp_path / "asked"
    judge = (*JUDGE, f"judge_llm.log={log}", "runs/k")
    capsys.readouterr()
    assert entry("evaluate", *judge, "judge_llm.locked=true", "concurrency=2") == 2
    line = told(capsys)
    assert "the key is wrong" in line and "0 of 6 answers have a verdict" in line
    assert len(log.read_text().splitlines()) == 2
    assert Path("runs/k/metrics.json").read_bytes() == metrics
    assert entry("evaluate", *judge) == 0
    assert len(verdicts_in(verdict_file())) == 6


def test_the_cap_that_a_run_was_made_with_holds_for_its_judge(entry, capsys):
    assert entry("run", *TINY, "name=k", "budget.run_dollars=0.12") == 0
    metrics = Path("runs/k/metrics.json").read_bytes()
    capsys.readouterr()
    for _ in range(2):
        assert entry("evaluate", *JUDGE, DEAR, "runs/k") == 2
        line = told(capsys)
        assert "2 of 6 answers have a verdict" in line and "raise budget.run_dollars" in line
    (start,) = starts("runs/k")
    assert start["judge_calls"] == 2 and start["dollars"] == pytest.approx(2 * DOLLARS)
    assert Path("runs/k/metrics.json").read_bytes() == metrics
    # A cap of the command line takes its place, and holds from then on.
    assert entry("evaluate", *JUDGE, DEAR, "budget.run_dollars=0.18", "runs/k") == 2
    assert "3 of 6 answers have a verdict" in told(capsys)
    assert entry("evaluate", *JUDGE, DEAR, "runs/k") == 2
    assert "3 of 6 answers have a verdict" in told(capsys)
    assert entry("evaluate", *JUDGE, DEAR, "budget.run_dollars=1", "runs/k") == 0
    assert sum(start["dollars"] for start in starts("runs/k")) == pytest.approx(6 * DOLLARS)


def test_agent_and_judge_of_a_run_spend_from_one_cap_and_stand_on_one_ledger(entry, capsys):
    run = (*TINY, *MODEL, *JUDGE[1:], "name=k", "llm.price=1000", DEAR, "preflight.questions=0")
    # Six answers take 0.63 dollars each, so that two verdicts are left to pay.
    cap = 6 * 0.63 + 2.5 * DOLLARS
    assert entry("run", *run, f"budget.run_dollars={cap}") == 2
    line = told(capsys)
    assert "judging runs/k stopped" in line and "2 of 6 answers have a verdict" in line
    (start,) = starts("runs/k")
    assert start["agent_calls"] == 18 and start["judge_calls"] == 2
    assert start["dollars"] == pytest.approx(6 * 0.63 + 2 * DOLLARS)
    assert not Path("runs/k/metrics.json").exists()
    assert entry("run", *run, "budget.run_dollars=9") == 0
    assert starts("runs/k")[1]["judge_calls"] == 4 and "agent_calls" not in starts("runs/k")[1]
    assert contents("runs/k/evaluation/summary.json")["counts"]["without_verdict"] == 0


def test_a_question_whose_money_is_gone_is_judged_all_the_same(entry):
    run = (*TINY, *MODEL, *JUDGE[1:], "name=k", "llm.price=1000", DEAR, "llm.turns=9")
    run += ("preflight.questions=0",)  # No question has an answer, which would end the run.
    assert entry("run", *run, "budget.dollars=0.8") == 0
    folder = RunFolder("runs/k")
    assert set(folder.statuses().values()) == {"out_of_money"}
    counts = contents("runs/k/evaluation/summary.json")["counts"]
    assert counts["without_verdict"] == 0


def test_a_run_that_was_stopped_is_not_judged_by_a_model(entry, capsys):
    run = (*TINY, *MODEL, *JUDGE[1:], "name=k")
    assert entry("run", *run, "llm.locked=true") == 2
    assert "the run runs/k stopped" in told(capsys)
    assert not Path("runs/k/evaluation").exists()


PUBLISHED = {
    "source": "Table 1",
    "questions": 8,
    "benchmark": "collection",
    "judge": "judge-model",
    "vllm": "0.15",
    "columns": ["llm", "reranker", "tool.depth", "accuracy", "run_dollars"],
    "rows": [
        ["vllm/one", "none", None, 0.5, 9.0],
        ["vllm/one", "monot5", 10, 0.99, None],
        ["vllm/two", "none", None, 0.7, None],
    ],
    "other_systems": [{"system": "another", "accuracy": 0.4}],
    "ranges": {"accuracy": [0.4, 0.75], "cached_share": [0.82, 0.9], "cost_ratio": [3.3, 10]},
}


def cell(folder, *, right, questions=8, published=PUBLISHED, judge="judge-model", **changed):
    """A run of a sweep in which the first `right` answers are correct and each cost 1.1 dollars."""
    if published is not None:
        tables = {"paper": "a paper", "tables": {"one": published}}
        (folder.parents[1] / "paper.yaml").write_text(json.dumps(tables))
        published = str(folder.parents[1] / "paper" / "one")
    factors = {"llm": "vllm-one", "reranker": "none", "tool": "pages"} | changed
    run = RunFolder(folder / "-".join(factors.values()))
    config = {"comparison": {"published": published}, "tool": {"depth": 10}}
    manifest = make_manifest(config, {"benchmark": "b"}, factors, {"option": "collection"})
    manifest["versions"]["vllm"] = "0.15.1"
    qids = [str(number) for number in range(questions)]
    with run.writing(manifest):
        for qid in qids:
            run.write(Trajectory(qid, "?", "completed", answer=Answer(exact="x", confidence=1.0)))
    per_question = {
        "accuracy": {qid: float(place < right) for place, qid in enumerate(qids)},
        "usage_dollars": {qid: 1.1 + 0.1 * (-1) ** place for place, qid in enumerate(qids)},
        "usage_agent_input_tokens": dict.fromkeys(qids, 80.0),
        "usage_agent_cached_tokens": dict.fromkeys(qids, 20.0),
    }
    counts = {"questions": questions, "recorded": questions, "failed": 0}
    evaluation = Evaluation(counts=counts, judge=judge).with_values(per_question)
    write_evaluation(run.path, evaluation, state=run.state())
    return run.path


@pytest.fixture
def printed(entry, capsys, monkeypatch):
    """What the command prints about the sweep `runs/s`, as lines without runs of spaces."""
    monkeypatch.setenv("COLUMNS", "140")

    def compare(form="--published"):
        assert entry("compare", form, "runs/s") == 0
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    return compare


@pytest.mark.parametrize("form", ["--published", "published=true"])
def test_cells_are_matched_with_rows_by_their_factors(printed, tmp_path, form):
    cell(tmp_path / "runs" / "s", right=4)
    cell(tmp_path / "runs" / "s", right=4, reranker="monot5")
    lines = printed(form)
    # By hand: Student's t of 7 degrees of freedom times the root of half of the variance of the
    # questions over 8 of them, on both sides; and half a unit of the last published digit.
    width = 2.364624 * (0.5 * (8 * 0.25 / 7) * 2 / 8) ** 0.5 + 0.005
    shown = f"0.500 0.500 0.000 [−{width:.3f}, {width:.3f}] consistent"
    assert f"reranker=none accuracy {shown}" in lines
    width = 8 * 2.364624 * (0.5 * (8 * 0.01 / 7) * 2 / 8) ** 0.5 + 0.05
    shown = f"9.00 8.80 −0.20 [−{width + 0.2:.2f}, {width - 0.2:.2f}] consistent"
    assert f"run_dollars {shown}" in lines
    assert any(line.startswith("monot5 accuracy 0.990 0.500 −0.490 [−0.942,") for line in lines)
    assert sum(line.endswith(" differs") for line in lines) == 1
    assert any("Without repeats it is taken to be 50% of the variance" in line for line in lines)
    assert "Not run: llm=vllm/two, reranker=none" in lines
    assert "Also published: system another, accuracy 0.4" in lines
    assert "Published range of accuracy: 0.4 to 0.75; ours: 0.5 to 0.5" in lines
    assert "Published range of cached_share: 0.82 to 0.9; ours: 0.25 to 0.25" in lines
    assert "Published range of cost_ratio: 3.3 to 10; ours: not measured" in lines
    assert lines[-1] == ("2 of 3 published values are consistent with ours: these are reproduced.")


def test_an_imported_run_is_compared_by_question(printed, tmp_path):
    cell(tmp_path / "runs" / "s", right=4)
    other = cell(tmp_path / "runs" / "s", right=4, tool="theirs")
    manifest = contents(other / "manifest.json")
    manifest["imported"] = {"format": "browsecomp_plus"}
    (other / "manifest.json").write_text(json.dumps(manifest))
    lines = printed()
    assert lines[0] == "Differences by question" and not any("Not run" in line for line in lines)
    (row,) = (line for line in lines if " accuracy " in line)
    assert row.endswith("accuracy 0.500 0.500 0.000 [0.000, 0.000] consistent")


def test_a_depth_of_a_row_is_compared_with_the_value_in_the_configuration(printed, tmp_path):
    cell(tmp_path / "runs" / "s", right=4, **{"reranker": "monot5", "tool.depth": "20"})
    assert "differs" not in " ".join(printed())


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"questions": 7}, "7 questions were run, the paper has 8"),
        ({"judge": "other"}, "the judge is other, the paper's is judge-model"),
        ({"published": PUBLISHED | {"vllm": "0.9"}}, "vLLM is 0.15.1, the paper ran 0.9"),
        (
            {"published": PUBLISHED | {"benchmark": "other"}},
            "the benchmark is collection, the paper's is other",
        ),
    ],
)
def test_known_causes_are_named_and_nothing_is_called_reproduced(printed, tmp_path, changed, cause):
    cell(tmp_path / "runs" / "s", right=4, **changed)
    lines = printed()
    assert f"Known cause of differences: {cause}" in lines
    assert "reproduced" not in " ".join(lines)


def test_a_laptop_sweep_of_a_paper_s_experiment(entry, capsys):
    sweep = ("experiment=text_ranking/table2", "scale=laptop", *SMALL_WORLD)
    assert entry("run", *sweep) == 0
    capsys.readouterr()
    assert entry("compare", "--published", "runs/text_ranking_table2-fictional") == 0
    text = capsys.readouterr().out
    assert "arXiv 2602.21456, Table 2" in text
    assert "Known cause of differences: a laptop run" in text
    assert "the judge is the exact rule, the paper's is Qwen/Qwen3-32B" in text
    assert "not evidence on the paper's result, which needs its 830 questions" in text
    runs = list(Path("runs/text_ranking_table2-fictional").glob("*/manifest.json"))
    named = [contents(run)["config"]["comparison"]["published"] for run in runs]
    assert named == ["text_ranking/table2"] * 2


def test_runs_without_published_figures_are_refused(entry, capsys, tmp_path):
    # Nothing is named, or a figure whose numbers are not printed.
    for name, published in (("s", None), ("t", PUBLISHED | {"columns": [], "rows": []})):
        cell(tmp_path / "runs" / name, right=4, published=published)
        assert entry("compare", "--published", f"runs/{name}") == 2
        assert "has no published figures" in capsys.readouterr().err
    assert entry("compare", "--published", "runs/absent") == 2
    assert "has no evaluated run" in capsys.readouterr().err


def test_an_unknown_published_table_is_answered_with_the_known_ones(entry, capsys, tmp_path):
    path = cell(tmp_path / "runs" / "s", right=4)
    for name in ("text_ranking/table0", "nothing/table1"):
        manifest = contents(path / "manifest.json")
        manifest["config"]["comparison"]["published"] = name
        (path / "manifest.json").write_text(json.dumps(manifest))
        assert entry("compare", "--published", "runs/s") == 2
        message = capsys.readouterr().err
        assert f"no published table {name}" in message and "text_ranking/table13" in message


def test_a_command_makes_each_of_its_objects_once(entry, monkeypatch):
    """The two models of a run with `llm=`, the agent's and the rewriter's, are objects of their
    own, and so are the benchmarks of the two splits of a tuning."""
    made, instantiate = Counter(), build.instantiate

    def counted(option):
        made[option._get_full_key(None)] += 1
        return instantiate(option)

    monkeypatch.setattr(build, "instantiate", counted)
    grid = ("grid.k1=[0.5,1.5]", "grid.b=[0.5]", "tuning.folds=2", "tuning.references=[[0.9,0.4]]")
    commands = [
        (("run", *TINY, *MODEL, *JUDGE[1:], "rewriter=q2q", "name=x"), {"llm": 2}),
        (("rank", *TINY, "name=r"), {}),
        (("evaluate", *JUDGE, "runs/x"), {}),
        (("judge", *JUDGE, "runs/x"), {}),
        (("replay", "runs/x"), {}),
        (("tune", *TINY, "benchmark.questions=12", *grid, "name=t"), {"benchmark": 2}),
    ]
    for command, several in commands:
        made.clear()
        assert entry(*command) == 0
        assert made["budget"] == 1
        assert {name: count for name, count in made.items() if count > 1} == several, command
