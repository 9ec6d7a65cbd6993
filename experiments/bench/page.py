"""The page of results, docs/benchmarks.md: one section a benchmark, replaced as a whole."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from experiments.bench.measure import machine
from toolkit.files import write_atomic

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
_PACKAGES = ("numba", "bm25s", "pyterrier-pisa")


def setup_text(command: str, packages: Sequence[str] = _PACKAGES, device: str = "") -> str:
    """How the numbers below were made: command, day, device (default: this machine), versions."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    today = datetime.date.today().isoformat()
    return f"`{command}`, {today}, {device or machine()}, {versions}."


def table_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_section(mark: str, title: str, paragraphs: Sequence[str], page: Path = PAGE) -> None:
    """Put the paragraphs between the markers `bench:<mark>`; a section that the page does not
    have yet goes to its end."""
    opening, closing = f"<!-- bench:{mark} -->", f"<!-- /bench:{mark} -->"
    text = page.read_text("utf-8") if page.exists() else "# Benchmarks\n"
    if opening not in text:
        text += f"\n## {title}\n\n{opening}\n{closing}\n"
    before, rest = text.split(opening, 1)
    after = rest.split(closing, 1)[1]
    section = "\n\n".join(paragraphs)
    write_atomic(page, f"{before}{opening}\n\n{section}\n\n{closing}{after}")
