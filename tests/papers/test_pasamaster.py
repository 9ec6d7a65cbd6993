"""PaSaMaster (Du et al., 2026): what its text states, and our choices where it states none."""

import inspect

from sheet import cells, check_constants, published_of

from soundingline.experiments.build import make, make_search_tool
from soundingline.experiments.config import Settings
from soundingline.experiments.distillation import distill
from soundingline.experiments.pipeline import build_pipeline, with_literature_tools
from soundingline.pipelines.backend import PipelineBackend

SYSTEM = {
    "agent": "pasamaster",
    "scorer": "chat",
    "list_reranker._target_": "soundingline.pipelines.rerank.listwise.Listwise",
    "tool": "literature",
    "retriever": "dense_link_expansion",
    "retriever.retriever._target_": "soundingline.pipelines.learned.dense.dense_retriever",
    # "shared encoder"
    "scorer.locator._target_": "soundingline.pipelines.learned.dense.dense_retriever",
}
UNSTATED = {  # our choices
    "benchmark": "litsearch",
    "agent.rounds": 4,
    "agent.patience": 2,
    "agent.bar": 0.5,
    "agent.enough": None,  # as many as are listed
    "agent.queries": 12,
    "agent.requirements": 30,
    "agent.pool": 40,
    "agent.shown": 20,
    "agent.listed": 50,
    "agent.ordered": 20,
    "agent.checklist_scores": True,
    "retriever.retriever.model": "Qwen/Qwen3-Embedding-0.6B",
    "scorer.locator.model": "Qwen/Qwen3-Embedding-0.6B",
    "llm": "gpt-5.5",
    "librarian_llm": "deepseek-v4-flash",
}
SMALL = ("scale=laptop", "benchmark.documents=64", "benchmark.questions=sets:2")


def check(settings, **changed):
    check_constants(settings, SYSTEM | UNSTATED | changed)


def test_the_main_table_has_the_system_and_its_contestants():
    system, *others = cells("pasamaster/main")
    check(system)
    assert [other.choices["agent"] for other in others] == [
        *("chat_list", "one_shot", "one_shot_pointwise", "closed_book_list")
    ]
    for other in others:
        check_constants(other, {"llm": "gpt-5.5", "retriever": "dense_link_expansion"})
    assert published_of("pasamaster/main").cells[0]["agent"] == system.choices["agent"]


def test_distillation_has_our_choices_where_the_paper_states_none():
    stated = inspect.signature(distill).parameters
    unstated = {
        **{"clusters": 20, "questions": 2, "held_out": 0.4},
        **{"steps": 300, "batch": 24, "rate": 5e-5, "method": "isotonic"},
    }
    assert {name: stated[name].default for name in unstated} == unstated


def test_a_librarian_searches_follows_links_and_resolves_findings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = Settings.compose(["agent=navigator", *SMALL]).config
    built = build_pipeline(config, make(config.budget))
    tool, _ = with_literature_tools(make_search_tool(config.tool), built, config)
    session = tool.open(PipelineBackend(built.pipeline).for_question("q"), built.collection.store)
    tools = {spec["name"] for spec in session.specs()}
    assert tools >= {"search", "expand", "resolve", "read", "locate", "score"}
    document = next(iter(built.benchmark.documents()))
    assert document.docid in session.call("resolve", {"findings": document.title}).call.shown


def test_rounds_are_one_to_four_and_the_stop_rule_can_act():
    found = cells("pasamaster/rounds")
    for rounds, settings in enumerate(found, start=1):
        check(settings, **{"agent.rounds": rounds})
    assert len(found) == 4 and found[-1].config.agent.patience < 4


def test_librarians_are_light_or_large():
    for model, settings in zip(
        ("deepseek-v4-flash", "gpt-5.5"), cells("pasamaster/librarians"), strict=True
    ):
        check(settings, **{"librarian_llm": model})


def test_each_component_is_taken_out_alone():
    system, direct, unchecked, unordered, lexical = cells("pasamaster/components")
    check(system)
    assert direct.config.retriever == system.config.retriever.retriever
    check(unchecked, **{"agent.checklist_scores": False})
    assert unordered.choices["reranker@list_reranker"] == "none"
    assert lexical.config.scorer.locator is None and lexical.choices["scorer"] == "chat"
