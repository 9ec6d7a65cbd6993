"""`python -m experiments.scan PATHS benchmark=...`: texts of a sealed benchmark in plain text.

Looks for its questions, its answers and stretches of its documents in files, in the members of
archives and in the whole history of git repositories. Exit code 1 where any is found.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

from experiments.build import make
from experiments.collection import CLEAR
from experiments.entry import CommandParser, run_command
from experiments.settings import Settings
from toolkit.console import Console
from toolkit.contracts import Benchmark
from toolkit.errors import InputError
from toolkit.leaks import Finding, Shingles, contents
from toolkit.leaks.shingles import FEWEST, SURE

LEAKS = 1
_SHOWN = 5  # texts that are named of one content


def scan(
    settings: Settings,
    paths: Sequence[str],
    *,
    documents: bool = True,
    history: bool = True,
) -> None:
    """Tell each content that holds a text of the benchmark; leave with 1 where there is one."""
    if not paths:
        raise InputError("no path was named", do="python -m experiments.scan PATH benchmark=...")
    benchmark: Benchmark = make(settings.config.benchmark)
    shingles = Shingles(benchmark, documents=documents)
    console, notes = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)
    began, size, count, leaking = time.monotonic(), 0, 0, 0
    for name, content in contents(paths, skip=[CLEAR], history=history):
        if content is None:
            notes.print(f"not read: {name}", highlight=False)
            continue
        size, count = size + len(content), count + 1
        if findings := shingles.findings(content):
            leaking += 1
            console.print(f"{name}: {described(findings)}", highlight=False)
    seconds = time.monotonic() - began
    notes.print(
        f"{leaking} of {count} contents hold texts of {benchmark.name} ({size / 1e6:.1f} MB, "
        f"{size / 1e6 / max(seconds, 1e-9):.0f} MB/s). Surely found: every {SURE} words of a "
        f"document; not sought: {shingles.unsought} texts that are too short (answers of fewer "
        f"than {FEWEST} words)",
        highlight=False,
    )
    if leaking:
        sys.exit(LEAKS)


def described(findings: Sequence[Finding]) -> str:
    """What a content holds, without the texts: `line 3 question 17; ... and 2 documents more`."""
    parts = [f"line {line} {kind} {name}" for kind, name, line in findings[:_SHOWN]]
    more = Counter(finding.kind for finding in findings[_SHOWN:])
    if more:
        counts = ", ".join(f"{number} {kind}s" for kind, number in sorted(more.items()))
        parts.append(f"and {counts} more")
    return "; ".join(parts)


PARSER = CommandParser(__doc__, "PATH")
PARSER.add_argument(
    "--no-documents",
    action="store_false",
    dest="documents",
    help="questions and answers alone: the corpus need not be read",
)
PARSER.add_argument(
    "--no-history",
    action="store_false",
    dest="history",
    help="files alone, and nothing that git stores",
)

if __name__ == "__main__":
    run_command(scan, PARSER)
