"""The examples in docstrings, and those of the pages on stores and on the search tool."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
MODULES = (
    *("errors", "obfuscation", "redaction", "tokens", "corpus.store", "corpus.resolve"),
    *("runs.run_folder", "search.answers"),
)


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_are_true(module):
    result = doctest.testmod(importlib.import_module(f"soundingline.toolkit.{module}"))
    assert result.attempted and not result.failed


@pytest.mark.parametrize(
    ("page", "output"),
    [("collections.md", "unit_id='d1%p1'"), ("search-tool.md", "1. docid=d1 score=2.0000")],
)
def test_the_example_of_a_page_runs(page, output, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "SqliteStore" in block)
    exec(compile(code, page, "exec"), {})
    assert output in capsys.readouterr().out
