"""`soundingline tune` from its command line to its files, and models that one command trains or
distills and that the next command ranks with."""

import json
import math
import os
import re
import stat
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from support import checkpoints
from support.benchmarks import CORPUS, QRELS, QUERIES, TINY, write_beir
from support.pairs import sides

import soundingline.experiments.tune as tune_module
from soundingline.experiments import distillation
from soundingline.experiments.config import Settings, plain_values, read_chosen
from soundingline.experiments.distillation import (
    WrittenQuestion,
    cluster,
    split,
    student_examples,
    word_vectors,
)
from soundingline.experiments.fitting import (
    Example,
    expected_calibration_error,
    fit,
    load,
    save_checkpoint,
)
from soundingline.pipelines.lexical import crossfit
from soundingline.pipelines.rerank.cross_encoder import CrossEncoder
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.grid import Grid, MeasureTable, RankTable, distance
from soundingline.toolkit.runs import RunFolder

OPTIONS = Path(__file__).resolve().parent / "options"
SCRIPTED = (f"hydra.searchpath=[file://{OPTIONS}]", "llm@enrichment_llm=scripted")
SMALL = ("grid.k1=[0.5,1.5,9]", "grid.b=0:1:0.5", "tuning.folds=2")
FEW = ("measures=[AP]", "tuning.references=[[0.9,0.4],[25,1]]")
SPLIT = (*TINY, "benchmark.questions=12")
WORLD = (*SPLIT, *SMALL, *FEW, "name=t")
# With an enrichment, whose weight and tau are axes next to k1 and b.
CORPUS_SIDE = (
    "enrichment.corpus={_target_:soundingline.pipelines.enrich.phrases.PhraseFile,"
    "path:phrases.jsonl}",
    "enrichment.corpus_filter={_target_:soundingline.pipelines.enrich.df_filter.DfFilter,tau:0.05}",
)
ENRICHED_GRID = ("grid=sira", "grid.k1=[0.9,3]", "grid.b=[0.4,0.75]", "grid.weight=[0,0.5,2]")
ENRICHED_FEW = (FEW[0], "tuning.references=[[0.9,0.4],[3,0.4,0,0.1]]")
ENRICHED = (
    *(*SPLIT, *ENRICHED_GRID, "grid.tau=[0.1,0.5]", "enrichment=feedback"),
    *(*ENRICHED_FEW, "name=t"),
)


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def table(side="reported", run="runs/t"):
    with np.load(Path(run, f"{side}.npz"), allow_pickle=False) as stored:
        measures, qids = (stored[name].tolist() for name in ("measures", "qids"))
        points = [tuple(point) for point in stored["points"].tolist()]
        return MeasureTable(measures, qids, points, stored["values"])


def test_a_point_is_chosen_on_dev_reported_on_test_and_ranks_as_in_the_table(entry):
    assert entry("tune", *WORLD) == 0
    run = Path("runs/t")
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert names >= {
        *("manifest.json", "metrics.json", "tuning.json", "chosen.yaml", "points.csv"),
        *("selecting.npz", "reported.npz", "ranks", "report.html", "report.md", "run.trec"),
    }
    dev, test = table("selecting"), table()
    assert not set(dev.qids) & set(test.qids)
    grid = {(k1, b) for k1 in (0.5, 1.5, 9) for b in (0, 0.5, 1)}
    assert set(test.points) == grid | {(0.9, 0.4), (25.0, 1.0)}
    recalls = {"R@5", "R@10", "R@50", "R@100", "R@1000"}
    assert set(test.measures) == {"nDCG@10", "AP", *recalls}
    k1, b = (read_chosen(str(run), key) for key in ("k1", "b"))
    cell = test.points.index((k1, b))
    means = dev.of("nDCG@10").mean(axis=0)[:9]
    assert means[cell] == pytest.approx(means.max())
    metrics, summary = read(run / "metrics.json"), read(run / "tuning.json")["measures"]["nDCG@10"]
    assert metrics["nDCG@10"] == pytest.approx(test.of("nDCG@10")[:, cell].mean())
    assert summary["chosen"] == {"k1": k1, "b": b}
    best = test.of("nDCG@10").mean(axis=0)[:9].max()
    assert summary["optimism"] == pytest.approx(best - metrics["nDCG@10"])
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2 * len(test.measures)
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)

    given = (*SPLIT, "benchmark.split=test", "name=r")
    assert entry("rank", *given, "retriever=bm25_from_tuning", "retriever.source=runs/t") == 0
    ranked = read("runs/r/metrics.json")
    shared = set(metrics) & set(ranked)
    assert "nDCG@10" in shared and all(metrics[name] == ranked[name] for name in shared)
    assert read("runs/r/manifest.json")["config"]["retriever"]["k1"] == k1


