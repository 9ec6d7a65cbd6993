"""The golden gate: what a user's command lines and programs rely on. Exported names with their
signatures, which settings make one run and which make another, and what bad commands end with."""

import inspect
import re

import golden_product as product
import golden_store as store
import pytest
from golden_workplace import WRITE, check

SIGNATURES = store.DATA / "signatures.txt"


def test_exported_names_have_the_signatures_that_are_stored():
    """A text file, so that git shows which names and arguments changed."""
    pytest.importorskip("torch", reason="re-rankers need torch to be imported")
    lines = [line for name, value in product.exported() for line in described(name, value)]
    received = "\n".join(lines) + "\n"
    if WRITE:
        SIGNATURES.write_text(received, encoding="utf-8")
        pytest.skip(f"{SIGNATURES.name} is written")
    expected = SIGNATURES.read_text(encoding="utf-8")
    if expected != received:
        pytest.fail(f"{SIGNATURES.name}\n{store.contrast(expected, received)}", pytrace=False)


def described(name, value):
    """The name with one argument a line, and the public methods of a class."""
    name = name.removeprefix(product.NAMESPACE)
    if not callable(value):
        yield f"{name}: {type(value).__name__}"
        return
    try:
        signature = inspect.signature(value)
    except ValueError:  # a class of the interpreter's own
        yield f"{name}(...)"
        return
    yield name
    yield from (f"    {_plain(str(each))}" for each in signature.parameters.values())
    if inspect.isclass(value):
        for method, function in sorted(vars(value).items()):
            if not method.startswith("_"):
                yield f"    .{method}{_parameters(function)}"


def _parameters(member):
    function = getattr(member, "__func__", member)
    if not inspect.isfunction(function):
        return ""
    return _plain(f"({', '.join(map(str, inspect.signature(function).parameters.values()))})")


def _plain(text):
    """An argument as its source has it, whatever the import namespace."""
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    text = re.sub(r": '([^']*)'", r": \1", text)
    return product.without_addresses(text).replace("soundingline.", "")


# Which settings make one run and which make another.

CHAT = "agent=pi_serini llm=vllm/gpt_oss_20b"
T5 = "reranker=monot5"
NAMES = (
    "",
    "unit=document",
    "retriever=bm25_default",
    "retriever.k1=0.9 retriever.b=0.4",
    "retriever.k1=2",
    "retriever=bm25_tuned",
    "retriever.k1=25 retriever.b=1",
    "retriever.depth=100",
    "retriever=ql",
    "retriever=bm25_rm3",
    "retriever=bm25_sira",
    "unit=passage",
    "unit=passage unit.max_tokens=250",
    "unit=maxp",
    "unit=document_head",
    "engine=pisa",
    "engine.analyzer=standard",
    "engine.memory_mb=64",
    "tool=top_k",
    "tool=top_k tool.k=7",
    "tool.page=7",
    "tool.tokenizer=null",
    "agent=one_shot",
    "agent.max_searches=2",
    "agent.max_searches=3",
    "benchmark.questions=7",
    "benchmark.split=dev",
    "benchmark.name=mine",
    "reranker=none reranker.depth=10",
    "rewriter=none rewriter.max_words=9",
    "enrichment=none enrichment.weight=0.3",
    "enrichment=feedback",
    "enrichment=feedback enrichment.weight=0.5",
    "enrichment=feedback enrichment.sides=query",
    "concurrency=8 preflight=0 measures=[AP]",
    "paths.runs=elsewhere paths.indexes=elsewhere paths.caches=null",
    "name=other",
    "traces=false sealed=false",
    "judge=llm",
    "budget.turns=3",
    CHAT,
    f"{CHAT} budget.turns=3",
    f"{CHAT} budget.dollars=1",
    f"{CHAT} budget.run_dollars=50",
    f"{CHAT} llm.concurrency=3 llm.price.input=0.1",
    f"{CHAT} llm.base_url=http://127.0.0.1:9000/v1 llm.key_env=KEY",
    f"{CHAT} llm.server.options.tensor_parallel_size=4",
    f"{CHAT} llm.settings.temperature=0",
    f"{CHAT} agent.remind=true",
    f"{CHAT} agent.remind=false agent.first_call=null",
    "agent=chat llm=vllm/gpt_oss_20b",
    T5,
    f"{T5} reranker.depth=10",
    f"{T5} reranker.device=cpu reranker.batch_tokens=512",
    f"{T5} reranker.dtype=float32",
    f"{T5} reranker.model=other/model",
    "benchmark=cacm",
    "benchmark=cacm benchmark.origin=elsewhere paths.data=/data",
    "benchmark=beir benchmark.path=/data/a/mine",
    "benchmark=beir benchmark.path=/elsewhere/mine",
    "benchmark.questions=sets agent=navigator",
    "benchmark.questions=sets agent=navigator scorer=overlap",
    "scorer=overlap",
)


def test_settings_make_the_runs_that_are_stored(workplace):
    """Command lines that mean the same share a run folder, and no others do."""
    labels, meanings = {}, {}
    for overrides in NAMES:
        label, _, identity = product.cell_name(*overrides.split()).rpartition("-")
        labels.setdefault(identity, label)
        meanings.setdefault(identity, []).append(overrides)
    groups = {label: [] for label in labels.values()}
    for identity, lines in meanings.items():
        groups[labels[identity]].append(sorted(lines))
    check("cell_names", groups, workplace.places)


# What bad commands end with: the code 2, no traceback, and a line that names what is wrong.

