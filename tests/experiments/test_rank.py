"""Rankings have published figures, the lower and upper bound of a table are complete runs, and a
corpus is enriched before it is ranked."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
import zipfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import ir_measures
import pandas as pd
import pyterrier as pt
import pytest
from support.benchmarks import TINY
from support.commands import run_command
from support.llm_server import Say
from support.runs import starts

import soundingline.experiments.pipeline as pipeline_module
from soundingline.experiments import Experiment
from soundingline.experiments.pipeline import Stages, stage_counts
from soundingline.experiments.rank import evaluate_pipeline, query_costs
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation import parse_measures
from soundingline.toolkit.evaluation.evaluation import trec_run
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.prices import UNKNOWN, Price
from soundingline.toolkit.locks import writer_lock
from soundingline.toolkit.runs import RunFolder

ROOT = Path(__file__).resolve().parents[2]


def test_cacm_with_default_bm25_gives_the_published_figures(entry, data_root):
    """Anserini's regression on CACM (k1=0.9, b=0.4, 1000 hits): AP 0.3123, P@30 0.1942."""
    code = entry("rank", "benchmark=cacm", f"paths.data={data_root}", "name=cacm")
    assert code == 0
    found = json.loads(Path("runs/cacm/metrics.json").read_text())
    assert found["AP"] == pytest.approx(0.3123, abs=0.001)
    assert found["P@30"] == pytest.approx(0.1942, abs=0.002)


def test_runs_over_several_benchmarks_are_compared_as_systems(entry, beir, tmp_path, capsys):
    """Systems by benchmarks with a macro average, which a system that lacks one has not."""
    other = shutil.copytree(beir, tmp_path / "other")
    (other / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n../../x\td2\t1\nq2\td3\t1\n"
    )
    for name, path, retriever in (
        ("a", beir, "bm25_default"),
        ("b", other, "bm25_default"),
        ("c", beir, "ql"),
    ):
        given = (f"benchmark.path={path}", f"retriever={retriever}", f"name={name}")
        assert entry("rank", "benchmark=beir", *given) == 0
    capsys.readouterr()
    runs = ("runs/a", "runs/b", "runs/c")
    assert entry("compare", *runs, "name=t", "--baseline", "a", "--measure", "nDCG@10") == 0
    text = capsys.readouterr().out
    own = [json.loads(Path(run, "metrics.json").read_text())["nDCG@10"] for run in runs]
    assert own[0] != own[1]
    rows = [line for line in text.splitlines() if line.startswith("bm25_default")]
    assert rows[-1].split()[-1] == f"{(own[0] + own[1]) / 2:.4f}"
    assert "ql has no macro average: missing on beir other." in " ".join(text.split())
    page = Path("runs/t/report.md").read_text()
    assert "## nDCG@10 by benchmark" in page and "missing on beir other" in page
    verdicts = json.loads(Path("runs/t/verdicts.json").read_text())
    assert [(row["a"], row["b"]) for row in verdicts] == [("c", "a")]


def test_cacm_read_by_ir_datasets_gives_the_published_figures(tmp_path, data_root):
    """The same collection as a download that ir_datasets reads; its folder is taken when
    ir_datasets is imported, so in a process of its own, which has not imported it."""
    archive = tmp_path / "beir" / "scifact" / "source.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as download:
        for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
            download.write(data_root / "cacm" / name, f"scifact/{name}")
    given = ("benchmark=ir_datasets", "benchmark.dataset=beir/scifact/test", "name=cacm")
    home = {"IR_DATASETS_HOME": str(tmp_path)}
    done = run_command("rank", *given, folder=tmp_path, environment=home)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "runs/cacm/metrics.json").read_text())
    assert metrics["AP"] == pytest.approx(0.3123, abs=0.001)
    assert metrics["P@30"] == pytest.approx(0.1942, abs=0.002)


def test_unjudged_questions_and_unknown_documents_are_counted_and_shown(entry, data_root, capsys):
    given = ("benchmark=cacm", f"paths.data={data_root}", "benchmark.split=null")
    assert entry("rank", *given, "name=all") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "55 judged documents" in said
    assert "12 of 64 questions" in said
    summary = json.loads(Path("runs/all/evaluation/summary.json").read_text())
    assert summary["counts"]["unjudged"] == 12
    assert set(summary["denominators"].values()) == {52}


