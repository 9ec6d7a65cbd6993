"""Pi-Serini (arXiv 2605.10848): every constant and published figure of its experiments."""

import re

import pytest
from sheet import (
    cells,
    check_constants,
    check_published_rows,
    experiments,
    overrides_of_cells,
    plan_of,
)

from soundingline.agents.prompt import load_prompt
from soundingline.experiments.config import Settings
from soundingline.experiments.planning import Measured

# The paper's constants. Those of the code are of justram/pi-serini at commit bbab25d.
AGENT = {
    "benchmark": "browsecomp_plus",
    "unit": "document",
    "tool": "pi_serini",
    "agent": "pi_serini",
    "agent.prompt": "pi_serini",
    "tool.page": 5,
    "tool.browse_page": 10,
    # buildExcerpt of Bm25Server.java: around the earliest match of any query token.
    "tool.excerpt": "first_match",
    "tool.excerpt_characters": 220,  # SEARCH_PREVIEW_MAX_CHARS of anserini_bm25/adapter.ts
    "tool.excerpt_depth": 50,  # SEARCH_PREVIEW_WINDOW
    # readDocumentData of Bm25Server.java: a title is a field of the raw JSON, which has the text
    # alone (`text` of BrowseComp-Plus's corpus in the index `bm25` of Tevatron's).
    "tool.titles": False,
    "tool.read_limit": 200,
    "tool.max_rankings": 32,
    # DEFAULT_MAX_LINES and DEFAULT_MAX_BYTES of truncate.ts in badlogic/pi-mono at 83378aa.
    "tool.max_lines": 2000,
    "tool.max_bytes": 50 * 1024,
    "tool.max_page": 1000,  # buildSearchPage of search_cache.ts: no limit but the ranking's end
    "tool.reason_words": None,  # executeSearchTool of tool_handlers.ts does not count them
    "budget.seconds": 300,
    "budget.steer_at": 0.7,
    "reranker": "none",
    "rewriter": "none",
    "enrichment": "none",
    "llm.settings.reasoning_effort": "medium",  # parseArgs of run_pi_benchmark.ts: --thinking
    "judge": "pi_serini",
    "judge.reference": True,
    "judge.tool": False,  # judge_prompt.ts: a JSON object in the text
    "judge.prompt": "pi_serini",
    "judge_llm.model": "gpt-5.3-codex",
    "judge_llm.settings.reasoning_effort": "low",
}
TUNED = {
    "retriever": "bm25_tuned",
    "retriever.k1": 25.0,
    "retriever.b": 1.0,
    "retriever.depth": 1000,
}
Q100 = {"benchmark.qids": "pi_serini_q100.txt"}
WITHOUT_AGENT = ("figure3", "published_runs", "bounds")  # see test_ablation for the last
AGENT_RUNS = [name for name in experiments("pi_serini") if not name.endswith(WITHOUT_AGENT)]


@pytest.mark.parametrize("experiment", AGENT_RUNS)
def test_the_agent_the_tool_and_the_judge_are_the_paper_s(experiment):
    for settings in cells(experiment):
        # Our comparison of retrievers needs a prompt that favours none.
        named = ("agent", "agent.prompt") if experiment.endswith("/retrievers") else ()
        ours = dict.fromkeys(named, "neutral")
        ours |= {"rewriter": settings.choices["rewriter"]} if named else {}  # two cells have one
        check_constants(settings, AGENT | ours)


@pytest.mark.parametrize("experiment", ["main", "depth"])
def test_bm25_is_tuned(experiment):
    for settings in cells(f"pi_serini/{experiment}"):
        check_constants(settings, TUNED)


def test_the_main_table():
    published = check_published_rows("pi_serini/main")
    assert published.questions == 830
    assert [(row[0], row[1], row[3]) for row in published.rows] == [
        ("gpt-5.5", 0.831, 291.6),
        ("claude-opus-4.7", 0.698, 246.6),
        ("deepseek-v4-flash", 0.681, 28.9),
    ]


