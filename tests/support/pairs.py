"""Pairs of a query and a text, as scorers take them, a scorer of them, and scores of rankings."""

from soundingline.pipelines.rerank.reranker import RerankTop, Scorer


class Lengths(Scorer):
    """Scores a text by its length."""

    def score(self, queries, texts):
        return [float(len(text)) for text in texts]


def by_length(index, **arguments):
    return RerankTop(Lengths(), texts=index.texts, **arguments)


def sides(pairs):
    """The queries, and the texts."""
    return [pair.query for pair in pairs], [pair.text for pair in pairs]


def scored(frame):
    """The score of each document of each query."""
    keys = zip(frame["qid"], frame["docno"], strict=True)
    return dict(zip(keys, frame["score"].astype(float), strict=True))
