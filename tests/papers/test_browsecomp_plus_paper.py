"""BrowseComp-Plus (Chen et al., 2025): the constants of its own agent, in its code at commit
97c637c of texttron/BrowseComp-Plus, and what its bounds are on a laptop."""

import json
from pathlib import Path

import pytest
from sheet import cells, check_constants, overrides_of_cells
from support.commands import run_entry

BASELINE = {
    "benchmark": "browsecomp_plus",
    "unit": "document",
    # The options of search_agent/oss_client.py, which oss.md there leaves at their defaults.
    "tool": "top_k",
    "tool.k": 5,
    "tool.max_tokens": 512,
    "tool.get_document": False,
    "budget.turns": 100,
    "llm.model": "openai/gpt-oss-20b",
    "llm.settings.reasoning_effort": "high",
    "llm.settings.max_output_tokens": 10_000,
    "tool.tokenizer": "Qwen/Qwen3-0.6B",  # its SearchToolHandler
    "evaluation.forced_answers": False,  # "incomplete" at the limit of turns
    # scripts_evaluation/evaluate_run.py
    "judge": "browsecomp_plus",
    "judge.tool": False,
    "judge.prompt": "browsecomp_plus",
    "judge_llm.model": "Qwen/Qwen3-32B",
    "judge_llm.settings.temperature": 0.7,
    "judge_llm.settings.top_p": 0.8,
    "judge_llm.settings.extra.top_k": 20,
    "judge_llm.settings.max_output_tokens": 4096,
    "judge_llm.settings.extra.chat_template_kwargs.enable_thinking": False,
}


def test_the_baseline_is_that_of_the_authors_code():
    for settings in cells("browsecomp_plus/baseline"):
        check_constants(settings, BASELINE)
    assert [settings.choices["retriever"] for settings in cells("browsecomp_plus/baseline")] == [
        "bm25_default",
        "qwen3_embedding_8b",
        "oracle",
    ]


def test_the_closed_book_form_has_no_search_on_any_scale():
    (paper,) = cells("browsecomp_plus/closed_book")
    check_constants(paper, {"agent": "closed_book", "judge": "browsecomp_plus"})
    (laptop,) = cells("browsecomp_plus/closed_book", "scale=laptop")
    check_constants(laptop, {"agent": "closed_book_simulated", "agent.max_searches": 0})


@pytest.mark.slow
def test_the_oracle_is_an_upper_bound_on_a_laptop_without_a_model_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ("scale=laptop", "benchmark.documents=300", "benchmark.questions=8")
    for settings in cells("browsecomp_plus/baseline", "scale=laptop"):
        check_constants(settings, {"tool.tokenizer": None, "tool.get_document": True})
        assert settings.config.llm is None
    assert run_entry("run", "experiment=browsecomp_plus/baseline", *small, "name=bounds") == 0
    found = {}
    for path in Path("runs/bounds").rglob("metrics.json"):
        factors = json.loads(path.with_name("manifest.json").read_text())["factors"]
        found[factors["retriever"]] = dict(json.loads(path.read_text()))
    assert len(found) == len(overrides_of_cells("browsecomp_plus/baseline", *small))
    bound = found.pop("oracle")
    assert bound["accuracy"] == 1.0  # five hits do not hold all evidence documents of a question
    assert all(other["accuracy"] <= bound["accuracy"] for other in found.values())
