# %% [markdown]
# # Training a re-ranker
# A cross-encoder learns from the judgements of a benchmark: the examples are the best candidates
# that a pipeline ranks for each question. It is measured on the questions of another split.
# The environment variable `START` names a checkpoint to start from: a cross-encoder, or any
# encoder, which gets a new classifier. For monoT5, set `KIND = "monot5"` and start from
# `castorini/monot5-base-msmarco`, at a rate of 1e-4.

# %%
import os
from pathlib import Path

import pandas as pd

from soundingline.experiments import Experiment, compare
from soundingline.experiments.fitting import Example, fit, load, save_checkpoint
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.data import parent

KIND = "cross_encoder"
START = os.environ.get("START", "cross-encoder/ms-marco-MiniLM-L6-v2")
FOLDER = Path("models/fictional")
DEPTH = 20
WORLD = ["benchmark=fictional", "benchmark.documents=64", "benchmark.questions=24", "unit=maxp"]
WORLD += ["benchmark.hops=1", "benchmark.median_words=60", "benchmark.p90_words=200"]

# %% [markdown]
# The candidates of the questions to learn from, and whether each is relevant.

# %%
built = Experiment.compose(*WORLD, "benchmark.split=dev").built
judged = built.benchmark.qrels["evidence"]
topics = [topic for topic in built.benchmark.topics if judged.get(topic.qid)]
questions = pd.DataFrame([{"qid": topic.qid, "query": topic.text} for topic in topics])
ranked = built.pipeline(questions).sort_values(["qid", "rank"])
candidates = ranked.groupby("qid", sort=False).head(DEPTH)
examples = [
    Example(Pair(query, unit.contents), judged[qid].get(parent(docno), 0) > 0)
    for qid, query, docno in candidates[["qid", "query", "docno"]].values
    for unit in built.collection.store.texts([docno])
]

# %% [markdown]
# Training is that of transformers (AdamW, a constant rate), on the first GPU if there is one.

# %%
network, tokenizer = load(KIND, START)
losses = fit(KIND, network, tokenizer, examples, steps=20, batch=8, rate=5e-5)
save_checkpoint(FOLDER, network, tokenizer)

# %% [markdown]
# A re-ranker that was trained on few questions can be worse than none.

# %%
HELD = [*WORLD, "benchmark.split=test"]
TRAINED = [f"reranker={KIND}", f"reranker.model={FOLDER}", f"reranker.depth={DEPTH}"]
runs = [Experiment.compose(*HELD, "name=untrained").rank()]
runs += [Experiment.compose(*HELD, *TRAINED, "name=trained").rank()]
compare(runs, ["nDCG@10"]).to_frame()