def tuning(folder, k1, **config):
    """What a tuning leaves of its choice."""
    folder.mkdir(parents=True)
    (folder / "chosen.yaml").write_text(f"k1: {k1}\nb: 0.5\n", encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps({"config": config}), encoding="utf-8")


def k1_of(path, *overrides):
    given = ["retriever=bm25_from_tuning", f"retriever.source={path}", *overrides]
    return float(Settings.compose(given).config.retriever.k1)


def test_of_a_sweep_of_tunings_the_one_of_this_benchmark_unit_and_engine_is_taken(tmp_path):
    units = {"document": [], "short": ["unit=passage", "unit.max_tokens=60"], "maxp": ["unit=maxp"]}
    for k1, (name, overrides) in enumerate(units.items()):
        config = plain_values(Settings.compose([*overrides, "engine.memory_mb=64"]).config)
        # The folder's name says nothing: an option may have any name.
        parts = {name: config[name] for name in ("benchmark", "unit", "engine")}
        tuning(tmp_path / f"{name}-x", k1 + 1, **parts)
        tuning(tmp_path / f"{name}-y", 9, **{**parts, "benchmark": {"name": "other"}})
    assert [k1_of(tmp_path, *overrides) for overrides in units.values()] == [1, 2, 3]
    assert k1_of(tmp_path, "benchmark.name=other") == 9
    # Memory is no part of what was tuned; the length of a passage is.
    assert k1_of(tmp_path, "unit=maxp", "engine.memory_mb=128") == 3
    for way in (tmp_path / "maxp-x", tmp_path / "maxp-x" / "chosen.yaml"):
        assert k1_of(way, "unit=document") == 3
    with pytest.raises(Exception, match="no tuning with the benchmark, the unit and") as refused:
        k1_of(tmp_path, "unit=passage", "unit.max_tokens=61")
    assert all(f"{name}-x" in str(refused.value) for name in units)
    (tmp_path / "again").mkdir()
    config = plain_values(Settings.compose([]).config)
    for name in ("a", "b"):
        parts = {name: config[name] for name in ("benchmark", "unit", "engine")}
        tuning(tmp_path / "again" / name, 1, **parts)
    with pytest.raises(Exception, match=r"2 tunings .* valid: a, b"):
        k1_of(tmp_path / "again")


@pytest.mark.parametrize(
    "text",
    [
        "k1: !!python/object/apply:pathlib.Path.touch [canary]\n",
        "k1: !!python/object/apply:os.system ['touch canary']\n",
        "k1: ${oc.env:HOME}\n",
        "k1: [1]\n",
        "k1:\n  _target_: os.system\n  command: touch canary\n",
    ],
)
def test_a_chosen_point_is_two_numbers_and_nothing_else(text, tmp_path):
    (tmp_path / "chosen.yaml").write_text(text.replace("canary", str(tmp_path / "canary")))
    with pytest.raises(InputError):
        read_chosen(str(tmp_path), "k1")
    assert not (tmp_path / "canary").exists()


def test_one_split_is_cross_validated(entry):
    assert entry("tune", *WORLD, "tuning.select=null") == 0
    summary = read("runs/t/tuning.json")
    assert summary["method"] == "kfold"
    assert summary["questions"] == {"selecting": 12, "reported": 12}
    assert len(summary["measures"]["nDCG@10"]["folds"]) == 2


FOLDS = "k1: 1\nb: 0.4\nfold_parameters:\n- {k1: 2, b: 0.7, questions: [%s]}\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (FOLDS % "1", "a valid string"),
        (FOLDS % "'${oc.env:HOME}'", "holds ${"),
        (FOLDS.replace("b: 0.7", "b: x") % "'1'", "b is"),
        (FOLDS.replace("questions", "qids") % "'1'", "questions"),
    ],
)
def test_folds_of_another_form_are_refused(text, named, tmp_path):
    (tmp_path / "chosen.yaml").write_text(text)
    assert read_chosen(str(tmp_path), "k1") == 1
    with pytest.raises(InputError) as refused:
        read_chosen(str(tmp_path), "fold_parameters")
    assert named in str(refused.value) and "\n" not in str(refused.value)


