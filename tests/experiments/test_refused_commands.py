"""What cannot work is refused in one line that names it, before anything is paid for or built."""

from pathlib import Path

import pytest
from experiment_samples import TINY
from support.checkpoints import save_rankllama, write_splade

OPTIONS = Path(__file__).resolve().parent / "options"
SCRIPTED = f"hydra.searchpath=[file://{OPTIONS}]"
MODEL = f"{SCRIPTED} agent=pi_serini llm=scripted"
JUDGE = "judge=llm llm@judge_llm=scripted"
CORPUS = f"enrich {SCRIPTED} llm@enrichment_llm=scripted enrichment=sira enrichment.sides=corpus"
FUSION = "retriever=fusion_rrf retriever@retriever.first=bm25_default retriever@retriever.second="
CHAT = "llm@reranker_llm=openai_compatible reranker_llm.model=m"
ONE_SHOT = f"agent=one_shot {SCRIPTED} rewriter=q2q llm@rewriter_llm=scripted"
SAME = "would do the same each time"

BEFORE_BUILDING = {
    # Checkpoints.
    "rank retriever=splade retriever.model=/nowhere": "there is no folder '/nowhere'",
    "rank retriever=splade retriever.model={rankllama}": "gives terms no weights",
    "rank retriever=splade retriever.model={splade}": "max_length=512",
    "rank retriever=dense retriever.model={splade}": "how its vectors are pooled",
    "rank retriever=repllama retriever.model={splade} retriever.base={splade}": "adapter",
    "rank retriever=colbertv2 retriever.model={splade}": "no multi-vector checkpoint",
    "rank retriever=colbertv2 retriever.batch_tokens=0": "batch_tokens=0",
    f"rank {FUSION}bm25_default retriever.k=-1": "k=-1",
    f"rank {FUSION}splade retriever.second.model=/nowhere": "there is no folder '/nowhere'",
    "rank reranker=colbert reranker.model={splade}": "no multi-vector checkpoint",
    "rank reranker=cross_encoder reranker.model={splade}": "no output that was trained",
    "rank reranker=rankllama reranker.model={splade}": "kind bert",
    "rank reranker=rankllama reranker.model={rankllama} reranker.max_length=5000": "1024",
    # Language models.
    "run agent=pi_serini": "llm=...",
    "run rewriter=q2q": "llm@rewriter_llm=",
    "run judge=llm": "judge_llm",
    "run judge=llm judge_llm=scripted": "llm@judge_llm=scripted",
    f"rank reranker=rank1 {CHAT} reranker_llm.base_url=http://127.0.0.1:9/v1": "rank1",
    **{
        f"rank reranker=pointwise reranker.score=p_yes llm@reranker_llm={llm} budget=none": (
            "reads log-probabilities, and the API of"
        )
        for llm in ("claude-opus-4.7", "gpt-5.5")
    },
    # The model's own window, which the budget does not name.
    f"run {MODEL} budget.answer_tokens=100000": "context window of 100000",
    f"run {MODEL} llm.price=null budget.dollars=1": "price",
    f"run {MODEL} {JUDGE} judge_llm.price=null budget.run_dollars=9": "judge_llm.price.input",
    # Repeats.
    "run agent=keyword repeats=2": SAME,
    f"run agent=keyword {SCRIPTED} llm=scripted repeats=2": SAME,
    "run agent=navigator repeats=2": SAME,
    f"run {ONE_SHOT} repeats=2": SAME,
    "run repeats=0": "repeats=0. valid: a whole number, 1 or more",
    # Enrichment and shards.
    f"{CORPUS} enrichment=none": "this enrichment has no corpus side",
    f"{CORPUS} enrichment.sides=query": "this enrichment has no corpus side",
    f"{CORPUS} paths.caches=null": "paths.caches is null",
    f"{CORPUS} engine=pisa": "supports no enrichment",
    "index shards=4 shard=4": "shard=4. valid: a whole number, 0 to 3.",
    "index shard=1": "shard=1. valid: a whole number, 0 to 0.",
    "index shards=0": "shards=0",
    "run shards=4": "shards=4 for soundingline run. valid: soundingline index",
}
LATER = {
    "index shards=4 engine=opensearch engine.url=http://x": "shards=4 for engine=",
    **{
        f"run tool=grep agent={agent}": "set tool.syntax=words" for agent in ("keyword", "one_shot")
    },
    "run traces=plane": "traces=plane. valid: true, false, plain",
    "rank benchmark=beir benchmark.path={beir} retriever=oracle retriever.tier=gold": (
        "no judgements of the tier 'gold'"
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_rankllama(folder / "rankllama")
    write_splade(folder / "splade")
    return {name: folder / name for name in ("rankllama", "splade")}


@pytest.mark.parametrize(("line", "named"), [*BEFORE_BUILDING.items(), *LATER.items()])
def test_what_cannot_work_is_refused_in_one_line(line, named, entry, models, beir, capsys):
    if "tool=grep" in line:
        pytest.importorskip("re2", reason="optional: pip install -e '.[grep]'")
    command, *words = line.format(beir=beir, **models).split()
    small = () if "benchmark=" in line else TINY
    assert entry(command, *small, *words) == 2
    captured = capsys.readouterr()
    lines = [each for each in captured.err.splitlines() if each.startswith("soundingline: ")]
    assert len(lines) == 1 and named in lines[0] and not captured.out
    assert not Path("runs").exists()
    assert line in LATER or not Path("indexes").exists()
