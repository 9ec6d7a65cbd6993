"""Runs on questions that ask for documents: lists, librarians with models, calibration, and the
contestants of PaSaMaster's tables with a scripted model."""

import json
import shutil
from pathlib import Path

import pytest
from support.benchmarks import TINY
from support.checkpoints import save_sentence_model
from support.commands import run_entry
from support.runs import contents

from soundingline.experiments.fitting import fit_probabilities, pairs_of
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.trajectory import Trajectory

SEARCHPATH = f"hydra.searchpath=[file://{Path(__file__).resolve().parent / 'options'}]"
MODEL = (SEARCHPATH, "llm=scripted")
SETS = (*TINY, "benchmark.questions=sets:2", "traces=false")
NAVIGATOR = (*SETS, "agent=navigator", "agent.pool=6")
SCORES = json.dumps(
    {
        "requirements": [
            {"number": n, "verdict": "satisfied", "score": 1, "passage": "", "rationale": "x"}
            for n in range(1, 20)
        ],
        "relevant": True,
        "probability": 0.5,
    }
)
LIBRARIANS = (
    *(*MODEL, "llm.says='I would rather not plan.'", "scorer=chat"),  # so that rules plan
    *("llm@librarian_llm=scripted", f"librarian_llm.says='{SCORES}'"),
)
PAPER = (
    *(*TINY, SEARCHPATH, "benchmark.questions=sets:2"),
    *(f"{group}=scripted" for group in ("llm", "llm@librarian_llm", "llm@reranker_llm")),
    *("retriever=bm25_default", "unit=document", "concurrency=1"),
)


def metrics(run):
    return contents(f"runs/{run}/metrics.json")


def trajectories(run):
    return list(RunFolder(f"runs/{run}").trajectories())


def lists(run):
    return [trajectory.answer.documents for trajectory in trajectories(run)]


def test_one_search_lists_what_the_pipeline_ranks(entry):
    assert entry("run", *SETS, "name=one", "agent=one_shot", "agent.listed=1000") == 0
    assert entry("rank", *SETS, "name=ranked") == 0
    numbers, ranked = metrics("one"), metrics("ranked")
    shared = {name for name in set(numbers) & set(ranked) if "@" in name} - {"R@1000"}
    assert {"F1@20", "nDCG@20", "checklist@20"} <= shared
    assert {name: numbers[name] for name in shared} == {name: ranked[name] for name in shared}
    assert (numbers["search_calls"], numbers["hallucination_rate"]) == (1.0, 0.0)


def test_one_search_may_end_in_a_re_ranker_that_asks_a_model(entry):
    pointwise = ("reranker=pointwise", "reranker.depth=3", "llm.says='{\"score\": 50}'")
    given = (*SETS, *MODEL, "agent=one_shot", *pointwise, "concurrency=2")
    assert entry("run", *given, "name=pointwise") == 0
    numbers = metrics("pointwise")
    assert numbers["usage_reranker_calls"] == 3.0
    assert numbers["usage_dollars"] > 0 and numbers["documents_returned"] == 50.0
    assert "usage_agent_calls" not in numbers
    # With money for two pairs of a question, once it is known what a pair costs.
    poor = ("name=poor", "budget.dollars=0.0001", "concurrency=1", "paths.caches=null")
    assert entry("run", *given, *poor) == 0
    assert metrics("poor")["completion"] == 1.0 and metrics("poor")["documents_returned"] == 50.0
    assert RunFolder("runs/poor").manifest()["stages"]["reranker"]["unpaid"] == 1


def test_lists_of_a_chat_agent_and_of_a_closed_book(entry):
    assert entry("run", *SETS, *MODEL, "name=chat", "agent=chat_list") == 0
    numbers = metrics("chat")
    assert numbers["documents_returned"] >= 5.0 and numbers["hallucination_rate"] == 0.0
    assert numbers["usage_agent_calls"] == 3.0 and all(lists("chat"))
    # A closed book's list holds what the corpus has, and counts the rest.
    docid = lists("chat")[0][0]
    says = f"llm.says='Documents:\n{docid}\nA History of Nothing\nNowhere, a Novel'"
    floor = ("name=floor", "agent=closed_book_list", "tool=ranked_browsing", says)
    assert entry("run", *SETS, *MODEL, *floor) == 0
    numbers = metrics("floor")
    assert numbers["hallucination_rate"] == pytest.approx(2 / 3) and numbers["tool_calls"] == 0
    assert set(lists("floor")) == {(docid, "unresolved:2", "unresolved:3")}