FICTIONAL = SPLIT
CACM = ("benchmark=cacm", "grid.k1=[1.2,2,2.5,3,4]", "grid.b=[0.2,0.4,0.6]", "tuning.folds=4")
OWN_GRID = ("retriever.grid.k1=[1.2,2,2.5,3,4]", "retriever.grid.b=[0.2,0.4,0.6]")


def test_rank_and_run_search_each_question_with_the_parameters_of_its_fold(entry, data_root):
    """With a tuning and with `bm25_crossfit`, which tunes by itself: the same folds and rankings,
    those of plain BM25 with the parameters of the fold."""
    cacm = ("benchmark=cacm", f"paths.data={data_root}")
    assert entry("tune", *CACM, *cacm, *FEW, "tuning.select=null", "name=t") == 0
    source = ("retriever=bm25_from_tuning", "retriever.source=runs/t")
    own = ("retriever=bm25_crossfit", *OWN_GRID, "retriever.folds=4")
    assert entry("rank", *cacm, *source, "name=given") == 0
    assert entry("rank", *cacm, *own, "name=own") == 0
    agent = ("agent=one_shot", "tool=top_k")
    assert entry("run", *cacm, *own, *agent, "name=agent") == 0
    chosen = [read(f"runs/{name}/manifest.json") for name in ("given", "own", "agent")]
    folds = read("runs/t/tuning.json")["folds"]
    assert len({(fold["k1"], fold["b"]) for fold in folds}) > 1
    for manifest in chosen:
        parameters = manifest["chosen_parameters"]["retriever"]
        assert parameters == chosen[0]["chosen_parameters"]["retriever"]
        assert parameters["folds"] == folds and not parameters["in_no_fold"]["questions"]
        assert parameters["fingerprint"] == manifest["fingerprints"]["retriever.content"]
    rankings = {name: ranking(f"runs/{name}") for name in ("given", "own")}
    assert rankings["given"] == rankings["own"] and len(rankings["own"]) == 52
    for number, fold in enumerate(folds):
        plain = (f"retriever.k1={fold['k1']}", f"retriever.b={fold['b']}", f"name=plain{number}")
        assert entry("rank", *cacm, "retriever=bm25_default", *plain) == 0
        expected = ranking(f"runs/plain{number}")
        for qid in fold["questions"]:
            assert rankings["own"][qid] == expected[qid]
    for trajectory in RunFolder(Path("runs/agent")).trajectories():
        shown = list(trajectory.calls[0].ranking)
        assert shown and shown == rankings["own"][trajectory.qid][: len(shown)]


def ranking(run):
    rows = {}
    for line in Path(run, "run.trec").read_text().splitlines():
        qid, _, docid, *_ = line.split()
        rows.setdefault(qid, []).append(docid)
    return rows


def test_a_tuning_on_other_questions_is_refused_and_new_questions_are_counted(entry, capsys):
    assert entry("tune", *WORLD, "tuning.select=null") == 0
    given = ("retriever=bm25_from_tuning", "retriever.source=runs/t")
    assert entry("rank", *SPLIT, *given, "benchmark.name=another", "name=r") == 2
    told = capsys.readouterr().err
    assert "the folds of the questions of fictional, and this run is on another" in told
    assert entry("rank", *TINY, *given, "benchmark.questions=16", "name=r") == 0
    assert "4 of 16 questions are in no fold; they are searched" in capsys.readouterr().err
    outside = read("runs/r/manifest.json")["chosen_parameters"]["retriever"]["in_no_fold"]
    assert len(outside["questions"]) == 4 and outside["k1"] == read_chosen("runs/t", "k1")


def test_a_sweep_of_tunings_serves_every_unit_and_crossfit_does_so_by_itself(entry):
    tuned = ("grid.k1=[0.5,1.5,9]", "grid.b=0:1:0.5", *FEW)
    assert entry("tune", "experiment=ablation/cross_fitted_bm25", *FICTIONAL, *tuned) == 0
    grid = ("retriever.grid.k1=[0.5,1.5,9]", "retriever.grid.b=0:1:0.5")
    fingerprints = set()
    for unit in ("document", "passage", "maxp", "document_head"):
        given, own = (f"runs/{name}-{unit}" for name in ("given", "own"))
        cell = (*FICTIONAL, f"unit={unit}")
        assert entry("rank", *cell, "retriever=bm25_from_tuning", f"name={given[5:]}") == 0
        assert entry("rank", *cell, "retriever=bm25_crossfit", *grid, f"name={own[5:]}") == 0
        manifests = [read(f"{run}/manifest.json") for run in (given, own)]
        assert manifests[0]["config"]["retriever"]["source"] == "runs/tuning-fictional"
        first, second = (manifest["chosen_parameters"] for manifest in manifests)
        assert first == second and ranking(given) == ranking(own)
        fingerprints.add(first["retriever"]["fingerprint"])
    assert len(fingerprints) > 1


