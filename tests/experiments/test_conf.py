"""Every option of every group composes, fits its target's signature, and is instantiated."""

import inspect
import re
from collections.abc import Sequence
from functools import cache

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_object
from omegaconf import OmegaConf
from support.benchmarks import WordBackend, store_of
from support.commands import run_entry
from support.documents import code_blocks

from soundingline.experiments.build import check_option, fits, make
from soundingline.experiments.cli import CONF
from soundingline.experiments.config import Settings, plain_values, register
from soundingline.experiments.naming import cell_name
from soundingline.experiments.pipeline import option_of
from soundingline.pipelines.fusion import ReciprocalRankFusion
from soundingline.pipelines.retrieve import BM25
from soundingline.pipelines.stage import matching_of
from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.threats import retriever_kind

GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")
OPTIONS = [
    (group, str(path.relative_to(CONF / group).with_suffix("")))
    for group in GROUPS
    if group not in ("experiment", "scale", "laptop_benchmark", "__pycache__")
    for path in sorted((CONF / group).rglob("*.yaml"))
    if path.parent.name != "base"  # what options inherit, and none themselves
]
EXPERIMENTS = sorted(
    str(path.relative_to(CONF / "experiment").with_suffix(""))
    for path in (CONF / "experiment").rglob("*.yaml")
    if path.parent.name != "base"
)
# Arguments that the experiment itself gives, and an engine's name, which is what it is.
GIVEN = {"documents", "name", "unit"}
# Arguments that one option of the class has alone, or that are for Python.
ALONE = {("BM25", "source"), ("BM25", "operators"), ("RM3", "mu")}
ALONE |= {("Budget", "context_window")}  # of the language model
# What a prompt that is composed says about queries.
ALONE |= {(f"{each}Agent", "queries") for each in ("Chat", "ClosedBook", "Rag", "SearchR1")}
# These agents make no tool calls of which a reminder or a demand could speak.
ALONE |= {("ClosedBookAgent", each) for each in ("remind", "first_call", "resample")}
ALONE |= {("SearchR1Agent", each) for each in ("remind", "first_call", "resample")}
ALONE |= {("RagAgent", each) for each in ("first_call", "resample")}  # its first call is a search
# Groups of which a run may have no part.
ABSENT = ("enrichment", "reranker", "rewriter")
# Values that an option leaves to its user.
NEEDED = {
    ("benchmark", "beir"): ["benchmark.path=PATH"],
    ("benchmark", "ir_datasets"): ["benchmark.dataset=vaswani"],
    ("benchmark", "trec_rag"): ["benchmark.topics=PATH", "benchmark.corpus=PATH"],
    ("retriever", "bm25_from_tuning"): ["retriever.source=PATH"],
    ("retriever", "dense"): ["retriever.model=m"],
    ("scorer", "file"): ["scorer.path=PATH/scores.jsonl"],
    ("enrichment", "file"): ["enrichment.query.path=PATH", "enrichment.corpus.path=PATH"],
    ("llm", "openai_compatible"): ["llm.model=m", "llm.base_url=http://127.0.0.1:1/v1"],
}


@pytest.fixture(autouse=True)
def composed():
    register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        yield


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=lambda value: value)
def test_option_composes_fits_its_target_and_lists_every_setting(group, option, beir):
    """Hydra refuses to override a key that an option does not have."""
    overrides = [f"{group}={option}"]
    if (group, option) in NEEDED:
        (beir / "chosen.yaml").write_text("k1: 1.0\nb: 0.4\n", encoding="utf-8")
        overrides += [item.replace("PATH", str(beir)) for item in NEEDED[group, option]]
    config = compose("config", overrides=overrides)
    leaf = option_of(config, group)
    assert [each for each in settings_of(leaf) if each not in leaf] == []
    plain = group == "placement" or (group in ABSENT and option == "none")
    assert ("_target_" in leaf) == (not plain)
    assert group != "reranker" or option == "none" or "depth" in config[group]


def settings_of(leaf):
    """The arguments that an option lists, whose values fit its target."""
    if not (target := leaf.get("_target_")):
        return set()
    check_option(leaf)
    parameters = inspect.signature(get_object(target)).parameters.values()
    settings = {p.name for p in parameters if is_setting(p.annotation) and p.name not in GIVEN}
    name = target.rpartition(".")[2]
    return {each for each in settings if (name, each) not in ALONE}


@cache
def default_configuration():
    return compose("config")


def is_setting(annotation):
    return str(annotation).split(" | ")[0] in ("int", "float", "str", "bool")