def test_the_scores_of_a_run_are_exported_and_give_the_same_lists_from_the_file(entry, capsys):
    assert entry("run", *NAVIGATOR, "name=teacher") == 0
    assert run_entry("export", "runs/teacher", "format=judgements", "out=rows") == 0
    path = Path("rows/teacher.jsonl").resolve()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(row["requirements"] for row in rows) and any(row["chunks"] for row in rows)
    cited = {cell["passage"] for row in rows for cell in row["requirements"]} - {""}
    assert cited == {chunk["id"] for row in rows for chunk in row["chunks"]}
    assert entry("run", *NAVIGATOR, "name=pupil", "scorer=file", f"scorer.path={path}") == 0
    assert lists("teacher") == lists("pupil") and all(lists("teacher"))
    assert {row["repeat"] for row in rows} == {1}
    shutil.copytree("runs/teacher/queries", "runs/teacher/repeats/2/queries")
    assert run_entry("export", "runs/teacher", "format=judgements", "out=both") == 0
    both = [json.loads(line) for line in Path("both/teacher.jsonl").read_text().splitlines()]
    assert both == [*rows, *({**row, "repeat": 2} for row in rows)]
    capsys.readouterr()
    assert entry("run", *SETS, "agent=one_shot", "name=unscored") == 0
    assert run_entry("export", "runs/unscored", "format=judgements", "out=none") == 2
    assert "no document of runs/unscored was scored" in capsys.readouterr().err


def test_two_models_score_on_one_ledger_and_their_probability_is_calibrated_on_a_run(entry):
    assert entry("run", *NAVIGATOR, *LIBRARIANS, "name=dev") == 0
    numbers = metrics("dev")
    assert numbers["usage_navigator_calls"] == 4 and numbers["usage_librarian_calls"] > 2
    assert numbers["hallucination_rate"] == 0
    manifest = contents("runs/dev/manifest.json")
    assert (manifest["factors"]["librarian_llm"], manifest["factors"]["scorer"]) == (
        *("scripted", "chat"),
    )
    assert manifest["stages"]["scorer"]["documents"] > 0
    assert all("not calibrated" in " ".join(each.warnings) for each in trajectories("dev"))

    def scored(run, name):
        rounds = [each.rounds[0]["documents"] for each in trajectories(run)]
        return {row[name] for documents in rounds for row in documents.values()}

    assert scored("dev", "probability") == {0.5}
    assert entry("calibrate", "runs/dev", "out=calibration.json") == 0
    fitted = contents("calibration.json")
    assert fitted["scorer"] == manifest["fingerprints"]["scorer.content"]
    given = (*NAVIGATOR, *LIBRARIANS, "agent.calibration=calibration.json", "name=test")
    assert entry("run", *given) == 0
    assert not any("calibra" in line for each in trajectories("test") for line in each.warnings)
    (calibrated,) = scored("test", "calibrated")
    assert calibrated == pytest.approx(fitted["targets"] / fitted["pairs"])
    manifest = contents("runs/test/manifest.json")
    assert manifest["fingerprints"]["calibration"] != "none"
    assert manifest["stages"]["scorer"]["asked"] == 0, "what is paid for is not paid again"


def test_a_calibration_needs_targets_and_others(entry, capsys):
    assert entry("run", *NAVIGATOR, "name=rules") == 0
    assert entry("calibrate", "runs/rules", "out=calibration.json") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "with a scorer that tells an overall probability" in error
    assert not Path("calibration.json").exists()


def test_regressions_by_hand():
    pytest.importorskip("sklearn")
    # Isotonic: the share of targets at each probability.
    probabilities = [0.1] * 10 + [0.5] * 10 + [0.9] * 10
    met = [False] * 9 + [True] + [True] * 4 + [False] * 6 + [True] * 8 + [False] * 2
    fitted = fit_probabilities(probabilities, met, "isotonic")
    assert fitted["x"] == pytest.approx([0.1, 0.5, 0.9])
    assert fitted["y"] == pytest.approx([0.1, 0.4, 0.8])
    # Platt's: calibrated probabilities stay as they are.
    met = [True] * 100 + [False] * 400 + [True] * 400 + [False] * 100
    fitted = fit_probabilities([0.2] * 500 + [0.8] * 500, met, "platt")
    assert fitted["slope"] == pytest.approx(1, abs=1e-3)
    assert fitted["intercept"] == pytest.approx(0, abs=1e-3)
    # Temperature: 0.8 has the odds 4, and 0.9412 the odds 16; the logits are twice too large.
    met = [True] * 400 + [False] * 100 + [True] * 100 + [False] * 400
    fitted = fit_probabilities([16 / 17] * 500 + [1 / 17] * 500, met, "temperature")
    assert fitted["slope"] == pytest.approx(0.5, abs=1e-3) and fitted["intercept"] == 0