@pytest.mark.parametrize("words", [WORLD, ENRICHED], ids=["plain", "enriched"])
def test_another_objective_over_the_same_ranks_ranks_nothing_again(entry, monkeypatch, words):
    assert entry("tune", *words) == 0
    before = table()
    monkeypatch.setattr(crossfit, "GridBM25", None)
    assert entry("tune", *words, "tuning.objective=RR") == 0
    assert read("runs/t/tuning.json")["objective"] == "RR"
    assert np.array_equal(before.of("AP"), table().of("AP"))


def test_an_interrupted_tuning_keeps_the_ranks_that_it_has(entry, monkeypatch):
    ranks, asked = crossfit.GridBM25.ranks, []

    def counted(self, questions, threads=None):
        asked.append(len(questions))
        for place, row in enumerate(ranks(self, questions, threads)):
            if place == 5:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(crossfit.GridBM25, "ranks", counted)
    monkeypatch.setattr(crossfit, "_SECONDS", 0.0)
    assert [entry("tune", *WORLD) for _ in range(3)] == [130, 130, 0]
    assert asked == [12, 7, 2]


def test_a_sweep_of_tunings_ends_in_a_comparison_and_is_one_only_where_it_says_so(entry, capsys):
    units = "unit=document,passage"
    assert entry("tune", *WORLD, units, "name=both") == 2
    assert "--multirun" in capsys.readouterr().err and not Path("runs").exists()
    assert entry("tune", *WORLD, "-m", units, "name=both") == 0
    cells = sorted(path.parent.name for path in Path("runs/both").glob("*/tuning.json"))
    assert [name.split("-")[0] for name in cells] == ["document", "passage"]
    assert Path("runs/both/report.html").exists()


REFUSED = {
    "grid.k1=[]": "k1 is empty",
    "grid.k1=0:4:0": "k1 is '0:4:0'",
    "tuning.objective=nDGC@10": "'nDGC@10' is not a measure",
    "tuning.objective=SetP": "depends on how many",
    "tuning.select=test": "both test",
    "tuning.select=train": "'train'",
    "tuning.folds=1 tuning.select=null": "folds",
    "tuning.depth=0": "depth=0",
    "tuning.references=[[1,2,3]]": "pairs",
    "tuning.references=[[1,x]]": "pairs",
    "grid=nothing": "nothing",
    "tuning.objetive=AP": "objetive",
    "engine=pisa": "engine=lexical",
    "retriever=bm25_from_tuning retriever.source=nowhere.yaml": "run soundingline tune first",
}
REFUSED_ENRICHED = {
    "enrichment=none": "there is no enrichment",
    "enrichment=file enrichment.query=null enrichment.corpus.path=x": "no query side",
    "enrichment.query_filter.rule=none": "has no filter",
    "enrichment.query_filter=null": "the enrichment has no filter",
    f"{' '.join(SCRIPTED)} enrichment=sira_weighted enrichment.sides=query": "the exclusions",
    "grid.weight=[-1]": "weight=-1",
    "grid.tau=[0]": "tau=0",
    "grid.tau=[1.5]": "tau=1.5",
    "tuning.references=[[1,2,3]]": "[k1, b, weight, tau]",
}


@pytest.mark.parametrize(
    ("words", "overrides", "named"),
    [(WORLD, *row) for row in REFUSED.items()]
    + [(ENRICHED, *row) for row in REFUSED_ENRICHED.items()],
)
def test_bad_input_is_one_line_and_exit_code_2(entry, capsys, words, overrides, named):
    Path("x").write_text('{"docid": "d1", "phrases": ["mill"]}\n')  # phrases of a document
    command = "rank" if "retriever" in overrides else "tune"
    assert entry(command, *(TINY if command == "rank" else words), *overrides.split()) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "soundingline:" in line]
    assert len(lines) == 1 and named in lines[0]
    assert not list(Path().glob("runs/*/metrics.json"))


