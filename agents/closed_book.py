"""The floor of every table: what the model answers from what it knows, without a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from soundingline.agents.base import RunResources, run_episode
from soundingline.agents.chat import ChatAgent
from soundingline.toolkit.corpus.resolve import AMBIGUOUS, UNRESOLVED, Resolution, Resolver
from soundingline.toolkit.data import Topic
from soundingline.toolkit.search.answers import list_part
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.trajectory import Answer, Trajectory

MOST_MEANT = 3  # documents that one line can stand for


class ClosedBookAgent(ChatAgent):
    """A `ChatAgent` that is given no tool, and whose session refuses any call all the same.

    It is shown no document, so that every citation in its answer is invented, and counts in
    `citations_invented`. After three turns with calls it ends as `steered`, reason `no_answer`.

    With a prompt that asks for a list of documents (`closed_book_list`), the lines of that list are
    titles, urls or identifiers in the model's own words, which the run's resolver maps to documents
    (`RunResources.resolver`; without one, nothing is listed). See `recalled`.
    """

    name = "closed_book"
    calls_tools = False

    def __init__(
        self,
        *,
        prompt: str = "closed_book",
        answer_extra: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(prompt=prompt, answer_extra=answer_extra, **options)
        self._resolver: Callable[[], Resolver] | None = None

    def bind(self, resources: RunResources) -> ClosedBookAgent:
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
        return await run_episode(topic, session, self._work, opening=opening, clock=self._clock)


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

    A line that up to `MOST_MEANT` documents could be meant by, such as those of one title, stands
    for all of them: nobody can be asked which, and each takes a place in the list. One that more
    could be meant by keeps its place as `ambiguous:<number of the line>`, which counts as wrong,
    and not as hallucinated, because the corpus has what it names. A line that means no document of
    the corpus keeps it as `unresolved:<number of the line>`, which counts as both. Lines that say
    that there are none (`none`, `N/A`) are left out.
    """
    lines = [line for line in listed.splitlines() if any(map(str.isalnum, line))]
    if len(lines) == 1 and lines[0].strip().strip(".").casefold() in ("none", "n/a"):
        return ()
    resolutions = resolver.resolve_lines("\n".join(lines[:most]))
    documents: dict[str, None] = {}
    for number, resolution in enumerate(resolutions, start=1):
        documents.update(dict.fromkeys(_meant(resolution, number)))
    return tuple(documents)


def _meant(resolution: Resolution, number: int) -> Sequence[str]:
    """What stands in the list for the line of that number."""
    if resolution.docid:
        return [resolution.docid]
    if len(resolution.candidates) > MOST_MEANT:
        return [f"{AMBIGUOUS}{number}"]
    return resolution.candidates or [f"{UNRESOLVED}{number}"]
