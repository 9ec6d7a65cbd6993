"""`soundingline tune` from its command line to its files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from experiment_samples import CORPUS, QRELS, QUERIES, TINY, folder

import soundingline.experiments.tune as tune_module
from soundingline.experiments.config import Settings, plain_values, read_chosen
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.grid import Grid, MeasureTable, RankTable, distance

OPTIONS = Path(__file__).resolve().parent / "options"
SCRIPTED = (f"hydra.searchpath=[file://{OPTIONS}]", "llm@enrichment_llm=scripted")
SMALL = ("grid.k1=[0.5,1.5,9]", "grid.b=0:1:0.5", "tuning.folds=2")
FEW = ("measures=[AP]", "tuning.cutoffs=[]", "tuning.references=[[0.9,0.4],[25,1]]")
SPLIT = (*TINY, "benchmark.questions=12")
WORLD = (*SPLIT, *SMALL, *FEW, "name=t")
# With an enrichment, whose weight and tau are axes next to k1 and b.
ENRICHED_GRID = ("grid=sira", "grid.k1=[0.9,3]", "grid.b=[0.4,0.75]", "grid.weight=[0,0.5,2]")
ENRICHED_FEW = (*FEW[:2], "tuning.references=[[0.9,0.4],[3,0.4,0,0.1]]")
ENRICHED = (
    *(*SPLIT, *ENRICHED_GRID, "grid.tau=[0.1,0.5]", "enrichment=feedback"),
    *(*ENRICHED_FEW, "name=t"),
)


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def table(side="reported", run="runs/t"):
    return MeasureTable.load(Path(run, f"{side}.npz"))


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
    assert set(test.measures) == {"nDCG@10", "AP"}
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


def test_of_a_sweep_of_tunings_the_one_with_this_unit_and_engine_is_taken(tmp_path):
    units = {"document": [], "short": ["unit=passage", "unit.max_tokens=60"], "maxp": ["unit=maxp"]}
    for k1, (name, overrides) in enumerate(units.items()):
        config = plain_values(Settings.compose([*overrides, "engine.memory_mb=64"]).config)
        # The folder's name says nothing: an option may have any name.
        tuning(tmp_path / f"{name}-x", k1 + 1, unit=config["unit"], engine=config["engine"])
    assert [k1_of(tmp_path, *overrides) for overrides in units.values()] == [1, 2, 3]
    # Memory is no part of what was tuned; the length of a passage is.
    assert k1_of(tmp_path, "unit=maxp", "engine.memory_mb=128") == 3
    for way in (tmp_path / "maxp-x", tmp_path / "maxp-x" / "chosen.yaml"):
        assert k1_of(way, "unit=document") == 3
    with pytest.raises(Exception, match="no tuning with the unit and the engine") as refused:
        k1_of(tmp_path, "unit=passage", "unit.max_tokens=61")
    assert all(f"{name}-x" in str(refused.value) for name in units)
    (tmp_path / "again").mkdir()
    config = plain_values(Settings.compose([]).config)
    for name in ("a", "b"):
        tuning(tmp_path / "again" / name, 1, unit=config["unit"], engine=config["engine"])
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


@pytest.mark.parametrize("words", [WORLD, ENRICHED], ids=["plain", "enriched"])
def test_another_objective_over_the_same_ranks_ranks_nothing_again(entry, monkeypatch, words):
    assert entry("tune", *words) == 0
    before = table()
    monkeypatch.setattr(tune_module, "GridBM25", None)
    assert entry("tune", *words, "tuning.objective=RR") == 0
    assert read("runs/t/tuning.json")["objective"] == "RR"
    assert np.array_equal(before.of("AP"), table().of("AP"))


def test_an_interrupted_tuning_keeps_the_ranks_that_it_has(entry, monkeypatch):
    ranks, asked = tune_module.GridBM25.ranks, []

    def counted(self, questions, threads=None):
        asked.append(len(questions))
        for place, row in enumerate(ranks(self, questions, threads)):
            if place == 5:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(tune_module.GridBM25, "ranks", counted)
    monkeypatch.setattr(tune_module, "_SECONDS", 0.0)
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
    "tuning.objective=nDGC@10": "'nDGC@10' is no measure",
    "tuning.objective=SetP": "depends on how many",
    "tuning.select=test": "both test",
    "tuning.select=train": "'train'",
    "tuning.folds=1 tuning.select=null": "folds",
    "tuning.alpha=2": "alpha",
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
    "enrichment=feedback enrichment.sides=corpus": "no query side, which they weigh",
    "enrichment.query_filter.rule=none enrichment.corpus_filter.rule=none": "has no filter",
    "enrichment.query_filter=null enrichment.corpus_filter=null": "the enrichment has no filter",
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
    command = "rank" if "retriever" in overrides else "tune"
    assert entry(command, *(TINY if command == "rank" else words), *overrides.split()) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "soundingline:" in line]
    assert len(lines) == 1 and named in lines[0]
    assert not list(Path().glob("runs/*/metrics.json"))


def test_a_collection_without_a_second_split_is_told_how_to_cross_validate(entry, tmp_path, capsys):
    path = folder(tmp_path / "b", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
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
    assert entry("tune", *ENRICHED) == 0
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
        given = (*SPLIT, "benchmark.split=test", "enrichment=feedback", f"name={k1}-{weight}")
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
