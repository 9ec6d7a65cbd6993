"""The published experiments on a tiny sealed benchmark: each runs small, with its own cells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from effort import SOAK
from sealed_benchmark import CANARY, VARIABLE, write_benchmark
from tiny_tokenizer import write_tokenizer

from soundingline.experiments.config import CONF, Settings

Entry = Callable[..., int]
OPTIONS = f"hydra.searchpath=[file://{Path(__file__).resolve().parent / 'options'}]"
KEYWORD = ("agent=keyword", "budget=none")
# Without models, the rewritten query goes where there is a stage for it.
LEXICAL = ("retriever=bm25_default", "reranker=none", "rewriter.apply_to=retriever")
SCRIPTED = ("llm=scripted", "llm@rewriter_llm=scripted")


@pytest.fixture
def given(entry, tmp_path, monkeypatch):
    """The benchmark, two questions of it, and a tokenizer in the place of the published one."""
    monkeypatch.setenv(VARIABLE, CANARY)
    tokenizer = write_tokenizer(tmp_path / "tiny.json")
    limits = ("benchmark.limit=2", f"tool.tokenizer={tokenizer}")
    return (*write_benchmark(tmp_path / "published"), *limits, OPTIONS)


def cells():
    """The manifests of all cells, each of which was evaluated."""
    manifests = list(Path("runs").glob("*/*/manifest.json"))
    assert all(path.with_name("metrics.json").exists() for path in manifests)
    return [json.loads(path.read_text()) for path in manifests]


def values(key):
    """What a setting is in the cells."""
    group, _, name = key.partition(".")
    return {cell["config"][group][name] for cell in cells()}


def test_the_baseline_with_its_ceiling(entry, given):
    small = ("llm=scripted", "retriever=bm25_default,oracle")
    assert entry("run", "experiment=browsecomp_plus/baseline", *given, *small) == 0
    assert [cell["factors"]["agent"] for cell in cells()] == ["browsecomp_plus"] * 2
    assert values("tool.max_tokens") == {512} and values("budget.turns") == {100}
    assert all(cell["sealed"] for cell in cells())


def test_the_floor(entry, given):
    floor = "experiment=browsecomp_plus/closed_book"
    assert entry("run", floor, *given, "llm=scripted") == 0
    metrics = json.loads(Path("runs/closed_book-browsecomp_plus/metrics.json").read_text())
    assert metrics["tool_calls"] == 0


def test_models(entry, given):
    assert entry("run", "experiment=pi_serini/models", *given, "llm=scripted") == 0
    assert values("retriever.k1") == {25.0} and values("agent.prompt") == {"pi_serini"}


def test_depths(entry, given):
    assert entry("run", "experiment=pi_serini/depth", *given, *KEYWORD) == 0
    assert values("tool.depth") == {5, 50, 1000}


def test_tuning_and_what_it_chose(entry, given):
    whole = [item for item in given if "limit" not in item and "tokenizer" not in item]
    small = ("grid=range", "grid.k1=[0.9,2.0]", "grid.b=[0.4]", "unit=document")
    halves = "benchmark.dev_share=0.7"  # by the hashes of six ids
    assert entry("tune", "experiment=pi_serini/tuning", *whole, *small, halves) == 0
    compared = ("experiment=pi_serini/tuned_vs_default", *KEYWORD, "unit=document")
    assert entry("run", *compared, *given) == 0
    assert len(values("retriever.k1")) in (2, 3)


def test_table_7(entry, given):
    assert entry("run", "experiment=text_ranking/table7", *given, *KEYWORD) == 0
    settings = {(c["config"]["retriever"]["k1"], c["config"]["retriever"]["b"]) for c in cells()}
    assert settings == {(0.9, 0.4), (3.8, 0.87), (10.0, 1.0)} and len(cells()) == 6
    heads = [c["config"]["unit"] for c in cells() if "max_tokens" in c["config"]["unit"]]
    assert {(head["max_tokens"], Path(head["tokenizer"]).name) for head in heads} == {
        (512, "tiny.json")
    }


TABLES = [
    ("rq1_units", ("retriever=bm25_default", *KEYWORD), 4),
    ("rq2_reranking", ("retriever=bm25_default", "reranker=none", *KEYWORD), 1),
    ("rq3_q2q", ("retriever=bm25_default", "agent=pi_serini", *SCRIPTED), 3),
    ("table13", (*LEXICAL, *KEYWORD, *SCRIPTED[1:]), 2),
]


# Each composes in test_conf.py; table13 with a re-ranker runs in test_stages.py.
@pytest.mark.parametrize(("experiment", "small", "expected"), TABLES if SOAK else TABLES[1:3])
def test_tables_of_the_text_ranking_study(entry, given, experiment, small, expected):
    assert entry("run", f"experiment=text_ranking/{experiment}", *given, *small) == 0
    assert len(cells()) == expected and values("tool.k") == {5}


@pytest.mark.parametrize("folder", ["pi_serini", "text_ranking"])
def test_on_the_benchmark_itself_they_need_one_changed_line(folder):
    for path in (CONF / "experiment" / folder).glob("*.yaml"):
        name = f"experiment={folder}/{path.stem}"
        config = Settings.compose([name, "benchmark=browsecomp_plus"]).config
        assert config.benchmark.questions == "Tevatron/browsecomp-plus"
        assert config.name.endswith("browsecomp_plus")
