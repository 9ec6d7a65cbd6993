"""Writing the unit table: the spans that a segmenter cuts a stored corpus into."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from toolkit.contracts import Segmenter
from toolkit.corpus.database import within_limits, write_meta, written_once
from toolkit.corpus.store import SPAN, UNITS_KIND, UNITS_VERSION, SqliteStore
from toolkit.progress import track


def build_units(path: Path | str, store: SqliteStore, segmenter: Segmenter) -> int:
    """Cut every document of `store` and write the spans into the folder `path`, whole or not at
    all. Returns the number of units."""
    schema = "CREATE TABLE spans (number INTEGER PRIMARY KEY, spans BLOB NOT NULL)"
    label = f"Cutting into units ({segmenter.name})"
    documents = track(store.documents(), label, total=len(store))
    with written_once(Path(path), schema) as connection:
        total = 0
        for number, document in enumerate(documents, start=1):
            spans = segmenter.spans(document)
            blob = np.asarray(spans, dtype=SPAN).tobytes()
            with within_limits(f"the list of {len(spans):,} units of document {document.docid!r}"):
                connection.execute("INSERT INTO spans VALUES (?, ?)", (number, blob))
            total += len(spans)
        meta = {"kind": UNITS_KIND, "version": UNITS_VERSION, "units": total}
        meta["passages"] = int(_marks_passages(store, segmenter))
        fingerprints = {
            "corpus_fingerprint": store.corpus_fingerprint,
            "segmenter": segmenter.name,
            "segmenter_fingerprint": segmenter.fingerprint,
        }
        write_meta(connection, {**meta, **fingerprints})
    return total


def _marks_passages(store: SqliteStore, segmenter: Segmenter) -> bool:
    """Whether the segmenter's unit ids are passage ids; all are or none is."""
    first = next(store.documents())
    return next(segmenter.units(first)).unit_id != first.docid
