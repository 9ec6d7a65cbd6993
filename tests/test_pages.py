"""The pages of docs/: what is linked exists, the README maps all, and they are short."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("agents", "conf", "experiments", "pipelines", "toolkit", "tests")
LINK = re.compile(r"\]\(([\w./-]+)(?:#[\w-]*)?\)")
PATH = re.compile(r"\bdocs/[\w-]+\.\w+")
TABLES = re.compile(r"<!-- bench:.*?<!-- /bench:[\w-]+ -->", re.DOTALL)  # of tests/bench
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def linked(path):
    """The files that a text names: as paths in docs/, and a page also as links."""
    text = path.read_text(encoding="utf-8")
    yield from (ROOT / name for name in PATH.findall(text))
    if path.suffix == ".md":
        yield from ((path.parent / name).resolve() for name in LINK.findall(text))


def test_every_page_that_a_text_names_exists():
    texts = [ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    for package in PACKAGES:
        for kind in ("py", "yaml", "sh"):
            texts += (ROOT / package).rglob(f"*.{kind}")
    missing = [f"{path}: {page}" for path in texts for page in linked(path) if not page.exists()]
    assert not missing


def test_the_readme_maps_all_pages():
    assert set((ROOT / "docs").glob("*.md")) == {
        page for page in linked(ROOT / "README.md") if page.suffix == ".md"
    }


def test_pages_are_few_and_their_lines_fit_a_screen():
    pages = list((ROOT / "docs").glob("*.md"))
    assert len(pages) <= 12
    texts = {page.name: TABLES.sub("", page.read_text(encoding="utf-8")) for page in pages}
    assert sum(len(text.splitlines()) for text in texts.values()) <= 2834
    for name, text in texts.items():
        lines = FENCE.sub("", text).splitlines()
        wide = [line for line in lines if len(line) > 115 and not line.startswith("|")]
        assert not wide, name
