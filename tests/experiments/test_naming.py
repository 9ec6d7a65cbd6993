"""A cell is named by its own configuration, and found again by it."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support.benchmarks import TINY

from soundingline.experiments import Experiment
from soundingline.experiments.config import Settings
from soundingline.experiments.naming import RANKING, cell_label, cell_name, run_folder
from soundingline.experiments.tune import named_groups

OPTIONS = Path(__file__).parent / "options"


@cache
def composed(*overrides):
    return Settings.compose(overrides, [f"file://{OPTIONS}"])


def name(*overrides):
    return identity(cell_name(composed(*overrides)))


def ranking_name(*overrides):
    return identity(cell_name(composed(*overrides), RANKING))


def identity(cell):
    """The hash at the end of a cell's name."""
    return cell.rpartition("-")[2]


CHAT = "agent=pi_serini llm=vllm/gpt_oss_20b reranker=monot5"
LIBRARIANS = "agent=keyword {} llm@librarian_llm=scripted"
# By command line: overrides that change no trajectory, and overrides that can change one.
OVERRIDES = {
    CHAT: (
        [
            *("budget.run_dollars=50", "llm.base_url=http://127.0.0.1:9000/v1"),
            *("llm.key_env=OTHER_KEY", "llm.concurrency=3", "llm.price.input=0.1"),
            *("llm.server.options.tensor_parallel_size=4", "reranker.device=cpu"),
            *("reranker.batch_tokens=512", "paths.runs=elsewhere", "paths.indexes=elsewhere"),
            *("paths.caches=null", "engine.memory_mb=64", "concurrency=8", "preflight.questions=0"),
            *("measures=[AP]", "name=other", "hydra.verbose=true"),
        ],
        [
            *("benchmark.limit=7", "unit=passage", "retriever.k1=2", "retriever=bm25_tuned"),
            *("reranker.depth=10", "reranker.model=other/model", "tool=top_k", "tool.page=7"),
            *("budget.turns=3", "budget.dollars=1", "llm.settings.temperature=0", "engine=pisa"),
        ],
    ),
    "unit=document": (
        # Defaults that are written out, and settings of a stage that is not there.
        [
            *("retriever.k1=0.9", "retriever=bm25_default", "reranker=none reranker.depth=10"),
            *("rewriter=none rewriter.apply_to=reranker", "rewriter=none rewriter.prompt=mine.txt"),
            *("rewriter=none rewriter.max_words=9", "llm@reranker_llm=scripted"),
        ],
        [],
    ),
    "benchmark=cacm": (
        ["benchmark.origin=elsewhere paths.data=/data", "benchmark.notice=other"],
        ["benchmark.split=dev"],
    ),
    "agent=keyword llm=scripted": (["llm.says=other", "budget.turns=2"], []),
    "agent=navigator benchmark=fictional": ([], ["budget.turns=2"]),
    "agent=keyword reranker=pointwise llm@reranker_llm=scripted": ([], ["budget.dollars=1"]),
    # The model of the agent, which a stage shares.
    "agent=keyword llm=scripted rewriter=q2q": ([], ["llm.says=other"]),
    "agent=keyword llm=scripted reranker=listwise": ([], ["llm.says=other"]),
    "agent=keyword llm=scripted scorer=chat": ([], ["llm.says=other"]),
    "agent=keyword llm=scripted reranker@list_reranker=listwise": ([], ["llm.says=other"]),
    "agent=keyword llm=scripted enrichment=sira": ([], ["llm.says=other"]),
    # The librarians' own.
    LIBRARIANS.format("scorer=chat"): ([], ["librarian_llm.says=other"]),
    LIBRARIANS.format("reranker@list_reranker=listwise"): ([], ["librarian_llm.says=other"]),
    "agent=chat llm=llamacpp/gguf llm.server.gguf=/models/a.gguf": (
        ["llm.server.gguf=elsewhere/a.gguf"],
        ["llm.server.gguf=/models/b.gguf"],
    ),
}


@pytest.mark.parametrize(
    ("plain", "override", "differs"),
    [
        (plain, override, differs)
        for plain, both in OVERRIDES.items()
        for differs, overrides in enumerate(both)
        for override in overrides
    ],
)
def test_a_name_changes_with_what_can_change_a_trajectory(plain, override, differs):
    words = plain.split()
    assert (name(*words, *override.split()) != name(*words)) == differs


