"""Bounds of a table: closed book, retrieve-then-read, the oracle's ranking, evidence given, and
evidence removed. Runs are with the keyword agent and a simulated reader."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.benchmarks import TINY
from support.commands import run_entry

from soundingline.pipelines.compose import WithoutDocuments
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.evaluation import EvaluatedRun, compare, load_run
from soundingline.toolkit.evaluation.comparison import bound_of, bounds_among
from soundingline.toolkit.evaluation.statistics import holm, paired_test
from soundingline.toolkit.report import ReportData, evidence_line
from soundingline.toolkit.runs import RunFolder

PACKAGE = "soundingline"
KEYWORD = {"_target_": f"{PACKAGE}.agents.keyword.KeywordAgent", "max_searches": 3}
ORACLE = {"_target_": f"{PACKAGE}.pipelines.fusion.OracleRetriever"}
BM25 = {"_target_": f"{PACKAGE}.pipelines.retrieve.BM25"}
# The long articles need several pages, so that an agent may miss a fact that it could have read.
WORLD = (
    "benchmark=fictional",
    *("benchmark.documents=200", "benchmark.questions=30", "benchmark.hops=1"),
    *("benchmark.median_words=1500", "benchmark.p90_words=4000", "benchmark.yes_no=false"),
)
CELLS = {
    "agent": (),
    "tuned": ("retriever=bm25_tuned",),
    "passage": ("unit=passage",),
    "top_k": ("tool=top_k",),
    "closed": ("agent=closed_book_simulated",),
    "rag": ("agent=rag_simulated",),
    "removed": ("benchmark.remove_evidence=true",),
    "oracle": (
        *("retriever=oracle", "retriever@retriever.base=bm25_default", "tool=whole_documents"),
    ),
    "given": (
        *("agent=rag_simulated", "retriever=oracle", "tool=top_k"),
        *("tool.k=20", "tool.max_tokens=null"),
    ),
}


def test_documents_are_removed_from_the_rankings_of_their_question_and_ranks_have_no_gaps():
    rows = [("1", "d1%p0", 0), ("1", "d2%p0", 1), ("1", "d1%p4", 2), ("1", "d3", 3)]
    rows += [("2", "d1", 0), ("1#repeat2", "d2", 0), ("1#repeat2", "d1", 1)]
    frame = pd.DataFrame(rows, columns=["qid", "docno", "rank"])
    found = WithoutDocuments({"1": {"d1"}})(frame)
    kept = [(row.qid, row.docno, row.rank) for row in found.itertuples()]
    assert kept == [
        *(("1", "d2%p0", 0), ("1", "d3", 1), ("2", "d1", 0)),
        ("1#repeat2", "d2", 0),
    ]


def test_removed_are_relevant_documents_of_all_tiers_and_the_content_is_the_same():
    options = {"documents": 64, "questions": 4, "hops": 2, "median_words": 60, "p90_words": 200}
    whole = FictionalWorld(**options)
    without = FictionalWorld(**options, remove_evidence=True)
    assert whole.removed == {}
    for qid, grades in whole.qrels["evidence"].items():
        assert without.removed[qid] == set(grades) | set(whole.qrels["gold"][qid])
    assert without.fingerprint == whole.fingerprint
    assert without.corpus_fingerprint == whole.corpus_fingerprint


@pytest.mark.parametrize(
    ("config", "bound"),
    [
        ({"agent": KEYWORD, "retriever": BM25}, ""),
        ({"agent": {**KEYWORD, "max_searches": 0}}, "closed book"),
        ({"agent": {"_target_": f"{PACKAGE}.agents.baselines.ClosedBookAgent"}}, "closed book"),
        ({"agent": {"_target_": f"{PACKAGE}.agents.rag.RagAgent"}}, "retrieve-then-read"),
        ({"agent": {**KEYWORD, "max_searches": 1}}, "retrieve-then-read"),
        ({"agent": KEYWORD, "benchmark": {"remove_evidence": True}}, "evidence removed"),
        ({"agent": KEYWORD, "retriever": {**ORACLE, "base": BM25}}, "oracle's ranking"),
        ({"retriever": {**ORACLE, "base": None}}, "oracle's ranking"),
        ({"agent": KEYWORD, "retriever": {**ORACLE, "base": None}}, "evidence given"),
        (
            {"agent": KEYWORD, "retriever": {**ORACLE, "base": BM25, "rest": False}},
            "evidence given",
        ),
    ],
)
def test_a_run_is_the_bound_that_its_settings_make_it(config, bound):
    assert bound_of(config) == bound


def run_with(name, values, **config):
    per = {"accuracy": {str(n): value for n, value in enumerate(values)}}
    return EvaluatedRun(name=name, per_question=per, manifest={"config": config})


def test_bounds_are_a_family_of_their_own_and_are_not_tested_for_equivalence():
    generator = np.random.default_rng(3)
    draws = generator.random((5, 40)) < np.array([[0.5], [0.6], [0.8], [0.2], [0.9]])
    configs = [{"agent": KEYWORD}] * 3 + [
        {"agent": {**KEYWORD, "max_searches": 0}},
        {"agent": KEYWORD, "retriever": {**ORACLE, "base": BM25}},
    ]
    named = zip(("base", "b", "c", "closed", "oracle"), draws.astype(float), configs, strict=True)
    runs = [run_with(name, values, **config) for name, values, config in named]
    rows = {row.a: row for row in compare(runs, ["accuracy"], "base", margin=0.5)}
    raw = {
        run.name: paired_test(run.per_question["accuracy"], runs[0].per_question["accuracy"]).p
        for run in runs[1:]
    }
    for family in (("b", "c"), ("closed", "oracle")):
        wanted = holm([raw[name] for name in family])
        assert [rows[name].p_holm for name in family] == wanted
    assert rows["b"].p_equivalence_holm is not None and rows["oracle"].p_equivalence is None
    assert bounds_among(runs) == {"closed", "oracle"}
    assert bounds_among(runs, "closed") == {"oracle"}
    assert bounds_among(runs[2:]) == set()  # one system alone has nothing to be compared with


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """The cells by name; the command itself runs in a folder of the module."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("bounds"))
    try:
        for name, words in CELLS.items():
            command = ("agent=keyword", *WORLD, *words, f"name={name}")
            assert run_entry("run", *command) == 0
        yield {name: load_run(Path("runs", name).resolve()) for name in CELLS}
    finally:
        os.chdir(before)


