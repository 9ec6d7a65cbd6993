"""The process of `anserini_worker` with one request more: rankings by Lucene's own searcher, with
the scores that Anserini's `SimpleSearcher` would round. It is run as a file."""

import base64
import json
import os

from soundingline.pipelines.engines import anserini_worker
from soundingline.pipelines.engines.anserini_worker import _SEARCH, FIELD, Worker


class LuceneWorker(Worker):
    def __init__(self, java, find):
        super().__init__(java, find)
        self.leave_out(find(f"{_SEARCH}FieldDoc"), ("doc", "score", "shardIndex"))

    def lucene(self, queries, depth, model):
        """Docids and scores of each query, in the order of score and docid."""
        searcher = self.java(f"{_SEARCH}IndexSearcher")(self.reader.getContext())
        name = "LMDirichletSimilarity" if "mu" in model else "BM25Similarity"
        searcher.setSimilarity(self.java(f"{_SEARCH}similarities.{name}")(*model.values()))
        analyzer = self.java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
        generator = self.java("io.anserini.search.query.BagOfWordsQueryGenerator")()
        order = self.java("io.anserini.search.SearchCollection").BREAK_SCORE_TIES_BY_DOCID
        rankings = []
        for query in queries:
            hits = searcher.search(generator.buildQuery(FIELD, analyzer, query), depth, order, True)
            written = json.loads(self.mapper.writeValueAsString(hits))
            fields = [hit["fields"] for hit in written["scoreDocs"]]
            # A text is Lucene's `BytesRef`: a part of a buffer, which is in base64.
            spans = [slice(text["offset"], text["offset"] + text["length"]) for _, text in fields]
            texts = [base64.b64decode(text["bytes"]) for _, text in fields]
            docids = [text[span].decode() for text, span in zip(texts, spans, strict=True)]
            rankings.append((docids, [score for score, _ in fields]))
        return rankings


if __name__ == "__main__":
    anserini_worker.Worker = LuceneWorker
    replies = os.dup(1)
    os.dup2(2, 1)  # Java prints on standard output, which is for replies
    anserini_worker.answer_requests(replies)
