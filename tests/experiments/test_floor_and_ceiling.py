"""The floor (no retrieval) and the ceiling (judged evidence) of a table, as whole runs."""

import json
from pathlib import Path

from experiment_samples import TINY

from soundingline.toolkit.runs import RunFolder

OPTIONS = Path(__file__).resolve().parent / "options"
MODEL = (f"hydra.searchpath=[file://{OPTIONS}]", "llm=scripted")
ANSWER = (
    "Explanation: I recall [fw0000001] and [99999, 7; sic], see [a link](http://x/1).\\n"
    "Exact Answer: nine metres\\nConfidence: 90%"
)


def metrics(run):
    return dict(json.loads(Path(f"runs/{run}/metrics.json").read_text()))


def test_closed_book_answers_without_tools_and_its_citations_are_invented(entry):
    says = f"llm.says='{ANSWER}'".replace("\\n", "\n")
    assert entry("run", *TINY, *MODEL, "name=floor", "agent=closed_book", says) == 0
    numbers = metrics("floor")
    assert numbers["completion"] == 1.0 and numbers["tool_calls"] == 0
    assert numbers["citations_invented"] == 3.0, "a document of the corpus was not shown either"
    assert numbers["citation_precision"] == 0.0 and numbers["recall_surfaced"] == 0.0
    (trajectory, *_) = RunFolder("runs/floor").trajectories()
    assert trajectory.answer.exact == "nine metres" and not trajectory.answer.citations
    assert len(trajectory.messages) == 2
    assert json.loads(Path("runs/floor/manifest.json").read_text())["factors"]["agent"] == (
        "closed_book"
    )


def test_a_run_without_tools_builds_no_index_and_asks_no_stage(entry):
    says = f"llm.says='{ANSWER}'".replace("\\n", "\n")
    stages = ("tool=literature", "scorer=chat", "rewriter=q2q", "reranker=pointwise")
    assert entry("run", *TINY, *MODEL, *stages, "name=floor", "agent=closed_book", says) == 0
    assert metrics("floor")["completion"] == 1.0 and metrics("floor")["tool_calls"] == 0
    folders = [path.name for path in Path("indexes").glob("*/*") if path.is_dir()]
    assert sorted(name.rpartition("-")[0] for name in folders) == ["document-spans", "documents"]
    assert not list(Path("caches").rglob("*.sqlite"))


def test_a_model_that_calls_tools_all_the_same_is_refused_and_ends(entry):
    # The scripted model searches unless it is told what to say or has one message alone.
    own = Path("own.txt")
    source = Path(__file__).resolve().parents[2] / "agents" / "prompts" / "closed_book.txt"
    own.write_text(source.read_text().replace("=== system ===\n", "=== system ===\nBe brief.\n"))
    prompt = f"agent.prompt={own.resolve()}"
    turns = "llm.turns=50"
    assert entry("run", *TINY, *MODEL, "name=stubborn", "agent=closed_book", prompt, turns) == 0
    for trajectory in RunFolder("runs/stubborn").trajectories():
        assert len(trajectory.calls) <= 3
        assert all(call.error == "blocked" for call in trajectory.calls)
    assert metrics("stubborn")["documents_exposed"] == 0


def test_the_oracle_is_above_every_retriever(entry):
    for unit in ("document", "passage", "maxp"):
        measured = [f"unit={unit}", "measures=[AP,R@100]"]
        assert entry("rank", *TINY, *measured, f"name=oracle-{unit}", "retriever=oracle") == 0
        assert metrics(f"oracle-{unit}")["AP"] == 1.0
    assert entry("run", *TINY, "name=ceiling", "retriever=oracle", "tool=top_k") == 0
    assert metrics("ceiling")["recall_previewed"] == 1.0


def test_the_oracle_goes_on_with_a_base(entry):
    base = ("retriever=oracle", "retriever@retriever.base=bm25_tuned")
    assert entry("run", *TINY, "name=b", *base) == 0
    assert metrics("b")["recall_surfaced"] == 1.0
    ranked = Path("runs/b/run.trec").read_text().splitlines()
    assert len(ranked) > 6 * 10
