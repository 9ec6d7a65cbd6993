# %% [markdown]
# # A re-ranker of one's own
# A re-ranker is a class with one method, `score`, whose base class batches concurrent requests.
# Arguments are fields of a dataclass. `RerankTop` adds the texts of the best `depth` results (all
# by default) and re-ranks them.

# %%
from dataclasses import dataclass

import pandas as pd
import pyterrier as pt
from ir_measures import RR, nDCG

from soundingline.pipelines import LexicalIndex, RerankTop, Scorer


@dataclass(kw_only=True, eq=False, repr=False)
class Nearness(Scorer):
    """Prefers texts in which the words of the query are near the beginning."""

    weight: float = 1.0

    def score(self, queries, texts):
        pairs = zip(queries, texts, strict=True)
        return [self.weight * nearness(query.split(), text.split()) for query, text in pairs]


def nearness(query, text):
    return sum(1 / (1 + text.index(word)) for word in query if word in text)


# %%
documents = pd.DataFrame(
    {
        "docno": ["d1", "d2", "d3"],
        "text": [
            "the mill is in the old harbour town",
            "harbour town by the sea with a long quay and many boats that carry salt and wool",
            "tide tables of the harbour of Brel",
        ],
    }
)
index = LexicalIndex.build(documents, "examples-index", overwrite=True)
pipeline = index.bm25() >> RerankTop(Nearness(weight=2.0), depth=10, texts=index.texts)
pipeline.search("harbour town")

# %% [markdown]
# PyTerrier evaluates it next to the retriever alone, and `LexicalIndex("examples-index")` opens
# the index again.

# %%
topics = pd.DataFrame({"qid": ["1", "2"], "query": ["harbour town", "tide Brel"]})
qrels = pd.DataFrame({"qid": ["1", "2"], "docno": ["d2", "d3"], "label": [1, 1]})
systems = {"bm25": LexicalIndex("examples-index").bm25(), "nearness": pipeline}
measures = [RR, nDCG @ 10]
table = pt.Experiment(list(systems.values()), topics, qrels, measures, names=list(systems))
table
