"""The code blocks of the README and of the pages in docs/ run in their order."""

from __future__ import annotations

import ast
import asyncio
import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest
from support.commands import run_entry
from support.documents import block_commands, code_blocks
from support.search import WordBackend, store_of

from soundingline.pipelines import BM25, LexicalIndex
from soundingline.toolkit.data import Topic, Unit
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.search import TopK

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "README.md",
    *(f"docs/{name}.md" for name in ("quickstart", "pipelines", "models", "extending")),
]
# Of a generated world that is as small as it gets.
SMALL = [
    f"benchmark.{key}={value}"
    for key, value in {
        "documents": 64,
        "questions": 4,
        "hops": 1,
        "median_words": 60,
        "p90_words": 200,
    }.items()
]


@pytest.fixture
def working(tmp_path, monkeypatch):
    """A folder with `my-data`, whose modules are importable and are forgotten afterwards."""
    data = tmp_path / "my-data"
    data.mkdir()
    (data / "documents.tsv").write_text("d1\tan old mill\nd2\tby the sea\n")
    (data / "questions.tsv").write_text("q1\told mills\nq2\tsea\n")
    (data / "qrels.txt").write_text("q1 0 d1 1\nq2 0 d2 1\nq2 0 d9 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    sys.modules.pop("my_package", None)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page, working):
    """In its order: files are written where they say, other code runs, and so do the commands of
    `docs/extending.md` (those of the README: `test_readme.py`)."""
    names = {}
    blocks = code_blocks((ROOT / page).read_text(encoding="utf-8"))
    assert any(block.language == "python" for block in blocks)
    for block in blocks:
        if block.file:
            path = working / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.content, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.content, f"{page}:{block.line}", "exec"), names)
        elif page == "docs/extending.md":
            run_commands(block)


RUNS = {"experiment=mine": 6}  # of a command that names no values of a sweep


def run_commands(block):
    for command, arguments in block_commands(block):
        generated = not any(item.startswith("benchmark=") for item in arguments)
        assert run_entry(command, *arguments, *(SMALL if generated else ())) == 0, arguments
        (name,) = (item for item in arguments if item.startswith(("name=", "experiment=")))
        expected = RUNS.get(name, 1 + max(item.count(",") for item in arguments))
        reports = sorted(Path("runs", name.partition("=")[2]).rglob("metrics.json"))
        assert len(reports) == expected, arguments
        for report in reports:
            assert not RunFolder(report.parent).failures(), arguments


# What the parts on docs/extending.md do, besides running in their commands.


@pytest.fixture
def part(working):
    """A function that imports a module of `docs/extending.md` by its name in `my_package`."""
    for block in code_blocks((ROOT / "docs/extending.md").read_text(encoding="utf-8")):
        if block.file.startswith("my_package/"):
            path = working / block.file
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.content, encoding="utf-8")
    return lambda name: importlib.import_module(f"my_package.{name}")


def test_the_reranker_orders_the_first_results_by_shared_words(part, tmp_path):
    texts = {"d1": "mill mill mill", "d2": "the old mill", "d3": "mill of old"}
    rows = [{"docno": docno, "text": text} for docno, text in texts.items()]
    index = LexicalIndex.build(rows, tmp_path / "index")
    ranking = (index.bm25() >> part("overlap").Overlap(depth=3)).search("the old mill")
    assert ranking["docno"].tolist() == ["d2", "d3", "d1"]


def test_the_engine_ranks_units_by_their_terms(part, tmp_path):
    units = [Unit("d1", "", "an old mill"), Unit("d2", "", "mill by mill"), Unit("d3", "", "sea")]
    engine = part("counting").CountingEngine()
    engine.build(units, tmp_path / "index", corpus_fingerprint="c")
    index = engine.open(tmp_path / "index", corpus_fingerprint="c")
    assert BM25(index=index).search("mills")["docno"].tolist() == ["d2", "d1"]
    assert (len(index), index.document_frequency("mill")) == (3, 2)


