"""The process that holds the Java virtual machine. Run as a file, never imported by the rest.

One JSON request a line on standard input, one JSON reply a line on standard output. A process of
its own, because a machine cannot be stopped, or started twice with other jars (PyTerrier may want
one too), and because what Java prints must not reach the user's output. It ends with its input.

Arguments: the jar, then options of the machine.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from typing import Any

FIELD = "contents"
# What Java leaves out when it writes a hit as JSON.
_UNREAD = {
    "io.anserini.search.ScoredDoc": ("lucene_document", "lucene_docid"),
    "org.apache.lucene.search.FieldDoc": ("doc", "score", "shardIndex"),
}


class Text(str):
    """A value that is JSON already."""


class Worker:
    """Answers requests; holds one index writer and one searcher at most."""

    def __init__(self, java: Callable[[str], Any], find: Callable[[str], Any]) -> None:
        self.java = java
        values = java("com.fasterxml.jackson.annotation.JsonIgnoreProperties$Value")
        # Java turns a whole batch of rankings into text: 60,000 hits in one call, not in 120,000.
        self.mapper = java("com.fasterxml.jackson.databind.ObjectMapper")()
        for class_name, properties in _UNREAD.items():
            ignored = java("java.util.HashSet")()
            for name in properties:
                ignored.add(name)
            override = self.mapper.configOverride(find(class_name))
            override.setIgnorals(values.forIgnoredProperties(ignored))

    def create(self, arguments: list[str]) -> bool:
        self.indexer = self.java("io.anserini.index.SimpleIndexer")(arguments)
        return True

    def add(self, documents: list[str]) -> int:
        return int(self.indexer.addRawDocuments(documents))

    def finish(self) -> bool:
        self.indexer.close(True)
        return True

    def open(self, path: str) -> int:
        self.searcher = self.java("io.anserini.search.SimpleSearcher")(path)
        paths = self.java("java.nio.file.Paths")
        directory = self.java("org.apache.lucene.store.FSDirectory").open(paths.get(path))
        self.reader = self.java("org.apache.lucene.index.DirectoryReader").open(directory)
        return int(self.reader.numDocs())

    def frequencies(self, terms: list[str]) -> list[int]:
        term = self.java("org.apache.lucene.index.Term")
        return [int(self.reader.docFreq(term(FIELD, name))) for name in terms]

    def search(self, queries: list[Any], depth: int, threads: int, model: dict[str, Any]) -> Text:
        """JSON of a dict: a query's place in the list -> its hits. The queries are all text, or
        all weights by index term. Places without a hit may be absent."""
        self._set(model)
        if queries and isinstance(queries[0], dict):
            rankings = [self.searcher.search(self._weighted(query), depth) for query in queries]
            rows = [f'"{n}": {self.mapper.writeValueAsString(h)}' for n, h in enumerate(rankings)]
            return Text("{" + ", ".join(rows) + "}")
        texts, numbers = self.java("java.util.ArrayList")(), self.java("java.util.ArrayList")()
        for number, query in enumerate(queries):
            texts.add(query)
            numbers.add(str(number))
        batch = self.searcher.batch_search(texts, numbers, depth, threads)
        return Text(self.mapper.writeValueAsString(batch))

    def lucene(
        self, queries: list[str], depth: int, model: dict[str, float]
    ) -> list[list[tuple[str, float]]]:
        """Rankings by Lucene's searcher itself, in the order of score and docid."""
        package = "org.apache.lucene.search."
        searcher = self.java(package + "IndexSearcher")(self.reader.getContext())
        name = "LMDirichletSimilarity" if "mu" in model else "BM25Similarity"
        searcher.setSimilarity(self.java(package + "similarities." + name)(*model.values()))
        analyzer = self.java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
        generator = self.java("io.anserini.search.query.BagOfWordsQueryGenerator")()
        order = self.java("io.anserini.search.SearchCollection").BREAK_SCORE_TIES_BY_DOCID
        rankings = []
        for query in queries:
            hits = searcher.search(generator.buildQuery(FIELD, analyzer, query), depth, order, True)
            written = json.loads(self.mapper.writeValueAsString(hits))
            fields = [hit["fields"] for hit in written["scoreDocs"]]
            rankings.append([(_docid(docid), score) for score, docid in fields])
        return rankings

    def _set(self, model: dict[str, Any]) -> None:
        if "mu" in model:
            self.searcher.set_qld(model["mu"])
        else:
            self.searcher.set_bm25(model["k1"], model["b"])
        if "rm3" in model:
            self.searcher.set_rm3(*model["rm3"])
        else:
            self.searcher.unset_rm3()

    def _weighted(self, query: dict[str, float]) -> Any:
        package = "org.apache.lucene.search."
        boolean = self.java(package + "BooleanQuery$Builder")()
        should = self.java(package + "BooleanClause$Occur").SHOULD
        term = self.java("org.apache.lucene.index.Term")
        for name, weight in query.items():
            one = self.java(package + "TermQuery")(term(FIELD, name))
            boolean.add(self.java(package + "BoostQuery")(one, weight), should)
        return boolean.build()


def _docid(value: dict[str, Any]) -> str:
    """The text of Lucene's `BytesRef`: a part of a buffer, which is in base64."""
    start = value["offset"]
    return base64.b64decode(value["bytes"])[start : start + value["length"]].decode()


def serve(replies: int) -> None:
    import jnius_config  # type: ignore[import-not-found, import-untyped]

    jnius_config.set_classpath(sys.argv[1])
    jnius_config.add_options(*sys.argv[2:])
    from jnius import autoclass, find_javaclass  # type: ignore[import-not-found, import-untyped]

    worker = Worker(autoclass, find_javaclass)
    with os.fdopen(replies, "w", encoding="utf-8") as out:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                value = getattr(worker, request["do"])(**request["with"])
                text = value if isinstance(value, Text) else json.dumps(value)
                reply = f'{{"value": {text}}}'
            except Exception as error:
                # Whatever went wrong belongs to this request; the next one may be right.
                reply = json.dumps({"error": f"{type(error).__name__}: {error}"})
            out.write(reply + "\n")
            out.flush()


if __name__ == "__main__":
    replies = os.dup(1)
    os.dup2(2, 1)  # Java prints on standard output, which is for replies
    serve(replies)
