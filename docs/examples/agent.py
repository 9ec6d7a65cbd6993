# %% [markdown]
# # An agent of one's own
# An agent is a class with a method `work`. The episode records what it searches and reads, and an
# exception makes a failed trajectory. A call returns None if the tool refuses it.

# %%
from pathlib import Path

from soundingline.agents import Agent
from soundingline.experiments import Experiment, compare


class FirstWords(Agent):
    """Searches for the first words of the question, opens the best hits, and cites them."""

    name = "first_words"

    def __init__(self, words: int = 8, opened: int = 2):
        self.words, self.opened = words, opened

    async def work(self, episode):
        query = " ".join(episode.topic.text.split()[: self.words])
        result = episode.search(query, "The question begins with these words.")
        hits = result.page.hits[: self.opened] if result and result.page else ()
        for hit in hits:
            episode.read(hit.unit_id, "It may hold the answer.")
        cited = " ".join(f"[{hit.docid}]" for hit in hits)
        episode.finish(f"Explanation: {cited}\nExact Answer: unknown\nConfidence: 1%")


# %% [markdown]
# An option of your own names the class. In a module, `_target_` is
# `my_package.my_module.FirstWords`.

# %%
option = Path("my-options/agent/first_words.yaml")
option.parent.mkdir(parents=True, exist_ok=True)
option.write_text("# The first words of a question.\n_target_: __main__.FirstWords\nopened: 2\n")
WORLD = ["benchmark=fictional", "benchmark.documents=64", "benchmark.questions=12"]
WORLD += ["benchmark.hops=1", "benchmark.median_words=60", "benchmark.p90_words=200"]
runs = [
    Experiment.compose(*WORLD, *agent, f"name={name}", config_dir="my-options").run()
    for name, agent in {
        "keyword": [],
        "two": ["agent=first_words"],
        "five": ["agent=first_words", "agent.opened=5"],
    }.items()
]
compared = compare(runs, ["recall_opened"])
compared