@pytest.mark.parametrize("group", ["benchmark", "unit", "engine", "retriever", "tool", "judge"])
def test_default_option_is_instantiated(group):
    assert make(default_configuration()[group]) is not None


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_composes_and_tells_folders_without_a_name_apart(experiment):
    named = [f"experiment={experiment}"]
    config = compose("config", overrides=named, return_hydra_config=True)
    for group in ("benchmark", "unit", "engine", "retriever", "tool", "agent", "judge"):
        check_option(config[group])
    # What a sweep chooses is composed as it will be: each value of each group.
    for key, values in (config.hydra.sweeper.params or {}).items():
        for value in str(values).split(",") if key in GROUPS else ():
            assert compose("config", overrides=[*named, f"{key}={value}"])[key]
    # The cells of two collections are in one folder only where they are meant to be.
    folder = ("benchmark=beir", "benchmark.path=/data/mine")
    apart = "/" in experiment and "benchmarks" not in (config.hydra.sweeper.axes or {})
    assert Settings.compose([*named, *folder]).config.name.endswith("-mine") == apart


@pytest.mark.parametrize(
    ("value", "hint", "whole"),
    [
        (1, float, True),
        (True, float, False),
        (True, int, False),
        (None, int | None, True),
        ("1", int | None, False),
        ([1], list, True),
        ("df", Sequence[str], False),
        (1.5, Sequence[float], False),
        (["df"], Sequence[str], True),
        ("0:8:1", str | Sequence[float], True),
        (2.5, int, False),
    ],
)
def test_a_value_fits_its_annotation(value, hint, whole):
    assert fits(value, hint) is whole


def test_an_unknown_argument_is_refused_with_the_valid_ones():
    leaf = OmegaConf.create({"_target_": "soundingline.toolkit.corpus.DocumentHead", "tokens": 5})
    with pytest.raises(InputError, match=r"has no argument tokens.*max_tokens"):
        make(leaf)


def test_the_documented_option_of_terriers_retriever_composes(tmp_path):
    """`docs/lexical.md`; Terrier itself needs Java and jars from Maven Central."""
    [block] = [
        block
        for block in code_blocks((CONF.parent / "docs/lexical.md").read_text("utf-8"))
        if block.file == "my-options/retriever/terrier.yaml"
    ]
    (tmp_path / "retriever").mkdir()
    (tmp_path / "retriever" / "terrier.yaml").write_text(block.content)
    overrides = ["retriever=terrier", "retriever.index_location=my-index"]
    config = compose("config", [*overrides, f"hydra.searchpath=[file://{tmp_path}]"])
    check_option(config.retriever)
    assert config.retriever == {
        "_target_": "pyterrier.terrier.Retriever",
        "index_location": "my-index",
        "wmodel": "BM25",
    }


def test_sira_as_a_retriever_is_the_system_of_the_paper():
    parts = ["retriever=bm25_sira", "engine=sira", "enrichment=sira", "reranker=pointwise"]
    parts = compose("config", overrides=parts)
    assert compose("config", overrides=["retriever=sira"]) == parts
    other = compose("config", overrides=["retriever=sira", "enrichment=feedback"])
    assert other.enrichment == compose("config", overrides=["enrichment=feedback"]).enrichment


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (("benchmark=beir", "benchmark.path=/data/mine"), "mine"),
        (("benchmark=beir", "benchmark.path=/data/mine", "benchmark.name=other"), "other"),
        (("benchmark=ir_datasets", "benchmark.dataset=beir/scifact/test"), "beir-scifact-test"),
        (("benchmark=fictional",), "fictional"),
    ],
)
def test_a_sweep_of_an_experiment_is_named_after_its_benchmark(overrides, name):
    config = Settings.compose(["experiment=ablation/cross_fitted_bm25", *overrides]).config
    assert config.name == f"tuning-{name}"


