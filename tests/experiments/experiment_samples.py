"""A small BEIR folder, and the smallest fictional world."""

TINY = (
    "benchmark.documents=64",
    "benchmark.questions=6",
    "benchmark.hops=1",
    "benchmark.median_words=60",
    "benchmark.p90_words=200",
)


def folder(path, **files):
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
