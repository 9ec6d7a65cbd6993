"""A folder of ir_datasets (`IR_DATASETS_HOME`) with small downloads in their original formats."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

HARBOUR = ["the tide at brel rises nine metres", "brel is a harbour town", "an old mill"]


def prepare_vaswani(home: Path, texts: Sequence[str] = HARBOUR) -> Path:
    """The NPL collection's archive: text n is document n, and question n asks for its words."""
    rows = list(enumerate(texts, start=1))
    parts = {
        "doc-text": "".join(f"{n}\n{text}\n   /\n" for n, text in rows),
        "query-text": "".join(f"{n}\n{text.upper()}\n/\n" for n, text in rows),
        "rlv-ass": "".join(f"{n}\n  {n}\n   /\n" for n, _ in rows),
    }
    archive = home / "vaswani" / "npl.tar.gz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return home


def prepare_scifact(home: Path, texts: Sequence[str] = HARBOUR) -> Path:
    """BEIR's archive of scifact: document dn has the title Tn; question n is judged in the split
    `train` where n is odd, else in `test`."""
    rows = list(enumerate(texts, start=1))
    header = "query-id\tcorpus-id\tscore\n"
    files = {
        "corpus.jsonl": [{"_id": f"d{n}", "title": f"T{n}", "text": text} for n, text in rows],
        "queries.jsonl": [{"_id": str(n), "text": text} for n, text in rows],
    }
    archive = home / "beir" / "scifact" / "source.zip"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w") as target:
        for name, records in files.items():
            lines = "".join(f"{json.dumps({**row, 'metadata': {}})}\n" for row in records)
            target.writestr(f"scifact/{name}", lines)
        for split, remainder in (("train", 1), ("test", 0)):
            judged = "".join(f"{n}\td{n}\t1\n" for n, _ in rows if n % 2 == remainder)
            target.writestr(f"scifact/qrels/{split}.tsv", header + judged)
    return home
