"""Small benchmarks: documents in memory, a backend that searches them, a sealed benchmark as
published, a home of ir_datasets."""

import base64
import gzip
import hashlib
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import (
    Document,
    Hit,
    SearchResult,
    Unit,
    parent,
)


class SmallBenchmark(Benchmark):
    def __init__(self, topics, qrels=None, answers=None, docids=(), **options):
        super().__init__("small", topics, {"evidence": {}, **(qrels or {})}, answers, **options)
        self.docids = docids

    def read_documents(self):
        return (Document(docid, "", "") for docid in self.docids)


CANARY = "tests' own canary: no benchmark was ever sealed with it"
VARIABLE = "SOUNDINGLINE_CANARY"

TOWNS = ("Brel", "Ostvik", "Mardun", "Calloway", "Pirrin", "Zeltham")
QUESTIONS = {
    str(number): f"Which retired lighthouse keeper carved the {number} oak benches that stand"
    f" beside the harbour church of {town}, the town whose tide mill burned down twice?"
    for number, town in enumerate(TOWNS, start=11)
}
ANSWERS = {
    qid: f"Anselm Kordway of {town} Lower Quay" for qid, town in zip(QUESTIONS, TOWNS, strict=True)
}
EVIDENCE = {qid: [f"{qid}01", f"{qid}02"] for qid in QUESTIONS}
DOCUMENTS = {
    **{
        f"{qid}01": f"The tide mill of {town} burned down twice before the council rebuilt it in"
        f" slate.\nIts harbour church keeps a register of every bench carved for the parish."
        for qid, town in zip(QUESTIONS, TOWNS, strict=True)
    },
    **{
        f"{qid}02": f"{ANSWERS[qid]} was a lighthouse keeper who retired early.\nHe carved oak"
        f" benches for the harbour church of {town} and signed none of them."
        for qid, town in zip(QUESTIONS, TOWNS, strict=True)
    },
    **{
        f"x-{number}": f"Filler page {number} describes a harvest of plums, ferries and the weather"
        f" over the northern moor in some detail."
        for number in range(12)
    },
}
SENTENCES = [line for text in DOCUMENTS.values() for line in text.split("\n")]
# Of a sentence too: a page may break it into lines or cut it.
TEXTS = [*QUESTIONS.values(), *ANSWERS.values(), *SENTENCES, CANARY]
TEXTS += [" ".join(text.split()[:5]) for text in TEXTS] + [text[-30:] for text in TEXTS]


def leaks(*folders):
    """Every file at or below the paths that holds a text of the benchmark, and the text."""
    for folder in folders:
        for path in (Path(folder), *Path(folder).rglob("*")):
            content = path.read_bytes() if path.is_file() else b""
            for text in TEXTS:
                if text.encode() in content or json.dumps(text)[1:-1].encode() in content:
                    yield str(path), text


def obfuscated(text, canary=CANARY):
    """The published scheme, written down again: base64 of the UTF-8 bytes XOR SHA-256(canary)."""
    key = hashlib.sha256(canary.encode()).digest()
    mixed = bytes(byte ^ mask for byte, mask in zip(text.encode(), cycle(key), strict=False))
    return base64.b64encode(mixed).decode()


def plain_row(qid):
    """A row of the questions as it is before it is obfuscated."""
    documents = [{"docid": d, "text": DOCUMENTS[d], "url": f"http://{d}"} for d in EVIDENCE[qid]]
    return {
        "query_id": qid,
        "query": QUESTIONS[qid],
        "answer": ANSWERS[qid],
        "evidence_docs": documents,
        "gold_docs": documents[1:],
        "negative_docs": [{"docid": "x-1", "text": DOCUMENTS["x-1"], "url": ""}],
    }


def sealed_row(row, canary=CANARY):
    """The row as it is published: all strings but `query_id` obfuscated."""

    def turn(value):
        if isinstance(value, str):
            return obfuscated(value, canary)
        if isinstance(value, list):
            return [turn(item) for item in value]
        return {k: turn(v) for k, v in value.items()} if isinstance(value, dict) else value

    return {key: value if key == "query_id" else turn(value) for key, value in row.items()}


