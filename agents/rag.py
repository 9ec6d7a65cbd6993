"""Retrieval-augmented generation: one search, one reading, one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from soundingline.agents.base import search_tool_of
from soundingline.agents.chat import ChatAgent, Conversation
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.llm.errors import ContextOverflow, Truncated
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.search.tool import DocumentPage, ResultsPage, ToolResult

QUERIES_BY = ("question", "model")
_LIMIT = "limit"
_MOST_SERVED = 4  # of one reading, each shorter than the one before
_SEARCHES = "The question as it stands."
_READS = "It is among the first of the ranking."


@dataclass(kw_only=True, eq=False, repr=False)
class RagAgent(ChatAgent):
    """One search, one reading of the first units, and an answer with citations (Lewis et al., 2020,
    arXiv 2005.11401): the standard baseline of agents that search.

    Search and reading are calls of the session's tool, which are recorded like those of any other
    agent, so that all measures apply. A tool whose search shows complete texts (`tool=top_k`) reads
    nothing more. A search that finds nothing leaves the question to what the model knows.

    Args:
        query: `question` searches for the question as it is; `model` for a query that the model
            writes in one request more. If that reply has no usable search, the question is used.
        units: the number of units that are read, from the first of the ranking.
        tokens: the most tokens of all that is read, as the tool counts them. A unit may take what
            is left, divided by the number of units left. Of a longer text its beginning is read,
            from the line where a passage begins, where the tool can limit the lines; else the unit
            is left out.

    See `ChatAgent` for the other arguments; `first_call` has no effect.

    Raises:
        InputError: for values out of range, and for a tool without a search.

    Example:
        >>> agent = RagAgent(units=3, tokens=2000)
        >>> asyncio.run(agent.run(topic, tool))  # doctest: +SKIP
    """

    name = "rag"

    prompt: str = "rag"
    query: str = "question"
    units: int = 3
    tokens: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.query not in QUERIES_BY:
            raise InputError(f"agent.query is {self.query!r}", valid=", ".join(QUERIES_BY))
        check_int("agent.units", self.units)
        check_int("agent.tokens", self.tokens)

    def check_tool(self, tool: SearchTool) -> None:
        """See `Agent`: one of the tools must take a query."""
        super().check_tool(tool)
        search_tool_of(tool)

    async def _converse(self, conversation: Conversation) -> None:
        episode = conversation.episode
        found = await self._search_by_model(conversation) if self.query == "model" else None
        if found is None:
            found = await conversation.with_deadline(
                asyncio.to_thread(episode.search, episode.topic.text, _SEARCHES)
            )
        if found is not None and not _shows_texts(found):
            reading = asyncio.to_thread(self._read, episode.tool, found.call.ranking)
            for result in await conversation.with_deadline(reading):
                episode.record(result, _READS)
        conversation.answer_only()
        await super()._converse(conversation)

    async def _search_by_model(self, conversation: Conversation) -> ToolResult | None:
        """The result of the search that the model calls; None without one."""
        search, _ = search_tool_of(conversation.episode.tool)
        try:
            turn = await conversation.ask(forced_tool=search)
        except (Truncated, ContextOverflow):
            return None
        results = await conversation.call_tools(turn)
        searches = (each for each in results if isinstance(each.page, ResultsPage))
        return next(searches, None)

    def _read(self, tool: SearchTool, ranking: Sequence[str]) -> list[ToolResult]:
        """The readings of the first units, which are not recorded yet."""
        readings: list[ToolResult] = []
        left, units = self.tokens, ranking[: self.units]
        for number, unit_id in enumerate(units):
            reading = _reading(tool, unit_id, left // (len(units) - number))
            if reading is not None:
                readings.append(reading)
                left -= reading.call.tokens
        return readings


def _shows_texts(result: ToolResult) -> bool:
    page = result.page
    return isinstance(page, ResultsPage) and any(hit.text for hit in page.hits)


def _reading(tool: SearchTool, unit_id: str, tokens: int) -> ToolResult | None:
    """A unit, read from where the tool begins, in at most so many tokens; None if that cannot be,
    or if the tool refuses."""
    if tool.read_tool is None:
        return None
    name, argument = tool.read_tool
    taken = tool.arguments(name)
    arguments: dict[str, Any] = {"reason": _READS} if "reason" in taken else {}
    arguments[argument] = unit_id
    for _ in range(_MOST_SERVED):
        result = tool.serve(name, arguments)
        page = result.page
        if not isinstance(page, DocumentPage):
            return None
        if result.call.tokens <= tokens:
            return result
        shown = len(page.lines)
        if _LIMIT not in taken or shown == 1:
            return None
        # The lines of a text differ in length, so that the estimate may have to be repeated.
        lines = shown * tokens // result.call.tokens
        arguments = {**arguments, _LIMIT: max(1, min(lines, shown - 1))}
    return None