def test_a_collection_without_a_second_split_is_told_how_to_cross_validate(entry, tmp_path, capsys):
    path = write_beir(tmp_path / "b", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
    given = ("benchmark=beir", f"benchmark.path={path}", *SMALL, "name=t")
    assert entry("tune", *given) == 2
    assert "tuning.select=null" in capsys.readouterr().err
    assert entry("tune", *given, "tuning.select=null") == 0
    (path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n", encoding="utf-8")
    assert entry("tune", *given) == 2
    assert "'dev'" in capsys.readouterr().err


def test_two_tunings_do_not_share_a_folder(entry, capsys):
    assert entry("tune", *WORLD) == 0
    before = {path: path.read_bytes() for path in Path("runs/t").rglob("*.npz")}
    assert entry("tune", *WORLD, "grid.b=[0.4]") == 2
    assert "another grid" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path("runs/t").rglob("*.npz")} == before


def test_a_grid_that_disagrees_with_a_single_run_is_a_defect(entry, monkeypatch):
    honest = tune_module.judged_ranks

    def wrong(*given, **more):
        table = honest(*given, **more)
        moved = {qid: np.where(ranks > 0, ranks + 1, 0) for qid, ranks in table.ranks.items()}
        return RankTable(table.points, table.docids, moved)

    monkeypatch.setattr(tune_module, "judged_ranks", wrong)
    with pytest.raises(RuntimeError, match="grid and single run differ"):
        entry("tune", *WORLD)


def test_weight_and_tau_are_chosen_on_dev_and_points_have_the_values_of_a_ranking(entry):
    words = ["angling", "diaries", "letters", "neighbours", "seamark"]
    documents = [{"id": f"fw{n:07}", "phrases": words[n % 3 :]} for n in range(20)]
    Path("phrases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    assert entry("tune", *ENRICHED, *CORPUS_SIDE) == 0
    run, dev, reported = Path("runs/t"), table("selecting"), table()
    assert len(reported.points) == 2 * 2 * 3 * 2 + 1  # one reference is a point of the grid
    summary = read(run / "tuning.json")["measures"]["nDCG@10"]
    means = dev.of("nDCG@10").mean(axis=0)[: 2 * 2 * 3 * 2]
    chosen = tuple(summary["chosen"].values())
    assert means[dev.points.index(chosen)] == pytest.approx(means.max())
    assert set(summary["chosen"]) == {"k1", "b", "weight", "tau"} and summary["optimism"] >= 0
    assert list(summary["gains"]) == [
        "k1=0.9 b=0.4 weight=0.5 tau=0.05",
        "k1=3 b=0.4 weight=0 tau=0.1",
    ]
    text = (run / "chosen.yaml").read_text()
    assert all(f"{key}.tau=" in text for key in ("query_filter", "corpus_filter"))
    assert "enrichment.weight=" in text
    report = (run / "report.md").read_text(encoding="utf-8")
    assert "Weight and tau" in report and "optimism" in report
    assert read(run / "manifest.json")["factors"]["enrichment"] == "feedback"
    for point in [(0.9, 0.4, 0.5, 0.05), (3.0, 0.75, 2.0, 0.5), (3.0, 0.4, 0.0, 0.1)]:
        k1, b, weight, tau = point
        setting = (f"retriever.k1={k1}", f"retriever.b={b}", f"enrichment.weight={weight}")
        filters = [f"enrichment.{side}_filter.tau={tau}" for side in ("query", "corpus")]
        given = (
            *SPLIT,
            "benchmark.split=test",
            "enrichment=feedback",
            "measures=[AP,nDCG@10,R@5,R@10,R@50,R@100,R@1000]",
            *CORPUS_SIDE,
            f"name={k1}-{weight}",
        )
        assert entry("rank", *given, *setting, *filters) == 0
        metrics, column = read(f"runs/{k1}-{weight}/metrics.json"), reported.points.index(point)
        for measure in reported.measures:
            mean = reported.of(measure)[:, column].mean()
            assert metrics[measure] == pytest.approx(mean), (point, measure)


def test_phrases_of_a_model_are_asked_for_once_whatever_the_points(entry, tmp_path):
    log = tmp_path / "asked"
    says = json.dumps({"keywords": ["seamark", "tidal range"]})
    model = (*SCRIPTED, f"enrichment_llm.says='{says}'", f"enrichment_llm.log={log}")
    sira = ("enrichment=sira", "enrichment.sides=query", "grid.tau=[0.5,1]", *ENRICHED_FEW)
    assert entry("tune", *SPLIT, *ENRICHED_GRID, *sira, *model, "name=t") == 0
    assert len(log.read_text().splitlines()) == 12
    assert Path("runs/t/ledger.jsonl").exists()


def test_grids_of_four_numbers_have_planes_an_order_ties_and_files(tmp_path):
    grid = Grid([1, 2], [0.5], weight=[0, 1]).enriched(0.3, 0.05)
    assert grid.planes == [(0, 0.05), (1, 0.05)] and Grid([1], [0.5]).planes == [()]
    assert grid.points == [(k1, 0.5, weight, 0.05) for weight in (0, 1) for k1 in (1, 2)]
    assert len(grid) == 4 and grid.names == ("k1", "b", "weight", "tau")
    # Ties go to the published weight and tau.
    assert distance((0.9, 0.4, 0.5, 0.05)) == 0
    assert distance((0.9, 0.4, 1.0, 0.05)) == pytest.approx(1 / 2 - 1 / 3)
    assert distance((0.9, 0.4, 0.5, 0.2)) == pytest.approx(0.15)
    ranks = RankTable(grid.points, {"q": ["d"]}, {"q": np.array([[1, 0, 2, 0]], np.int32)})
    ranks.save(tmp_path / "ranks.npz")
    assert RankTable.load(tmp_path / "ranks.npz").points == grid.points


# Models that one command trains or distills, and that the next command ranks with.

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
KINDS = {"monot5": checkpoints.small_t5, "cross_encoder": checkpoints.small_bert}
LEARNT = [Example(Pair("mill", "the mill"), True), Example(Pair("mill", "the old"), False)]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def test_what_is_saved_is_a_model_of_the_reranker(kind, entry, beir, tmp_path):
    network, tokenizer = KINDS[kind](["the old mill by the river"])
    checkpoints.save_network(tmp_path / "start", network, tokenizer)
    fit(kind, network, tokenizer, LEARNT, steps=3, batch=4, rate=0.01)
    before = os.umask(0o027)
    try:
        save_checkpoint(Path("models/mine"), network, tokenizer)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path("models/mine").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(modes)
    assert set(modes.values()) == {0o640}
    weights = [(Path(place) / "model.safetensors") for place in (tmp_path / "start", "models/mine")]
    assert weights[0].read_bytes() != weights[1].read_bytes()
    given = ("benchmark=beir", f"benchmark.path={beir}", "name=adapted")
    reranked = (f"reranker={kind}", "reranker.model=models/mine", "reranker.dtype=float32")
    assert entry("rank", *given, *reranked) == 0


def test_the_same_seed_trains_the_same_weights(kind):
    trained = []
    for _ in range(2):
        network, tokenizer = KINDS[kind](["the old mill"])
        fit(kind, network, tokenizer, LEARNT, steps=2, batch=2, rate=0.01)
        trained.append(torch.cat([weight.flatten() for weight in network.parameters()]))
    assert torch.equal(*trained)


def test_an_encoder_is_given_a_classifier_and_a_cross_encoder_keeps_its_own(tmp_path):
    network, tokenizer = checkpoints.small_bert(["the old mill"])
    encoder = checkpoints.save_network(tmp_path / "encoder", network.bert, tokenizer)
    first, again = (load("cross_encoder", encoder, seed=3)[0] for _ in range(2))
    assert first.config.num_labels == 1
    assert torch.equal(first.classifier.weight, again.classifier.weight)
    for name, weight in network.bert.state_dict().items():
        assert torch.equal(weight, first.bert.state_dict()[name])
    resumed, _ = load("cross_encoder", checkpoints.save_network(tmp_path / "own", first, tokenizer))
    assert torch.equal(first.classifier.weight, resumed.classifier.weight)


@pytest.mark.parametrize("labels", [1, 2])
def test_the_loss_is_the_cross_entropy_of_the_logit_also_of_two_labels(labels, tmp_path):
    network, tokenizer = checkpoints.small_bert(["the old mill"])
    config = transformers.BertConfig(**{**network.config.to_dict(), "num_labels": labels})
    folder = checkpoints.save_network(tmp_path / "start", type(network)(config), tokenizer)
    pairs = [example.pair for example in LEARNT]
    good, bad = CrossEncoder(folder, device="cpu", dtype="float32").score(*sides(pairs))
    expected = (math.log1p(math.exp(-good)) + math.log1p(math.exp(bad))) / 2
    (loss,) = fit(
        "cross_encoder", *load("cross_encoder", folder), LEARNT, steps=1, batch=2, rate=1e-9
    )
    assert loss == pytest.approx(expected, abs=1e-4)


def test_what_is_nothing_to_start_from_is_refused(tmp_path):
    network, tokenizer = checkpoints.small_bert(["the old mill"])
    three = type(network)(transformers.BertConfig(**{**network.config.to_dict(), "num_labels": 3}))
    labels = checkpoints.save_network(tmp_path / "three", three, tokenizer)
    with pytest.raises(InputError, match="3 labels"):
        load("cross_encoder", labels)
    body = {name: rows for name, rows in network.bert.state_dict().items() if "layer.1" not in name}
    network.bert.save_pretrained(tmp_path / "half", state_dict=body)
    tokenizer.save_pretrained(tmp_path / "half")
    with pytest.raises(InputError, match=r"no weights for bert\.encoder\.layer\.1"):
        load("cross_encoder", str(tmp_path / "half"))
    with pytest.raises(InputError, match="kind bert"):
        load("monot5", labels)
    with pytest.raises(InputError, match="0 of 1 candidates are relevant"):
        fit("cross_encoder", network, tokenizer, LEARNT[1:], steps=1, batch=2, rate=0.01)


pytest.importorskip("sklearn")


SYSTEM = (*TINY, "benchmark.questions=sets:2", "agent=navigator", "agent.pool=4", "traces=false")
TEACHER = (
    f"hydra.searchpath=[file://{OPTIONS}]",
    *("llm=scripted", "llm.log=asked.txt", "scorer=chat"),
    *("llm@librarian_llm=scripted", "librarian_llm.wavering=true", "librarian_llm.log=asked.txt"),
)
QUICK = ("clusters=6", "questions=1", "steps=2", "batch=2", "held_out=0.7")


@pytest.fixture
def start(tmp_path):
    pytest.importorskip("transformers")
    return checkpoints.save_network(tmp_path / "start", *checkpoints.small_bert(["the old mill"]))


@pytest.mark.slow
def test_a_student_is_distilled_in_steps_that_are_not_repeated(entry, start, monkeypatch, capsys):
    given = ("distill", "student", *SYSTEM, *TEACHER, *QUICK, f"start={start}")

    def broken(*arguments, **settings):
        raise InputError("no training today")

    with monkeypatch.context() as patched:
        patched.setattr(distillation, "fit", broken)
        assert entry(*given) == 2
    folder = Path("student")
    assert {path.name for path in folder.iterdir()} == {
        *(".lock", "recipe.json", "questions.json", "ledger.jsonl"),
        *("candidates", "judgements.jsonl"),
    }
    asked = Path("asked.txt").read_text()
    assert entry(*given) == 0
    assert Path("asked.txt").read_text() == asked, "no request is repeated"

    written = json.loads((folder / "questions.json").read_text())
    assert all(row["by"] == "scripted" and row["text"].startswith("Find pages") for row in written)
    rows = [json.loads(line) for line in (folder / "judgements.jsonl").read_text().splitlines()]
    assert {row["query"] for row in rows} == {row["text"] for row in written}
    assert {row["overall"] for row in rows} == {0.8, 0.3}
    cells = [cell for row in rows for cell in row["requirements"]]
    assert all(cell["rationale"] for cell in cells)
    assert {cell["score"] for cell in cells if cell["passage"]} == {0.9, 0.1}
    report = json.loads((folder / "report.json").read_text())
    assert (report["teacher"], report["teacher_llm"]) == ("chat", "scripted")
    assert report["relevant"]["checking"] < report["documents"]["checking"]
    assert 0 <= report["ece"]["after"] <= 1

    # The system with the student in the place of the teacher.
    student = ("scorer=cross_encoder", "scorer.scorer.model=student/student", "name=after")
    assert entry("run", *SYSTEM, *student, "agent.calibration=student/calibration.json") == 0
    (first, *_) = RunFolder("runs/after").trajectories()
    assert not any("calibra" in line for line in first.warnings), "fitted for this scorer"
    scored = [row for one in first.rounds for row in one["documents"].values()]
    assert all("calibrated" in row for row in scored)

    capsys.readouterr()
    assert entry(*given, "clusters=5") == 2
    assert "was begun with another clusters" in " ".join(capsys.readouterr().err.split())
    assert entry(*given, "steps=3") == 2
    assert "was begun with another steps" in " ".join(capsys.readouterr().err.split())
    (folder / "recipe.json").unlink()
    assert entry(*given) == 2
    assert "'student' is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("tool=ranked_browsing",), "there is no teacher"),
        (("clusters=1",), "clusters=1"),
        (("held_out=1",), "held_out=1"),
        (("steps=0",), "steps=0"),
        (("batch=3",), "batch=3. valid: an even number"),
        (("start=/nowhere",), "there is no folder '/nowhere'"),
    ],
)
def test_what_cannot_be_distilled_is_refused_before_anything_is_written(
    entry, given, message, capsys
):
    pytest.importorskip("transformers")
    assert entry("distill", "student", *SYSTEM, "start=/nowhere", *given) == 2
    assert message in capsys.readouterr().err
    assert not Path("student").exists()


