"""The floor of every table: what the model answers from what it knows, without a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from agents.base import Resources, play
from agents.chat import ChatAgent
from toolkit.contracts import Answer, SearchTool, Topic, Trajectory
from toolkit.corpus.resolve import Resolver
from toolkit.search.answers import list_part

UNRESOLVED = "unresolved:"


class ClosedBookAgent(ChatAgent):
    """A `ChatAgent` that is given no tool, and whose session refuses any call all the same.

    It is shown no document, so that every citation in its answer is invented, and counts in
    `citations_invented`. After three turns with calls it ends as `steered`, reason `no_answer`.

    With a prompt that asks for a list of documents (`closed_book_list`), the lines of that list are
    titles, urls or identifiers in the model's own words, which the run's resolver maps to documents
    (`Resources.resolver`; without one, nothing is listed). See `recalled`.
    """

    name = "closed_book"

    def __init__(
        self,
        *,
        prompt: str = "closed_book",
        answer_extra: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> None:
        super().__init__(prompt=prompt, answer_extra=answer_extra, **given)
        self._resolver: Callable[[], Resolver] | None = None

    def bind(self, resources: Resources) -> ClosedBookAgent:
        """See `ChatAgent`; the resolver besides."""
        bound = cast(ClosedBookAgent, super().bind(resources))
        bound._resolver = resources.resolver
        return bound

    async def run(self, topic: Topic, tool: SearchTool) -> Trajectory:
        """See `ChatAgent`."""
        prompt = self._setup.prompt
        tool.block(prompt.sections["blocked"])
        resolver = self._resolver if prompt.asks_for_list else None
        session = cast(SearchTool, _NoTools(tool, resolver))
        opening = prompt.opening(topic.text)
        return await play(topic, session, self._work, opening=opening, clock=self._clock)


class _NoTools:
    """A session of which the model is told nothing, and which reads a list by a resolver."""

    def __init__(self, session: SearchTool, resolver: Callable[[], Resolver] | None) -> None:
        self._session = session
        self._resolver = resolver

    def specs(self) -> list[dict[str, Any]]:
        return []

    def answer(self, text: str) -> Answer:
        answer = self._session.answer(text)
        listed = list_part(text)
        if not listed or self._resolver is None:
            return answer
        return replace(answer, documents=recalled(listed, self._resolver()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def recalled(listed: str, resolver: Resolver, most: int = 1000) -> Sequence[str]:
    """The documents that the first `most` lines mean, each once, in their order.

    A line that means no document of the corpus, or that several could be meant by, keeps its place
    as `unresolved:<number of the line>`: an id that the corpus lacks, so that it counts as wrong
    and as hallucinated. Lines that say that there are none (`none`, `N/A`) are left out.
    """
    lines = [line for line in listed.splitlines() if any(map(str.isalnum, line))]
    if len(lines) == 1 and lines[0].strip().strip(".").casefold() in ("none", "n/a"):
        return ()
    resolutions = resolver.resolve_lines("\n".join(lines[:most]))
    return tuple(
        dict.fromkeys(
            one.docid or f"{UNRESOLVED}{number}" for number, one in enumerate(resolutions, start=1)
        )
    )