def test_the_effect_of_tuning():
    published = check_published_rows("pi_serini/tuning_effect")
    assert [list(row) for row in published.rows] == [["bm25_default", 0.64], ["bm25_tuned", 0.82]]
    default, tuned = cells("pi_serini/tuning_effect")
    check_constants(default, Q100)
    check_constants(default, {"retriever.k1": 0.9, "retriever.b": 0.4})
    check_constants(tuned, TUNED)


def test_depths():
    check_published_rows("pi_serini/depth")
    for settings in cells("pi_serini/depth"):
        check_constants(settings, Q100)
    for settings in cells("pi_serini/depth", "scale=laptop"):
        check_constants(settings, {"benchmark.qids": None})
    assert [settings.config.tool.depth for settings in cells("pi_serini/depth")] == [5, 50, 1000]


def test_figure_3_is_the_grid_over_all_questions():
    (settings,) = cells("pi_serini/figure3")
    from soundingline.experiments.build import make

    grid = make(settings.config.grid)
    assert len(grid.points) == 363
    assert {k1 for k1, _ in grid.points} == set(map(float, range(33)))
    assert sorted({b for _, b in grid.points}) == [n / 10 for n in range(11)]
    constants = {"tuning.objective": "nDCG@10", "tuning.select": None, "benchmark.split": None}
    check_constants(settings, constants)


def test_the_referee_s_ablation_changes_retrievers_and_their_queries():
    assert overrides_of_cells("pi_serini/retrievers") == [
        [],
        ["retriever=qwen3_embedding_8b"],
        ["retriever=qwen3_embedding_8b", "rewriter=reasoning"],
        ["retriever=agentir_4b", "rewriter=reasoning"],
        ["retriever=colbertv2"],
        ["retriever=fusion_rrf"],
    ]


@pytest.mark.parametrize("experiment", experiments("pi_serini"))
def test_without_a_model_there_is_no_effort(experiment):
    for settings in cells(experiment, "scale=laptop"):
        assert settings.config.llm is None
    chosen = Settings.compose(
        ["experiment=pi_serini/main", "llm=deepseek-v4-flash", "llm.settings.reasoning_effort=max"]
    )
    assert chosen.config.llm.settings.reasoning_effort == "max"


def test_agentir_has_the_lengths_and_the_instruction_of_its_authors_code():
    """evaluation/scripts/run_oss_agentir.sh and embed_bcp.sh, and the default of `--max-length` in
    searcher/searchers/faiss_searcher.py, of texttron/AgentIR at 24d9078."""
    *_, agentir, _, _ = cells("pi_serini/retrievers")
    constants = {
        "retriever.model": "Tevatron/AgentIR-4B",
        "retriever.document_max_length": 4096,
        "retriever.query_max_length": 8192,
        "retriever.document_prefix": "",
        "retriever.pooling": "last",
        "retriever.normalise": True,
        "rewriter.apply_to": "retriever",
    }
    check_constants(agentir, constants)
    prefix = agentir.config.retriever.query_prefix
    assert prefix.startswith("Instruct: Given a user's reasoning followed by a web search query")
    assert prefix.endswith("\nQuery:")


# The rules of the paper's prompt in their order (PI_SEARCH_QUERY_TEMPLATE_PLAIN_MINIMAL of
# agent_prompt.ts), each with words of our prompt that state it.
RULES = {
    "the tools alone": "from what your tools show, and from nothing else",
    "search first": "Begin with a search",
    "a short query made of the question": "short and made of the words of the question",
    "short lexical queries instead of long rewrites": "rather than a long rewritten question",
    "page through the ranking before rewriting": "before you write another query",
    "open a promising candidate": "looks promising, open it with read_document",
    "read from offset 1 with a moderate limit": "Read from offset=1 with a moderate limit",
    "go on in a truncated document that still matters": "was cut and still matters, continue",
    "refine only with a new clue": "only when you have a new clue",
    "reason first in each call": "The first argument of each call is reason",
    "under 100 words": "in fewer than 100 words",
    "stop when there is enough evidence": "Stop when what you have read is enough",
    "the format": "Explanation:",
    "the exact answer": "Exact Answer:",
    "the confidence": "Confidence:",
    "submit at once": "must submit now, stop at once",
    "a short exact answer": "Keep the exact answer as short as it can be",
    "the question": "Question: {question}",
}