def test_questions_without_judgements_are_ranked_and_have_no_measures(entry, tmp_path, capsys):
    """What a participant of a track has before the judgements: questions and documents."""
    Path("topics.tsv").write_text("r0\tWhy do tides rise?\nr1\tWho pays the toll?\n")
    texts = ["The moon makes the tides rise.", "Carts have to pay the toll.", "A mill."]
    rows = [{"docid": f"d{number}", "text": text} for number, text in enumerate(texts)]
    Path("corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("benchmark=trec_rag", "benchmark.topics=topics.tsv", "benchmark.corpus=corpus.jsonl")
    assert entry("rank", *given, "name=first") == 0
    said = capsys.readouterr()
    assert "No question of trec_rag is judged, so there are no measures." in said.out
    assert "runs/first/run.trec has the rankings of 2 questions" in said.out
    assert "Next:" not in said.err
    lines = [line.split() for line in Path("runs/first/run.trec").read_text().splitlines()]
    assert {(line[0], line[2]) for line in lines if line[3] == "1"} == {("r0", "d0"), ("r1", "d1")}
    assert json.loads(Path("runs/first/metrics.json").read_text()) == {}
    counts = json.loads(Path("runs/first/evaluation/summary.json").read_text())["counts"]
    assert counts == {"questions": 2, "answered": 2, "failed": 0, "unjudged": 2}
    assert entry("rank", *given, "name=second", "retriever=ql") == 0
    capsys.readouterr()
    assert entry("compare", "runs/first", "runs/second", "name=t") == 0
    said = capsys.readouterr()
    assert (
        "has no judged question" in said.err
        and "Without judgements, and left out of recall: 4 of 4 questions" in said.out
    )
    # With judgements of one of them, the other is not ranked.
    Path("qrels.txt").write_text("r1 0 d1 1\n")
    assert entry("rank", *given, "benchmark.qrels=qrels.txt", "name=judged") == 0
    assert Path("runs/judged/run.trec").read_text().split()[:3] == ["r1", "Q0", "d1"]
    assert json.loads(Path("runs/judged/metrics.json").read_text())["AP"] == 1


@pytest.mark.parametrize("unit", ["passage", "maxp"])
def test_passages_are_measured_as_their_documents(unit, entry, beir):
    given = ("benchmark=beir", f"benchmark.path={beir}", f"unit={unit}", "unit.max_tokens=8")
    assert entry("rank", *given, "name=x") == 0
    rows = [line.split() for line in Path("runs/x/run.trec").read_text().splitlines()]
    assert {docid for _, _, docid, *_ in rows} <= {"d1", "d2", "d3"}
    assert len({(qid, docid) for qid, _, docid, *_ in rows}) == len(rows)


def test_pt_experiment_on_the_run_file_has_the_same_values(entry, beir):
    assert entry("rank", "benchmark=beir", f"benchmark.path={beir}", "name=x") == 0
    grades = [("../../x", "d2", 1), ("q2", "d1", 1), ("q2", "gone", 1)]
    table = pt.Experiment(
        [pt.io.read_results("runs/x/run.trec")],
        pd.DataFrame([("../../x", ""), ("q2", "")], columns=["qid", "query"]),
        pd.DataFrame(grades, columns=["qid", "docno", "label"]),
        parse_measures(["AP", "nDCG@10", "R@100"]),
        names=["x"],
        perquery=True,
    )
    found = json.loads(Path("runs/x/evaluation/questions.json").read_text())
    assert len(table) == 6
    for row in table.itertuples():
        assert found[str(row.measure)][row.qid] == pytest.approx(row.value)


def test_rows_are_measured_by_their_rank_whatever_their_order():
    topics = [Topic("1", "one"), Topic("2", "two")]
    benchmark = Benchmark("b", topics, {"evidence": {"1": {"a": 1}, "2": {"x": 1}}})
    rows = [("1", "b", 1, 1.0), ("2", "x", 0, 0.0), ("1", "a", 0, 9.0)]
    ranked = pd.DataFrame(rows, columns=["qid", "docno", "rank", "score"])
    pipeline = pt.Transformer.from_df(ranked)
    evaluation = evaluate_pipeline(benchmark, pipeline, ["RR"])
    assert evaluation.rankings == {"1": ["a", "b"], "2": ["x"]}
    assert evaluation.per_question["RR"] == {"1": 1.0, "2": 1.0}


def test_a_run_file_has_the_scores_and_trec_eval_keeps_their_ranking():
    """trec_eval sorts by score in 32 bits, and equal ones by docid, descending."""
    scores = [7.25, 7.25, 7.25, 3.0, 3.0 - 1e-9, 0.0, 0.0, -2.0, -2.0]
    docids = "abcdefghi"
    rows = [("1", docid, rank, scores[rank]) for rank, docid in enumerate(docids)]
    ranked = pd.DataFrame(rows, columns=["qid", "docno", "rank", "score"])
    for rank, docid in enumerate(docids, start=1):
        judged = {"1": {docid: 1}}
        benchmark = Benchmark("b", [Topic("1", "one")], {"evidence": judged})
        evaluation = evaluate_pipeline(benchmark, pt.Transformer.from_df(ranked), ["RR"])
        text = trec_run(evaluation.rankings, "x", evaluation.scores)
        written = list(ir_measures.read_trec_run(text))
        assert [row.score for row in written] == pytest.approx(scores, rel=3e-7)
        read = ir_measures.calc_aggregate([ir_measures.RR], judged, written)
        assert read[ir_measures.RR] == evaluation.metrics["RR"] == 1 / rank


@pytest.mark.parametrize("exclude_own", [True, False])
def test_a_question_s_own_document_is_left_out_before_ranks_are_measured(exclude_own):
    judged = {"evidence": {"1": {"a": 1}, "2": {"1": 1}}}
    topics = [Topic("1", "one"), Topic("2", "two")]
    benchmark = Benchmark("b", topics, judged, exclude_own=exclude_own)
    rows = [("1", "1", 0, 9.0), ("1", "a", 1, 1.0), ("2", "1", 0, 9.0)]
    ranked = pd.DataFrame(rows, columns=["qid", "docno", "rank", "score"])
    evaluation = evaluate_pipeline(benchmark, pt.Transformer.from_df(ranked), ["RR"])
    # Document 1 is a right answer of question 2, and question 1 itself.
    assert evaluation.per_question["RR"] == {"1": 1.0 if exclude_own else 0.5, "2": 1.0}


def test_an_experiment_opens_its_index_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opened = []
    prepare = pipeline_module.prepare

    def counted(benchmark, *others, **options):
        opened.append(benchmark.name)
        return prepare(benchmark, *others, **options)

    monkeypatch.setattr(pipeline_module, "prepare", counted)
    experiment = Experiment.compose(*TINY, "agent.max_searches=1")
    assert len(experiment.pipeline().search("harbour")) >= 0
    ranked, answered = experiment.rank(), experiment.run()
    assert ranked.metrics["AP"] > 0 and answered.counts["completed"] == 6
    assert len(opened) == 1


def test_what_a_stage_counted_before_is_not_counted_again():
    before = stage_counts({"reranker": SimpleNamespace(counts={"pairs": 10})})
    assert before == {"reranker": {"pairs": 10}}
    stage = SimpleNamespace(counts={"pairs": 25, "windows": 2})
    assert stage_counts({"reranker": stage}, before) == {"reranker": {"pairs": 15, "windows": 2}}


# A long request costs ten times as much, and many short ones together are no long request.
PRICE = Price(input=2.0, output=8.0, long_context={"above": 1000, "input": 20.0, "output": 80.0})
UNMETERED = {"reply_input_tokens": 40, "reply_output_tokens": 10, "reply_unreported": 1}


@pytest.mark.parametrize(
    ("prices", "counted", "costs"),
    [
        (
            {"rewriter": PRICE},
            {"rewriter": {"reply_input_tokens": 4_000_000, "reply_output_tokens": 1_000_000}},
            {"input_tokens": 4e5, "output_tokens": 1e5, "dollars": (4 * 2.0 + 1 * 8.0) / 10},
        ),
        (  # a model has no price
            {"rewriter": PRICE, "reranker": UNKNOWN},
            {
                "rewriter": {"reply_input_tokens": 40, "reply_output_tokens": 10},
                "reranker": {"reply_input_tokens": 60, "reply_output_tokens": 30},
            },
            {"input_tokens": 10.0, "output_tokens": 4.0},
        ),
        ({"rewriter": PRICE}, {"rewriter": UNMETERED}, {}),
        (
            {"enrichment": PRICE},
            {"enrichment": {f"query_{name}": number for name, number in UNMETERED.items()}},
            {},
        ),
        ({}, {}, {}),
    ],
)
def test_a_query_costs_what_its_replies_cost(prices, counted, costs):
    models = {
        group: (BlockingModel("m", role="rewriter", price=price), None)
        for group, price in prices.items()
    }
    assert query_costs(Stages({}, models), counted, 50.0, 10) == {"seconds": 5.0, **costs}


def test_a_pipeline_is_measured_on_questions_that_ask_for_documents(entry, capsys):
    """By the same measures as an agent, beside those that were asked for."""
    given = ("measures=[AP]", *TINY, "benchmark.questions=sets:12")
    assert entry("rank", *given, "name=sets") == 0
    metrics = json.loads(Path("runs/sets/metrics.json").read_text())
    assert {"AP", "F1@20", "nDCG@50", "P@1", "R@10", "checklist@5"} <= set(metrics)
    assert 0 < metrics["checklist@50"] < 1
    shown = capsys.readouterr().out
    assert "AP" in shown and "F1@20" in shown and "F1@50" not in shown
    summary = json.loads(Path("runs/sets/evaluation/summary.json").read_text())
    assert summary["counts"]["asking_for_documents"] == 12
    assert summary["counts"]["without_targets"] == 0


# For each stratum of Pi-Serini's slices: relevant documents, and those that hold the query's word.
STRATA = {
    "zero_small": (1, 0),
    "zero_large": (6, 0),
    "tiny_large": (10, 1),
    "low_small": (4, 1),
    "low_large": (8, 2),
    "medium_small": (2, 1),
    "medium_large": (6, 3),
    "high_small": (1, 1),
    "high_large": (6, 6),
}


def test_the_slices_of_pi_serini_come_from_a_ranking(entry, tmp_path, capsys):
    folder = tmp_path / "numbered"
    (folder / "qrels").mkdir(parents=True)
    corpus, queries, qrels, stratum_of = [], [], ["query-id\tcorpus-id\tscore"], {}
    trec = []
    for number in range(1, 541):
        name = list(STRATA)[number % len(STRATA)]
        relevant, matching = STRATA[name]
        stratum_of[str(number)] = name
        queries.append({"_id": str(number), "text": f"zebra{number}"})
        for place in range(relevant):
            text = f"zebra{number} runs" if place < matching else "nothing of the kind"
            corpus.append({"_id": f"d{number}x{place}", "text": text})
            qrels.append(f"{number}\td{number}x{place}\t1")
            rank = 1 + place if place < matching else 1001 + place  # the latter is not counted
            trec.append(f"{number} Q0 d{number}x{place} {rank} {9000 - rank}.5 Anserini")
    for name, rows in (("corpus", corpus), ("queries", queries)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    (folder / "qrels" / "test.tsv").write_text("\n".join(qrels) + "\n")
    benchmark = ["benchmark=beir", f"benchmark.path={folder}"]
    assert entry("rank", *benchmark, "retriever=bm25_default", "name=bm25") == 0
    assert entry("slices", "runs/bm25") == 0
    small, large = (Path(f"pi_serini_{name}.txt").read_text().split() for name in ("q100", "q300"))
    assert set(small) < set(large) and (len(small), len(large)) == (100, 300)
    drawn = Counter(stratum_of[qid] for qid in small)
    assert drawn == {name: 20 if name == "zero_large" else 10 for name in STRATA}
    # A run file of another program, such as the authors' bm25_pure.trec, which is from Anserini.
    Path("bm25.trec").write_text("\n".join(trec) + "\n")
    files = [Path(f"pi_serini_{name}.txt") for name in ("q100", "q300")]
    before = [file.read_text() for file in files]
    for file in files:
        file.unlink()
    assert entry("slices", *benchmark, "bm25.trec") == 0
    assert [file.read_text() for file in files] == before
    capsys.readouterr()
    assert entry("slices", "bm25.trec") == 2
    assert "add benchmark=browsecomp_plus" in " ".join(capsys.readouterr().err.split())
    Path("short.trec").write_text("1 d1x0 3\n")
    assert entry("slices", *benchmark, "short.trec") == 2
    assert "short.trec:1 is '1 d1x0 3'" in " ".join(capsys.readouterr().err.split())
    asked = ["rank", *benchmark, "benchmark.qids=pi_serini_q100.txt", "name=slice"]
    assert entry(*asked) == 0
    summary = json.loads(Path("runs/slice/evaluation/summary.json").read_text())
    assert summary["counts"]["questions"] == 100
    Path("wrong.txt").write_text("1\nnobody\n")
    assert entry("rank", *benchmark, "benchmark.qids=wrong.txt", "name=wrong") == 2


OPTIONS = Path(__file__).resolve().parent / "options"
MODEL = (f"hydra.searchpath=[file://{OPTIONS}]", "llm=scripted")
ANSWER = (
    "Explanation: I recall [fw0000001] and [99999, 7; sic], see [a link](http://x/1).\\n"
    "Exact Answer: nine metres\\nConfidence: 90%"
)


def metrics(run):
    return dict(json.loads(Path(f"runs/{run}/metrics.json").read_text()))


def test_closed_book_answers_without_tools_and_its_citations_are_invented(entry):
    says = f"llm.says='{ANSWER}'".replace("\\n", "\n")
    assert entry("run", *TINY, *MODEL, "name=floor", "agent=closed_book", says) == 0
    numbers = metrics("floor")
    assert numbers["completion"] == 1.0 and numbers["tool_calls"] == 0
    assert numbers["citations_invented"] == 3.0, "a document of the corpus was not shown either"
    assert numbers["citation_precision"] == 0.0 and numbers["recall_surfaced"] == 0.0
    (trajectory, *_) = RunFolder("runs/floor").trajectories()
    assert trajectory.answer.exact == "nine metres" and not trajectory.answer.citations
    assert len(trajectory.messages) == 2
    assert json.loads(Path("runs/floor/manifest.json").read_text())["factors"]["agent"] == (
        "closed_book"
    )


def test_a_run_without_tools_builds_no_index_and_asks_no_stage(entry):
    says = f"llm.says='{ANSWER}'".replace("\\n", "\n")
    stages = ("tool=literature", "scorer=chat", "rewriter=q2q", "reranker=pointwise")
    assert entry("run", *TINY, *MODEL, *stages, "name=floor", "agent=closed_book", says) == 0
    assert metrics("floor")["completion"] == 1.0 and metrics("floor")["tool_calls"] == 0
    folders = [path.name for path in Path("indexes").glob("*/*") if path.is_dir()]
    assert sorted(name.rpartition("-")[0] for name in folders) == ["document-spans", "documents"]
    assert not list(Path("caches").rglob("*.sqlite"))


def test_a_model_that_calls_tools_all_the_same_is_refused_and_ends(entry):
    # The scripted model searches unless it is told what to say or has one message alone.
    own = Path("own.txt")
    source = Path(__file__).resolve().parents[2] / "agents" / "prompts" / "closed_book.txt"
    own.write_text(source.read_text().replace("=== system ===\n", "=== system ===\nBe brief.\n"))
    prompt = f"agent.prompt={own.resolve()}"
    turns = "llm.turns=50"
    assert entry("run", *TINY, *MODEL, "name=stubborn", "agent=closed_book", prompt, turns) == 0
    for trajectory in RunFolder("runs/stubborn").trajectories():
        assert len(trajectory.calls) <= 3
        assert all(call.error == "blocked" for call in trajectory.calls)
    assert metrics("stubborn")["documents_exposed"] == 0


def test_the_oracle_is_above_every_retriever(entry):
    for unit in ("document", "passage", "maxp"):
        measured = [f"unit={unit}", "measures=[AP,R@100]"]
        assert entry("rank", *TINY, *measured, f"name=oracle-{unit}", "retriever=oracle") == 0
        assert metrics(f"oracle-{unit}")["AP"] == 1.0
    assert entry("run", *TINY, "name=ceiling", "retriever=oracle", "tool=top_k") == 0
    assert metrics("ceiling")["recall_previewed"] == 1.0


def test_the_oracle_goes_on_with_a_base(entry):
    base = ("retriever=oracle", "retriever@retriever.base=bm25_tuned")
    assert entry("run", *TINY, "name=b", *base) == 0
    assert metrics("b")["recall_surfaced"] == 1.0
    ranked = Path("runs/b/run.trec").read_text().splitlines()
    assert len(ranked) > 6 * 10


# `soundingline enrich`: a whole corpus, and its money.

KEYWORDS = json.dumps({"keywords": ["seamark", "tidal range"]})
QUERY_SIDE = ("enrichment=sira", "enrichment.sides=query")
CORPUS_SIDE = ("enrichment=sira", "enrichment.sides=corpus")
SCRIPTED = (f"hydra.searchpath=[file://{OPTIONS}]", "llm@enrichment_llm=scripted")
SAYS = f"enrichment_llm.says='{KEYWORDS}'"
DOCUMENTS = 64


def test_a_corpus_is_enriched_once_and_then_ranked(entry, capsys, tmp_path):
    log = tmp_path / "asked"
    options = (*TINY, *SCRIPTED, SAYS, f"enrichment_llm.log={log}", *CORPUS_SIDE)
    assert entry("rank", *options) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "64 of 64 documents have no phrases yet" in error
    assert "set enrichment.corpus.allow_missing=true" in error
    assert entry("enrich", *options) == 0
    told = capsys.readouterr()
    assert "64 of 64 documents" in told.err and "will take about" in told.err
    assert "128 phrases for 64 documents" in told.out and "128 kept" in told.out
    assert len(log.read_text().splitlines()) == DOCUMENTS
    assert entry("enrich", *options) == 0
    assert len(log.read_text().splitlines()) == DOCUMENTS
    assert entry("rank", *options, "name=r") == 0
    assert len(log.read_text().splitlines()) == DOCUMENTS
    manifest = json.loads((tmp_path / "runs" / "r" / "manifest.json").read_text())
    assert any(name.startswith("document-enriched-") for name in manifest["fingerprints"])


def test_a_second_start_of_enrich_is_refused_before_it_reads_the_cache(entry, capsys, tmp_path):
    """The first one may have been stopped in a transaction, and the cache is locked then."""
    options = (*TINY, *SCRIPTED, SAYS, *CORPUS_SIDE, "name=r")
    assert entry("enrich", *options) == 0
    (cache,) = (tmp_path / "caches").glob("enrichment-*.sqlite")
    with closing(sqlite3.connect(cache)) as first, writer_lock(tmp_path / "runs/r/.lock"):
        first.execute("BEGIN EXCLUSIVE")
        assert entry("enrich", *options) == 2
    assert f"is being written by process {os.getpid()}" in capsys.readouterr().err


def test_shards_of_a_corpus_are_enriched_and_the_last_one_makes_the_index(entry, capsys, tmp_path):
    log = tmp_path / "asked"
    options = (
        *TINY,
        *SCRIPTED,
        SAYS,
        f"enrichment_llm.log={log}",
        *CORPUS_SIDE,
        "indexing.shards=4",
    )
    assert entry("enrich", *options, "indexing.shard=2") == 0
    own = len(log.read_text().splitlines())
    assert 0 < own < DOCUMENTS
    told = capsys.readouterr()
    assert f"{own} of {own} documents have no phrases yet" in told.err
    assert "shard 2 of 4 is enriched" in told.out
    assert not list((tmp_path / "indexes").rglob("document-enriched-*"))
    assert entry("enrich", "-m", *options, "name=s") == 0
    assert len(log.read_text().splitlines()) == DOCUMENTS
    assert "128 phrases for 64 documents" in capsys.readouterr().out
    # Each shard has a run and a ledger of its own.
    assert len(list((tmp_path / "runs/s").glob("*/ledger.jsonl"))) == 3


def test_answers_in_the_phrases_of_queries_are_counted(entry, beir, tmp_path):
    """The benchmark asks for a mayor, Anna Kow, and for a height, nine metres."""
    says = json.dumps({"keywords": ["mayor anna kow", "harbour", "kow anna", "nineteen metres"]})
    options = ("benchmark=beir", f"benchmark.path={beir}", *SCRIPTED, *QUERY_SIDE)
    filter_ = "enrichment.query_filter.tau=1"
    assert entry("rank", *options, f"enrichment_llm.says='{says}'", filter_, "name=r") == 0
    run = tmp_path / "runs/r"
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["phrases_with_answer"] == 0.5  # one phrase, of two questions
    rows = [json.loads(line) for line in (run / "phrases.jsonl").read_text().splitlines()]
    held = {
        (row["qid"], phrase["phrase"])
        for row in rows
        for phrase in row["phrases"]
        if phrase["holds_answer"]
    }
    assert held == {("../../x", "mayor anna kow")}
    reasons = {phrase["phrase"]: phrase["reason"] for phrase in rows[0]["phrases"]}
    assert reasons["harbour"] == "kept" and reasons["nineteen metres"] == "not in the index"


@pytest.mark.parametrize("option", ["hyde", "chain_of_thought"])
def test_answers_in_the_texts_that_are_written_for_queries_are_counted(
    entry, beir, tmp_path, option
):
    """A passage that answers gives the answer away: the mayor, Anna Kow, and nine metres."""
    says = "The mayor is Anna Kow. The tide rises nine metres."
    options = ("benchmark=beir", f"benchmark.path={beir}", *SCRIPTED, f"enrichment={option}")
    assert entry("rank", *options, f"enrichment_llm.says='{says}'", "name=r") == 0
    metrics = json.loads((tmp_path / "runs/r/metrics.json").read_text())
    assert metrics["phrases_with_answer"] == 1.0


@pytest.mark.parametrize("command", ["rank", "run"])
def test_answers_in_rewritten_queries_are_counted_where_the_question_lacks_them(
    entry, beir, tmp_path, command
):
    options = ("benchmark=beir", f"benchmark.path={beir}", SCRIPTED[0])
    says = "rewriter_llm.says='The mayor is Anna Kow.'"
    rewriter = ("rewriter=hyde", "llm@rewriter_llm=scripted", says)
    assert entry(command, *options, *rewriter, "name=a") == 0
    assert entry(command, *options, "name=b") == 0
    questions = tmp_path / "runs/a/evaluation/questions.json"
    # Of a mayor and a height. However often an agent searched, the rewriter had one text.
    expected = {"../../x": 1.0, "q2": 0.0}
    assert json.loads(questions.read_text())["rewrites_with_answer"] == expected
    metrics = tmp_path / "runs/a/metrics.json"
    assert "phrases_with_answer" not in metrics.read_text()
    again = ("evaluate", "runs/a") if command == "run" else ("rank", *options, *rewriter, "name=a")
    for path in (questions, metrics):
        path.unlink()
    assert entry(*again) == 0
    assert json.loads(metrics.read_text())["rewrites_with_answer"] == 0.5
    assert "rewrites_with_answer" not in (tmp_path / "runs/b/metrics.json").read_text()
    assert entry("compare", "runs/a", "runs/b", "name=c") == 0
    assert "rewrites_with_answer" in (tmp_path / "runs/c/report.md").read_text(encoding="utf-8")


def test_an_agents_queries_are_enriched_by_its_question(entry, peer):
    peer.default = Say(text=KEYWORDS)
    llm = ("llm@enrichment_llm=openai_compatible", "enrichment_llm.model=m")
    address = f"enrichment_llm.base_url={peer.openai_url}"
    enriched = (*QUERY_SIDE, "enrichment.apply_to=question")
    assert entry("run", *TINY, *llm, address, *enriched, "name=r") == 0
    trajectories = list(RunFolder("runs/r").trajectories())
    searches = [call for each in trajectories for call in each.calls if call.ranking]
    questions = {each.question for each in trajectories}
    # One prompt a question, however often its agent searches, and with other words.
    seen = prompts(peer.requests)
    assert len(seen) == len(questions) < len(searches)
    assert all(any(question in prompt for prompt in seen) for question in questions)
    assert {call.notes["enrichment"][0]["applied_to"] for call in searches} == {"question"}


def test_what_a_corpus_and_a_query_cost_stands_beside_what_they_buy(entry, tmp_path):
    model = (*SCRIPTED, SAYS, "enrichment_llm.price=1000")
    assert entry("enrich", *TINY, *model, *CORPUS_SIDE, "name=asked") == 0
    paid = sum(start["dollars"] for start in starts(tmp_path / "runs/asked"))
    assert paid > 0
    arms = ("enrichment=none,sira", "enrichment.sides=query,corpus,both")
    assert entry("rank", "-m", *TINY, *model, *arms, "name=r") == 0
    costs = {}
    for path in (tmp_path / "runs/r").glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        assert (
            manifest["factors"]["enrichment"] == "none" or "enrichment.sides" in manifest["factors"]
        )
        costs[manifest["factors"].get("enrichment.sides", "none")] = manifest["costs"]
    # The three cells without an enrichment mean the same, and are one.
    assert set(costs) == {"none", "query", "corpus", "both"}
    assert costs["none"]["once"] == costs["query"]["once"] == {}
    for arm in ("corpus", "both"):
        assert costs[arm]["once"]["dollars"] == pytest.approx(paid)
        assert costs[arm]["once"]["documents"] == DOCUMENTS
    # The second of two arms with the same queries asks for nothing, and costs what the first does.
    assert costs["both"]["query"]["dollars"] == costs["query"]["query"]["dollars"] > 0
    assert costs["corpus"]["query"]["dollars"] == 0
    report = (tmp_path / "runs/r/report.md").read_text(encoding="utf-8")
    assert "Recall against cost" in report and "dollars (once, for the corpus)" in report
    page = (tmp_path / "runs/r/report.html").read_text(encoding="utf-8")
    assert 'aria-label="R@100 against dollars once, for the corpus"' in page


def test_an_agents_run_tells_what_its_corpus_cost_and_which_phrases_hold_an_answer(
    entry, beir, tmp_path
):
    says = json.dumps({"keywords": ["mayor anna kow", "harbour town", "kow anna"]})
    model = (*SCRIPTED, f"enrichment_llm.says='{says}'", "enrichment_llm.price=1000")
    options = ("benchmark=beir", f"benchmark.path={beir}", *model)
    tau = ("enrichment.query_filter.tau=1", "enrichment.corpus_filter.tau=1")
    assert entry("enrich", *options, "enrichment=sira", *tau, "name=asked") == 0
    (start,) = starts(tmp_path / "runs/asked")
    assert entry("run", *options, "enrichment=sira", *tau, "name=a") == 0
    assert entry("run", *options, "name=b") == 0
    manifest = json.loads((tmp_path / "runs/a/manifest.json").read_text())
    assert manifest["costs"]["once"]["dollars"] == pytest.approx(start["dollars"])
    assert manifest["costs"]["once"]["documents"] == 3
    questions = json.loads((tmp_path / "runs/a/evaluation/questions.json").read_text())
    # However often the agent searched, one phrase holds the mayor's name, and none the height.
    assert questions["phrases_with_answer"] == {"../../x": 1.0, "q2": 0.0}
    plain = json.loads((tmp_path / "runs/b/manifest.json").read_text())
    # What building the indexes took is told of each run that searches them.
    assert plain["costs"].keys() == {"index_seconds"}
    assert manifest["costs"]["index_seconds"]["all"] > plain["costs"]["index_seconds"]["all"] > 0
    assert "phrases_with_answer" not in (tmp_path / "runs/b/metrics.json").read_text()


def test_an_estimate_above_the_cap_needs_to_be_confirmed(entry, capsys, tmp_path):
    options = (*TINY, *SCRIPTED, SAYS, *CORPUS_SIDE, "enrichment_llm.price=1000")
    options = (*options, "name=r")

    def paid():
        rows = starts(tmp_path / "runs/r")
        return sum(start["dollars"] for start in rows), sum(start["calls"] for start in rows)

    # Each document costs 4.8 cents, and all of them 3.07 dollars.
    assert entry("enrich", *options, "budget.run_dollars=0.4") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "64 documents will take about $3.07" in error and "set indexing.confirm=true" in error
    dollars, calls = paid()
    # Not all of the sample: from the first reply on, the cap holds.
    assert 0 < dollars <= 0.4 and calls == 8
    assert entry("enrich", *options, "budget.run_dollars=1000000") == 0
    assert f"{DOCUMENTS - calls} of {DOCUMENTS} documents" in capsys.readouterr().err
    assert paid()[1] == DOCUMENTS


def test_a_confirmed_run_goes_on_until_its_money_is_spent_and_keeps_its_counts(entry, capsys):
    options = (*TINY, *SCRIPTED, "enrichment_llm.says=prose", *CORPUS_SIDE, "name=r")
    paid = ("enrichment_llm.price=1000", "budget.run_dollars=2", "indexing.confirm=true")
    assert entry("enrich", *options, *paid) != 0
    assert "the run's cap is $2" in " ".join(capsys.readouterr().err.split())
    assert 1.9 < sum(start["dollars"] for start in starts("runs/r")) <= 2
    assert RunFolder("runs/r").manifest()["stages"]["enrichment"]["unreadable"] > 0


def test_answers_of_every_odd_kind_are_survived_and_told(entry, peer, capsys):
    """Prose, an empty list, 500 phrases, control characters, 10,000 characters."""
    kinds = [
        "Certainly! The zorbal would be a good phrase.",
        json.dumps({"keywords": []}),
        json.dumps({"keywords": [f"zorbal {number}" for number in range(500)]}),
        json.dumps({"keywords": ["zor\x00bal\x1b mark", "\u202e\x07"]}),
        json.dumps({"keywords": ["x" * 10_000, "quay " * 2_000]}),
    ]
    kind_of = {}
    lock = threading.Lock()

    def odd(request):
        prompt = request.body["messages"][0]["content"]
        with lock:
            return Say(text=kind_of.setdefault(prompt, kinds[len(kind_of) % len(kinds)]))

    peer.default = odd
    assert entry(*command(peer)) == 0
    output = capsys.readouterr()
    error = " ".join(output.err.split())
    # Of 64 documents each kind has 13, and the last one 12.
    assert "13 of 64 answers hold no list of phrases" in error
    assert f"{13 + 12} of 64 answers hold no usable phrase" in error
    left_out = f"{13 * 490:,} beyond the number allowed, {12 * 2} too long, 13 without a visible"
    assert f"phrases left out: {left_out}" in error
    assert f"{13 * 10 + 13} phrases for {13 + 13} documents" in output.out
    counted = RunFolder("runs/r").manifest()["stages"]["enrichment"]
    assert (counted["unreadable"], counted["beyond"], counted["too_long"]) == (13, 13 * 490, 24)


def command(peer, *arguments):
    llm = (
        *("llm@enrichment_llm=openai_compatible", "enrichment_llm.model=m"),
        f"enrichment_llm.base_url={peer.openai_url}",
        "enrichment_llm.attempts=1",
    )
    options = (*CORPUS_SIDE, "name=r")
    return ("enrich", *TINY, *options, *llm, *arguments)


def prompts(requests):
    # Of a client that is killed while it sends, a request comes without its body.
    bodies = [request.body for request in requests if "messages" in request.body]
    return Counter(body["messages"][0]["content"] for body in bodies)


def test_a_retriever_of_the_agents_model_is_ranked_and_paid_for(entry, beir, tmp_path, capsys):
    model = (SCRIPTED[0], "llm=scripted", "llm.price=1000", 'llm.says=\'{"patterns": ["kow"]}\'')
    options = ("benchmark=beir", f"benchmark.path={beir}", "retriever=greprag")
    assert entry("rank", *options, *model, "name=r") == 0
    manifest = json.loads((tmp_path / "runs/r/manifest.json").read_text())
    assert (
        manifest["factors"]["llm"] == "scripted" and manifest["factors"]["retriever"] == "greprag"
    )
    ranked = {line.split()[2] for line in (tmp_path / "runs/r/run.trec").read_text().splitlines()}
    texts = map(json.loads, (beir / "corpus.jsonl").read_text().splitlines())
    both = ((text["_id"], f"{text.get('title')} {text['text']}".lower()) for text in texts)
    assert ranked == {docid for docid, text in both if "kow" in text} != set()
    assert manifest["costs"]["query"]["dollars"] > 0
    capsys.readouterr()
    assert entry("rank", *options) == 2
    assert "none is chosen. choose one: llm=..." in " ".join(capsys.readouterr().err.split())