def test_no_question_is_right_for_an_agent_and_wrong_for_the_oracle_or_with_evidence_given(sweep):
    right = {
        name: {qid for qid, value in run.per_question["accuracy"].items() if value}
        for name, run in sweep.items()
    }
    for name in ("agent", "tuned", "passage", "top_k", "rag", "removed", "closed"):
        assert right[name] <= right["oracle"]
    assert right["oracle"] <= right["given"]
    assert right["closed"] == right["removed"] == set()
    assert right["rag"] < right["given"] and right["agent"] < right["given"]
    known = sweep["given"].per_question["answer_shown"]
    assert right["given"] == {qid for qid, value in known.items() if value}


def test_without_its_evidence_a_question_has_the_other_documents_in_their_order(sweep):
    assert sweep["removed"].metrics["recall_surfaced"] == 0
    folders = [RunFolder(Path("runs", name)) for name in ("agent", "removed")]
    relevant = FictionalWorld(
        documents=200, questions=30, hops=1, median_words=1500, p90_words=4000, yes_no=False
    ).qrels["evidence"]
    assert len(relevant) == 30
    for qid, docids in relevant.items():
        whole, without = (list(folder.read(qid).calls[0].ranking) for folder in folders)
        assert without == [docid for docid in whole if docid not in docids]
        assert len(without) > 0


def test_the_last_line_of_a_comparison_has_the_steps_of_the_baseline(sweep):
    runs = [replace(run, factors={"cell": name.upper()}) for name, run in sweep.items()]
    base = next(run for run in runs if run.factors["cell"] == "AGENT").name
    rows = compare(runs, ["accuracy"], base, resamples=99)
    steps = evidence_line(ReportData(runs, rows, baseline=base))
    metrics = sweep["agent"].metrics
    shares = [metrics[name] for name in ("step_surfaced", "step_previewed", "step_opened")]
    assert f"surfaced {100 * shares[0]:.0f}%, previewed {100 * shares[1]:.0f}%" in steps
    assert steps.startswith("Evidence in baseline, 30 questions: ")
    unmeasured = [replace(run, metrics={}, per_question={}) for run in runs]
    assert evidence_line(ReportData(unmeasured)) == ""


def test_a_tool_that_follows_links_is_refused_without_evidence(entry, capsys):
    words = ("benchmark.remove_evidence=true", "tool=literature", *TINY)
    assert entry("run", "agent=keyword", *words) == 2
    assert "finds documents without the pipeline" in capsys.readouterr().err