def test_the_prompt_has_the_paper_s_rules_in_their_order():
    text = load_prompt("pi_serini").sections["question"]
    assert [text.count(words) for words in RULES.values()] == [1] * len(RULES)
    places = [text.index(words) for words in RULES.values()]
    assert places == sorted(places)


def test_the_prompt_has_no_rules_that_the_paper_lacks():
    text = " ".join(load_prompt("pi_serini").sections.values()).lower()
    absent = "several candidates|refut|other words|paraphras|synonym|each condition|alternative"
    assert not re.findall(absent, text)


def test_what_the_main_table_needs_and_costs():
    plan = plan_of("pi_serini/main")
    assert plan.needs == [
        "ANTHROPIC_API_KEY",
        "DEEPSEEK_API_KEY",
        "OPENAI_API_KEY",
        "SOUNDINGLINE_CANARY",
    ]
    assert plan.estimate_text().startswith("$567 (the paper's figure)")  # 291.6 + 246.6 + 28.9


def test_the_formula_gives_what_the_paper_paid_for_gpt_5_5():
    plan = plan_of("pi_serini/retrievers")
    first, *_ = plan.estimates()
    # 21 requests, and 20 calls that add 880 tokens each to those after them.
    read, fresh, written = 21 * 1500 + 210 * 880, 1500 + 20 * 880, 21 * 250
    assert first.typical[1:4] == (read, read - fresh, written)
    by_hand = (fresh * 5 + (read - fresh) * 0.5 + written * 30) / 1e6 * 830
    assert first.total.dollars == pytest.approx(by_hand)
    assert by_hand == pytest.approx(291.6, rel=0.001)
    assert first.total.seconds == pytest.approx(830 * 210)
    assert first.typical.source == "by formula"


def test_what_a_run_on_disk_has_taken_precedes_what_the_paper_paid():
    key = ("browsecomp_plus", "pi_serini", "pi_serini", "gpt-5.5")
    ours = Measured(key, "pilot", 20, 3.0, 4.0, 40_000.0, 30_000.0, 2_000.0, 90.0)
    other = ours._replace(key=(*key[:3], "gpt-4"), questions=99)
    small = ours._replace(questions=2, input=1.0)
    plan = plan_of("pi_serini/main", [small, ours, other])
    first, *others = plan.estimates()
    by_hand = (10_000 * 5 + 30_000 * 0.5 + 2_000 * 30) / 1e6 * 830
    assert first.total.dollars == pytest.approx(by_hand)
    assert (first.typical.calls, first.total.seconds) == (3.0, pytest.approx(830 * 90))
    assert [each.typical.source for each in others] == ["the paper's figure"] * 2
    assert "(measured on 20 questions of pilot; the paper's figure)" in plan.estimate_text()


def test_the_largest_cell_tells_how_much_gpu_memory_is_needed():
    # The agent in 4 bits; its judge, the encoder and a re-ranker of 7 billion parameters in 16.
    (gpu,) = [n for n in plan_of("text_ranking/table8").needs if n[:4] == "GPU:"]
    assert gpu.startswith(f"GPU: {20 * 0.65 + 32 * 2 + 8 * 2 + 7 * 2:.0f} GB of weights")
    assert all(name in gpu for name in ("-7b", "Qwen3-32B 64", "gpt-oss-20b 13"))
