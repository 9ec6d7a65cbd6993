"""A folder of ir_datasets (`IR_DATASETS_HOME`) with small downloads in their original formats."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile

HARBOUR = ["the tide at brel rises nine metres", "brel is a harbour town", "an old mill"]


def prepare_vaswani(home, texts=HARBOUR):
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


def prepare_beir(home, name, splits, texts=HARBOUR):
    """BEIR's archive of a dataset: document dn has the title Tn, question n asks for its words, and
    the questions are judged in one split after the other."""
    rows = list(enumerate(texts, start=1))
    metadata = {"url": ""}
    files = {
        "corpus.jsonl": [{"_id": f"d{n}", "title": f"T{n}", "text": text} for n, text in rows],
        "queries.jsonl": [{"_id": str(n), "text": text} for n, text in rows],
    }
    archive = home / "beir" / name / "source.zip"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w") as target:
        for file, records in files.items():
            lines = [json.dumps({**row, "metadata": metadata}) for row in records]
            target.writestr(f"{name}/{file}", "\n".join(lines) + "\n")
        for number, split in enumerate(splits):
            judged = [f"{n}\td{n}\t1\n" for n, _ in rows[number :: len(splits)]]
            header = "query-id\tcorpus-id\tscore\n"
            target.writestr(f"{name}/qrels/{split}.tsv", header + "".join(judged))
    return home