def test_the_tool_shows_the_first_hits_and_records_them_as_previewed(part):
    texts = {f"d{number}": "the old mill" for number in range(5)}
    tool = part("find").Find(shown=2).open(WordBackend(texts), store_of(texts))
    result = tool.call("find", {"query": "mill"})
    assert len(result.page.hits) == 2 and not result.failed
    assert list(tool.exposures.tiers["previewed"]) == list(result.page.shown)
    assert tool.call("find", {}).failed


def test_the_benchmark_reads_questions_judgements_and_documents(part):
    tabbed = part("tabbed").TabbedBenchmark
    benchmark = tabbed("my-data")
    assert [topic.text for topic in benchmark.topics] == ["old mills", "sea"]
    docids = {document.docid for document in benchmark.documents()}
    assert benchmark.unknown_judged(docids) == [("q2", "d9")]
    assert tabbed("my-data", limit=1).corpus_fingerprint == benchmark.corpus_fingerprint


def test_the_agent_cites_the_first_hit(part):
    texts = {"d1": "the old mill", "d2": "the sea"}
    tool = TopK().open(WordBackend(texts), store_of(texts))
    agent = part("one_search").OneSearch()
    trajectory = asyncio.run(agent.run(Topic("q", "old mill"), tool))
    assert trajectory.status == "completed" and list(trajectory.tiers["cited"]) == ["d1"]


EXAMPLES = {
    "ablation": lambda names: (
        [run.counts["failed"] for run in names["runs"]] == [0, 0, 0]
        and list(names["table"].columns) == ["accuracy", "recall_opened"]
        and {len(values) for values in names["opened"].values()} == {12}
    ),
    # By hand: BM25 ranks the shorter text first for one of the two questions.
    "reranker": lambda names: names["table"]["RR"].tolist() == [0.75, 1.0],
    "agent": lambda names: (
        [run.counts["failed"] for run in names["runs"]] == [0, 0, 0]
        and names["runs"][2].metrics["recall_opened"] >= names["runs"][1].metrics["recall_opened"]
        and names["runs"][1].metrics["search_calls"] == 1
    ),
    "served": lambda names: (
        {"search", "question", "submit_answer"} <= set(names["tools"])
        and names["statuses"] == {"q0001": "completed"}
        and names["page"].startswith("[search_id=")
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_is_short(name, working):
    path = ROOT / "docs/examples" / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    assert EXAMPLES[name](runpy.run_path(str(path), run_name="__main__"))


def test_every_example_is_tested_and_linked():
    names = {path.stem for path in (ROOT / "docs/examples").glob("*.py")}
    page = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    assert names == set(EXAMPLES) == set(re.findall(r"\(examples/(\w+)\.py\)", page))


@pytest.mark.slow
def test_the_quickstart_runs_as_a_notebook(working):
    """In a Jupyter kernel, where its last expressions are shown as tables."""
    reason = "jupytext, nbclient and ipykernel are in the extra docs"
    jupytext = pytest.importorskip("jupytext", reason=reason)
    nbclient = pytest.importorskip("nbclient", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    notebook = jupytext.read(ROOT / "docs/quickstart.md")
    blocks = code_blocks((ROOT / "docs/quickstart.md").read_text(encoding="utf-8"))
    nbclient.NotebookClient(notebook, kernel_name="python3").execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.source for cell in cells] == [
        block.content.strip() for block in blocks if block.language == "python"
    ]
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("<table" in output.get("data", {}).get("text/html", "") for output in outputs)
    assert not [output for output in outputs if output.get("name") == "stdout"]


def test_a_class_and_an_option_take_about_twenty_lines():
    for block in code_blocks((ROOT / "docs/extending.md").read_text(encoding="utf-8")):
        if block.file.endswith(".yaml"):
            assert len(block.content.splitlines()) <= 20, block.file
        elif block.file.startswith("my_package/"):
            for node in ast.parse(block.content).body:
                if isinstance(node, ast.ClassDef):
                    assert node.end_lineno - node.lineno < 22, node.name
