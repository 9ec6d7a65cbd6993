"""Revisiting Text Ranking in Deep Research (arXiv 2602.21456): its constants and tables."""

import asyncio

import pytest
from sheet import (
    cells,
    check_constants,
    check_published_rows,
    experiments,
    plan_of,
    published_of,
    value,
)
from support.agents import bound
from support.benchmarks import SmallBenchmark, WordBackend
from support.llm_model import ANSWER, ScriptedModel, saying

from soundingline.agents.prompt import load_prompt
from soundingline.experiments.maintenance import collection_statistics
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.corpus.segmentation import Passages
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.evaluation.published_tables import published_statistics
from soundingline.toolkit.search import TopK

COMMON = {
    "benchmark": "browsecomp_plus",
    "tool": "text_ranking",
    "tool.k": 5,
    "tool.max_tokens": 512,
    "tool.tokenizer": "Qwen/Qwen3-0.6B",
    "agent": "browsecomp_plus",
    "agent.prompt": "browsecomp_plus",
    # Read in search_agent/oss_client.py of ChuanMeng/text-ranking-in-deep-research at b546046: the
    # argument of `search`, its reply, a bound for what is sampled again without one there, and
    # requests that leave several calls a reply to the server, which allows them.
    "tool.query_argument": "user_query",
    "tool.output": "json",
    "agent.resample": 10,
    "llm.parallel_calls": True,
    "budget.turns": 100,
    "budget.seconds": None,
    "budget.answer_tokens": 0,
    "concurrency": 10,
    "evaluation.forced_answers": False,
    # evaluate_run.py of texttron/BrowseComp-Plus at 97c637c, which the study's authors use.
    "judge": "browsecomp_plus",
    "judge.tool": False,
    "judge.prompt": "browsecomp_plus",
    "judge_llm.model": "Qwen/Qwen3-32B",
}
GPT_OSS = {
    "llm.model": "openai/gpt-oss-20b",
    "llm.context_window": 131072,
    "llm.settings.reasoning_effort": "high",
    "llm.settings.max_output_tokens": 40000,
    "llm.server.options.tool_call_parser": "openai",
}
GLM = {
    "llm.model": "zai-org/GLM-4.7-Flash",
    "llm.context_window": 202752,
    "llm.settings.max_output_tokens": 40000,
    "llm.server.options.tool_call_parser": "glm47",
    "llm.server.options.reasoning_parser": "glm45",
}
CHECKPOINTS = {
    "splade": {"retriever.model": "naver/splade-v3", "retriever.max_length": 512},
    "repllama": {
        "retriever.model": "castorini/repllama-v1-7b-lora-passage",
        "retriever.max_length": 512,
    },
    "qwen3_embedding_8b": {
        "retriever.model": "Qwen/Qwen3-Embedding-8B",
        "retriever.max_length": 512,
        "retriever.document_max_length": 4096,
    },
    "colbertv2": {
        "retriever.model": "colbert-ir/colbertv2.0",
        "retriever.max_length": 512,
        # MAX_QUERY_LENGTH of the six run_scripts/rq1/*colbertv2.0* at b546046.
        "retriever.query_max_length": 512,
    },
    "bm25_default": {"retriever.k1": 0.9, "retriever.b": 0.4},
    "bm25_msmarco_doc": {"retriever.k1": 3.8, "retriever.b": 0.87},
    "bm25_text_ranking": {"retriever.k1": 10.0, "retriever.b": 1.0},
}
RERANKERS = {
    "none": {},
    "monot5_3b": {"reranker.model": "castorini/monot5-3b-msmarco", "reranker.max_length": 512},
    "rankllama_joined": {
        "reranker.model": "castorini/rankllama-v1-7b-lora-passage",
        "reranker.max_length": 512,
        "reranker.layout": "joined",
        "reranker.end_of_sequence": False,
    },
    "rank1": {
        "reranker_llm.model": "jhu-clsp/rank1-7b",
        "reranker.max_tokens": 2000,
        "reranker.context_window": 4000,
        "reranker.prompt_tokens": 1024,
    },
}
TABLES = [name for name in experiments("text_ranking") if "table" in name]
SIZES = {"2": 1, "3": 15, "4": 15, "6": 4, "7": 4, "8": 30, "9": 10, "11": 9, "13": 2}