def write_parquet(path, rows):
    """Rows with the published columns."""
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    text = pyarrow.string()
    document = pyarrow.struct([("docid", text), ("text", text), ("url", text)])
    lists = pyarrow.list_(document)
    fields = {name: lists if name.endswith("_docs") else text for name in rows[0]}
    parquet.write_table(pyarrow.Table.from_pylist(rows, pyarrow.schema(list(fields.items()))), path)
    return path


def write_jsonl(path, rows):
    """Rows as JSON lines, compressed if the name ends with `.gz`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_benchmark(folder):
    """Questions and corpus as Parquet below `folder`; the overrides that choose them."""
    rows = [sealed_row(plain_row(qid)) for qid in QUESTIONS]
    corpus = [{"docid": d, "text": text, "url": f"http://{d}"} for d, text in DOCUMENTS.items()]
    questions = write_parquet(folder / "questions" / "test-00000.parquet", rows)
    documents = write_parquet(folder / "corpus" / "train-00000.parquet", corpus)
    return (
        "benchmark=browsecomp_plus",
        f"benchmark.questions={questions.parent}",
        f"benchmark.corpus={documents.parent}",
    )


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


class WordBackend:
    """Ranks texts by the number of distinct query words that they contain, then by their order."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._words = {unit_id: _words(text) for unit_id, text in texts.items()}

    def search(self, request):
        query = _words(request.query)
        scores = {unit_id: len(query & words) for unit_id, words in self._words.items()}
        ranked = sorted((item for item in scores.items() if item[1]), key=lambda item: -item[1])
        rows = enumerate(ranked[: request.depth], start=1)
        return SearchResult([Hit(parent(u), u, rank, float(score)) for rank, (u, score) in rows])


def _words(text):
    return set(re.findall(r"\w+", text.casefold()))


def store_of(documents, passages=None):
    """A store of texts or documents by docid, and of any passages by unit id."""
    store = SqliteStore.in_memory(
        Document(docid, "", each) if isinstance(each, str) else each
        for docid, each in documents.items()
    )
    return store if passages is None else _WithPassages(store, passages)


class _WithPassages:
    def __init__(self, store: SqliteStore, passages: Mapping[str, str]) -> None:
        self._store, self._passages = store, passages

    def documents(self):
        return self._store.documents()

    def document(self, docid):
        return self._store.document(docid)

    def lines(self, docid, offset=1, limit=200):
        return self._store.lines(docid, offset, limit)

    def texts(self, unit_ids):
        return [self._unit(unit_id) for unit_id in unit_ids]

    def _unit(self, unit_id):
        document = self._store.document(parent(unit_id))
        whole = parent(unit_id) == unit_id
        return Unit(unit_id, document.title, document.text if whole else self._passages[unit_id])


# The smallest fictional world, and the files of a small BEIR folder.

SMALL_WORLD = (
    "benchmark.documents=64",
    "benchmark.questions=6",
    "benchmark.hops=1",
    "benchmark.median_words=60",
    "benchmark.p90_words=200",
    "preflight.check=false",  # tests/experiments/preflight is about it
)
TINY = ("benchmark=fictional", *SMALL_WORLD)


def write_beir(path, **files):
    """A BEIR folder of the given files; `qrels` is the test split."""
    (path / "qrels").mkdir(parents=True)
    for name, text in files.items():
        place = path / "qrels" / "test.tsv" if name == "qrels" else path / f"{name}.jsonl"
        place.write_text(text, encoding="utf-8")
    return path


CORPUS = """\
{"_id": "d1", "title": "Tides", "text": "The tide at Brel rises nine metres in March."}
{"_id": "d2", "title": "Brel", "text": "Brel is a harbour town. Its mayor is Anna Kow."}
{"_id": "d3", "title": "", "text": "Nothing about harbours."}
"""
QUERIES = """\
{"_id": "../../x", "text": "Who is the mayor of Brel?", "answers": ["Anna Kow"]}
{"_id": "q2", "text": "How high does the tide rise at Brel?", "answers": ["nine metres"]}
"""
QRELS = "query-id\tcorpus-id\tscore\n../../x\td2\t1\nq2\td1\t1\nq2\tgone\t1\n"