def test_clusters_are_those_of_k_means_nearest_to_the_centre_first():
    points = np.array([[0, 0], [10, 10], [0, 1], [10, 12], [0, 2]], np.float32)
    # The centres are (0, 1) and (10, 11).
    assert sorted(cluster(points, 2, 0)) == [[1, 3], [2, 0, 4]]
    texts = ["barley mill grinds", "mill grinds barley", "harbour tide sea", "sea tide harbour"]
    vectors = word_vectors(texts, 0)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    assert sorted(map(sorted, cluster(vectors, 2, 0))) == [[0, 1], [2, 3]]


def test_a_question_is_learnt_calibrated_or_checked():
    written = [WrittenQuestion(f"g{n}", f"question {n}", 0, (), "rules") for n in range(20)]
    parts = split(written, 0.4)
    assert [len(part) for part in parts] == [12, 4, 4]
    assert frozenset.union(*parts) == {one.text for one in written}
    assert [len(part) for part in split(written[:3], 0.1)] == [1, 1, 1]
    with pytest.raises(InputError, match="there are 2 questions"):
        split(written[:2], 0.4)


def test_a_student_learns_scores_at_their_passages_and_the_overall_judgement():
    cell = {"verdict": "satisfied", "rationale": "r"}
    row = {
        "query": "q",
        "chunks": [{"id": "d%p0", "text": "zero"}, {"id": "d%p1", "text": "one"}],
        "requirements": [
            {"requirement": "a", "score": 0.9, "passage": "d%p1", **cell},
            {"requirement": "b", "score": 0.3, "passage": "", **cell},
        ],
        "overall": None,
    }
    found = [(one.pair.query, one.pair.text, one.label) for one in student_examples(row)]
    # A teacher without an overall judgement: the mean of its scores, (0.9 + 0.3) / 2.
    assert [(query, text) for query, text, _ in found] == [
        ("a", "one"),
        ("q", "zero"),
        ("q", "one"),
    ]
    assert [label for _, _, label in found] == pytest.approx([0.9, 0.6, 0.6])


