# %% [markdown]
# # A re-ranker of one's own
# A re-ranker is a class with one method, `score`. The base class re-ranks the best `depth`
# results (all by default), finds their texts and batches concurrent requests. Arguments are
# fields of a dataclass.

# %%
from dataclasses import dataclass

import pandas as pd
import pyterrier as pt
from ir_measures import RR, nDCG

from soundingline.pipelines import LexicalIndex, Reranker


@dataclass(kw_only=True, eq=False, repr=False)
class Nearness(Reranker):
    """Prefers texts in which the words of the query are near the beginning."""

    weight: float = 1.0

    def score(self, pairs):
        return [self.weight * nearness(pair.query.split(), pair.text.split()) for pair in pairs]


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
index = LexicalIndex.build(documents, "examples-index")
pipeline = index.bm25() >> Nearness(depth=10, weight=2.0)
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
