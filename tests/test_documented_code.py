"""The code blocks of the README and of the pages in docs/ run in their order."""

from __future__ import annotations

import inspect
import runpy
import sys
from pathlib import Path

import pytest
from documented_commands import block_commands, code_blocks
from entry_points import run_entry

from soundingline.toolkit.runs import RunFolder

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
    """An empty working folder, whose modules are importable and are forgotten afterwards."""
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
    """In its order: files are written where they say, tests and other code run, and commands of
    `docs/extending.md` end well (those of the README: `test_readme.py`)."""
    names = {}
    blocks = code_blocks((ROOT / page).read_text(encoding="utf-8"))
    assert any(block.language == "python" for block in blocks)
    for block in blocks:
        if block.file:
            path = working / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.content, encoding="utf-8")
            if path.name.startswith("test_"):
                run_tests(path)
        elif block.language == "python":
            exec(compile(block.content, f"{page}:{block.line}", "exec"), names)
        elif page == "docs/extending.md":
            run_commands(block)


def run_tests(path):
    """Call the test functions of a file as pytest does, with `tmp_path` where they ask for it."""
    functions = runpy.run_path(str(path))
    tests = [name for name in functions if name.startswith("test_")]
    assert tests
    for name in tests:
        folder = path.parent / f"of_{name}"
        folder.mkdir()
        wanted = inspect.signature(functions[name]).parameters
        functions[name](**({"tmp_path": folder} if "tmp_path" in wanted else {}))


def run_commands(block):
    for command, arguments in block_commands(block):
        generated = not any(item.startswith("benchmark=") for item in arguments)
        assert run_entry(command, *arguments, *(SMALL if generated else ())) == 0, arguments
        (name,) = (item for item in arguments if item.startswith("name="))
        cells = 1 + max(item.count(",") for item in arguments)
        reports = sorted(Path("runs", name.partition("=")[2]).rglob("metrics.json"))
        assert len(reports) == cells, arguments
        for report in reports:
            assert not RunFolder(report.parent).failures(), arguments