def test_the_expected_calibration_error_by_hand():
    # Bins: 0.05 and 0.06 (none met), 0.95 (one of two met).
    error = expected_calibration_error([0.05, 0.06, 0.95, 0.95], [False, False, True, False])
    assert error == pytest.approx((2 * 0.055 + 2 * (0.95 - 0.5)) / 4)
    assert expected_calibration_error([0.0, 1.0], [False, True]) == 0


CELLS = {"bm25_default", "minilm", "fusion_minilm"}


@pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
)
def test_the_demo_compares_a_trained_retriever_with_bm25_and_their_fusion(
    entry,
    beir,
    minilm,
    monkeypatch,
    capsys,
):
    monkeypatch.setenv("SOUNDINGLINE_MINILM", minilm)
    demo = ("experiment=demo_learned", "benchmark=beir", f"benchmark.path={beir}")
    assert entry("rank", *demo) == 0
    manifests = Path("runs/demo-learned").glob("*/manifest.json")
    contents = [json.loads(path.read_text("utf-8")) for path in manifests]
    assert {content["factors"]["retriever"] for content in contents} == CELLS
    report = Path("runs/demo-learned/report.html").read_text("utf-8")
    assert all(cell in report for cell in CELLS)
    table = capsys.readouterr().out.rpartition("retriever ")[2]
    assert all(cell in table for cell in CELLS)


@pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
)
def test_minilm_is_the_hubs_unless_a_folder_is_named(entry, monkeypatch, capsys):
    monkeypatch.delenv("SOUNDINGLINE_MINILM", raising=False)
    assert entry("rank", "retriever=minilm", "--cfg=job") == 0
    assert "model: sentence-transformers/all-MiniLM-L6-v2" in resolved(capsys)
    monkeypatch.setenv("SOUNDINGLINE_MINILM", "/some/folder")
    assert entry("rank", "retriever=minilm", "--cfg=job", "--resolve") == 0
    assert "model: /some/folder" in capsys.readouterr().out


def resolved(capsys):
    """The printed configuration, with defaults of variables in place."""
    return capsys.readouterr().out.replace("${oc.env:SOUNDINGLINE_MINILM,", "").replace("}", "")
