"""`python -m soundingline.experiments.bench.sentences FOLDER`: how far sentences by rules agree
with those of spaCy's `en_core_web_sm`, over the documents of a BEIR folder.

A boundary is where a sentence begins, but for the first of a text. A line break ends a sentence for
both splitters, so that boundaries within lines, where they can differ, are counted by themselves.
Argument: `--documents`, the first ones (default: 1000000, which are all of a small collection).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from soundingline.experiments.bench.harness import Arguments, Section, Table, report, run
from soundingline.toolkit.console import track
from soundingline.toolkit.corpus.sentences import (
    Spans,
    Splitter,
    rule_spans,
    spacy_spans,
    spacy_version,
)
from soundingline.toolkit.errors import InputError


class Agreement(NamedTuple):
    """Counts over texts: `ours`, `theirs` and those of `both`."""

    ours: int = 0
    theirs: int = 0
    both: int = 0

    def plus(self, ours: set[int], theirs: set[int]) -> Agreement:
        """With those of one more text."""
        return Agreement(
            self.ours + len(ours), self.theirs + len(theirs), self.both + len(ours & theirs)
        )

    def row(self, name: str) -> list[str]:
        """As a row of the table, with the F1 of either splitter against the other."""
        total = self.ours + self.theirs
        shares = [
            f"{self.both / self.ours:.3f}" if self.ours else "—",
            f"{self.both / self.theirs:.3f}" if self.theirs else "—",
            f"{2 * self.both / total:.3f}" if total else "—",
        ]
        return [name, *(f"{count:,}" for count in self), *shares]


def boundaries(spans: Spans) -> set[int]:
    """Where sentences begin, but for the first."""
    return {begin for begin, _ in spans[1:]}


def within_lines(text: str, positions: set[int]) -> set[int]:
    """Those positions that something visible stands before on the same line."""
    return {
        position
        for position in positions
        if text[text.rfind("\n", 0, position) + 1 : position].strip()
    }


def compare(texts: Sequence[str], first: Splitter, second: Splitter) -> dict[str, Agreement]:
    """Boundaries of `first` (ours) and `second` (theirs): all, and those within lines."""
    everywhere, inside = Agreement(), Agreement()
    for text in track(texts, "Splitting", len(texts)):
        ours, theirs = boundaries(first(text)), boundaries(second(text))
        everywhere = everywhere.plus(ours, theirs)
        inside = inside.plus(within_lines(text, ours), within_lines(text, theirs))
    return {"all": everywhere, "within lines": inside}


def seconds(texts: Sequence[str], splitter: Splitter) -> float:
    """Those that a splitter takes for the texts."""
    start = time.perf_counter()
    for text in texts:
        splitter(text)
    return time.perf_counter() - start


def main(arguments: Sequence[str]) -> None:
    parser = Arguments("sentences", documents=(1_000_000, 1))
    parser.add_argument("folder", type=Path)
    options = parser.read(arguments)
    corpus = options.folder / "corpus.jsonl"
    if not corpus.is_file():
        raise InputError(f"there is no file {corpus}", do="name a BEIR folder")
    with corpus.open(encoding="utf-8") as stream:
        texts = [json.loads(line)["text"] for line in islice(stream, options.documents)]
    model = spacy_version()
    table = Table(
        ["boundaries", "by rules", "by spaCy", "by both", "of rules", "of spaCy", "F1"],
        [counts.row(name) for name, counts in compare(texts, rule_spans, spacy_spans).items()],
    )
    text = (
        f"{len(texts):,} documents of {options.folder.name}, {sum(map(len, texts)):,} characters; "
        f"{model}. The rules take {seconds(texts, rule_spans):.1f} s."
    )
    section = Section(
        "sentences",
        "Sentences by rules and by spaCy",
        parser.command(options, options.folder.name),
        [text, table],
        packages=("spacy",),
        limits="other collections or languages; neither splitter is right by definition",
    )
    report(section, write=options.write)


if __name__ == "__main__":
    run(main)
