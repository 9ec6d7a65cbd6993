"""The benchmark's corpus as a file, so that every engine reads the same bytes at the same cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.console import track
from soundingline.toolkit.data import Unit


def corpus_file(root: Path, documents: int, seed: int) -> Path:
    """`corpus.jsonl` of a fictional world, in a folder of its own below `root`; written if it is
    not there yet."""
    world = FictionalWorld(documents=documents, questions=1, seed=seed)
    path = root / f"fictional-{documents}-{world.corpus_fingerprint}" / "corpus.jsonl"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as stream:
        for document in track(world.documents(), "writing the corpus", documents):
            row = {"docno": document.docid, "title": document.title, "text": document.text}
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    partial.rename(path)
    return path


def units(path: Path) -> Iterator[Unit]:
    """The corpus as units, one a document."""
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            row = json.loads(line)
            yield Unit(row["docno"], row["title"], row["text"])
