# %% [markdown]
# # An ablation in a notebook
# Which part of a pipeline matters to an agent? Each run changes one thing of the first, and
# `compare` tests the differences over the same questions. The world is generated, and small
# enough to run in seconds.

# %%
from soundingline.experiments import Experiment, compare
from soundingline.toolkit.report import ReportData, render

WORLD = ["benchmark=fictional", "benchmark.documents=64", "benchmark.questions=12"]
WORLD += ["benchmark.hops=1", "benchmark.median_words=60", "benchmark.p90_words=200"]
CHANGES = {
    "passages": [],
    "documents": ["unit=document"],
    "tuned": ["retriever=bm25_tuned"],
}
experiments = {
    name: Experiment.compose(*WORLD, "unit=maxp", *change, f"name=ablation-{name}")
    for name, change in CHANGES.items()
}

# %% [markdown]
# The agent without a language model answers the questions. A run that was interrupted continues.

# %%
runs = [experiment.run() for experiment in experiments.values()]
runs[0]

# %%
compared = compare(runs, ["accuracy", "recall_opened"], baseline="ablation-passages")
compared

# %% [markdown]
# Frames hold the same numbers. Values by question show where the runs differ.

# %%
table = compared.to_frame().pivot(index="a", columns="measure", values="difference")
opened = {run.name: run.to_frame(per_question=True)["recall_opened"] for run in runs}

# %% [markdown]
# So do the tables of a report, by the name of their section.

# %%
results = render(ReportData(runs, compared)).tables["results"][0].to_frame()
