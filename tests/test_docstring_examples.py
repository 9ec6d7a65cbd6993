"""The examples in the docstrings of public classes: each class has one, and doctest runs it.

In an example, `index` is a small `LexicalIndex`, `queries` a frame of one query, and `tool` an
opened `RankedBrowsing` over `backend` and `store`, whose documents answer `topic`.
"""

from __future__ import annotations

import asyncio
import doctest
import importlib
import inspect
import re
import sys

import pandas as pd
import pyterrier as pt
import pytest

from soundingline import agents, experiments, pipelines, toolkit
from soundingline.pipelines.enrich.df_filter import DfFilter
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.llm.prices import Price

ROOMS = [importlib.import_module(f"soundingline.toolkit.{room}") for room in toolkit.__all__]
PACKAGES = [pipelines, agents, experiments, *ROOMS]
NAMES = {
    name: getattr(package, name) for package in PACKAGES for name in getattr(package, "__all__", ())
}
CLASSES = {name: each for name, each in NAMES.items() if inspect.isclass(each)}
CLASSES |= {each.__name__: each for each in (DfFilter, LexicalEngine, Price)}  # of options
DOCUMENTS = [
    Document("d1", "Mill", "The old mill stands by the river.\nIt was built in 1820."),
    Document("d2", "Harbour", "Ships leave the harbour by the river."),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """What an example may use."""
    rows = [
        {"docno": f"{each.docid}%p{number}", "title": each.title, "text": text}
        for each in DOCUMENTS
        for number, text in enumerate(each.text.split("\n"))
    ]
    index = NAMES["LexicalIndex"].build(rows, tmp_path_factory.mktemp("examples") / "index")
    pipe = index.bm25() >> NAMES["MaxP"]()
    return {
        **NAMES,
        "asyncio": asyncio,
        "pt": pt,
        "index": index,
        "queries": pd.DataFrame({"qid": ["1"], "query": ["old mill"]}),
        "backend": NAMES["PipelineBackend"](pipe),
        "store": NAMES["SqliteStore"].in_memory(DOCUMENTS),
        "topic": Topic("q1", "In which year was the old mill built?"),
    }


@pytest.mark.parametrize("name", CLASSES)
def test_the_example_of_a_public_class_is_true(name, shared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind = CLASSES[name]
    assert re.search(r"^Examples?:\n +>>> ", inspect.getdoc(kind) or "", re.MULTILINE), name
    tool = NAMES["RankedBrowsing"]().open(shared["backend"], shared["store"])
    globs = {**vars(sys.modules[kind.__module__]), **shared, "tool": tool}
    (found,) = doctest.DocTestFinder(recurse=False).find(kind, name, globs=globs)
    assert any(doctest.SKIP not in example.options for example in found.examples)
    written = []
    done = doctest.DocTestRunner(verbose=False).run(found, out=written.append)
    assert not done.failed, "".join(written)
