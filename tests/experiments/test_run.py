"""The main path: a run, its resumption, its evaluation, a sweep and its comparison."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.commands import run_entry

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import ExactAnswerJudge, load_run
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import SWEEP


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
    assert [cell.split("-")[0] for cell in cells] == ["document", "maxp"]
    report = Path("runs/sweep/report.html").read_text()
    assert "document" in report and "maxp" in report and "http" not in report
    assert SWEEP not in os.environ  # a process that goes on waits for no other's lock
    assert "runs/sweep/report.html" in capsys.readouterr().out
    paths = [f"runs/sweep/{cell}" for cell in cells]
    assert entry("compare", *paths, "name=both", "--measure", "AP") == 0
    verdicts = json.loads(Path("runs/both/verdicts.json").read_text())
    assert [(row["measure"], row["n"]) for row in verdicts] == [("AP", 6)]


def test_a_sweep_without_a_name_finds_its_folder_again(entry):
    given = (*TINY, "unit=document", "retriever.k1=1,2", "-m")
    assert entry("run", "--multirun", *given[:-1]) == 0
    made = sorted(Path("runs").iterdir())
    assert entry("run", *given) == 0
    assert sorted(Path("runs").iterdir()) == made
    cells = sorted(path.parent.name for path in made[0].glob("*/metrics.json"))
    assert [re.findall(r"retriever\.k1=(\d)", cell) for cell in cells] == [["1"], ["2"]]


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
    assert sweep.name.startswith("sweep-")
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
    assert re.fullmatch(r"cacm-document-bm25_default-[0-9a-f]{8}", cacm)
    assert re.fullmatch(r"wikimix-document-bm25_default-[0-9a-f]{8}", wikimix)
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
