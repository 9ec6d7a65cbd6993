"""The golden gate: retrievers, re-rankers and enrichment with tiny models.

Of rankings by models the scores are stored, which agree up to a hundred times the rounding of
float32. The order follows from them, but for hits whose scores are that close.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import golden_product as product
import pytest
from golden_store import LEARNED as MARK
from golden_store import number
from golden_workplace import check, skip_without
from test_golden_runs import CPU, LEARNED, MAXP, PASSAGES, TEST

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
    ranked = RANKED[name]
    skip_without(ranked.needs)
    text = f"{TEST} {ranked.overrides}"
    workplace.run("rank", name, text)
    content = workplace.recorded(name)
    if not ranked.exact:
        content = _lasting(content)
    content |= scores(workplace, text, ranked.depth)
    check(name, content, workplace.places)


def _lasting(content):
    """What does not change where two hits with nearly equal scores change places."""
    return {key: content[key] for key in ("factors", "stages", "counts") if key in content}


def scores(workplace, text, depth):
    """The score of each hit by question, down to `depth`; below it the ids, which no model has
    ranked."""
    limit = re.search(r"benchmark.limit=(\d+)", text)
    queries = workplace.questions("world")[1::2][: int(limit[1]) if limit else None]
    frame = product.ranked(*workplace.arguments("scores", text), queries=queries)
    by_question = frame.sort_values("rank").groupby("qid")
    stored = {
        f"scores{MARK}": {
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
    skip_without((*LEARNED, "peft", "openai"))
    options = _options(workplace)
    text = f"{TEST} hydra.searchpath=[file://{options}] reranker.depth={DEPTH} benchmark.limit=2"
    chosen = ",".join(f"tiny_{name}" for name in RERANKERS)
    workplace.run("rank", "rerankers", f"-m {text} reranker={chosen}")
    content = workplace.recorded("rerankers")
    for name, cell in content["cells"].items():
        for reranker in OF_MODELS:
            if f"tiny_{reranker}" in name:
                by_model = scores(workplace, f"{text} reranker=tiny_{reranker}", DEPTH)
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