@pytest.mark.parametrize("experiment", TABLES)
def test_every_cell_has_the_paper_s_constants(experiment):
    agent = GLM if experiment.endswith(("table4", "table9")) else GPT_OSS
    for settings in cells(experiment):
        check_constants(settings, COMMON | agent)
        check_constants(settings, CHECKPOINTS[settings.choices["retriever"]])
        check_constants(settings, RERANKERS[settings.choices["reranker"]])


@pytest.mark.parametrize("experiment", TABLES)
def test_every_cell_has_its_published_row(experiment):
    published = check_published_rows(experiment)
    assert published.questions == 830
    assert len(published.rows) == SIZES[experiment.rpartition("table")[2]]


@pytest.mark.parametrize(
    ("table", "factors", "figures"),
    [
        ("2", ["qwen3_embedding_8b"], [30.14, 0.570, 0.421]),
        ("3", ["bm25_default", "passage", False], [30.97, None, 0.616, 0.572, 0.968]),
        ("3", ["bm25_default", "document", False], [32.22, None, 0.366, 0.259, 0.805]),
        ("3", ["bm25_default", "document", True], [28.14, 1.31, 0.343, 0.301, 0.746]),
        ("6", ["bm25_default"], [26.87, 2.24, 0.556, 0.542, 0.877]),
        ("8", ["bm25_default", "monot5_3b", 50], [27.57, 0.716, 0.689, 0.974]),
        ("9", ["splade", "monot5_3b", 50], [62.09, 0.693, 0.575, 0.900]),
        ("11", ["splade", "q2q_reasoning"], [31.70, 0.585, 0.557, 0.983]),
        ("13", ["q2q_reasoning"], [31.15, 0.638, 0.613, 0.970]),
    ],
)
def test_published_figures(table, factors, figures):
    rows = published_of(f"text_ranking/table{table}").rows
    (row,) = (list(row) for row in rows if list(row[: len(factors)]) == factors)
    assert row[len(factors) :] == figures


def test_the_estimate_of_a_cell_takes_the_calls_of_its_row():
    # Table 3 of arXiv 2602.21456, BM25: searches, and with get_document the documents read too.
    first, second, third, *_ = plan_of("text_ranking/table3").estimates()
    calls = [each.typical.calls for each in (first, second, third)]
    assert calls == pytest.approx([30.97, 32.22, 28.14 + 1.31])


def test_units_and_readers():
    for settings in cells("text_ranking/table6"):
        check_constants(settings, {"unit": "passage", "tool.get_document": True})
        check_constants(settings, {"unit.splitter": "spacy", "unit.max_tokens": 250})
        check_constants(settings, {"benchmark.front_matter": True})
    for settings in cells("text_ranking/table6", "scale=laptop"):
        check_constants(settings, {"unit.splitter": "rules"})
    for table in ("8", "9", "11", "13"):
        for settings in cells(f"text_ranking/table{table}"):
            check_constants(settings, {"unit": "passage", "tool.get_document": False})
    for settings in cells("text_ranking/table7"):
        if settings.choices["unit"] == "document_head":
            check_constants(settings, {"unit.max_tokens": 512, "unit.tokenizer": "Qwen/Qwen3-0.6B"})


def opening(settings):
    """What the agent of a cell is shown before it replies."""
    option = settings.config.tool
    tool = TopK(k=option.k, max_tokens=option.max_tokens, get_document=option.get_document)
    model = ScriptedModel(saying(ANSWER))
    agent = bound(model, prompt=settings.config.agent.prompt)
    session = tool.open(WordBackend({"d1": "A mill."}), SqliteStore.in_memory({"d1": "A mill."}))
    trajectory = asyncio.run(agent.run(Topic("1", "Who built it?"), session))
    shown = [spec["name"] for spec in session.specs()]
    return shown, "\n".join(message["content"] for message in trajectory.messages[:-1])