FEEDBACK = "enrichment=feedback"
BAD = {
    # A group, an option or a key that there is not.
    "rank benchmrk=fictional": "benchmark",
    "rank benchmark=fictionl": "fictional",
    "rank retreiver=ql": "retriever",
    "rank retriever=bm26": "bm25_default",
    "rank unit=doc": "document_head",
    "rank retriever.kk=1": "retriever.kk",
    "rank retriever.k3=1": "k1",
    "rank agent.max_serches=1": "agent.max_searches",
    "rank agent.tool.depth=1": "agent.tool",
    "rank llm=vllm/qwen3-8b": "llm=vllm/qwen3_8b",
    "rank experiment=pi_serini/x": "text_ranking/table3",
    "rank rewriter=x": "rewriter=none",
    "rank =null": "=null",
    "run llm@rewriter_llm=null": "rewriter_llm=null",
    "run llm=null": "openai_compatible",
    "run reranker=null": "reranker=none",
    "run rewriter_llm=openai_compatible": "llm@rewriter_llm=openai_compatible",
    "run list_reranker=monot5": "reranker@list_reranker=monot5",
    "run -m agent=keyword,null": "agent=null",
    # A value that cannot be.
    "rank retriever.k1=-1": "k1=-1",
    "rank retriever.k1=much": "retriever.k1",
    "rank retriever.k1=null": "retriever.k1",
    "rank retriever.b=1.5": "b=1.5",
    "rank retriever.depth=0": "depth=0",
    "rank retriever=ql retriever.mu=-1": "mu=-1",
    "rank retriever=bm25_rm3 retriever.fb_docs=0": "fb_docs=0",
    "rank concurrency=null": "concurrency",
    "rank repeats=much": "repeats",
    "rank measures=[nDCG@ten]": "nDCG@ten",
    "rank measures=null": "measures",
    "rank name=../x": "../x",
    "rank -m name=x,y": "name=x,y",
    "rank engine.analyzer=klingon": "klingon",
    "rank engine.analyzer=english:5": "n-grams",
    "rank unit=passage unit.max_tokens=0": "max_tokens",
    "rank unit=passage unit.splitter=x": "splitter",
    f"rank {FEEDBACK} enrichment.weight=-0.1": "weight",
    f"rank {FEEDBACK} enrichment.query_filter.tau=0": "tau",
    f"rank {FEEDBACK} enrichment.query.phrases=0": "phrases",
    f"rank {FEEDBACK} +enrichment.query_filter.tua=1": "tua",
    "rank enrichment=feedback enrichment.sides=corpus retriever=ql": "enriched",
    "rank benchmark=beir": "benchmark.path",
    "rank benchmark=beir benchmark.path=/no/such/folder": "/no/such/folder",
    "rank benchmark=beir benchmark.path={world} benchmark.split=train": "dev, test",
    "rank retriever=oracle retriever.tier=gold benchmark=beir benchmark.path={world}": "gold",
    "rank retriever=link_expansion benchmark=beir benchmark.path={world}": "link",
    "rank retriever=splade retriever.model=/nowhere": "/nowhere",
    "rank reranker=monot5 reranker.model=/nowhere": "/nowhere",
    "rank reranker=pointwise": "reranker_llm",
    "rank rewriter=q2q": "rewriter_llm",
    "run concurrency=0": "concurrency",
    "run tool.page=0": "page",
    "run agent.max_reads=-1": "max_reads",
    "run agent=pi_serini": "llm=",
    "run agent._target_=null": "_target_",
    "run judge=llm": "judge_llm",
    "run agent=pi_serini llm=openai_compatible": "llm.model",
    "run retriever.token=abc": "retriever.token",
    # Of other commands.
    "tune grid.k1=[]": "k1",
    "tune tuning.select=train": "train",
    "tune grid=sira enrichment=none": "enrichment",
    "enrich enrichment=none": "corpus",
    "evaluate runs/nothing": "runs/nothing",
    "compare runs/a": "two",
    "export runs/nothing format=trec out=x": "runs/nothing",
    "export runs/nothing format=xml out=x": "xml",
    "import nothing format=trec name=x": "trec",
    "replay runs/nothing": "runs/nothing",
    "judge": "run",
    "calibrate runs/nothing out=x.json": "runs/nothing",
    "lint nothing": "nothing",
    "serve port=99999": "port=99999",
    "serve host=0.0.0.0": "SOUNDINGLINE_TOKEN",
    "serve prot=1": "port",
}
_SMALL = "benchmark.documents=64 benchmark.questions=6"


def test_bad_commands_end_with_a_line_that_names_what_is_wrong(workplace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    endings = {}
    for line, named in BAD.items():
        command, _, text = line.partition(" ")
        small = "" if "benchmark=" in text or command in OF_FOLDERS else _SMALL
        words = [*text.format(world=store.DATA / "world").split(), *small.split()]
        ended = product.command(command, *words)
        lines = [each for each in ended.err.splitlines() if each.strip()]
        told = "names it" if any(named in each for each in lines) else f"lacks {named!r}: {lines}"
        trace = "a traceback" if "Traceback" in ended.err else f"{len(lines)} lines"
        endings[line] = f"exit code {ended.code}, {trace}, {told}"
    assert not list(tmp_path.glob("runs/**/metrics.json")), "a bad command left a run"
    check("bad_commands", endings, workplace.places)


OF_FOLDERS = (
    *("evaluate", "compare", "export", "import", "replay", "judge", "calibrate"),
    *("lint", "serve"),
)
