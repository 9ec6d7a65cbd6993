"""One search, whose ranking is the answer: what a pipeline reaches without an agent around it."""

from __future__ import annotations

import asyncio
import time

from soundingline.agents.base import Agent, Clock, Episode, run_episode, search_tool_of
from soundingline.toolkit.data import Topic, parent
from soundingline.toolkit.errors import check_int
from soundingline.toolkit.search.answers import format_answer
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.trajectory import Trajectory


class OneShotAgent(Agent):
    """Searches for the question as it stands, and lists the first `listed` documents of the ranking
    (passages count as their documents), which is as deep as the interface ranks. It asks no model
    of its own; a stage of the pipeline, such as a re-ranker, may.

    A search that the tool refuses, as it does one of more than 10,000 characters, ends in an empty
    list and the status `steered`, reason `no_answer`.
    """

    name = "one_shot"

    def __init__(self, *, listed: int = 50, clock: Clock = time.monotonic) -> None:
        check_int("listed", listed)
        self.listed = listed
        self._clock = clock

    def check_tool(self, tool: SearchTool) -> None:
        """See `Agent`: one of them must take a query."""
        search_tool_of(tool)

    async def run(self, topic: Topic, tool: SearchTool) -> Trajectory:
        """Answer one question with a list of documents."""
        return await run_episode(topic, tool, self._work, clock=self._clock)

    async def _work(self, episode: Episode) -> None:
        # In a thread: a stage of the pipeline may wait for a language model.
        question = episode.topic.text
        result = await asyncio.to_thread(episode.search, question, "The question as it stands.")
        if result is None:
            episode.conclude("", status="steered", reason="no_answer")
            return
        documents = list(dict.fromkeys(map(parent, result.call.ranking)))[: self.listed]
        episode.finish(format_answer("The ranking of one search.", "", None, (), documents))