def test_a_cell_is_recognised_whatever_its_label(tmp_path):
    first, again = (
        Settings.compose([f"paths.runs={tmp_path}", *changes])
        for changes in ((), ("retriever.k1=0.9", "retriever.b=0.4"))
    )
    assert cell_name(first) != cell_name(again)
    folder = run_folder(first, cell_name(first))
    folder.path.mkdir()
    assert run_folder(again, cell_name(again)).path == folder.path


@pytest.mark.parametrize("agent", ["keyword", "one_shot", "navigator"])
def test_a_model_that_nobody_asks_changes_no_name(agent):
    plain = (f"agent={agent}",)
    model = (*plain, "llm=scripted", "budget=pi_serini")
    stages = ("reranker=monot5", "reranker@list_reranker=monot5")
    with_its_own = (*plain, "reranker=pointwise", "llm@reranker_llm=scripted")
    asked = agent == "navigator"
    assert (name(*model) != name(*plain)) == asked
    assert (name(*model, *stages) != name(*plain, *stages)) == asked
    assert (name(*with_its_own, "llm=scripted") != name(*with_its_own)) == asked


ASKING = ("rewriter=q2q", "reranker=listwise", "enrichment=sira")


@pytest.mark.parametrize("asking", ASKING)
def test_a_ranking_is_named_after_the_model_that_a_stage_shares(asking):
    plain = (asking, "llm=scripted")
    assert ranking_name(*plain, "llm.says=other") != ranking_name(*plain)
    assert "-scripted-" in cell_name(composed(*plain), RANKING)
    group = asking.partition("=")[0]
    its_own = (*plain, f"llm@{group}_llm=scripted")
    assert ranking_name(*its_own, "llm.says=other") == ranking_name(*its_own)
    assert ranking_name(*its_own, f"{group}_llm.says=other") != ranking_name(*its_own)


def test_a_ranking_is_named_after_no_model_that_no_stage_asks():
    plain = ("agent=navigator", "reranker=monot5")
    for others in (("scorer=chat", "llm@librarian_llm=scripted"), ("llm@reranker_llm=scripted",)):
        for model in ("llm=scripted", "llm.says=other"):
            assert ranking_name(*plain, *others, "llm=scripted", model) == ranking_name(*plain)


def test_a_tuning_is_named_after_the_model_that_the_enrichment_shares():
    shared, its_own = (
        composed("enrichment=sira", "llm=scripted", "llm.says=other", *own)
        for own in ((), ("llm@enrichment_llm=scripted",))
    )
    assert label(shared) == "document-sira-scripted-says=other"
    assert label(its_own) == "document-sira-scripted"
    assert label(composed("llm=scripted")) == "document"


def label(settings):
    return cell_label(settings, named_groups(settings.config))


def test_the_label_tells_what_is_not_the_default():
    settings = composed("unit=passage", "reranker=monot5", "reranker.depth=10")
    assert cell_label(settings) == "passage-bm25_default-monot5-depth=10"
    # What has no room is left out, and what comes later may have some.
    many = composed(
        "benchmark=browsecomp_plus", "agent=pi_serini", "llm=vllm/gpt_oss_20b", "tool.page=3"
    )
    assert cell_label(many) == "document-bm25_default-browsecomp_plus"


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (["unit=passage"], "passage"),
        (["retriever=oracle", "retriever@retriever.base=ql", "tool=top_k"], "oracle-ql-top_k"),
        (["reranker=none", "retriever.k1=25", "retriever.b=1.0"], "reranker=none-k1=25-b=1.0"),
        # In all cells: the cell as it is.
        (["benchmark.limit=7"], "document-bm25_default-limit=7"),
    ],
)
def test_a_cell_of_a_sweep_is_named_by_what_not_all_cells_have(words, label):
    varied = [
        "unit",
        "retriever",
        "retriever.base",
        "tool",
        "reranker",
        "retriever.k1",
        "retriever.b",
    ]
    cell = replace(composed(*words), varied=varied)
    assert cell_label(cell) == label
    assert identity(cell_name(cell)) == name(*words)


def test_a_secret_is_never_part_of_a_name():
    cell = cell_name(composed(*CHAT.split(), "+llm.settings.extra.api_key=sk-1234567890abcdef"))
    assert "sk-1234567890abcdef" not in cell