def test_the_newest_probability_of_a_document_counts_once():
    rounds = (
        {"documents": {"d1": {"probability": 0.2}, "d2": {"requirements": {}}}},
        {"documents": {"d1": {"probability": 0.7}}},
    )
    known, unknown = (Trajectory(qid, "?", "completed", rounds=rounds) for qid in ("q1", "q2"))
    assert pairs_of([known, unknown], {"q1": {"d1"}}) == ([0.7], [True])


def test_a_final_list_is_ordered_by_any_re_ranker_on_the_librarians_account(entry):
    listwise = ("reranker@list_reranker=listwise", "llm@librarian_llm=scripted")
    says = ("librarian_llm.says='[3] > [2] > [1]'", "agent.ordered=3")
    assert entry("run", *NAVIGATOR, "name=plain") == 0
    assert entry("run", *NAVIGATOR, SEARCHPATH, *listwise, *says, "name=listwise") == 0
    assert lists("listwise") == [(*reversed(row[:3]), *row[3:]) for row in lists("plain")]
    manifest = contents("runs/listwise/manifest.json")
    assert manifest["factors"]["list_reranker"] == "listwise"
    assert manifest["stages"]["list_reranker"]["windows"] == 2
    assert metrics("listwise")["usage_librarian_calls"] == 1


def test_an_encoder_locates_the_evidence_and_its_fingerprint_is_recorded(entry, tmp_path, capsys):
    pytest.importorskip("sentence_transformers")
    model = save_sentence_model(tmp_path / "tiny")
    dense = ("retriever@scorer.locator=dense", f"scorer.locator.model={model}")
    assert entry("run", *NAVIGATOR, "name=bm25") == 0
    assert entry("run", *NAVIGATOR, *dense, "name=dense") == 0
    prints = [contents(f"runs/{name}/manifest.json")["fingerprints"] for name in ("bm25", "dense")]
    assert "locator.content" not in prints[0] and prints[1]["locator.content"]
    # Every requirement has evidence, also one whose words no passage contains.
    scored = [
        cell
        for trajectory in trajectories("dense")
        for row in trajectory.rounds
        for document in row["documents"].values()
        for cell in document["requirements"].values()
    ]
    assert scored and all(cell["passage"] and cell["verdict"] != "unknown" for cell in scored)
    assert entry("run", *NAVIGATOR, "retriever@scorer.locator=bm25_tuned", "name=wrong") == 2
    assert "encodes no passages" in " ".join(capsys.readouterr().err.split())


def test_with_a_model_every_contestant_of_the_paper_has_the_same_money(entry):
    agents = "agent=one_shot,one_shot_pointwise,chat_list,navigator,closed_book_list"
    given = ("experiment=pasamaster/main", *PAPER, agents, "scorer=chat", "budget.dollars=0.5")
    assert entry("run", *given) == 0
    sweep = Path("runs/pasamaster_main-fictional")
    manifests = {path.parent.name: contents(path) for path in sweep.glob("*/manifest.json")}
    assert {cell["config"]["budget"]["dollars"] for cell in manifests.values()} == {0.5}
    rates = {
        cell["factors"]["agent"]: contents(sweep / name / "metrics.json")
        for name, cell in manifests.items()
    }
    assert len(rates) == 5
    assert rates["closed_book_list"]["hallucination_rate"] == 1.0
    assert rates["chat_list"]["hallucination_rate"] == 0.0
    assert rates["navigator"]["usage_librarian_calls"] > 0
    # The others are compared with one search.
    rows = contents(sweep / "verdicts.json")
    assert {row["measure"] for row in rows} >= {"F1@20", "nDCG@20"}
    assert {manifests[row["b"]]["factors"]["agent"] for row in rows} == {"one_shot"}
    # The report has the cost of each role.
    _, _, section = (sweep / "report.md").read_text().partition("## Cost by role")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert {"navigator", "librarian", "all"} <= {line.split("|")[2].strip() for line in rows[2:]}
