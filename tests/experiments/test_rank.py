"""Rankings have published figures, and the lower and upper bound of a table are complete runs."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pyterrier as pt
import pytest
from experiment_samples import TINY
from support.commands import run_command

import soundingline.experiments.pipeline as pipeline_module
from soundingline.experiments import Experiment
from soundingline.experiments.pipeline import Stages, stage_counts
from soundingline.experiments.rank import evaluate_pipeline, query_costs
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation import parse_measures
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.prices import UNKNOWN, Price
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
    before = stage_counts({"reranker": SimpleNamespace(counts={"pairs": 10, "largest_batch": 4})})
    assert before == {"reranker": {"pairs": 10, "largest_batch": 4}}
    stage = SimpleNamespace(counts={"pairs": 25, "largest_batch": 4, "windows": 2})
    assert stage_counts({"reranker": stage}, before) == {
        "reranker": {"pairs": 15, "largest_batch": 4, "windows": 2}
    }


# A long request costs ten times as much, and many short ones together are no long request.
PRICE = Price(input=2.0, output=8.0, long_context={"above": 1000, "input": 20.0, "output": 80.0})
UNMETERED = {"reply_input_tokens": 40, "reply_output_tokens": 10, "reply_unmetered": 1}


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


def test_the_slices_of_pi_serini_come_from_a_ranking(entry, tmp_path):
    folder = tmp_path / "numbered"
    (folder / "qrels").mkdir(parents=True)
    corpus, queries, qrels, stratum_of = [], [], ["query-id\tcorpus-id\tscore"], {}
    for number in range(1, 541):
        name = list(STRATA)[number % len(STRATA)]
        relevant, matching = STRATA[name]
        stratum_of[str(number)] = name
        queries.append({"_id": str(number), "text": f"zebra{number}"})
        for place in range(relevant):
            text = f"zebra{number} runs" if place < matching else "nothing of the kind"
            corpus.append({"_id": f"d{number}x{place}", "text": text})
            qrels.append(f"{number}\td{number}x{place}\t1")
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