def test_a_ranking_without_an_agent_is_not_named_after_one():
    plain = Settings.compose(["retriever=bm25_tuned"])
    other = Settings.compose(["retriever=bm25_tuned", "tool=top_k"])
    assert cell_name(plain, RANKING) == cell_name(other, RANKING)


def test_an_experiment_is_composed_without_a_hydra_application(tmp_path):
    folders = [f"paths.{name}={tmp_path / name}" for name in ("indexes", "runs", "caches")]
    experiment = Experiment.compose(*TINY, *folders, "unit=maxp", "retriever=bm25_tuned")
    ranking = experiment.pipeline().search("a harbour town in the north")
    assert {"docno", "score", "rank"} <= set(ranking.columns) and len(ranking)
    assert not any("%p" in docno for docno in ranking["docno"])
    ranked = experiment.rank()
    assert ranked.metrics["R@1000"] == pytest.approx(1.0)
    answered = experiment.run()
    assert answered.counts["questions"] == 6
    again = experiment.evaluate()
    assert again.metrics == answered.metrics
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {ranked.name, answered.name}


def test_own_options_are_found_in_a_folder_of_ones_own(tmp_path):
    (tmp_path / "retriever").mkdir()
    option = "_target_: soundingline.pipelines.retrieve.BM25\nk1: 7\nb: 1\ndepth: 10\n"
    (tmp_path / "retriever" / "mine.yaml").write_text(option)
    experiment = Experiment.compose("retriever=mine", config_dir=tmp_path)
    assert experiment.settings.config.retriever.k1 == 7


@pytest.mark.parametrize(
    ("group", "option", "key"),
    [
        ("agent", "keyword", "attempts"),
        ("tool", "top_k", "timeout"),
        ("unit", "document", "parallel"),
    ],
)
def test_a_setting_of_ones_own_is_in_the_name_whatever_it_is_called(group, option, key, tmp_path):
    (tmp_path / group).mkdir()
    (tmp_path / group / "mine.yaml").write_text(f"defaults: [{option}, _self_]\n{key}: 1\n")
    search = [tmp_path.as_uri()]
    names = {
        cell_name(Settings.compose([f"{group}=mine", f"{group}.{key}={value}"], search))
        for value in (1, 3)
    }
    assert len(names) == 2


OWN = """
from __future__ import annotations
from dataclasses import dataclass
from soundingline.pipelines import BM25
from soundingline.toolkit.errors import FileName, Runtime

@dataclass(kw_only=True, eq=False, repr=False)
class Patient(BM25):
    threads: Runtime[int] = 1
    timeout: int = 1
    stop_words: FileName[str] = ""
"""


def test_an_argument_is_in_the_name_unless_its_class_declares_that_it_changes_no_result(
    tmp_path, monkeypatch
):
    (tmp_path / "own_patient.py").write_text(OWN)
    (tmp_path / "retriever").mkdir()
    lines = ["_target_: own_patient.Patient", "k1: 0.9", "b: 0.4", "threads: 1", "timeout: 1"]
    lines += ["stop_words: /a/short.txt"]
    (tmp_path / "retriever" / "patient.yaml").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)

    def name(*words):
        given = ["retriever=patient", *words]
        return cell_name(Settings.compose(given, [tmp_path.as_uri()])).rpartition("-")[2]

    assert name() == name("retriever.threads=4") != name("retriever.timeout=4")
    # Of a file, the last part of its path.
    assert name() == name("retriever.stop_words=/b/short.txt")
    assert name() != name("retriever.stop_words=/a/long.txt")


@pytest.mark.parametrize("weights", ["/models/tuned/Qwen3", "'~/tuned/Qwen3'", "/tuned/Qwen3/"])
def test_a_name_shows_of_an_absolute_path_its_last_part(weights):
    names = {}
    for value in (weights, "/other/Qwen3", "Qwen/Qwen3"):
        cell = composed("agent=chat", "llm=vllm/qwen3_8b", f"llm.server.weights={value}")
        names[value] = cell_name(replace(cell, varied=["llm.server.weights"]))
    labels = {value: cell.rpartition("-")[0] for value, cell in names.items()}
    assert labels[weights] == "weights=Qwen3"
    # The hash tells folders apart, and of the hub's the owner is shown.
    assert labels["/other/Qwen3"] == labels[weights] and names["/other/Qwen3"] != names[weights]
    assert labels["Qwen/Qwen3"] == "weights=Qwen_Qwen3"
