"""Baselines of every table: one search without an agent, and a language model without a search."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from soundingline.agents.base import Agent, Episode, search_tool_of
from soundingline.agents.chat import ChatAgent
from soundingline.toolkit.corpus.resolve import AMBIGUOUS, UNRESOLVED, Resolver
from soundingline.toolkit.data import Topic, parent
from soundingline.toolkit.errors import check_int
from soundingline.toolkit.search.answers import format_answer, list_part
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.trajectory import Answer

MOST_MATCHES = 3  # documents that one line can stand for


@dataclass(kw_only=True, eq=False, repr=False)
class OneShotAgent(Agent):
    """Searches for the question as it is, and lists the ranking: what a pipeline reaches without an
    agent.

    Passages count as their documents. The ranking is as deep as the interface ranks. The agent asks
    no language model, but a stage of the pipeline, such as a re-ranker, may. A search that the tool
    refuses, such as one of more than 10,000 characters, ends in an empty list and the status
    `steered` with the reason `no_answer`.

    Args:
        listed: the number of documents in the list.

    Example:
        >>> asyncio.run(OneShotAgent(listed=10).run(topic, tool)).answer.documents
        ('d1',)
    """

    name = "one_shot"

    listed: int = 50

    def __post_init__(self) -> None:
        check_int("listed", self.listed)

    def check_tool(self, tool: SearchTool) -> None:
        """See `Agent`: one of the tools must take a query."""
        search_tool_of(tool)

    async def work(self, episode: Episode) -> None:
        """Answer one question with a list of documents."""
        # In a thread, because a stage of the pipeline may wait for a language model.
        question = episode.topic.text
        result = await asyncio.to_thread(episode.search, question, "The question as it stands.")
        if result is None:
            episode.conclude("", status="steered", reason="no_answer")
            return
        documents = list(dict.fromkeys(map(parent, result.call.ranking)))[: self.listed]
        episode.finish(format_answer("The ranking of one search.", "", None, (), documents))


@dataclass(kw_only=True, eq=False, repr=False)
class ClosedBookAgent(ChatAgent):
    """A `ChatAgent`, with its arguments, but without tools: the model answers by what it knows.

    The session refuses any call, and after three turns with calls the question ends as `steered`
    with the reason `no_answer`. The model sees no document, so that every citation in its answer is
    invented and counts in `citations_invented`.

    With a prompt that asks for a list of documents (`closed_book_list`), the lines of the list are
    titles, urls or identifiers in the model's own words, which the run's resolver maps to documents
    (`RunResources.resolver`; without one, nothing is listed). See `resolve_listed_titles`.

    Example:
        >>> agent = ClosedBookAgent()
        >>> bound = agent.bind(RunResources(Budget(turns=1), model=model))  # doctest: +SKIP
        >>> asyncio.run(bound.run(topic, tool))  # doctest: +SKIP
    """

    name = "closed_book"
    calls_tools = False
    offers_tools = False

    prompt: str = "closed_book"

    def open(self, topic: Topic, tool: SearchTool) -> Episode:
        """See `Agent`: refuses all calls."""
        tool.block(self.texts.sections["blocked"])
        return super().open(topic, tool)

    def parse_answer(self, tool: SearchTool, text: str) -> Answer:
        """See `Agent`: with the documents that the lines of the answer's list name."""
        answer, listed, resolver = tool.answer(text), list_part(text), self.resources.resolver
        if not (listed and resolver and self.texts.asks_for_list):
            return answer
        return replace(answer, documents=resolve_listed_titles(listed, resolver()))


def resolve_listed_titles(listed: str, resolver: Resolver, most: int = 1000) -> Sequence[str]:
    """The documents that the first `most` lines name, each once, in the order of the lines.

    A line that matches up to `MOST_MATCHES` documents, such as those of one title, stands for all
    of them, and each takes a place in the list. A line that matches more is listed as
    `ambiguous:<number of the line>`, which counts as wrong but not as hallucinated, because the
    corpus has what it names. A line that matches no document is listed as
    `unresolved:<number of the line>`, which counts as both. Lines that say that there are none
    (`none`, `N/A`) are left out.
    """
    lines = [line for line in listed.splitlines() if any(map(str.isalnum, line))]
    if len(lines) == 1 and lines[0].strip().strip(".").casefold() in ("none", "n/a"):
        return ()
    resolutions = resolver.resolve_lines("\n".join(lines[:most]))
    documents: dict[str, None] = {}
    for number, resolution in enumerate(resolutions, start=1):
        if resolution.docid:
            matches: Sequence[str] = [resolution.docid]
        elif len(resolution.candidates) > MOST_MATCHES:
            matches = [f"{AMBIGUOUS}{number}"]
        else:
            matches = resolution.candidates or [f"{UNRESOLVED}{number}"]
        documents.update(dict.fromkeys(matches))
    return tuple(documents)