def test_the_prompt_names_the_tools_that_there_are():
    """As the authors' two templates: with the reader, both tools by name; without, search alone."""
    found = {}
    for settings in cells("text_ranking/table3"):
        shown, text = opening(settings)
        assert "Who built it?" in text and "Confidence:" in text
        found.setdefault(tuple(shown), set()).add(text)
    assert set(found) == {("search",), ("search", "get_document")}
    (alone,), (both,) = found["search",], found["search", "get_document"]
    assert "search and get_document" in both
    assert "get_document" not in alone and "both tools" not in alone
    without = load_prompt("browsecomp_plus").sections
    assert not any("get_document" in text for name, text in without.items() if "reader" not in name)


def test_rewriting():
    for settings in cells("text_ranking/table11"):
        if settings.choices["rewriter"] != "none":
            constants = {"rewriter.reasoning_effort": "low", "rewriter.max_output_tokens": 512}
            check_constants(settings, constants | {"rewriter.apply_to": "both"})
    _, rewritten = cells("text_ranking/table13")
    check_constants(rewritten, {"rewriter.apply_to": "reranker", "reranker.depth": 10})


def test_figure_1_is_a_grid_over_both_units():
    units = [settings.choices["unit"] for settings in cells("text_ranking/figure1")]
    assert units == ["document", "passage"]
    for settings in cells("text_ranking/figure1"):
        check_constants(settings, {"tuning.select": None, "tuning.objective": "R@5"})
        assert list(settings.config.measures) == ["R@5", "nDCG@10"]


def test_the_laptop_forms_of_tables_2_and_7_vary_agents_and_settings_of_bm25():
    """Documents are read whole there, because their first 512 tokens state few of the facts."""
    factors = {"2": ["agent.max_searches"], "7": ["retriever", "unit"]}
    found = {}
    for table, names in factors.items():
        laptop = cells(f"text_ranking/table{table}", "scale=laptop")
        assert all(value(each, "tool.get_document") for each in laptop)
        found[table] = [[value(each, name) for name in names] for each in laptop]
    assert found["2"] == [[1], [3]]
    paper = cells("text_ranking/table7")
    assert found["7"] == [[value(each, name) for name in factors["7"]] for each in paper]


class TwoDocuments(SmallBenchmark):
    def read_documents(self):
        yield Document("d1", "A title", "One two three. Four five.")
        yield Document("d2", "", "Six.")


def test_table_1_counts_questions_documents_passages_and_judgements():
    """The statistics of a collection that are countable by hand: lengths in words, titles left
    out, as passage_corpus_preprocess.py at b546046 counts the bodies of passages."""
    topics = [Topic("1", "a b c"), Topic("2", "a")]
    qrels = {
        "evidence": {"1": {"d1": 1, "d2": 1}, "2": {"d1": 1}},
        "gold": {"1": {"d2": 1}, "2": {"d1": 0}},
    }
    benchmark = TwoDocuments(topics, qrels)
    passages = Passages(max_tokens=4)
    assert collection_statistics(benchmark, passages, lambda text: len(text.split())) == {
        "questions": 2,
        "tokens a question": (3 + 1) / 2,
        "documents": 2,
        "tokens a document": (5 + 1) / 2,
        "passages": 3,
        "tokens a passage": (3 + 2 + 1) / 3,
        "passages a document": 3 / 2,
        "evidence documents a question": 3 / 2,
        "gold documents a question": 1 / 2,
    }
    source, published = published_statistics({}, "browsecomp_plus")
    assert "2602.21456, Table 1" in source
    assert list(published) == list(collection_statistics(benchmark, passages, len))
    assert [published[name] for name in ("questions", "documents", "passages")] == [
        *(830, 100_195, 2_772_255)
    ]
    lengths = [published[f"tokens a {name}"] for name in ("question", "document", "passage")]
    assert lengths == [132.19, 7845.55, 279.64]
    # Section 3.2.3.
    judged = [published[f"{tier} documents a question"] for tier in ("evidence", "gold")]
    assert judged == [6.1, 2.9]
