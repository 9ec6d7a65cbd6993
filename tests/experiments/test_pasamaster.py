"""The experiments after PaSaMaster, small: which cells they have, and what they end in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from experiment_samples import TINY
from omegaconf import OmegaConf

from soundingline.experiments.config import CONF, Settings

Entry = Callable[..., int]
OPTIONS = Path(__file__).resolve().parent / "options"
MODEL = (f"hydra.searchpath=[file://{OPTIONS}]", "llm=scripted")
FACTORIAL = "experiment=pasamaster/factorial"
SMALL = (*TINY, "benchmark.questions=sets:2", "unit=document")
SWEEP = Path("runs/factorial-fictional")


def cells():
    """The manifests of the cells by their names."""
    paths = SWEEP.glob("*/manifest.json")
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


def compared_with():
    """Agent and retriever of the cells that the others are tested against."""
    rows = json.loads((SWEEP / "verdicts.json").read_text())
    assert {row["measure"] for row in rows} >= {"F1@20", "nDCG@20"}
    factors = [cells()[row["b"]]["factors"] for row in rows]
    return {(cell["agent"], cell["retriever"]) for cell in factors}


def test_the_factorial_runs_without_a_model_and_is_held_against_one_search(entry):
    # By themselves two cells are tested by name, the later against the earlier.
    assert entry("run", FACTORIAL, *SMALL, "retriever=bm25_default") == 0
    names = sorted(cells())
    agents = [cells()[name]["factors"]["agent"] for name in names]
    assert agents == ["navigator", "one_shot"]
    assert compared_with() == {("one_shot", "bm25_default")}


def test_with_a_model_every_contestant_has_the_same_money(entry):
    agents = "agent=one_shot_pointwise,chat_list,navigator_librarians"
    given = (*SMALL, *MODEL, "retriever=bm25_default")
    assert entry("run", FACTORIAL, *given, agents, "budget.dollars=0.5") == 0
    assert entry("run", "experiment=pasamaster/floor", *given, "budget.dollars=0.5") == 0
    budgets = {cell["config"]["budget"]["dollars"] for cell in cells().values()}
    seconds = {cell["config"]["budget"]["seconds"] for cell in cells().values()}
    assert len(cells()) == 4 and (budgets, seconds) == ({0.5}, {None})
    rates = {
        manifest["factors"]["agent"]: json.loads((SWEEP / name / "metrics.json").read_text())
        for name, manifest in cells().items()
    }
    assert rates["closed_book_list"]["hallucination_rate"] == 1.0
    assert rates["chat_list"]["hallucination_rate"] == 0.0
    assert all(metrics["usage_dollars"] > 0 for metrics in rates.values())
    assert rates["navigator_librarians"]["usage_librarian_calls"] > 0


@pytest.mark.parametrize(
    ("model", "agents"),
    [
        ((), "one_shot,navigator"),
        (MODEL, "one_shot,one_shot_pointwise,chat_list,navigator_librarians"),
    ],
)
def test_the_factorial_crosses_contestants_units_and_retrievers(model, agents):
    from hydra import compose, initialize_config_dir

    from soundingline.experiments.config import register

    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", overrides=[FACTORIAL, *model], return_hydra_config=True)
    parameters = config.hydra.sweeper.params
    assert (parameters.agent, parameters.unit) == (agents, "document,maxp")
    assert parameters.retriever == "bm25_default,bm25_tuned,link_expansion"
    pointwise = Settings.compose([FACTORIAL, "agent=one_shot_pointwise"]).config.reranker
    assert pointwise._target_.endswith("Pointwise") and pointwise.depth == 50


def test_the_separation_tells_the_cost_of_each_role(entry):
    options = OmegaConf.load(CONF / "experiment" / "pasamaster" / "separation.yaml")
    large = options.defaults[-1]["override /llm"]
    light, same = options.hydra.sweeper.params["llm@librarian_llm"].split(",")
    assert same == large != light
    given = (*SMALL, *MODEL, "llm@librarian_llm=scripted", "agent.pool=4")
    assert entry("run", "experiment=pasamaster/separation", *given) == 0
    sweep = Path("runs/separation-fictional")
    _, _, section = (sweep / "report.md").read_text().partition("## Cost by role")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert [line.split("|")[2].strip() for line in rows[2:]] == ["navigator", "librarian", "all"]
