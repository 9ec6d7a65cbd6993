"""`soundingline tune` with an enrichment: weight and tau beside k1 and b."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from experiment_samples import TINY

import soundingline.experiments.tune_ranks as tune_ranks_module
from soundingline.toolkit.evaluation.grid import Grid, MeasureTable, RankTable, distance

Entry = Callable[..., int]
OPTIONS = Path(__file__).resolve().parent / "options"
WORLD = (*TINY, "benchmark.questions=12")
SMALL = ("grid=sira", "grid.k1=[0.9,3]", "grid.b=[0.4,0.75]", "grid.weight=[0,0.5,2]")
TUNED = (*WORLD, *SMALL, "grid.tau=[0.1,0.5]", "enrichment=feedback")
FEW = ("measures=[AP]", "tuning.cutoffs=[]", "tuning.references=[[0.9,0.4],[3,0.4,0,0.1]]")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_cell_has_the_values_of_a_ranking_with_its_weight_and_tau(entry):
    assert entry("tune", *TUNED, *FEW, "name=t") == 0
    table = MeasureTable.load(Path("runs/t/reported.npz"))
    assert len(table.points) == 2 * 2 * 3 * 2 + 1  # one reference is a cell of the grid
    for cell in [(0.9, 0.4, 0.5, 0.05), (3.0, 0.75, 2.0, 0.5), (3.0, 0.4, 0.0, 0.1)]:
        k1, b, weight, tau = cell
        setting = (f"retriever.k1={k1}", f"retriever.b={b}", f"enrichment.weight={weight}")
        filters = [f"enrichment.{side}_filter.tau={tau}" for side in ("query", "corpus")]
        name = f"{k1}-{weight}"
        given = (*WORLD, "benchmark.split=test", "enrichment=feedback")
        assert entry("rank", *given, *setting, *filters, f"name={name}") == 0
        metrics = read(Path(f"runs/{name}/metrics.json"))
        column = table.points.index(cell)
        for measure in table.measures:
            mean = table.of(measure)[:, column].mean()
            assert metrics[measure] == pytest.approx(mean), (cell, measure)


def test_weight_and_tau_are_chosen_on_dev_and_the_report_says_the_optimism(entry):
    assert entry("tune", *TUNED, *FEW, "name=t") == 0
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
    assert entry("tune", *TUNED, *FEW, "name=t") == 0
    before = MeasureTable.load(Path("runs/t/reported.npz"))
    monkeypatch.setattr(tune_ranks_module, "GridBM25", None)
    assert entry("tune", *TUNED, *FEW, "name=t", "tuning.objective=RR") == 0
    after = MeasureTable.load(Path("runs/t/reported.npz"))
    assert np.array_equal(before.of("AP"), after.of("AP"))


def test_phrases_of_a_model_are_asked_for_once_whatever_the_cells(entry, tmp_path):
    log = tmp_path / "asked"
    says = json.dumps({"keywords": ["seamark", "tidal range"]})
    model = (
        *(f"hydra.searchpath=[file://{OPTIONS}]", "llm@enrichment_llm=scripted"),
        *(f"enrichment_llm.says='{says}'", f"enrichment_llm.log={log}"),
    )
    options = (*WORLD, *SMALL, "grid.tau=[0.5,1]", *FEW[:2], "tuning.references=[]", *model)
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
    assert entry("tune", *TUNED, "name=t", *overrides) == 2
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
