"""A benchmark in memory: questions with judgements and answers, over documents without text."""

from __future__ import annotations

from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.data import Document


class SmallBenchmark(Benchmark):
    def __init__(self, topics, qrels=None, answers=None, docids=(), **options):
        super().__init__("small", topics, {"evidence": {}, **(qrels or {})}, answers, **options)
        self.docids = docids

    def read_documents(self):
        return (Document(docid, "", "") for docid in self.docids)
