"""`soundingline tune` from its command line to its files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from experiment_samples import CORPUS, QRELS, QUERIES, TINY, folder

import soundingline.experiments.tune as tune_module
from soundingline.experiments.config import Settings, plain_values, read_chosen
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.grid import Grid, MeasureTable, RankTable, distance

Entry = Callable[..., int]
SMALL = ("grid=range", "grid.k1=[0.5,1.5,9]", "grid.b=0:1:0.5", "tuning.folds=2")
FEW = ("measures=[AP]", "tuning.cutoffs=[]", "tuning.references=[[0.9,0.4],[25,1]]")
WORLD = (*TINY, "benchmark.questions=12", *SMALL, *FEW)
REFERENCES = {(0.9, 0.4), (25.0, 1.0)}


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_cell_is_chosen_on_dev_and_reported_on_test(entry):
    assert entry("tune", *WORLD, "name=t") == 0
    run = Path("runs/t")
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert names >= {
        *("manifest.json", "metrics.json", "tuning.json", "chosen.yaml", "points.csv"),
        *("selecting.npz", "reported.npz", "ranks", "report.html", "report.md", "run.trec"),
    }
    dev, test = (MeasureTable.load(run / f"{side}.npz") for side in ("selecting", "reported"))
    assert not set(dev.qids) & set(test.qids)
    assert set(test.points) == {(k1, b) for k1 in (0.5, 1.5, 9) for b in (0, 0.5, 1)} | REFERENCES
    assert set(test.measures) == {"nDCG@10", "AP"}
    means = dev.of("nDCG@10").mean(axis=0)[:9]
    k1, b = (read_chosen(str(run), key) for key in ("k1", "b"))
    cell = test.points.index((k1, b))
    assert means[cell] == pytest.approx(means.max())
    metrics = read(run / "metrics.json")
    assert metrics["nDCG@10"] == pytest.approx(test.of("nDCG@10")[:, cell].mean())
    told = read(run / "tuning.json")["measures"]["nDCG@10"]
    assert told["chosen"] == {"k1": k1, "b": b}
    best = test.of("nDCG@10").mean(axis=0)[:9].max()
    assert told["optimism"] == pytest.approx(best - metrics["nDCG@10"])
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2 * len(test.measures)
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)


def test_the_chosen_cell_runs_as_a_retriever_and_gives_the_tables_values(entry):
    assert entry("tune", *WORLD, "name=t") == 0
    given = (*TINY, "benchmark.questions=12", "benchmark.split=test", "name=r")
    assert entry("rank", *given, "retriever=bm25_from_tuning", "retriever.source=runs/t") == 0
    tuned, ranked = (read(Path(f"runs/{name}/metrics.json")) for name in ("t", "r"))
    shared = set(tuned) & set(ranked)
    assert "nDCG@10" in shared
    assert {name: tuned[name] for name in shared} == {name: ranked[name] for name in shared}
    retriever = read(Path("runs/r/manifest.json"))["config"]["retriever"]
    assert retriever["k1"] == read_chosen("runs/t/chosen.yaml", "k1")


def test_a_retriever_from_a_file_that_is_not_there_says_what_to_run(entry, capsys):
    assert entry("rank", *TINY, "retriever=bm25_from_tuning", "retriever.source=nowhere.yaml") == 2
    assert "run soundingline tune first" in capsys.readouterr().err
    Path("odd.yaml").write_text("k1: [1]\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"odd\.yaml has no k1"):
        read_chosen("odd.yaml", "k1")


def tuning(folder, k1, **config):
    """What a tuning leaves of its choice."""
    folder.mkdir(parents=True)
    (folder / "chosen.yaml").write_text(f"k1: {k1}\nb: 0.5\n", encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps({"config": config}), encoding="utf-8")
    return folder


def k1_of(path, *overrides):
    given = ["retriever=bm25_from_tuning", f"retriever.source={path}", *overrides]
    return float(Settings.compose(given).config.retriever.k1)


def test_of_a_sweep_of_tunings_the_cell_with_this_unit_and_engine_is_taken(tmp_path):
    units = {"document": [], "short": ["unit=passage", "unit.max_tokens=60"], "maxp": ["unit=maxp"]}
    for k1, (name, overrides) in enumerate(units.items()):
        config = plain_values(Settings.compose([*overrides, "engine.memory_mb=64"]).config)
        # The folder's name says nothing: an option may have any name.
        tuning(tmp_path / f"{name}-x", k1 + 1, unit=config["unit"], engine=config["engine"])
    chosen = [k1_of(tmp_path, *overrides) for overrides in units.values()]
    assert chosen == [1, 2, 3]
    # Memory is no part of what was tuned; the length of a passage is.
    assert k1_of(tmp_path, "unit=maxp", "engine.memory_mb=128") == 3
    for way in (tmp_path / "maxp-x", tmp_path / "maxp-x" / "chosen.yaml"):
        assert k1_of(way, "unit=document") == 3
    with pytest.raises(Exception, match="no tuning with the unit and the engine") as refused:
        k1_of(tmp_path, "unit=passage", "unit.max_tokens=61")
    assert all(f"{name}-x" in str(refused.value) for name in units)


def test_two_tunings_of_one_unit_are_told_apart_by_their_folder(tmp_path):
    config = plain_values(Settings.compose([]).config)
    for k1, name in ((1, "a"), (2, "b")):
        tuning(tmp_path / name, k1, unit=config["unit"], engine=config["engine"])
    with pytest.raises(Exception, match=r"2 tunings .* valid: a, b"):
        k1_of(tmp_path)
    assert k1_of(tmp_path / "b") == 2


@pytest.mark.parametrize(
    "text",
    [
        "k1: !!python/object/apply:pathlib.Path.touch [canary]\n",
        "k1: !!python/object/apply:os.system ['touch canary']\n",
        "k1: ${oc.env:HOME}\n",
        "k1:\n  _target_: os.system\n  command: touch canary\n",
    ],
)
def test_a_chosen_cell_is_two_numbers_and_nothing_else(text, tmp_path):
    (tmp_path / "chosen.yaml").write_text(text.replace("canary", str(tmp_path / "canary")))
    with pytest.raises(InputError):
        read_chosen(str(tmp_path), "k1")
    assert not (tmp_path / "canary").exists()


def test_one_split_is_cross_validated(entry):
    assert entry("tune", *WORLD, "tuning.select=null", "name=cv") == 0
    told = read(Path("runs/cv/tuning.json"))
    assert told["method"] == "kfold"
    assert told["questions"] == {"selecting": 12, "reported": 12}
    assert len(told["measures"]["nDCG@10"]["folds"]) == 2


def test_another_objective_over_the_same_ranks_ranks_nothing_again(entry, monkeypatch):
    assert entry("tune", *WORLD, "name=t") == 0
    monkeypatch.setattr(tune_module, "GridBM25", None)
    assert entry("tune", *WORLD, "name=t", "tuning.objective=RR") == 0
    assert read(Path("runs/t/tuning.json"))["objective"] == "RR"


def test_an_interrupted_tuning_goes_on_where_it_stopped(entry, monkeypatch):
    assert entry("tune", *WORLD, "name=whole") == 0
    monkeypatch.setattr(tune_module, "_SECONDS", 0.0)
    ranks = tune_module.GridBM25.ranks

    def broken(self, questions, threads=None):
        for place, row in enumerate(ranks(self, questions, threads)):
            if place == 5:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(tune_module.GridBM25, "ranks", broken)
    assert entry("tune", *WORLD, "name=t") == 130
    assert not Path("runs/t/metrics.json").exists()
    kept = sorted(Path("runs/t/ranks").glob("*.npz"))
    assert sum(len(RankTable.load(path).ranks) for path in kept) == 5
    asked = []

    def counted(self, questions, threads=None):
        asked.append(len(questions))
        return ranks(self, questions, threads)

    monkeypatch.setattr(tune_module.GridBM25, "ranks", counted)
    assert entry("tune", *WORLD, "name=t") == 0
    assert asked == [7]
    one, other = (MeasureTable.load(Path(f"runs/{n}/reported.npz")) for n in ("t", "whole"))
    assert one.qids == other.qids
    assert np.array_equal(one.values, other.values)


def test_a_sweep_of_tunings_ends_in_a_comparison_and_is_one_only_where_it_says_so(entry, capsys):
    units = "unit=document,passage"
    assert entry("tune", *WORLD, units, "name=both") == 2
    assert "--multirun" in capsys.readouterr().err and not Path("runs").exists()
    assert entry("tune", *WORLD, "-m", units, "name=both") == 0
    cells = sorted(path.parent.name for path in Path("runs/both").glob("*/tuning.json"))
    assert [name.split("-")[0] for name in cells] == ["document", "passage"]
    assert Path("runs/both/report.html").exists()
    given = (*TINY, "retriever=bm25_from_tuning", "retriever.source=runs/both")
    assert entry("rank", *given, "unit=passage", "name=r") == 0
    retriever = read(Path("runs/r/manifest.json"))["config"]["retriever"]
    (passage,) = Path("runs/both").glob("passage-*")
    assert retriever["k1"] == read_chosen(str(passage), "k1")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("grid.k1=[]",), "k1 is empty"),
        (("grid.k1=0:4:0",), "step 0"),
        (("tuning.objective=nDGC@10",), "'nDGC@10' is no measure"),
        (("tuning.objective=SetP",), "depends on how many"),
        (("tuning.select=test",), "both test"),
        (("tuning.select=train",), "'train'"),
        (("tuning.folds=1", "tuning.select=null"), "folds"),
        (("tuning.alpha=2",), "alpha"),
        (("tuning.depth=0",), "depth=0"),
        (("tuning.references=[[1,2,3]]",), "pairs"),
        (("tuning.references=[[1,x]]",), "pairs"),
        (("grid=nothing",), "nothing"),
        (("tuning.objetive=AP",), "objetive"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(entry, capsys, overrides, told):
    assert entry("tune", *WORLD, "name=t", *overrides) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "soundingline:" in line]
    assert len(lines) == 1
    assert told in lines[0]
    assert not Path("runs/t/metrics.json").exists()


def test_a_collection_with_one_split_is_told_how_to_cross_validate(entry, beir, capsys):
    given = ("benchmark=beir", f"benchmark.path={beir}", *SMALL, "name=t")
    assert entry("tune", *given) == 2
    assert "tuning.select=null" in capsys.readouterr().err
    assert entry("tune", *given, "tuning.select=null") == 0


def test_a_split_without_questions_is_refused(entry, tmp_path, capsys):
    path = folder(tmp_path / "b", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
    (path / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n", encoding="utf-8")
    assert entry("tune", "benchmark=beir", f"benchmark.path={path}", *SMALL, "name=t") == 2
    assert "'dev'" in capsys.readouterr().err


def test_another_engine_is_refused_before_it_builds_anything(entry, capsys):
    assert entry("tune", *WORLD, "name=t", "engine=pisa") == 2
    assert "engine=lexical" in capsys.readouterr().err
    assert not Path("indexes").exists()


def test_two_tunings_do_not_share_a_folder(entry, capsys):
    assert entry("tune", *WORLD, "name=t") == 0
    before = {path: path.read_bytes() for path in Path("runs/t").rglob("*.npz")}
    assert entry("tune", *WORLD, "name=t", "grid.b=[0.4]") == 2
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
        entry("tune", *WORLD, "name=t")


# Tunings with an enrichment, whose weight and tau are axes beside k1 and b.

OPTIONS = Path(__file__).resolve().parent / "options"
SPLIT = (*TINY, "benchmark.questions=12")
ENRICHED_GRID = ("grid=sira", "grid.k1=[0.9,3]", "grid.b=[0.4,0.75]", "grid.weight=[0,0.5,2]")
ENRICHED = (*SPLIT, *ENRICHED_GRID, "grid.tau=[0.1,0.5]", "enrichment=feedback")
ENRICHED_FEW = (
    *("measures=[AP]", "tuning.cutoffs=[]"),
    "tuning.references=[[0.9,0.4],[3,0.4,0,0.1]]",
)


def test_every_cell_has_the_values_of_a_ranking_with_its_weight_and_tau(entry):
    assert entry("tune", *ENRICHED, *ENRICHED_FEW, "name=t") == 0
    table = MeasureTable.load(Path("runs/t/reported.npz"))
    assert len(table.points) == 2 * 2 * 3 * 2 + 1  # one reference is a cell of the grid
    for cell in [(0.9, 0.4, 0.5, 0.05), (3.0, 0.75, 2.0, 0.5), (3.0, 0.4, 0.0, 0.1)]:
        k1, b, weight, tau = cell
        setting = (f"retriever.k1={k1}", f"retriever.b={b}", f"enrichment.weight={weight}")
        filters = [f"enrichment.{side}_filter.tau={tau}" for side in ("query", "corpus")]
        name = f"{k1}-{weight}"
        given = (*SPLIT, "benchmark.split=test", "enrichment=feedback")
        assert entry("rank", *given, *setting, *filters, f"name={name}") == 0
        metrics = read(Path(f"runs/{name}/metrics.json"))
        column = table.points.index(cell)
        for measure in table.measures:
            mean = table.of(measure)[:, column].mean()
            assert metrics[measure] == pytest.approx(mean), (cell, measure)


def test_weight_and_tau_are_chosen_on_dev_and_the_report_says_the_optimism(entry):
    assert entry("tune", *ENRICHED, *ENRICHED_FEW, "name=t") == 0
    run = Path("runs/t")
    dev = MeasureTable.load(run / "selecting.npz")
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
    for key in ("enrichment.weight", "query_filter.tau", "corpus_filter.tau"):
        assert f"{key}=" in text
    report = (run / "report.md").read_text(encoding="utf-8")
    assert "Weight and tau" in report and "optimism" in report
    config = read(run / "manifest.json")["factors"]
    assert config["enrichment"] == "feedback"


def test_the_same_command_ranks_nothing_again(entry, monkeypatch):
    assert entry("tune", *ENRICHED, *ENRICHED_FEW, "name=t") == 0
    before = MeasureTable.load(Path("runs/t/reported.npz"))
    monkeypatch.setattr(tune_module, "GridBM25", None)
    assert entry("tune", *ENRICHED, *ENRICHED_FEW, "name=t", "tuning.objective=RR") == 0
    after = MeasureTable.load(Path("runs/t/reported.npz"))
    assert np.array_equal(before.of("AP"), after.of("AP"))


def test_phrases_of_a_model_are_asked_for_once_whatever_the_cells(entry, tmp_path):
    log = tmp_path / "asked"
    says = json.dumps({"keywords": ["seamark", "tidal range"]})
    model = (
        *(f"hydra.searchpath=[file://{OPTIONS}]", "llm@enrichment_llm=scripted"),
        *(f"enrichment_llm.says='{says}'", f"enrichment_llm.log={log}"),
    )
    options = (
        *SPLIT,
        *ENRICHED_GRID,
        "grid.tau=[0.5,1]",
        *ENRICHED_FEW[:2],
        "tuning.references=[]",
        *model,
    )
    assert entry("tune", *options, "enrichment=sira", "enrichment.sides=query", "name=t") == 0
    assert len(log.read_text().splitlines()) == 12
    assert Path("runs/t/ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("enrichment=none",), "there is no enrichment"),
        (("enrichment=feedback", "enrichment.sides=corpus"), "no query side, which they weigh"),
        (
            ("enrichment.query_filter.rule=none", "enrichment.corpus_filter.rule=none"),
            "the enrichment has no filter",
        ),
        (
            ("enrichment.query_filter=null", "enrichment.corpus_filter=null"),
            "the enrichment has no filter",
        ),
        (
            (
                *(f"hydra.searchpath=[file://{OPTIONS}]", "llm@enrichment_llm=scripted"),
                *("enrichment=sira_weighted", "enrichment.sides=query"),
            ),
            "the grid ranks without the exclusions",
        ),
        (("grid.weight=[-1]",), "weight=-1"),
        (("grid.tau=[0]",), "tau=0"),
        (("grid.tau=[1.5]",), "tau=1.5"),
        (("tuning.references=[[1,2,3]]",), "[k1, b, weight, tau]"),
    ],
)
def test_axes_that_change_nothing_and_bad_values_are_refused(
    entry,
    capsys,
    overrides,
    message,
):
    assert entry("tune", *ENRICHED, "name=t", *overrides) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("runs/t/metrics.json").exists()


def test_a_grid_has_planes_of_weight_and_tau_in_the_order_of_its_cells():
    grid = Grid([1, 2], [0.5], weight=[0, 1]).enriched(0.3, 0.05)
    assert grid.planes == [(0, 0.05), (1, 0.05)]
    assert grid.points == [
        *((1, 0.5, 0, 0.05), (2, 0.5, 0, 0.05)),
        *((1, 0.5, 1, 0.05), (2, 0.5, 1, 0.05)),
    ]
    assert len(grid) == 4 and grid.names == ("k1", "b", "weight", "tau")
    assert Grid([1], [0.5]).planes == [()]


def test_ties_go_to_the_published_weight_and_tau():
    assert distance((0.9, 0.4, 0.5, 0.05)) == 0
    assert distance((0.9, 0.4, 1.0, 0.05)) == pytest.approx(1 / 2 - 1 / 3)
    assert distance((0.9, 0.4, 0.5, 0.2)) == pytest.approx(0.15)


def test_tables_of_four_numbers_a_cell_survive_their_file(tmp_path):
    cells = [(0.9, 0.4, 0.5, 0.05), (1.5, 0.75, 0.0, 1.0)]
    table = RankTable(cells, {"q": ["d"]}, {"q": np.array([[1, 0]], np.int32)})
    table.save(tmp_path / "ranks.npz")
    assert RankTable.load(tmp_path / "ranks.npz").points == cells
