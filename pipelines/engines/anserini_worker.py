"""The process that holds the Java virtual machine. It is run as a file and never imported.

It reads one JSON request a line from standard input and writes one JSON reply a line to standard
output, and ends when its input ends. It is a process of its own because a machine can be neither
stopped nor started again with another jar or heap, does not survive a fork, and prints on standard
output. PyTerrier's machine would also download Terrier's jars from Maven Central at each start.

Arguments: the jar, then options of the machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

FIELD = "contents"
_SEARCH = "org.apache.lucene.search."
# Properties that Java leaves out when it writes a hit as JSON.
_HIT, _IGNORED = "io.anserini.search.ScoredDoc", ("lucene_document", "lucene_docid")


class Json(str):
    """A result that is JSON already."""


class Worker:
    """Its methods are the requests; it holds at most one index writer and one searcher."""

    def __init__(self, java: Callable[[str], Any], find: Callable[[str], Any]) -> None:
        self.java = java
        self.term = java("org.apache.lucene.index.Term")
        # Java turns a batch of rankings into text: 60,000 hits in one call, not in 120,000.
        self.mapper = java("com.fasterxml.jackson.databind.ObjectMapper")()
        self.leave_out(find(_HIT), _IGNORED)

    def leave_out(self, kind: Any, properties: Iterable[str]) -> None:
        """Leave properties of a class out of its JSON."""
        ignored = self.java("java.util.HashSet")()
        for name in properties:
            ignored.add(name)
        values = self.java("com.fasterxml.jackson.annotation.JsonIgnoreProperties$Value")
        self.mapper.configOverride(kind).setIgnorals(values.forIgnoredProperties(ignored))

    def create(self, arguments: list[str]) -> None:
        self.indexer = self.java("io.anserini.index.SimpleIndexer")(arguments)

    def add(self, documents: list[str]) -> int:
        return int(self.indexer.addRawDocuments(documents))

    def finish(self) -> None:
        self.indexer.close(True)

    def open(self, path: str) -> int:
        self.searcher = self.java("io.anserini.search.SimpleSearcher")(path)
        folder = self.java("java.nio.file.Paths").get(path)
        directory = self.java("org.apache.lucene.store.FSDirectory").open(folder)
        self.reader = self.java("org.apache.lucene.index.DirectoryReader").open(directory)
        return int(self.reader.numDocs())

    def frequency(self, term: str) -> int:
        return int(self.reader.docFreq(self.term(FIELD, term)))

    def search(self, queries: list[Any], depth: int, model: dict[str, Any]) -> Json:
        """JSON of a dict: a query's place in the list -> its hits. The queries are all text, or
        all weights by index term. Places without a hit may be absent."""
        if "mu" in model:
            self.searcher.set_qld(model["mu"])
        else:
            self.searcher.set_bm25(model["k1"], model["b"])
        if "rm3" in model:
            self.searcher.set_rm3(*model["rm3"])
        else:
            self.searcher.unset_rm3()
        if isinstance(queries[0], dict):
            rankings = [self.searcher.search(self._weighted(query), depth) for query in queries]
            rows = [f'"{n}": {self.mapper.writeValueAsString(h)}' for n, h in enumerate(rankings)]
            return Json("{" + ", ".join(rows) + "}")
        # No ranking passes through Python, which would take twice the time.
        texts, numbers = self.java("java.util.ArrayList")(), self.java("java.util.ArrayList")()
        for number, query in enumerate(queries):
            texts.add(query)
            numbers.add(str(number))
        hits = self.searcher.batch_search(texts, numbers, depth, 1)
        return Json(self.mapper.writeValueAsString(hits))

    def _weighted(self, query: dict[str, float]) -> Any:
        boolean = self.java(f"{_SEARCH}BooleanQuery$Builder")()
        should = self.java(f"{_SEARCH}BooleanClause$Occur").SHOULD
        for name, weight in query.items():
            one = self.java(f"{_SEARCH}TermQuery")(self.term(FIELD, name))
            boolean.add(self.java(f"{_SEARCH}BoostQuery")(one, weight), should)
        return boolean.build()


def answer_requests(replies: int) -> None:
    import jnius_config

    jnius_config.set_classpath(sys.argv[1])
    jnius_config.add_options(*sys.argv[2:])
    from jnius import autoclass, find_javaclass

    worker = Worker(autoclass, find_javaclass)
    with os.fdopen(replies, "w", encoding="utf-8") as out:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                value = getattr(worker, request["do"])(**request["with"])
                text = value if isinstance(value, Json) else json.dumps(value)
                reply = f'{{"value": {text}}}'
            except Exception as error:
                # A failed request must not end the process: the next one may succeed.
                reply = json.dumps({"error": f"{type(error).__name__}: {error}"})
            out.write(reply + "\n")
            out.flush()


if __name__ == "__main__":
    replies = os.dup(1)
    os.dup2(2, 1)  # Java prints on standard output, which is for replies
    answer_requests(replies)
