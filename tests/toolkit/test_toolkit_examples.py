"""The examples in docstrings, and those of the pages on data and on agents."""

import doctest
import importlib
from pathlib import Path

import pytest
from support.benchmarks import WordBackend, store_of
from support.documents import code_blocks

from soundingline.toolkit.data import Document
from soundingline.toolkit.search import RankedBrowsing, TopK

DOCS = Path(__file__).resolve().parents[2] / "docs"
MODULES = (
    *("errors", "obfuscation", "redaction", "tokens", "corpus.store", "corpus.resolve"),
    *("runs.run_folder", "search.answers"),
    *("evaluation.answers", "evaluation.evaluation", "evaluation.grid", "evaluation.statistics"),
    *("report.measures", "report.page", "report.results", "report.traces"),
)


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_are_true(module):
    result = doctest.testmod(importlib.import_module(f"soundingline.toolkit.{module}"))
    assert result.attempted and not result.failed


def test_the_example_of_a_world_prints_what_its_comments_say(capsys):
    blocks = code_blocks((DOCS / "data.md").read_text("utf-8"))
    (block,) = (block for block in blocks if block.language == "python")
    exec(compile(block.content, "data.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "['Baridoll Water']\n{'fw0001449': 1}\n" in printed
    assert "title='Kruvy Keipuveth'" in printed


def test_the_documented_pages_are_what_the_tools_show():
    texts = {f"d{n}": f"king number {n}\nsecond line\nthird line" for n in range(1, 13)}
    documents = {docid: Document(docid, f"Title of {docid}", text) for docid, text in texts.items()}
    backend, store = WordBackend(texts), store_of(documents)
    browsing = RankedBrowsing(page=2).open(backend, store)
    calls = [
        ("search", {"query": "king 1"}),
        ("read_document", {"docid": "d3", "limit": 2}),
        ("read_search_results", {"search_id": "s9"}),
    ]
    outputs = [browsing.call(name, {"reason": "", **arguments}).text for name, arguments in calls]
    top = TopK(k=1, max_tokens=9).open(backend, store)
    outputs.append(top.call("search", {"query": "king 1"}).text)
    blocks = code_blocks((DOCS / "agents.md").read_text("utf-8"))
    shown = {block.content.rstrip("\n") for block in blocks}
    assert not [output for output in outputs if output not in shown]
