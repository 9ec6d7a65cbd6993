"""Whole runs of agents that end in a list of documents, on questions that ask for documents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.commands import run_entry

from soundingline.toolkit.runs import RunFolder

Entry = Callable[..., int]
OPTIONS = Path(__file__).resolve().parent / "options"
MODEL = (f"hydra.searchpath=[file://{OPTIONS}]", "llm=scripted")
SETS = (*TINY, "benchmark.questions=sets:4")


def metrics(run):
    return dict(json.loads(Path(f"runs/{run}/metrics.json").read_text()))


def test_one_search_lists_what_the_pipeline_ranks(entry):
    assert entry("run", *SETS, "name=one", "agent=one_shot", "agent.listed=1000") == 0
    assert entry("rank", *SETS, "name=ranked") == 0
    numbers, ranked = metrics("one"), metrics("ranked")
    shared = {name for name in set(numbers) & set(ranked) if "@" in name} - {"R@1000"}
    assert {"F1@20", "nDCG@20", "checklist@20"} <= shared
    assert {name: numbers[name] for name in shared} == {name: ranked[name] for name in shared}
    assert (numbers["search_calls"], numbers["hallucination_rate"]) == (1.0, 0.0)
    assert numbers["completion"] == 1.0


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
    stages = RunFolder("runs/poor").manifest()["stages"]
    assert stages["reranker"]["unpaid"] == 3.0


def test_a_chat_agent_ends_in_a_list(entry):
    assert entry("run", *SETS, *MODEL, "name=chat", "agent=chat_list") == 0
    numbers = metrics("chat")
    assert numbers["documents_returned"] >= 5.0 and numbers["hallucination_rate"] == 0.0
    assert numbers["usage_agent_calls"] == 3.0
    trajectories = list(RunFolder("runs/chat").trajectories())
    assert all(trajectory.answer.documents for trajectory in trajectories)


def test_the_list_of_a_closed_book_holds_what_the_corpus_has_and_counts_the_rest(
    entry,
):
    assert entry("run", *SETS, "name=titles", "agent=one_shot", "agent.listed=2") == 0
    (trajectory, *_) = RunFolder("runs/titles").trajectories()
    docid = trajectory.answer.documents[0]
    says = f"llm.says='Documents:\n{docid}\nA History of Nothing\nNowhere, a Novel'"
    floor = ("name=floor", "agent=closed_book_list", "tool=ranked_browsing", says)
    assert entry("run", *SETS, *MODEL, *floor) == 0
    numbers = metrics("floor")
    assert numbers["hallucination_rate"] == pytest.approx(2 / 3)
    assert numbers["documents_returned"] == 3.0 and numbers["tool_calls"] == 0
    listed = {t.answer.documents for t in RunFolder("runs/floor").trajectories()}
    assert listed == {(docid, "unresolved:2", "unresolved:3")}


def test_the_scores_of_a_run_are_exported_and_give_the_same_lists_from_the_file(entry, capsys):
    given = (*SETS, "agent=navigator", "agent.pool=6")
    assert entry("run", *given, "name=teacher") == 0
    assert run_entry("export", "runs/teacher", "format=judgements", "out=rows") == 0
    path = Path("rows/teacher.jsonl").resolve()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(row["requirements"] for row in rows) and any(row["chunks"] for row in rows)
    cited = {cell["passage"] for row in rows for cell in row["requirements"]} - {""}
    assert cited == {chunk["id"] for row in rows for chunk in row["chunks"]}
    assert entry("run", *given, "name=pupil", "scorer=file", f"scorer.path={path}") == 0
    lists = [
        [trajectory.answer.documents for trajectory in RunFolder(f"runs/{name}").trajectories()]
        for name in ("teacher", "pupil")
    ]
    assert lists[0] == lists[1] and all(lists[0])
    assert {row["repeat"] for row in rows} == {1}
    shutil.copytree("runs/teacher/queries", "runs/teacher/repeats/2/queries")
    assert run_entry("export", "runs/teacher", "format=judgements", "out=both") == 0
    both = [json.loads(line) for line in Path("both/teacher.jsonl").read_text().splitlines()]
    assert both == [*rows, *({**row, "repeat": 2} for row in rows)]
    capsys.readouterr()
    assert entry("run", *SETS, "agent=one_shot", "name=unscored") == 0
    assert run_entry("export", "runs/unscored", "format=judgements", "out=none") == 2
    assert "no document of runs/unscored was scored" in capsys.readouterr().err