def test_experiments_are_listed_by_their_comments_without_composing_them(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    composed = []

    def noted(*arguments, **settings):
        composed.append(arguments)
        return initialize_config_dir(*arguments, **settings)

    monkeypatch.setattr("soundingline.experiments.config.initialize_config_dir", noted)
    assert run_entry("list", "experiments") == 0
    printed = capsys.readouterr()
    assert len(composed) == 1  # the configuration of the command line
    rows = dict(line.split(maxsplit=1) for line in printed.out.splitlines())
    folder = CONF / "experiment"
    names = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")}
    assert {*rows} == {name for name in names if not name.startswith("base/")}
    assert rows["pi_serini/depth"].strip() == (
        "How deep a ranking the agent may browse: 5, 50 and 1,000 hits."
    )
    assert not [row for row in rows.values() if row.rstrip().endswith(":")]
    assert "soundingline describe experiment=NAME shows cells, needs, cost" in printed.err


def test_an_experiment_is_described_with_cells_needs_and_the_paper_s_state(capsys):
    assert run_entry("describe", "experiment=pi_serini/main") == 0
    lines = capsys.readouterr().out.splitlines()
    keys = "ANTHROPIC_API_KEY; DEEPSEEK_API_KEY; OPENAI_API_KEY; SOUNDINGLINE_CANARY"
    assert {
        "cells: 3; with scale=laptop 2",
        f"needs: {keys}",
        "paper: arXiv 2605.10848, main table and Figure 1; 830 questions",
        "state: not reproduced",
        "differs: the verdicts are not released",
    } <= {*lines}
    assert [line for line in lines if line.startswith("estimate: $567")]
    assert run_entry("describe", "experiment=sira/figure3") == 0
    printed = capsys.readouterr()
    assert "needs: GPU: 37 GB of weights" in printed.out
    assert printed.err.splitlines()[-1] == "Next: soundingline rank experiment=sira/figure3"


# Agents and tools.

# Each search tool that `conf/tool` offers, in its forms.
TOOL_FORMS = [
    "ranked_browsing",
    "pi_serini",
    "top_k",
    "top_k tool.get_document=true",
    "search_r1",
    "literature",
]
# The tools that a prompt can be about, which are no words of an English sentence.
TERMS = ("read_search_results", "read_document", "get_document", "expand", "search_id")
TERMS += ("reason", "offset", "limit")
AGENTS = [name for group, name in OPTIONS if group == "agent"]
NEEDED_TOOLS = {  # most agents fit all
    **{name: set(TOOL_FORMS) for name in AGENTS},
    "pi_serini": {"ranked_browsing", "pi_serini"},
    "chat": {"ranked_browsing", "pi_serini"},
    "search_r1": {"top_k", "top_k tool.get_document=true", "search_r1", "literature"},
    "navigator": set(),  # these need a scorer
    "pasamaster": set(),
}


@cache
def opened_tool(form, matching="unknown"):
    words = form.split()
    tool = make(compose("config", overrides=[f"tool={words[0]}", *words[1:]]).tool)
    texts = {"d": "The mill."}
    return tool.open(WordBackend(texts), store_of(texts), matching=matching)


# What a retriever's kind lets a prompt with `queries=matched` say.
SAID_OF = {
    "lexical": "matched by words",
    "learned": "matched by meaning",
    "mixed": "",
    "unknown": "",
}
# Agents whose option says what its prompt tells of queries.
COMPOSED = {"neutral", "chat_list"}
FORMS = [(agent, "neutral", "lexical") for agent in AGENTS]
FORMS += [(agent, "matched", kind) for agent in sorted(COMPOSED) for kind in SAID_OF]


@pytest.mark.parametrize(("agent", "queries", "matching"), FORMS)
def test_a_prompt_names_only_the_tools_and_arguments_of_the_session(agent, queries, matching):
    """Every agent with every tool: either they are refused, or each term is in the schemas."""
    option = compose("config", overrides=[f"agent={agent}"]).agent
    made = make(OmegaConf.merge(option, {"queries": queries}) if agent in COMPOSED else option)
    # The prompt of Pi-Serini's paper says that words are matched.
    papers = agent in ("pi_serini", "chat")
    said = SAID_OF[matching if queries == "matched" else "lexical" if papers else "unknown"]
    fitting = set()
    for form in TOOL_FORMS:
        tool = opened_tool(form, matching)
        try:
            made.check_tool(tool)
        except InputError as error:
            assert "\n" not in str(error)
            continue
        fitting.add(form)
        episode = made.open(Topic("q", "Who?"), tool)
        text = " ".join(message["content"] for message in episode.messages)
        specs = {spec["name"]: spec["parameters"]["properties"] for spec in episode.specs()}
        known = set(specs).union(*specs.values())
        assert {term for term in TERMS if re.search(rf"\b{term}\b", text)} <= known, form
        assert "{tools}" not in text and "{queries}" not in text
        assert re.findall(r"matched by \w+", text) == [said] * bool(said)
    assert fitting == NEEDED_TOOLS[agent]


RETRIEVERS = [name for group, name in OPTIONS if group == "retriever"]
MATCHING = {  # most match words
    **dict.fromkeys(RETRIEVERS, "lexical"),
    **dict.fromkeys(("minilm", "dense", "colbertv2", "splade", "sparta", "repllama"), "learned"),
    **dict.fromkeys(("splade_cocondenser", "e5_base", "agentir_4b"), "learned"),
    **dict.fromkeys(("qwen3_embedding_0.6b", "qwen3_embedding_8b"), "learned"),
    "dense_link_expansion": "learned",
    **dict.fromkeys(("fusion_rrf", "fusion_interpolation", "fusion_minilm"), "mixed"),
    "oracle": "unknown",  # judged documents, whatever the query is
}


@pytest.mark.parametrize("option", RETRIEVERS)
def test_a_retriever_says_how_it_matches_queries(option, beir):
    (beir / "chosen.yaml").write_text("k1: 1.0\nb: 0.4\n", encoding="utf-8")
    words = [item.replace("PATH", str(beir)) for item in NEEDED.get(("retriever", option), ())]
    words.append("retriever@retriever.base=bm25_tuned" if option == "oracle" else "unit=document")
    composed = compose("config", overrides=[f"retriever={option}", *words]).retriever
    made = make(composed)
    assert matching_of(made) == MATCHING[option]
    assert retriever_kind(plain_values(composed, resolve=False)) == matching_of(made)
    assert matching_of(made >> made) == matching_of(None) == "unknown"
    assert matching_of(ReciprocalRankFusion(BM25(), BM25())) == "lexical"


# GPUs. There is none here: what is checked are commands and environments.

ROLES = ("llm=vllm/gpt_oss_20b", "reranker=pointwise", "llm@reranker_llm=vllm/qwen3_6_35b_scores")


def placed(*overrides, roles=ROLES):
    """The GPUs, the memory share and the tensor parallelism of each server, by group; the device of
    a re-ranker that torch computes."""
    config = Settings.compose([*roles, *overrides]).config
    found = {}
    for group in ("llm", "reranker_llm"):
        if config[group]:
            model = make(config[group])
            words = model.server.command(model.name, 8000)
            values = {
                option: words[words.index(f"--{option}") + 1] if f"--{option}" in words else None
                for option in ("gpu-memory-utilization", "tensor-parallel-size")
            }
            found[group] = (model.server.environment.get("CUDA_VISIBLE_DEVICES"), *values.values())
    return found | {"reranker": config.reranker.get("device")}


def test_a_placement_gives_servers_their_gpus_memory_and_parallelism(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    torch = ("llm=vllm/gpt_oss_20b", "reranker=monot5")
    assert placed()["llm"] == (None, None, "1")
    assert placed("placement=one_gpu") == {
        "llm": ("0", "0.55", "1"),
        "reranker_llm": ("0", "0.3", "1"),
        "reranker": None,
    }
    one = {"llm": ("0", "0.55", "1"), "reranker": "cuda:0"}
    assert placed("placement=one_gpu", roles=torch) == one
    two = placed("placement=two_gpus")
    assert (two["llm"], two["reranker_llm"]) == (("0", None, "1"), ("1", None, "1"))
    assert placed("placement=two_gpus", roles=torch)["reranker"] == "cuda:1"
    both = ("placement=two_gpus", "placement.llm.gpus=[0,1]")
    assert placed(*both)["llm"] == ("0,1", None, "2")
    four = placed("placement=two_gpus", "placement.llm.gpus=[0,1,2,3]")
    assert four["llm"] == ("0,1,2,3", None, "4")
    # What the command line sets stays.
    given = ("llm.server.options.gpu_memory_utilization=0.7", "reranker.device=cpu")
    kept = placed("placement=one_gpu", *given, roles=torch)
    assert kept == {"llm": ("0", "0.7", "1"), "reranker": "cpu"}
    data = "llm.server.options.data_parallel_size=2"
    assert placed(*both, data)["llm"] == ("0,1", None, "1")


def test_a_placement_counts_the_gpus_that_a_job_was_given(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5f")
    two = placed("placement=two_gpus")
    assert (two["llm"][0], two["reranker_llm"][0]) == ("3", "GPU-5f")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(InputError, match=r"needs GPU 1, and this process sees 1 \(CUDA_VISIBLE"):
        placed("placement=two_gpus")
    with pytest.raises(InputError, match="places nothing that this configuration has"):
        Settings.compose(["placement=two_gpus", "llm=gpt-5.5"])


def test_a_placement_changes_no_cell(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plain = Settings.compose([*ROLES, "agent=pi_serini"])
    for layout in ("one_gpu", "two_gpus", "shared_server"):
        other = Settings.compose([*ROLES, "agent=pi_serini", f"placement={layout}"])
        assert cell_name(other) == cell_name(plain)
